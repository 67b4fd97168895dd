/* residuals.c - offsets and sizes of what rounding leaves of gradients. */
#include "plan/layout/residuals.h"

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/formats/quantised_sum.h"
#include "plan/layout/state_layout.h"

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

/* Elements of what the rank passes on of the segments before `seg`; NULL: of all. */
static int64_t of_passed(const ms_model *model, int unit, const ms_segment *seg, int inner_shards) {
  const ms_unit *u = &model->unit[unit];
  const int passes = ms_unit_quantises_shards(model, unit) && inner_shards > 1;
  int64_t n = 0;
  for (int s = 0; passes && s < u->segments && &u->segment[s] != seg; s++)
    if (!u->segment[s].frozen) n += ms_pieces_each(u->config.shard_dtype, u->segment[s].chunk).elements;
  return n * (ms_model_shards(model) / inner_shards);
}

static int64_t before_passed(const ms_model *model, int unit) {
  return of_shards(model, unit) + of_chunks(model, unit) + of_sums(model, unit, NULL);
}

int64_t ms_residuals_bytes(const ms_model *model, int unit, int inner_shards) {
  const int64_t elements = before_passed(model, unit) + of_passed(model, unit, NULL, inner_shards);
  if (!model->unit[unit].config.error_feedback || !elements) return 0;
  return 4 * (elements + model->unit[unit].segments);
}

int ms_residuals_are_added(const ms_plan *plan, int unit, const ms_segment *seg, int *added) {
  const ms_unit *u = &plan->model->unit[unit];
  int with = 0, without = -1;
  for (int i = seg->first_param; i < seg->first_param + seg->params; i++) {
    with += plan->has_gradient[u->order[i]];
    if (!plan->has_gradient[u->order[i]]) without = u->order[i];
  }
  *added = u->config.error_feedback && with;
  if (!*added || without < 0) return MS_OK;
  return MS_FAIL(MS_EUNSUPPORTED,
                 "unit %s: with error_feedback, parameters that are reduced together all need a gradient in a step, or "
                 "none: '%s' has none: give it a unit of its own, use layout rows, or leave error_feedback out",
                 u->name, plan->model->param[without].name);
}

int64_t ms_residuals_of_shards(const ms_segment *seg) { return 4 * (seg->reduce / ms_dtype_size(seg->reduce_dtype)); }

int64_t ms_residuals_of_chunk(const ms_model *model, int unit, const ms_segment *seg) {
  return 4 * (of_shards(model, unit) + seg->local);
}

int64_t ms_residuals_of_sum(const ms_model *model, int unit, const ms_segment *seg) {
  return 4 * (of_shards(model, unit) + of_chunks(model, unit) + of_sums(model, unit, seg));
}

int64_t ms_residuals_of_passed(const ms_model *model, int unit, const ms_segment *seg, int inner_shards) {
  return 4 * (before_passed(model, unit) + of_passed(model, unit, seg, inner_shards));
}

int64_t ms_residuals_of_divisor(const ms_plan *plan, int unit, const ms_segment *seg) {
  const int inner = plan->layout->inner_shards;
  return ms_residuals_of_passed(plan->model, unit, NULL, inner) + 4 * (seg - plan->model->unit[unit].segment);
}
