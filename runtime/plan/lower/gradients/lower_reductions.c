/* lower_reductions.c - reduces a unit's gradients once the last one is written: sums over the shards, the replicas
 * and the nodes, as far as the phase requires. The result goes to the state's chunk, or to a buffer that waits for
 * the last micro-batch.
 */
#include "base/numbers/dtype.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/lower.h"

/* The elements of a unit's chunks for which this rank holds the sums over its node. */
static int64_t own_slice(const ms_lowering *l, int unit, int64_t *first) {
  return ms_unit_node_slice(l->model, &l->model->unit[unit], l->plan->layout->replicas, first);
}

static int is_sliced(const ms_lowering *l, int unit) {
  return ms_unit_is_sliced(l->model, &l->model->unit[unit], l->plan->layout->replicas);
}

/* Limits a part to the elements of a segment inside the slice; the destination buffer starts at element `first`. */
static void cut_to_slice(const ms_segment *seg, int64_t first, int64_t n, ms_plan_part *part) {
  const int dtype = part->dst.info.dtype;
  int64_t begin = first > seg->local ? first : seg->local, end = seg->local + seg->chunk;
  if (first + n < end) end = first + n;
  if (end < begin) end = begin = first;
  part->first = end > begin ? begin - seg->local : 0;
  part->dst = ms_ref_vector(part->dst.buffer, ms_dtype_size(dtype) * (begin - first), dtype, end - begin);
}

/* Fills l->part with one part per trainable segment; returns their number. */
static int reduce_parts(ms_lowering *l, int unit, const ms_gradients *from, const ms_gradients *to, int accumulate) {
  const ms_unit *u = &l->model->unit[unit];
  int parts = 0;
  int64_t first, n = own_slice(l, unit, &first);
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    int64_t whole = from->chunked ? seg->chunk : seg->chunk * ms_unit_shards(u);
    l->part[parts++] =
        (ms_plan_part){.count = seg->chunk,
                       .src.buffer = -1,
                       .shared = ms_ref_vector(from->buffer, ms_gradients_offset(from, seg), from->dtype, whole),
                       .dst = ms_ref_vector(to->buffer, ms_gradients_offset(to, seg), to->dtype, seg->chunk),
                       .accumulate = accumulate};
    if (to->sliced) cut_to_slice(seg, first, n, &l->part[parts - 1]);
  }
  return parts;
}

/* Keeps the buffer that peers read until the next collective in this dimension starts, so that compute does not wait
 * for this one immediately. The cost is one more buffer. */
static int send(ms_lowering *l, int unit, int stream, int kind, int dim, int ranks, int parts) {
  MS_TRY(ms_plan_collective(l->plan, l->phase, stream, kind, dim, ranks, unit, parts, l->part));
  ms_plan_touch(l->plan, l->sending[dim], l->plan->phase[l->phase].n - 1);
  l->sending[dim] = l->part[0].shared.buffer;
  return MS_OK;
}

/* Accumulates elements [begin, end) of a segment from the reduce buffer. */
static int accumulate_range(ms_lowering *l, int unit, const ms_segment *seg, const ms_gradients *to, int64_t begin,
                            int64_t end) {
  if (end <= begin) return MS_OK;
  int64_t from = seg->reduce + begin * ms_dtype_size(seg->reduce_dtype);
  ms_ref in = ms_ref_vector(l->reduce[unit], from, seg->reduce_dtype, end - begin);
  ms_ref out =
      ms_ref_vector(to->buffer, ms_gradients_offset(to, seg) + begin * ms_dtype_size(to->dtype), MS_F32, end - begin);
  ms_op_attrs attrs = {.add = l->phase != MS_PHASE_FIRST};
  return ms_plan_kernel(l->plan, l->phase, MS_OP_accumulate, &attrs, 1, &in, 1, &out, l->model->unit[unit].name, 1);
}

/* Skips the gradients that their matrix products have already added, and the padding after the last such gradient. */
static int accumulate_segment(ms_lowering *l, int unit, const ms_segment *seg, const ms_gradients *to) {
  const ms_unit *u = &l->model->unit[unit];
  int64_t begin = 0, end = seg->chunk * ms_unit_shards(u);
  for (int i = seg->first_param; i < seg->first_param + seg->params; i++) {
    const ms_param *p = &l->model->param[u->order[i]];
    int grad = l->graph->param_grads[u->order[i]];
    if (grad < 0 || !l->added[l->root[grad]]) continue;
    MS_TRY(accumulate_range(l, unit, seg, to, begin, p->offset));
    begin = p->offset + p->numel;
    if (i == seg->first_param + seg->params - 1) end = begin;
  }
  return accumulate_range(l, unit, seg, to, begin, end);
}

/* Without other ranks: adds this micro-batch's gradients to the earlier ones, or stores them if they are the first. */
static int accumulate_local(ms_lowering *l, int unit, const ms_gradients *to) {
  const ms_unit *u = &l->model->unit[unit];
  for (int s = 0; s < u->segments; s++)
    if (!u->segment[s].frozen) MS_TRY(accumulate_segment(l, unit, &u->segment[s], to));
  return MS_OK;
}

