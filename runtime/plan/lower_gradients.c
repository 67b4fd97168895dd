/* lower_gradients.c - where a unit's gradients are written, and what becomes of them once the last one is there.
**
** With other ranks they are written to a buffer that peers read, reduced over the shards, then over the replicas, into the
** state's chunk; at once over both where replicas work together (ms_replicas_together), of which each has the sums of the slice
** that it updates. Where they do so on several nodes, slices are then summed between the nodes. Alone they are written to the chunk itself, or added to it where an earlier micro-batch came before.
**
** Gradients may wait for the last micro-batch (enum ms_sync): unsharded ones in an f32 copy of the reduce buffer, or the
** sums over the shards in an f32 copy of the chunk. Only the last phase then goes the rest of the way, in f32.
*/
#include <stdlib.h>

#include "plan/lower.h"

static int communicates(const ms_lowering *l) { return l->model->shard_size > 1 || l->model->replicate_size > 1; }

/* What the configured enum ms_sync means on this mesh: without replicas nothing is left to wait for after the shards, and
** without shards the replicas are all that there is. */
static int sync_of(const ms_lowering *l) {
  int sync = l->plan->config.sync;
  if (!communicates(l)) return MS_SYNC_EVERY;
  if (sync == MS_SYNC_SHARD && l->model->replicate_size == 1) return MS_SYNC_EVERY;
  return sync == MS_SYNC_SHARD && l->model->shard_size == 1 ? MS_SYNC_LAST : sync;
}

/* Unsharded gradients of this plan wait for the last micro-batch. */
static int defers_unsharded(const ms_lowering *l) { return sync_of(l) == MS_SYNC_LAST; }

/* Gradients are written where they wait: nothing is there yet, and it is f32 too. */
static int writes_deferred(const ms_lowering *l, int unit) {
  return defers_unsharded(l) && l->phase == MS_PHASE_FIRST && l->model->unit[unit].config.reduce_dtype == MS_F32;
}

/* The unit's buffer of what waits for the last micro-batch, made in the first. */
static int deferred_buffer(ms_lowering *l, int unit, int64_t elements, int *buffer) {
  int *deferred = &l->plan->deferred_gradients[unit];
  if (*deferred < 0)
    MS_TRY(ms_plan_buffer(l->plan, -1, MS_ARENA_COMM, MS_CAT_COMMUNICATION, 4 * elements, l->model->unit[unit].name,
                          deferred));
  *buffer = *deferred;
  return MS_OK;
}

/* Elements of a unit's reduce buffer. */
static int64_t reduce_elements(const ms_unit *u) { return u->reduce_bytes / ms_dtype_size(u->config.reduce_dtype); }

/* Gradients go straight to the state's gradient chunk where nobody else adds to it. */
static int writes_state_gradient(const ms_lowering *l, int unit) {
  return !communicates(l) && l->phase == MS_PHASE_FIRST && l->model->unit[unit].config.reduce_dtype == MS_F32;
}

static int fill_zero(ms_lowering *l, int buffer, int64_t offset, int dtype, int64_t n, const char *scope) {
  if (n <= 0) return MS_OK;
  ms_ref out = ms_ref_vector(buffer, offset, dtype, n);
  ms_attrs attrs = {.i = {n, 1, 1, 1, 1, 1, 1, 1 + dtype}};
  return ms_plan_kernel(l->plan, l->phase, MS_OP_fill, &attrs, 0, NULL, 1, &out, scope, 1);
}

