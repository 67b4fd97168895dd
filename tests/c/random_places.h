/* random_places.h - nodes of a random graph that take powers, order the elements of an axis, move them along it, or
 * name them by index. Indices are made of the graph's inputs alone, as other choices are (random_nodes.h).
 */
#ifndef MS_TESTS_RANDOM_PLACES_H
#define MS_TESTS_RANDOM_PLACES_H

#include "tests/c/random_nodes.h"

/* Of a positive base, below 2, since large powers are rounding alone; the exponent broadcasts, or is a single number.
 */
static inline int power_node(draw *d) {
  fixture *f = &d->t->f;
  const int x = any(d);
  const int base = op1(f, MS_OP_scale, op1(f, MS_OP_sigmoid, x, NULL), ATTRS(.f = {1, 0.5}));
  const int exponent = op1(f, MS_OP_tanh, below(d, 3) ? broadcast_param(d, x) : some_param(d, SCALAR), NULL);
  return below(d, 4) ? op2(f, MS_OP_pow, base, exponent, NULL) : op2(f, MS_OP_pow, base, base, NULL);
}

static inline int along_node(draw *d) {
  fixture *f = &d->t->f;
  const int x = op1(f, MS_OP_tanh, with_axes(d, 1), NULL);
  const ms_value_info from = *shape(d, x);
  if (!from.ndim) return -1;
  const int axis = below(d, from.ndim);
  if (below(d, 2)) return op1(f, MS_OP_roll, x, ATTRS(.i = {axis, below(d, 9) - 4}));
  return op1(f, MS_OP_scale, op1(f, MS_OP_cumsum, x, ATTRS(.i = {axis, below(d, 2)})), ATTRS(.f = {0.3}));
}

static inline int topk_node(draw *d) {
  const int x = with_axes(d, 2);
  if (shape(d, x)->ndim < 1) return -1;
  const int axis = below(d, shape(d, x)->ndim), k = 1 + below(d, (int)shape(d, x)->dims[axis]);
  return op1(&d->t->f, MS_OP_topk, apart_along(d, x, axis), ATTRS(.i = {axis, k, below(d, 2)}));
}

/* Indices of an axis of n, of the first input's shape. */
static inline int index_of(draw *d, int64_t n) {
  fixture *f = &d->t->f;
  const int x = op1(f, MS_OP_clamp, d->pool[0], ATTRS(.f = {-0.9, 0.9}));
  const double half = (double)n / 2;
  return op1(f, MS_OP_cast, op1(f, MS_OP_scale, x, ATTRS(.f = {half, half})), ATTRS(.i = {[7] = 1 + MS_I32}));
}

static inline int index_node(draw *d) {
  fixture *f = &d->t->f;
  const int x = any_like(d, d->pool[0]), y = any_like(d, d->pool[0]), axis = below(d, 3);
  if (x < 0 || y < 0) return -1;
  const int index = index_of(d, shape(d, x)->dims[axis]);
  if (below(d, 2)) return op2(f, MS_OP_gather, x, index, ATTRS(.i = {axis}));
  const int small = op1(f, MS_OP_scale, y, ATTRS(.f = {0.3}));
  return op3(f, MS_OP_scatter_add, x, index, small, ATTRS(.i = {axis}));
}

#endif
