/* lower_gradients.c - where a unit's gradients are written, and what becomes of them once the last one is there.
**
** With other ranks they are written to a buffer that peers read, reduced over the shards, then over the replicas, into the
** state's chunk. Alone they are written to the chunk itself, or added to it where an earlier micro-batch came before.
*/
#include <stdlib.h>

#include "plan/lower.h"

/* Gradients go straight to the state's gradient chunk where nobody else adds to it. */
static int writes_state_gradient(const ms_lowering *l, int unit) {
  return l->model->shard_size == 1 && l->model->replicate_size == 1 && l->phase == MS_PHASE_FIRST &&
         l->model->unit[unit].config.reduce_dtype == MS_F32;
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

/* Before the first gradient of a unit is written: its reduce buffer, with every gradient's place in it. */
static int open_gradients(ms_lowering *l, int unit) {
  const ms_unit *u = &l->model->unit[unit];
  int to_state = writes_state_gradient(l, unit);
  int communicates = l->model->shard_size > 1 || l->model->replicate_size > 1;
  if (to_state) {
    l->reduce[unit] = ms_state_buffer(unit, MS_STATE_GRADIENT);
  } else {
    MS_TRY(ms_plan_buffer(l->plan, l->phase, communicates ? MS_ARENA_COMM : MS_ARENA_ACTIVATIONS,
                          communicates ? MS_CAT_COMMUNICATION : MS_CAT_ACTIVATIONS, u->reduce_bytes, u->name,
                          &l->reduce[unit]));
  }
  for (int i = 0; i < u->params; i++) {
    int grad = l->graph->param_grads[u->order[i]];
    if (grad < 0) continue;
    const ms_param *p = &l->model->param[u->order[i]];
    const ms_segment *seg = &u->segment[p->segment];
    int64_t base = to_state ? 4 * seg->local : seg->reduce;
    l->at[l->root[grad]] = (ms_place){l->reduce[unit], base + p->offset * ms_dtype_size(seg->reduce_dtype)};
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

/* One part a trainable segment; from and to tell where the sum is read and written. */
static int reduce_parts(ms_lowering *l, int unit, int kind, int buffer, int chunked, int dst, int dst_dtype,
                        ms_plan_part *part) {
  const ms_unit *u = &l->model->unit[unit];
  int parts = 0;
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    int size = ms_dtype_size(seg->reduce_dtype), dst_size = ms_dtype_size(dst_dtype);
    int64_t whole = kind == MS_COLL_REDUCE_SCATTER ? seg->chunk * l->model->shard_size : seg->chunk;
    int64_t begin = chunked ? seg->local * size : seg->reduce;
    part[parts].count = seg->chunk;
    part[parts].src.buffer = -1;
    part[parts].shared = ms_ref_vector(buffer, begin, seg->reduce_dtype, whole);
    part[parts].dst = ms_ref_vector(dst, seg->local * dst_size, dst_dtype, seg->chunk);
    part[parts].accumulate = dst == ms_state_buffer(unit, MS_STATE_GRADIENT) && l->phase == MS_PHASE_NEXT;
    parts++;
  }
  return parts;
}

/* A buffer that peers read is kept until the next collective of its kind starts, so that compute never waits for it at
** once: the price is one more buffer. */
static int send(ms_lowering *l, int unit, int stream, int kind, int dim, int parts, const ms_plan_part *part) {
  MS_TRY(ms_plan_collective(l->plan, l->phase, stream, kind, dim, unit, parts, part));
  ms_plan_touch(l->plan, l->sending[dim], l->plan->phase[l->phase].n - 1);
  l->sending[dim] = part[0].shared.buffer;
  return MS_OK;
}

static int accumulate_local(ms_lowering *l, int unit) {
  const ms_unit *u = &l->model->unit[unit];
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    ms_ref in = ms_ref_vector(l->reduce[unit], seg->reduce, seg->reduce_dtype, seg->chunk);
    ms_ref out = ms_ref_vector(ms_state_buffer(unit, MS_STATE_GRADIENT), 4 * seg->local, MS_F32, seg->chunk);
    ms_attrs attrs = {.i = {l->phase == MS_PHASE_NEXT}};
    MS_TRY(ms_plan_kernel(l->plan, l->phase, MS_OP_accumulate, &attrs, 1, &in, 1, &out, u->name, 1));
  }
  return MS_OK;
}

static int reduce_unit(ms_lowering *l, int unit) {
  if (writes_state_gradient(l, unit)) return MS_OK;
  const ms_model *model = l->model;
  const ms_unit *u = &model->unit[unit];
  if (model->shard_size == 1 && model->replicate_size == 1) return accumulate_local(l, unit);
  ms_plan_part *part = ms_calloc(u->segments, sizeof *part);
  if (!part) return MS_ENOMEM;
  int gradient = ms_state_buffer(unit, MS_STATE_GRADIENT), from = l->reduce[unit], chunked = 0, rc = MS_OK;
  if (model->shard_size > 1) {
    int to = gradient, to_dtype = MS_F32;
    if (model->replicate_size > 1) {
      to_dtype = u->config.reduce_dtype;
      MS_GOTO(ms_plan_buffer(l->plan, l->phase, MS_ARENA_COMM, MS_CAT_COMMUNICATION,
                             u->trainable_count * ms_dtype_size(to_dtype), u->name, &to));
    }
    int parts = reduce_parts(l, unit, MS_COLL_REDUCE_SCATTER, from, 0, to, to_dtype, part);
    MS_GOTO(send(l, unit, MS_STREAM_REDUCE, MS_COLL_REDUCE_SCATTER, MS_DIM_SHARD, parts, part));
    from = to;
    chunked = 1;
  }
  if (model->replicate_size > 1) {
    int parts = reduce_parts(l, unit, MS_COLL_ALL_REDUCE, from, chunked, gradient, MS_F32, part);
    MS_GOTO(send(l, unit, MS_STREAM_REPLICATE, MS_COLL_ALL_REDUCE, MS_DIM_REPLICATE, parts, part));
  }
fail:
  free(part);
  return rc;
}

int ms_lower_reduce_completed(ms_lowering *l, int node) {
  for (int u = 0; u < l->model->units; u++)
    if (l->use[u].gradient_last == node) MS_TRY(reduce_unit(l, u));
  return MS_OK;
}

/* A unit that trains but that this graph does not reach: its gradient of the step is zero. */
int ms_lower_zero_unreached(ms_lowering *l) {
  if (l->phase != MS_PHASE_FIRST) return MS_OK;
  for (int u = 0; u < l->model->units; u++) {
    const ms_unit *unit = &l->model->unit[u];
    if (unit->trainable_count && l->use[u].gradient_last < 0)
      MS_TRY(fill_zero(l, ms_state_buffer(u, MS_STATE_GRADIENT), 0, MS_F32, unit->trainable_count, unit->name));
  }
  return MS_OK;
}