/* What no gradient kernel writes must be zero: padding, and parameters that the loss does not reach. */
static int zero_rest(ms_lowering *l, int unit) {
  const ms_unit *u = &l->model->unit[unit];
  int to_state = writes_state_gradient(l, unit);
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    int size = ms_dtype_size(seg->reduce_dtype);
    int64_t base = to_state ? 4 * seg->local : seg->reduce, end = 0;
    for (int i = seg->first_param; i < seg->first_param + seg->params; i++) {
      const ms_param *p = &l->model->param[u->order[i]];
      MS_TRY(fill_zero(l, l->reduce[unit], base + end * size, seg->reduce_dtype, p->offset - end, u->name));
      end = p->offset + p->numel;
      if (l->graph->param_grads[u->order[i]] < 0)
        MS_TRY(fill_zero(l, l->reduce[unit], base + p->offset * size, seg->reduce_dtype, p->numel, u->name));
    }
    int64_t whole = seg->chunk * l->model->shard_size;
    MS_TRY(fill_zero(l, l->reduce[unit], base + end * size, seg->reduce_dtype, whole - end, u->name));
  }
  return MS_OK;
}

/* Where a sum over ranks is read or written: whole reduce buffers, or chunks, in one dtype. */
typedef struct gradients {
  int buffer, dtype, chunked;
  int sliced; /* of chunks, this rank's slice alone */
} gradients;

static int64_t place_in(const gradients *g, const ms_segment *seg) {
  int64_t element = g->chunked ? seg->local : seg->reduce / ms_dtype_size(seg->reduce_dtype);
  return element * ms_dtype_size(g->dtype);
}

/* 1 when this phase adds a unit's gradients, in f32, to those of earlier micro-batches, without other ranks; *to is where. */
static int adds_alone(ms_lowering *l, int unit, gradients *to) {
  if (l->phase == MS_PHASE_FIRST || l->model->unit[unit].config.reduce_dtype != MS_F32) return 0;
  *to = (gradients){.buffer = ms_state_buffer(unit, MS_STATE_GRADIENT), .dtype = MS_F32, .chunked = 1};
  if (defers_unsharded(l)) *to = (gradients){.buffer = l->plan->deferred_gradients[unit], .dtype = MS_F32};
  return to->buffer >= 0 && (!communicates(l) || defers_unsharded(l));
}

/* 1 when the product that computes a gradient can add it itself: on CUDA, whose library does that in the same pass. */
static int product_adds(const ms_lowering *l, int grad) {
  const ms_value *value = &l->graph->values[l->root[grad]];
  if (l->plan->config.device != MS_DEVICE_CUDA || value->kind != MS_VALUE_NODE || l->read[l->root[grad]]) return 0;
  const ms_node *maker = &l->graph->nodes[value->node];
  return maker->op == MS_OP_matmul && maker->inputs == 2 && maker->attrs.i[2] == MS_ACT_NONE;
}

/* The gradient of a parameter in its buffer, or added in place. */
static void place_gradient(ms_lowering *l, int unit, int param, int to_state) {
  const ms_param *p = &l->model->param[param];
  const ms_segment *seg = &l->model->unit[unit].segment[p->segment];
  int root = l->root[l->graph->param_grads[param]];
  int64_t base = to_state ? 4 * seg->local : seg->reduce;
  gradients to;
  l->at[root] = (ms_place){l->reduce[unit], base + p->offset * ms_dtype_size(seg->reduce_dtype)};
  if (!adds_alone(l, unit, &to) || !product_adds(l, l->graph->param_grads[param])) return;
  l->added[root] = 1;
  l->at[root] = (ms_place){to.buffer, place_in(&to, seg) + 4 * p->offset};
}

/* The summand of a gradient of a weight that is used more than once which is made first, when the sum may be written over
** it and nobody reads it later; -1 otherwise. */
int ms_lower_first_summand(const ms_lowering *l, int value) {
  const ms_graph *g = l->graph;
  int maker = g->values[value].node, first = -1;
  if (maker < 0 || (g->nodes[maker].op != MS_OP_add && g->nodes[maker].op != MS_OP_embedding_backward)) return -1;
  const ms_value_info *sum = &g->values[value].info;
  const ms_kernel *kernel = ms_device_kernel(l->plan->config.device, g->nodes[maker].op);
  for (int i = 0; i < g->nodes[maker].inputs; i++) {
    int in = l->root[g->nodes[maker].in[i]];
    const ms_value *v = &g->values[in];
    if (v->kind != MS_VALUE_NODE || l->last_use[in] != maker || !(kernel->in_place & MS_OVER(0, i))) continue;
    if (v->info.dtype != sum->dtype || ms_numel(&v->info) != ms_numel(sum)) continue;
    if (first < 0 || v->node < g->values[first].node) first = in;
  }
  return first;
}