/* The replicas that share one copy of a unit's state. */
static int sharers_of(const ms_lowering *l, int unit) {
  return ms_unit_sharers(l->model, &l->model->unit[unit], l->plan->layout->replicas);
}

/* 1 when one collective sums over shards and replicas: the replicas read the same buffers anyway. */
static int reduces_at_once(const ms_lowering *l, int unit) {
  return ms_model_shards(l->model) > 1 && ms_lower_sync(l, unit) != MS_SYNC_SHARD && sharers_of(l, unit) > 1 &&
         !ms_unit_is_quantised(l->model, unit) && !ms_unit_quantises_shards(l->model, unit);
}

static int sums_between_nodes(const ms_lowering *l, int unit) {
  return sharers_of(l, unit) > 1 && sharers_of(l, unit) < ms_model_replicas(l->model);
}

static ms_gradients state_gradients(int unit) {
  return (ms_gradients){.buffer = ms_state_buffer(unit, MS_SLOT_GRADIENT), .dtype = MS_F32, .chunked = 1, .sliced = 1};
}

/* Creates a buffer for chunks, or slices of them, between two sums. */
static int open_chunks(ms_lowering *l, int unit, int dtype, int sliced, ms_gradients *to) {
  const ms_unit *u = &l->model->unit[unit];
  const int64_t n = sliced ? ms_unit_node_slice_capacity(l->model, u, l->plan->layout->replicas)
                           : ms_unit_chunk_capacity(l->model, u, l->plan->layout->replicas);
  *to = (ms_gradients){.dtype = dtype, .chunked = 1, .sliced = sliced};
  return ms_plan_buffer(l->plan, l->phase, MS_ARENA_COMM, MS_CAT_COMMUNICATION, n * ms_dtype_size(dtype), u->name,
                        &to->buffer);
}

/* Chooses the destination of the sums over a node's ranks: the state, or a buffer for the sum over the nodes. */
static int open_node_sums(ms_lowering *l, int unit, int dtype, ms_gradients *to, int *accumulate) {
  *to = state_gradients(unit);
  if (!sums_between_nodes(l, unit)) return MS_OK;
  *accumulate = 0;
  return open_chunks(l, unit, dtype, 1, to);
}

/* Sums over the shards into chunks, of a unit that is whole into all of it: those of the state, or with replicas a
 * buffer for the next sum. */
static int reduce_over_shards(ms_lowering *l, int unit, const ms_gradients *from, ms_gradients *to) {
  const ms_unit *u = &l->model->unit[unit];
  int accumulate = !ms_lower_defers_unsharded(l, unit) && l->phase != MS_PHASE_FIRST;
  *to = state_gradients(unit);
  if (reduces_at_once(l, unit)) {
    MS_TRY(open_node_sums(l, unit, from->dtype, to, &accumulate));
  } else if (ms_unit_replicas(l->model, unit) > 1 && ms_lower_sync(l, unit) == MS_SYNC_SHARD) {
    to->sliced = 0;
    MS_TRY(
        ms_lower_deferred_buffer(l, unit, ms_unit_chunk_capacity(l->model, u, l->plan->layout->replicas), &to->buffer));
  } else if (ms_unit_replicas(l->model, unit) > 1) {
    accumulate = 0;
    const int whole = ms_unit_is_quantised(l->model, unit) || ms_unit_quantises_shards(l->model, unit);
    MS_TRY(open_chunks(l, unit, whole ? MS_F32 : from->dtype, 0, to));
  }
  if (ms_unit_quantises_shards(l->model, unit)) return ms_lower_send_to_shards(l, unit, from, to, accumulate);
  int parts = reduce_parts(l, unit, from, to, accumulate);
  const int kind = ms_unit_is_whole(l->model, u) ? MS_COLL_ALL_REDUCE : MS_COLL_REDUCE_SCATTER;
  MS_TRY(send(l, unit, MS_STREAM_REDUCE, kind, MS_DIM_SHARD, 0, parts));
  return reduces_at_once(l, unit) ? ms_plan_take_replicas(l->plan, l->phase) : MS_OK;
}

/* Sums over the replicas that share the state; where each has its own copy, over all replicas. */
static int reduce_over_replicas(ms_lowering *l, int unit, const ms_gradients *from, ms_gradients *to) {
  int accumulate = ms_lower_sync(l, unit) == MS_SYNC_EVERY && l->phase != MS_PHASE_FIRST;
  MS_TRY(open_node_sums(l, unit, from->dtype, to, &accumulate));
  int parts = reduce_parts(l, unit, from, to, accumulate), together = sharers_of(l, unit);
  MS_TRY(send(l, unit, MS_STREAM_REPLICATE, MS_COLL_ALL_REDUCE, MS_DIM_REPLICATE, together > 1 ? together : 0, parts));
  if (together == 1) return MS_OK;
  ms_plan_slice_sum(l->plan, l->phase);
  return MS_OK;
}

