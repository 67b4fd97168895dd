/* lower_gradients.c - where gradients are written, and how they are accumulated when no other rank takes part.
 *
 * With other ranks, kernels write gradients to a buffer that peers read. They are reduced over the shards, then over
 * the replicas, into the state's chunk. Where replicas share a copy (ms_replicas_together), one reduction covers
 * both, and each replica receives the sums of the slice that it updates; with such replicas on several nodes, slices
 * are then summed between the nodes. Without other ranks, kernels write directly to the chunk, or add to it after
 * the first micro-batch.
 *
 * Gradients can wait for the last micro-batch (enum ms_sync): unsharded ones in an f32 copy of the reduce buffer, or
 * the sums over the shards in an f32 copy of the chunk. Only the last phase then completes the reduction, in f32.
 */
#include <stdlib.h>

#include "base/numbers/dtype.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/lower.h"

int ms_lower_communicates(const ms_lowering *l, int unit) {
  return ms_model_shards(l->model) > 1 || ms_unit_replicas(l->model, unit) > 1;
}

/* The effective enum ms_sync on this mesh. Without replicas, SHARD is the same as EVERY: the sum over the shards is
 * complete. Without shards, SHARD is the same as LAST: there are only replicas to sum over. */
int ms_lower_sync(const ms_lowering *l, int unit) {
  int sync = l->plan->config.sync;
  if (!ms_lower_communicates(l, unit)) return MS_SYNC_EVERY;
  if (sync == MS_SYNC_SHARD && ms_unit_replicas(l->model, unit) == 1) return MS_SYNC_EVERY;
  return sync == MS_SYNC_SHARD && ms_model_shards(l->model) == 1 ? MS_SYNC_LAST : sync;
}

int ms_lower_defers_unsharded(const ms_lowering *l, int unit) { return ms_lower_sync(l, unit) == MS_SYNC_LAST; }

/* Kernels write to the waiting buffer itself in the first micro-batch, if the reduce dtype is also f32. */
int ms_lower_writes_deferred(const ms_lowering *l, int unit) {
  return ms_lower_defers_unsharded(l, unit) && l->phase == MS_PHASE_FIRST &&
         l->model->unit[unit].config.reduce_dtype == MS_F32;
}

int ms_lower_deferred_buffer(ms_lowering *l, int unit, int64_t elements, int *buffer) {
  int *deferred = &l->plan->deferred_gradients[unit];
  if (*deferred < 0)
    MS_TRY(ms_plan_buffer(l->plan, -1, MS_ARENA_COMM, MS_CAT_COMMUNICATION, 4 * elements, l->model->unit[unit].name,
                          deferred));
  *buffer = *deferred;
  return MS_OK;
}

/* With one shard, the replicas sum the chunks in the reduce buffer itself, which has room for all slices then. */
int64_t ms_lower_reduce_elements(const ms_lowering *l, const ms_unit *u) {
  const int64_t own = u->reduce_bytes / ms_dtype_size(u->config.reduce_dtype);
  const int64_t chunks =
      ms_model_shards(l->model) == 1 ? ms_unit_chunk_capacity(l->model, u, l->plan->layout->replicas) : 0;
  return own > chunks ? own : chunks;
}

/* Kernels write directly to the state's gradient chunk when no other rank contributes to it. */
int ms_lower_writes_state(const ms_lowering *l, int unit) {
  return !ms_lower_communicates(l, unit) && l->phase == MS_PHASE_FIRST &&
         l->model->unit[unit].config.reduce_dtype == MS_F32;
}

static int fill_zero(ms_lowering *l, int buffer, int64_t offset, int dtype, int64_t n, const char *scope) {
  if (n <= 0) return MS_OK;
  ms_ref out = ms_ref_vector(buffer, offset, dtype, n);
  ms_op_attrs attrs = {.out_dtype = 1 + dtype, .shape = {.d = {n, 1, 1, 1, 1, 1}, .ndim = 1}};
  return ms_plan_kernel(l->plan, l->phase, MS_OP_fill, &attrs, 0, NULL, 1, &out, scope, 1);
}

