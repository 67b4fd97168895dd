/* replica_slices.c - how replicas divide a unit's chunks, and where the masters and weights of a sliced unit are. */
#include "plan/layout/replica_slices.h"

#include "base/numbers/dtype.h"
#include "base/slice.h"

int ms_replica_copies(const ms_model *model, int replicas) { return ms_model_replicas(model) / replicas; }

int ms_unit_sharers(const ms_model *model, const ms_unit *unit, int replicas) {
  return ms_unit_is_whole(model, unit) ? 1 : replicas;
}

int ms_unit_is_sliced(const ms_model *model, const ms_unit *unit, int replicas) {
  return unit->config.shard_over_replicate && unit->trainable_count && ms_replica_copies(model, replicas) > 1;
}

int ms_param_is_sliced(const ms_model *model, const ms_param *p, int replicas) {
  return !p->config.frozen && ms_unit_is_sliced(model, &model->unit[p->unit], replicas);
}

int ms_unit_chunk_dtype(const ms_unit *unit) {
  for (int s = 0; s < unit->segments && !unit->segment[s].frozen; s++)
    if (unit->segment[s].wire != unit->segment[0].wire || ms_segment_is_coded(&unit->segment[s]) ||
        unit->segment[s].blocks)
      return MS_F32;
  return unit->segment[0].wire;
}

int ms_unit_has_weights(const ms_model *model, const ms_unit *unit, int replicas) {
  return ms_unit_is_sliced(model, unit, replicas) && ms_unit_chunk_dtype(unit) != MS_F32;
}

/* ---- slices ---- */

/* Elements [first, first + n) as far as the unit has them. */
static int64_t clip(const ms_unit *unit, int64_t n, int64_t *first) {
  if (*first > unit->trainable_count) *first = unit->trainable_count;
  return unit->trainable_count - *first < n ? unit->trainable_count - *first : n;
}

int64_t ms_unit_slice_capacity(const ms_model *model, const ms_unit *unit, int replicas) {
  const int sharers = ms_unit_sharers(model, unit, replicas);
  const int all = ms_unit_is_sliced(model, unit, replicas) ? ms_model_replicas(model) : sharers;
  return ms_slice_longest(unit->trainable_count, all);
}

int64_t ms_unit_node_slice_capacity(const ms_model *model, const ms_unit *unit, int replicas) {
  const int copies = ms_unit_is_sliced(model, unit, replicas) ? ms_replica_copies(model, replicas) : 1;
  return copies * ms_unit_slice_capacity(model, unit, replicas);
}

static int64_t node_slice_of(const ms_model *model, const ms_unit *unit, int replicas, int place, int64_t *first) {
  const int64_t room = ms_unit_node_slice_capacity(model, unit, replicas);
  *first = place % ms_unit_sharers(model, unit, replicas) * room;
  return clip(unit, room, first);
}

int64_t ms_unit_node_slice(const ms_model *model, const ms_unit *unit, int replicas, int64_t *first) {
  return node_slice_of(model, unit, replicas, model->dim[MS_DIM_REPLICATE].place, first);
}

int64_t ms_unit_slice_of(const ms_model *model, const ms_unit *unit, int replicas, int place, int64_t *first) {
  if (!ms_unit_is_sliced(model, unit, replicas)) return node_slice_of(model, unit, replicas, place, first);
  const int index = place % replicas * ms_replica_copies(model, replicas);
  const int64_t room = ms_unit_slice_capacity(model, unit, replicas);
  *first = (index + place / replicas) * room;
  return clip(unit, room, first);
}

int64_t ms_unit_slice(const ms_model *model, const ms_unit *unit, int replicas, int64_t *first) {
  return ms_unit_slice_of(model, unit, replicas, model->dim[MS_DIM_REPLICATE].place, first);
}

int64_t ms_param_slice(const ms_model *model, const ms_param *p, int replicas, int64_t *first, int64_t *place) {
  int64_t begin, n = ms_unit_slice(model, &model->unit[p->unit], replicas, &begin), end = p->local + p->owned;
  const int64_t from = p->local > begin ? p->local : begin;
  if (begin + n < end) end = begin + n;
  *place = end > from ? from - begin : 0;
  *first = end > from ? p->first + from - p->local : p->first;
  return end > from ? end - from : 0;
}

int64_t ms_unit_chunk_capacity(const ms_model *model, const ms_unit *unit, int replicas) {
  if (!ms_unit_is_sliced(model, unit, replicas)) return unit->trainable_count;
  return ms_model_replicas(model) * ms_unit_slice_capacity(model, unit, replicas);
}

/* ---- masters and weights ---- */

/* Elements between the start of chunks that have room for all slices and element `local`. */
static int64_t element(const ms_model *model, const ms_unit *unit, int replicas, int64_t local) {
  if (local < unit->trainable_count) return local;
  return ms_unit_chunk_capacity(model, unit, replicas) + local - unit->trainable_count;
}

int64_t ms_master_offset(const ms_model *model, const ms_unit *unit, int replicas, int shared, int s, int64_t local) {
  const ms_segment *seg = &unit->segment[s];
  int64_t first;
  if (shared) return seg->gathered + 4 * (model->dim[MS_DIM_SHARD].place * seg->chunk + local - seg->local);
  if (!ms_unit_has_weights(model, unit, replicas)) return 4 * element(model, unit, replicas, local);
  ms_unit_slice(model, unit, replicas, &first);
  return 4 * (local - first);
}

int ms_segment_has_weights(const ms_model *model, const ms_unit *unit, int replicas, int s) {
  if (ms_unit_is_sliced(model, unit, replicas)) return ms_unit_has_weights(model, unit, replicas);
  return unit->segment[s].copy >= 0;
}

/* In chunks that have room for all slices; frozen elements follow, in f32. */
static int64_t chunk_offset(const ms_model *model, const ms_unit *unit, int replicas, int64_t local, int *dtype) {
  const int chunks = ms_unit_chunk_dtype(unit), size = ms_dtype_size(chunks);
  *dtype = local < unit->trainable_count ? chunks : MS_F32;
  if (local < unit->trainable_count) return size * local;
  return size * ms_unit_chunk_capacity(model, unit, replicas) + 4 * (local - unit->trainable_count);
}

int64_t ms_weights_offset(const ms_model *model, const ms_unit *unit, int replicas, int s, int64_t local, int *dtype) {
  const ms_segment *seg = &unit->segment[s];
  if (ms_unit_has_weights(model, unit, replicas)) return chunk_offset(model, unit, replicas, local, dtype);
  *dtype = seg->wire;
  return seg->copy + ms_dtype_size(seg->wire) * (local - seg->local);
}

int64_t ms_unit_master_bytes(const ms_model *model, const ms_unit *unit, int replicas) {
  if (ms_unit_has_weights(model, unit, replicas)) return 4 * ms_unit_slice_capacity(model, unit, replicas);
  return 4 * element(model, unit, replicas, unit->master_count);
}

int64_t ms_unit_weights_bytes(const ms_model *model, const ms_unit *unit, int replicas) {
  int dtype;
  if (ms_unit_has_weights(model, unit, replicas))
    return chunk_offset(model, unit, replicas, unit->master_count, &dtype);
  return ms_unit_is_sliced(model, unit, replicas) ? 0 : unit->copy_bytes;
}