/* Sums this rank's slice over the nodes. Its peers have the same one, so they send equal amounts. */
static int reduce_between_nodes(ms_lowering *l, int unit, const ms_gradients *from) {
  const ms_gradients to = state_gradients(unit);
  const int parts =
      reduce_parts(l, unit, from, &to, ms_lower_sync(l, unit) == MS_SYNC_EVERY && l->phase != MS_PHASE_FIRST);
  for (int i = 0; i < parts; i++) {
    ms_plan_part *part = &l->part[i];
    const int64_t element = part->dst.offset / ms_dtype_size(to.dtype);
    part->count = ms_numel(&part->dst.info);
    part->shared = ms_ref_vector(from->buffer, element * ms_dtype_size(from->dtype), from->dtype, part->count);
    part->first = 0;
  }
  return ms_plan_between_copies(l->plan, l->phase, MS_COLL_ALL_REDUCE, unit, parts, l->part);
}

/* Takes chunks with the sums over the shards through the sums over the replicas that the phase requires. */
static int reduce_chunks(ms_lowering *l, int unit, const ms_gradients *from) {
  const int adds = ms_lower_sync(l, unit) == MS_SYNC_EVERY && l->phase != MS_PHASE_FIRST;
  const int waits_for_replicas = ms_lower_sync(l, unit) == MS_SYNC_SHARD && l->phase != MS_PHASE_LAST;
  ms_gradients at = *from, sums;
  if (ms_unit_replicas(l->model, unit) == 1 || waits_for_replicas) return MS_OK;
  if (ms_unit_is_quantised(l->model, unit)) return ms_lower_quantised(l, unit, &at);
  if (!reduces_at_once(l, unit) && !(is_sliced(l, unit) && l->plan->layout->replicas == 1)) {
    MS_TRY(reduce_over_replicas(l, unit, &at, &sums));
    at = sums;
  }
  if (is_sliced(l, unit)) return ms_lower_scatter_slices(l, unit, &at, adds);
  return sums_between_nodes(l, unit) ? reduce_between_nodes(l, unit, &at) : MS_OK;
}

/* Takes a unit's gradients of this micro-batch from this rank's buffer through all sums that the phase requires, or as
 * far as the first one in few bits. */
static int reduce_unit(ms_lowering *l, int unit) {
  const ms_model *model = l->model;
  const ms_unit *u = &model->unit[unit];
  if (ms_lower_writes_state(l, unit)) return MS_OK;
  ms_gradients at = {.buffer = l->reduce[unit], .dtype = u->config.reduce_dtype}, sums;
  if (!ms_lower_communicates(l, unit)) {
    sums = state_gradients(unit);
    return accumulate_local(l, unit, &sums);
  }
  if (ms_lower_defers_unsharded(l, unit)) {
    at.dtype = MS_F32;
    MS_TRY(ms_lower_deferred_buffer(l, unit, ms_lower_reduce_elements(l, u), &at.buffer));
    if (!ms_lower_writes_deferred(l, unit)) MS_TRY(accumulate_local(l, unit, &at));
    if (l->phase != MS_PHASE_LAST) return MS_OK;
  }
  if (ms_model_shards(model) > 1) {
    MS_TRY(reduce_over_shards(l, unit, &at, &sums));
    if (ms_unit_quantises_shards(model, unit)) return MS_OK;
    at = sums;
  }
  return reduce_chunks(l, unit, &at);
}

/* Completes a sum over the shards in few bits, and begins what follows. */
static int finish_shards(ms_lowering *l, ms_quantised *q) {
  q->step = MS_QUANTISED_DONE;
  MS_TRY(ms_lower_total_of_shards(l, q));
  MS_TRY(reduce_chunks(l, q->unit, &q->from));
  return ms_unit_is_quantised(l->model, q->unit) ? MS_OK : ms_lower_zero_between_segments(l, q->unit);
}

/* The latest first: its bytes are under way while compute waits for those of an earlier one. */
int ms_lower_advance_quantised(ms_lowering *l) {
  for (int i = l->quantised_started - 1; i >= l->quantised_begun; i--) {
    ms_quantised *q = &l->quantised[i];
    if (q->step == MS_QUANTISED_DONE) continue;
    if (q->step == MS_QUANTISED_PASS_ON) MS_TRY(ms_lower_pass_on(l, q));
    else MS_TRY(q->step == MS_QUANTISED_TOTAL ? finish_shards(l, q) : ms_lower_step_quantised(l, q));
  }
  while (l->quantised_begun < l->quantised_started && l->quantised[l->quantised_begun].step == MS_QUANTISED_DONE)
    l->quantised_begun++;
  return MS_OK;
}

int ms_lower_reduce_completed(ms_lowering *l, int node) {
  if (!l->ends[node]) return MS_OK;
  for (int u = 0; u < l->model->units; u++)
    if (l->use[u].gradient_last == node) {
      MS_TRY(reduce_unit(l, u));
      if (!ms_unit_is_quantised(l->model, u) && !ms_unit_quantises_shards(l->model, u))
        MS_TRY(ms_lower_zero_between_segments(l, u));
      MS_TRY(ms_lower_advance_quantised(l));
    }
  return MS_OK;
}