/* Clears the bytes that no gradient kernel writes: padding, and parameters that the loss does not depend on. */
static int zero_rest(ms_lowering *l, int unit) {
  const ms_unit *u = &l->model->unit[unit];
  int to_state = ms_lower_writes_state(l, unit);
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
    int64_t whole = seg->chunk * ms_unit_shards(u);
    MS_TRY(fill_zero(l, l->reduce[unit], base + end * size, seg->reduce_dtype, whole - end, u->name));
  }
  return MS_OK;
}

/* In a phase that overwrites gradients, activations may have used the chunk until now (accesses.c). No other kernel
 * writes the bytes between the segments, but the kernels that sum a whole chunk read them. (In a slice of a sliced
 * unit, the sums write them: see ms_lower_clear_slice.) */
int ms_lower_zero_between_segments(ms_lowering *l, int unit) {
  const ms_unit *u = &l->model->unit[unit];
  int gradient = ms_state_buffer(unit, MS_SLOT_GRADIENT);
  if (ms_unit_is_sliced(l->model, u, l->plan->layout->replicas) ||
      l->phase != (ms_lower_sync(l, unit) == MS_SYNC_EVERY ? MS_PHASE_FIRST : MS_PHASE_LAST))
    return MS_OK;
  int64_t first, n = ms_unit_node_slice(l->model, u, l->plan->layout->replicas, &first), end = first;
  for (int s = 0; s < u->segments && !u->segment[s].frozen; s++) {
    const ms_segment *seg = &u->segment[s];
    const int64_t begin = seg->local < first + n ? seg->local : first + n;
    MS_TRY(fill_zero(l, gradient, 4 * (end - first), MS_F32, begin - end, u->name));
    if (seg->local + seg->chunk > end) end = seg->local + seg->chunk;
  }
  const int64_t room = ms_unit_slice_capacity(l->model, u, l->plan->layout->replicas);
  if (end > first + n) end = first + n; /* the reserved bytes after a shorter or empty slice are cleared as well */
  return fill_zero(l, gradient, 4 * (end - first), MS_F32, first + room - end, u->name);
}

int64_t ms_gradients_offset(const ms_gradients *g, const ms_segment *seg) {
  int64_t element = g->chunked ? seg->local : seg->reduce / ms_dtype_size(seg->reduce_dtype);
  return element * ms_dtype_size(g->dtype);
}

/* 1 when this phase adds a unit's f32 gradients to those of earlier micro-batches without other ranks. *to: where. */
static int adds_alone(ms_lowering *l, int unit, ms_gradients *to) {
  if (l->phase == MS_PHASE_FIRST || l->model->unit[unit].config.reduce_dtype != MS_F32) return 0;
  *to = (ms_gradients){.buffer = ms_state_buffer(unit, MS_SLOT_GRADIENT), .dtype = MS_F32, .chunked = 1};
  if (ms_lower_defers_unsharded(l, unit))
    *to = (ms_gradients){.buffer = l->plan->deferred_gradients[unit], .dtype = MS_F32};
  return to->buffer >= 0 && (!ms_lower_communicates(l, unit) || ms_lower_defers_unsharded(l, unit));
}

/* The product that can also add a gradient to another one: on devices whose library accumulates in the same pass. If
 * several products read a weight, it is the first of them, to which the others add themselves. Returns its value, or
 * -1. */
static int adding_product(const ms_lowering *l, int grad) {
  const ms_graph *g = l->graph;
  const int sum = l->root[grad];
  int value = sum;
  if (!ms_device_can(l->plan->config.device, MS_DEVICE_PRODUCT_ADDS) || l->read[sum]) return -1;
  while (value >= 0 && g->values[value].node >= 0 && g->nodes[g->values[value].node].op == MS_OP_matmul_add) {
    value = ms_lower_first_summand(l, value);
    if (value >= 0 && l->readers[value] != 1) return -1;
  }
  if (value < 0 || g->values[value].kind != MS_VALUE_NODE) return -1;
  if (value != sum && l->at[value].buffer >= 0) return -1; /* it has already been computed, elsewhere */
  const ms_node *maker = &g->nodes[g->values[value].node];
  return maker->op == MS_OP_matmul && maker->inputs == 2 && maker->attrs.product.activation == MS_ACT_NONE ? value : -1;
}

