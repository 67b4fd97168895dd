/* rests.c - offsets and sizes of what rounding leaves of gradients. */
#include "plan/rests.h"

#include "kernels/quantised_sum.h"

static int64_t of_shards(const ms_model *model, int unit) {
  const ms_unit *u = &model->unit[unit];
  return ms_unit_quantises_shards(model, unit) ? u->reduce_bytes / ms_dtype_size(u->config.reduce_dtype) : 0;
}

static int64_t of_chunks(const ms_model *model, int unit) {
  return ms_unit_is_quantised(model, unit) ? model->unit[unit].trainable_count : 0;
}

static int64_t piece(const ms_model *model, int unit, const ms_segment *seg) {
  return ms_pieces_of(model->unit[unit].config.replicate_dtype, seg->chunk, ms_model_replicas(model)).elements;
}

/* Elements of the sums of the segments before `seg`; NULL: of all. */
static int64_t of_sums(const ms_model *model, int unit, const ms_segment *seg) {
  const ms_unit *u = &model->unit[unit];
  int64_t n = 0;
  for (int s = 0; ms_unit_is_quantised(model, unit) && s < u->segments && &u->segment[s] != seg; s++)
    if (!u->segment[s].frozen) n += piece(model, unit, &u->segment[s]);
  return n;
}

int64_t ms_rests_bytes(const ms_model *model, int unit) {
  if (!model->unit[unit].config.error_feedback) return 0;
  return 4 * (of_shards(model, unit) + of_chunks(model, unit) + of_sums(model, unit, NULL));
}

int64_t ms_rests_of_shards(const ms_segment *seg) { return 4 * (seg->reduce / ms_dtype_size(seg->reduce_dtype)); }

int64_t ms_rests_of_chunk(const ms_model *model, int unit, const ms_segment *seg) {
  return 4 * (of_shards(model, unit) + seg->local);
}

int64_t ms_rests_of_sum(const ms_model *model, int unit, const ms_segment *seg) {
  return 4 * (of_shards(model, unit) + of_chunks(model, unit) + of_sums(model, unit, seg));
}
