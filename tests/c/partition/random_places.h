/* random_places.h - nodes of a random graph that take powers, order the elements of an axis, move them along it, name
 * them by index, or move rows to experts. Indices are made of the graph's inputs alone, as other choices are
 * (random_nodes.h).
 */
#ifndef MS_TESTS_RANDOM_PLACES_H
#define MS_TESTS_RANDOM_PLACES_H

#include "tests/c/partition/random_nodes.h"

/* A power of a positive base, below 2, since large powers are rounding alone; the exponent broadcasts, or is a single
 * number.
 */
static inline int power_node(draw *d) {
  fixture *f = &d->t->f;
  const int x = any(d);
  const int base = op1(f, MS_OP_scale, op1(f, MS_OP_sigmoid, x, NULL), ATTRS(.scale = {.alpha = 1, .beta = 0.5}));
  const int exponent = op1(f, MS_OP_tanh, below(d, 3) ? broadcast_param(d, x) : some_param(d, SCALAR), NULL);
  return below(d, 4) ? op2(f, MS_OP_pow, base, exponent, NULL) : op2(f, MS_OP_pow, base, base, NULL);
}

static inline int along_node(draw *d) {
  fixture *f = &d->t->f;
  const int x = op1(f, MS_OP_tanh, with_axes(d, 1), NULL);
  const ms_value_info from = *shape(d, x);
  if (!from.ndim) return -1;
  const int axis = below(d, from.ndim);
  if (below(d, 2)) return op1(f, MS_OP_roll, x, ATTRS(.cut = {.axis = axis, .by = below(d, 9) - 4}));
  return op1(f, MS_OP_scale, op1(f, MS_OP_cumsum, x, ATTRS(.cumsum = {.axis = axis, .reverse = below(d, 2)})),
             ATTRS(.scale = {.alpha = 0.3}));
}

static inline int topk_node(draw *d) {
  const int x = with_axes(d, 2);
  if (shape(d, x)->ndim < 1) return -1;
  const int axis = below(d, shape(d, x)->ndim), k = 1 + below(d, (int)shape(d, x)->dims[axis]);
  return op1(&d->t->f, MS_OP_topk, apart_along(d, x, axis),
             ATTRS(.topk = {.axis = axis, .k = k, .largest = below(d, 2)}));
}

/* Indices of an axis of n, of the first input's shape. */
static inline int index_of(draw *d, int64_t n) {
  fixture *f = &d->t->f;
  const int x = op1(f, MS_OP_clamp, d->pool[0], ATTRS(.clamp = {.min = -0.9, .max = 0.9}));
  const double half = (double)n / 2;
  return op1(f, MS_OP_cast, op1(f, MS_OP_scale, x, ATTRS(.scale = {.alpha = half, .beta = half})),
             ATTRS(.out_dtype = 1 + MS_I32));
}

static inline int index_node(draw *d) {
  fixture *f = &d->t->f;
  const int x = any_like(d, d->pool[0]), y = any_like(d, d->pool[0]), axis = below(d, 3);
  if (x < 0 || y < 0) return -1;
  const int index = index_of(d, shape(d, x)->dims[axis]);
  if (below(d, 2)) return op2(f, MS_OP_gather, x, index, ATTRS(.cut = {.axis = axis}));
  const int small = op1(f, MS_OP_scale, y, ATTRS(.scale = {.alpha = 0.3}));
  return op3(f, MS_OP_scatter_add, x, index, small, ATTRS(.cut = {.axis = axis}));
}

/* Two layers of experts that tokens choose by the graph's first input, with weights of their own. */
static inline int expert_node(draw *d) {
  fixture *f = &d->t->f;
  const int x = any_like(d, d->pool[0]);
  if (x < 0) return -1;
  const ms_value_info from = *shape(d, x);
  const int64_t tokens = from.dims[0] * from.dims[1], dim = from.dims[2], experts = 2 + below(d, 3);
  const int64_t each = 1 + below(d, 2), inner = below(d, 2) ? 6 : 12;
  const int index = reshape_to(f, op1(f, MS_OP_slice, index_of(d, experts), ATTRS(.cut = {.axis = 2, .stop = each})),
                               SHAPE(tokens, each));
  int s[MS_MAX_OUTPUTS], out[MS_MAX_OUTPUTS];
  apply(f, MS_OP_expert_order, 1, &index, ATTRS(.experts = {.experts = experts}), s);
  const int rows = reshape_to(f, op1(f, MS_OP_tanh, x, NULL), SHAPE(tokens, dim));
  const int weights = op1(f, MS_OP_sigmoid, op2(f, MS_OP_matmul, rows, some_param(d, SHAPE(dim, each)), NULL), NULL);
  const int in[4] = {rows, s[0], s[1], weights}, first = below(d, 2), up = below(d, 2), down = below(d, 2);
  apply(f, MS_OP_expert_dispatch, first ? 4 : 3, in, NULL, out);
  const int w = up ? some_param(d, SHAPE(experts, inner, dim)) : some_param(d, SHAPE(experts, dim, inner));
  const int h =
      op1(f, MS_OP_tanh, op3(f, MS_OP_grouped_matmul, out[0], w, s[2], ATTRS(.product = {.trans_b = up})), NULL);
  const int v = down ? some_param(d, SHAPE(experts, dim, inner)) : some_param(d, SHAPE(experts, inner, dim));
  const int y = op3(f, MS_OP_grouped_matmul, h, v, s[2], ATTRS(.product = {.trans_b = down}));
  const int back[4] = {op1(f, MS_OP_scale, y, ATTRS(.scale = {.alpha = 0.3})), s[0], s[1], weights};
  apply(f, MS_OP_expert_combine, below(d, 2) ? 4 : 3, back, NULL, out);
  return reshape_to(f, out[0], from.ndim, from.dims);
}

#endif