/* Places a parameter's gradient in the unit's buffer, or where the product adds it in place. */
static void place_gradient(ms_lowering *l, int unit, int param, int to_state) {
  const ms_param *p = &l->model->param[param];
  const ms_segment *seg = &l->model->unit[unit].segment[p->segment];
  int root = l->root[l->graph->param_grads[param]];
  int64_t base = to_state ? 4 * seg->local : seg->reduce;
  ms_gradients to;
  l->at[root] = (ms_place){l->reduce[unit], base + p->offset * ms_dtype_size(seg->reduce_dtype)};
  if (!adds_alone(l, unit, &to)) return;
  const int product = adding_product(l, root);
  if (product < 0) return;
  l->added[root] = l->added[product] = 1;
  l->at[root] = (ms_place){to.buffer, ms_gradients_offset(&to, seg) + 4 * p->offset};
}

static int is_sum(int op) { return op == MS_OP_add || op == MS_OP_embedding_backward || op == MS_OP_matmul_add; }

/* A weight used more than once has a gradient that is a sum. Returns the summand that is computed first, if the sum
 * can overwrite it and nothing reads it later, or -1. */
int ms_lower_first_summand(const ms_lowering *l, int value) {
  const ms_graph *g = l->graph;
  int maker = g->values[value].node, first = -1;
  if (maker < 0 || !is_sum(g->nodes[maker].op)) return -1;
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

/* Places the first summand of a parameter's gradient where the sum will be. Any other summand that is not
 * accumulated in place is as large as the parameter, and is needed at the end of backward, when the communication
 * arena has free space: it is packed there. */
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

/* Before the first gradient of a unit is written: creates its reduce buffer and places every gradient in it. */
static int open_gradients(ms_lowering *l, int unit) {
  const ms_unit *u = &l->model->unit[unit];
  int to_state = ms_lower_writes_state(l, unit);
  int peers_read = ms_lower_communicates(l, unit) && !ms_lower_defers_unsharded(l, unit);
  if (to_state) {
    l->reduce[unit] = ms_state_buffer(unit, MS_SLOT_GRADIENT);
  } else if (ms_lower_writes_deferred(l, unit)) {
    MS_TRY(ms_lower_deferred_buffer(l, unit, ms_lower_reduce_elements(l, u), &l->reduce[unit]));
  } else {
    MS_TRY(ms_plan_buffer(l->plan, l->phase, peers_read ? MS_ARENA_COMM : MS_ARENA_ACTIVATIONS,
                          peers_read ? MS_CAT_COMMUNICATION : MS_CAT_ACTIVATIONS,
                          ms_lower_reduce_elements(l, u) * ms_dtype_size(u->config.reduce_dtype), u->name,
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

/* Opens the gradients of every unit that has a gradient among the node's outputs. */
int ms_lower_open_gradients_of(ms_lowering *l, int node, const int *grad_unit) {
  const ms_node *n = &l->graph->nodes[node];
  for (int o = 0; o < n->outputs; o++) {
    int unit = grad_unit[n->out[o]];
    if (unit >= 0 && l->reduce[unit] < 0) MS_TRY(open_gradients(l, unit));
  }
  return MS_OK;
}

/* Clears the gradients of trainable units that this graph does not use. */
int ms_lower_zero_unreached(ms_lowering *l) {
  if (l->phase != MS_PHASE_FIRST) return MS_OK;
  for (int u = 0; u < l->model->units; u++) {
    const ms_unit *unit = &l->model->unit[u];
    if (l->use[u].gradient_last >= 0) continue;
    int64_t room = ms_unit_slice_capacity(l->model, unit, l->plan->layout->replicas);
    MS_TRY(fill_zero(l, ms_state_buffer(u, MS_SLOT_GRADIENT), 0, MS_F32, room, unit->name));
  }
  return MS_OK;
}