/* The first of a parameter's gradients is made where the sum will be. A further one that is not added as it is made is as large
** as the parameter, and lives at the end of backward, when what is communicated leaves room: it is packed with that. */
static int place_summands(ms_lowering *l, int sum, int peers_read) {
  const ms_place at = l->at[sum];
  for (int first = ms_lower_first_summand(l, sum); first >= 0 && l->at[first].buffer < 0;
       first = ms_lower_first_summand(l, sum)) {
    const ms_node *maker = &l->graph->nodes[l->graph->values[sum].node];
    int other = l->root[maker->in[l->root[maker->in[0]] == first]];
    const ms_value *value = &l->graph->values[other];
    l->at[first] = at;
    if (maker->op == MS_OP_add && peers_read && value->kind == MS_VALUE_NODE && l->at[other].buffer < 0)
      MS_TRY(ms_plan_buffer(l->plan, l->phase, MS_ARENA_COMM, MS_CAT_COMMUNICATION,
                            ms_numel(&value->info) * ms_dtype_size(value->info.dtype),
                            ms_op_row_of(l->graph->nodes[value->node].op)->name, &l->at[other].buffer));
    sum = first;
  }
  return MS_OK;
}

/* Before the first gradient of a unit is written: its reduce buffer, with every gradient's place in it. */
static int open_gradients(ms_lowering *l, int unit) {
  const ms_unit *u = &l->model->unit[unit];
  int to_state = writes_state_gradient(l, unit);
  int peers_read = communicates(l) && !defers_unsharded(l);
  if (to_state) {
    l->reduce[unit] = ms_state_buffer(unit, MS_STATE_GRADIENT);
  } else if (writes_deferred(l, unit)) {
    MS_TRY(deferred_buffer(l, unit, reduce_elements(u), &l->reduce[unit]));
  } else {
    MS_TRY(ms_plan_buffer(l->plan, l->phase, peers_read ? MS_ARENA_COMM : MS_ARENA_ACTIVATIONS,
                          peers_read ? MS_CAT_COMMUNICATION : MS_CAT_ACTIVATIONS, u->reduce_bytes, u->name,
                          &l->reduce[unit]));
  }
  for (int i = 0; i < u->params; i++) {
    int grad = l->graph->param_grads[u->order[i]];
    if (grad < 0) continue;
    place_gradient(l, unit, u->order[i], to_state);
    MS_TRY(place_summands(l, l->root[grad], peers_read));
  }
  return zero_rest(l, unit);
}

/* Opens the gradients of every unit that has one among the node's outputs. */
int ms_lower_open_gradients_of(ms_lowering *l, int node, const int *grad_unit) {
  const ms_node *n = &l->graph->nodes[node];
  for (int o = 0; o < n->outputs; o++) {
    int unit = grad_unit[n->out[o]];
    if (unit >= 0 && l->reduce[unit] < 0) MS_TRY(open_gradients(l, unit));
  }
  return MS_OK;
}

/* The elements of a unit's chunks whose sums over all ranks this rank has. */
static int64_t own_slice(const ms_lowering *l, int unit, int64_t *first) {
  return ms_unit_slice(l->model, &l->model->unit[unit], l->plan->replicas, first);
}

/* What of a segment's sum lies in the slice goes to where slices begin at 0. */
static void cut_to_slice(const ms_segment *seg, int64_t first, int64_t n, ms_plan_part *part) {
  const int dtype = part->dst.info.dtype;
  int64_t begin = first > seg->local ? first : seg->local, end = seg->local + seg->chunk;
  if (first + n < end) end = first + n;
  if (end < begin) end = begin = first;
  part->first = begin - seg->local;
  part->dst = ms_ref_vector(part->dst.buffer, ms_dtype_size(dtype) * (begin - first), dtype, end - begin);
}

/* One part a trainable segment, in l->part. */
static int reduce_parts(ms_lowering *l, int unit, const gradients *from, const gradients *to, int accumulate) {
  const ms_unit *u = &l->model->unit[unit];
  int parts = 0;
  int64_t first, n = own_slice(l, unit, &first);
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    int64_t whole = from->chunked ? seg->chunk : seg->chunk * l->model->shard_size;
    l->part[parts++] = (ms_plan_part){.count = seg->chunk,
                                      .src.buffer = -1,
                                      .shared = ms_ref_vector(from->buffer, place_in(from, seg), from->dtype, whole),
                                      .dst = ms_ref_vector(to->buffer, place_in(to, seg), to->dtype, seg->chunk),
                                      .accumulate = accumulate};
    if (to->sliced) cut_to_slice(seg, first, n, &l->part[parts - 1]);
  }
  return parts;
}

/* A buffer that peers read is kept until the next collective of its kind starts, so that compute never waits for it at
** once: the price is one more buffer. */
static int send(ms_lowering *l, int unit, int stream, int kind, int dim, int parts) {
  MS_TRY(ms_plan_collective(l->plan, l->phase, stream, kind, dim, 0, unit, parts, l->part));
  ms_plan_touch(l->plan, l->sending[dim], l->plan->phase[l->phase].n - 1);
  l->sending[dim] = l->part[0].shared.buffer;
  return MS_OK;
}

/* Elements [begin, end) of a segment from the reduce buffer. */
static int accumulate_range(ms_lowering *l, int unit, const ms_segment *seg, const gradients *to, int64_t begin,
                            int64_t end) {
  if (end <= begin) return MS_OK;
  int64_t from = seg->reduce + begin * ms_dtype_size(seg->reduce_dtype);
  ms_ref in = ms_ref_vector(l->reduce[unit], from, seg->reduce_dtype, end - begin);
  ms_ref out = ms_ref_vector(to->buffer, place_in(to, seg) + begin * ms_dtype_size(to->dtype), MS_F32, end - begin);
  ms_attrs attrs = {.i = {l->phase != MS_PHASE_FIRST}};
  return ms_plan_kernel(l->plan, l->phase, MS_OP_accumulate, &attrs, 1, &in, 1, &out, l->model->unit[unit].name, 1);
}

/* What products have added themselves is left out, and padding that only follows such gradients. */
static int accumulate_segment(ms_lowering *l, int unit, const ms_segment *seg, const gradients *to) {
  const ms_unit *u = &l->model->unit[unit];
  int64_t begin = 0, end = seg->chunk * l->model->shard_size;
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

/* Adds this micro-batch's gradients to those that are there, or puts the first ones there, without other ranks. */
static int accumulate_local(ms_lowering *l, int unit, const gradients *to) {
  const ms_unit *u = &l->model->unit[unit];
  for (int s = 0; s < u->segments; s++)
    if (!u->segment[s].frozen) MS_TRY(accumulate_segment(l, unit, &u->segment[s], to));
  return MS_OK;
}

/* The sums over the shards are sums over the replicas as well: these would only add up what each reads anyway. */
static int reduces_at_once(const ms_lowering *l) {
  return l->model->shard_size > 1 && sync_of(l) != MS_SYNC_SHARD && l->plan->replicas > 1;
}

static int sums_between_nodes(const ms_lowering *l) {
  return l->plan->replicas > 1 && l->plan->replicas < l->model->replicate_size;
}

static gradients state_gradients(int unit) {
  return (gradients){.buffer = ms_state_buffer(unit, MS_STATE_GRADIENT), .dtype = MS_F32, .chunked = 1, .sliced = 1};
}

/* Chunks, or slices of them, on the way from one sum to the next. */
static int open_chunks(ms_lowering *l, int unit, int dtype, int sliced, gradients *to) {
  const ms_unit *u = &l->model->unit[unit];
  const int64_t n = sliced ? ms_unit_slice_room(u, l->plan->replicas) : u->trainable_count;
  *to = (gradients){.dtype = dtype, .chunked = 1, .sliced = sliced};
  return ms_plan_buffer(l->plan, l->phase, MS_ARENA_COMM, MS_CAT_COMMUNICATION, n * ms_dtype_size(dtype), u->name,
                        &to->buffer);
}

/* Where the sums over a node's ranks go: to the state, or on the way to the other nodes. */
static int open_node_sums(ms_lowering *l, int unit, int dtype, gradients *to, int *accumulate) {
  *to = state_gradients(unit);
  if (!sums_between_nodes(l)) return MS_OK;
  *accumulate = 0;
  return open_chunks(l, unit, dtype, 1, to);
}

/* Over the shards into chunks: the state's own, or with replicas a buffer on the way to them. */
static int reduce_over_shards(ms_lowering *l, int unit, const gradients *from, gradients *to) {
  const ms_unit *u = &l->model->unit[unit];
  int accumulate = !defers_unsharded(l) && l->phase != MS_PHASE_FIRST;
  *to = state_gradients(unit);
  if (reduces_at_once(l)) {
    MS_TRY(open_node_sums(l, unit, from->dtype, to, &accumulate));
  } else if (l->model->replicate_size > 1 && sync_of(l) == MS_SYNC_SHARD) {
    to->sliced = 0;
    MS_TRY(deferred_buffer(l, unit, u->trainable_count, &to->buffer));
  } else if (l->model->replicate_size > 1) {
    accumulate = 0;
    MS_TRY(open_chunks(l, unit, from->dtype, 0, to));
  }
  int parts = reduce_parts(l, unit, from, to, accumulate);
  MS_TRY(send(l, unit, MS_STREAM_REDUCE, MS_COLL_REDUCE_SCATTER, MS_DIM_SHARD, parts));
  return reduces_at_once(l) ? ms_plan_take_replicas(l->plan, l->phase) : MS_OK;
}

/* Over the replicas that share the state, or where each has its own over all. */
static int reduce_over_replicas(ms_lowering *l, int unit, const gradients *from, gradients *to) {
  int accumulate = sync_of(l) == MS_SYNC_EVERY && l->phase != MS_PHASE_FIRST;
  MS_TRY(open_node_sums(l, unit, from->dtype, to, &accumulate));
  int parts = reduce_parts(l, unit, from, to, accumulate);
  MS_TRY(send(l, unit, MS_STREAM_REPLICATE, MS_COLL_ALL_REDUCE, MS_DIM_REPLICATE, parts));
  if (l->plan->replicas == 1) return MS_OK;
  ms_plan_slice_sum(l->plan, l->phase);
  return MS_OK;
}

/* A slice's sums over the nodes. Its room is the same on all ranks, which have to agree on what they send. */
static int reduce_between_nodes(ms_lowering *l, int unit, const gradients *from) {
  int64_t first, n = own_slice(l, unit, &first);
  ms_plan_part part = {.count = ms_unit_slice_room(&l->model->unit[unit], l->plan->replicas),
                       .src.buffer = -1,
                       .shared = ms_ref_vector(from->buffer, 0, from->dtype, n),
                       .dst = ms_ref_vector(ms_state_buffer(unit, MS_STATE_GRADIENT), 0, MS_F32, n),
                       .accumulate = sync_of(l) == MS_SYNC_EVERY && l->phase != MS_PHASE_FIRST};
  return ms_plan_sum_between_nodes(l->plan, l->phase, unit, &part);
}

/* Where gradients are written anew, activations may have lain in the chunk until now (gradient_span.c): nobody else
** writes between the segments, and what sums a whole chunk reads it. */
static int zero_between_segments(ms_lowering *l, int unit) {
  const ms_unit *u = &l->model->unit[unit];
  int gradient = ms_state_buffer(unit, MS_STATE_GRADIENT);
  if (l->phase != (sync_of(l) == MS_SYNC_EVERY ? MS_PHASE_FIRST : MS_PHASE_LAST)) return MS_OK;
  int64_t first, n = own_slice(l, unit, &first), end = first;
  for (int s = 0; s < u->segments && !u->segment[s].frozen; s++) {
    const ms_segment *seg = &u->segment[s];
    const int64_t begin = seg->local < first + n ? seg->local : first + n;
    MS_TRY(fill_zero(l, gradient, 4 * (end - first), MS_F32, begin - end, u->name));
    if (seg->local + seg->chunk > end) end = seg->local + seg->chunk;
  }
  const int64_t room = ms_unit_slice_room(u, l->plan->replicas);
  if (end > first + n) end = first + n; /* behind a slice that is shorter than others', or empty, is room as well */
  return fill_zero(l, gradient, 4 * (end - first), MS_F32, first + room - end, u->name);
}

/* From this rank's gradients of the micro-batch as far as its phase goes. */
static int reduce_unit(ms_lowering *l, int unit) {
  const ms_model *model = l->model;
  const ms_unit *u = &model->unit[unit];
  if (writes_state_gradient(l, unit)) return MS_OK;
  gradients at = {.buffer = l->reduce[unit], .dtype = u->config.reduce_dtype}, sums;
  if (!communicates(l)) {
    sums = state_gradients(unit);
    return accumulate_local(l, unit, &sums);
  }
  if (defers_unsharded(l)) {
    at.dtype = MS_F32;
    MS_TRY(deferred_buffer(l, unit, reduce_elements(u), &at.buffer));
    if (!writes_deferred(l, unit)) MS_TRY(accumulate_local(l, unit, &at));
    if (l->phase != MS_PHASE_LAST) return MS_OK;
  }
  if (model->shard_size > 1) {
    MS_TRY(reduce_over_shards(l, unit, &at, &sums));
    at = sums;
  }
  int waits_for_replicas = sync_of(l) == MS_SYNC_SHARD && l->phase != MS_PHASE_LAST;
  if (model->replicate_size == 1 || waits_for_replicas) return MS_OK;
  if (!reduces_at_once(l)) {
    MS_TRY(reduce_over_replicas(l, unit, &at, &sums));
    at = sums;
  }
  return sums_between_nodes(l) ? reduce_between_nodes(l, unit, &at) : MS_OK;
}

int ms_lower_reduce_completed(ms_lowering *l, int node) {
  if (!l->ends[node]) return MS_OK;
  for (int u = 0; u < l->model->units; u++)
    if (l->use[u].gradient_last == node) {
      MS_TRY(reduce_unit(l, u));
      MS_TRY(zero_between_segments(l, u));
    }
  return MS_OK;
}

/* A unit that trains but that this graph does not reach: its gradient of the step is zero. */
int ms_lower_zero_unreached(ms_lowering *l) {
  if (l->phase != MS_PHASE_FIRST) return MS_OK;
  for (int u = 0; u < l->model->units; u++) {
    const ms_unit *unit = &l->model->unit[u];
    if (l->use[u].gradient_last >= 0) continue;
    int64_t room = ms_unit_slice_room(unit, l->plan->replicas);
    MS_TRY(fill_zero(l, ms_state_buffer(u, MS_STATE_GRADIENT), 0, MS_F32, room, unit->name));
  }
  return MS_OK;
}
