/* random_nodes.h - nodes of a random graph: ops that recipes can use, on values made before. random_places.h has those
 * of powers, order and indices, random_images.h those of windows. Each function returns a new f32 value, or -1 where it
 * found no input that fits.
 *
 * Choices that depend on values, such as comparisons, are made on inputs of the graph alone: there the ranks have the
 * same bits as one rank, so rounding cannot decide them.
 */
#ifndef MS_TESTS_RANDOM_NODES_H
#define MS_TESTS_RANDOM_NODES_H

#include "base/numbers/dtype.h"
#include "graph/axes.h"
#include "tests/c/partition/random_values.h"

/* ---- elementwise ------------------------------------------------------------------------------------------------ */

static inline int unary_node(draw *d) {
  static const int ops[] = {MS_OP_tanh, MS_OP_sigmoid, MS_OP_gelu,      MS_OP_silu,
                            MS_OP_abs,  MS_OP_relu,    MS_OP_gelu_tanh, MS_OP_softplus};
  fixture *f = &d->t->f;
  const int x = any(d);
  switch (below(d, 8)) {
    case 0: return op1(f, MS_OP_scale, x, ATTRS(.scale = {.alpha = 0.7, .beta = below(d, 2) ? 0.3 : 0}));
    case 1: return op1(f, MS_OP_clamp, x, ATTRS(.clamp = {.min = -0.8, .max = 0.9}));
    case 2: return op1(f, MS_OP_exp, op1(f, MS_OP_tanh, x, NULL), NULL);
    case 4: return op2(f, MS_OP_mul, x, op1(f, MS_OP_detach, op1(f, MS_OP_sigmoid, x, NULL), NULL), NULL);
    case 3: {
      static const int of_positive[] = {MS_OP_log, MS_OP_sqrt, MS_OP_rsqrt};
      return op1(f, of_positive[below(d, 3)],
                 op1(f, MS_OP_scale, op1(f, MS_OP_softplus, x, NULL), ATTRS(.scale = {.alpha = 1, .beta = 0.5})), NULL);
    }
    default: return op1(f, ops[below(d, 8)], x, NULL);
  }
}

static inline int dropout_node(draw *d) {
  const int64_t stream = 1 + (int64_t)d->count;
  return op1(&d->t->f, MS_OP_dropout, any(d), ATTRS(.mask = {.stream = stream, .p = 0.3}));
}

/* An input, rounded; its numbers are the same on every rank. */
static inline int cast_node(draw *d) {
  fixture *f = &d->t->f;
  const int bf16 = op1(f, MS_OP_cast, d->pool[below(d, 2)], ATTRS(.out_dtype = 1 + MS_BF16));
  return op1(f, MS_OP_cast, bf16, ATTRS(.out_dtype = 1 + MS_F32));
}

/* Tokens as numbers: a value with fewer axes. */
static inline int numbers_node(draw *d) {
  fixture *f = &d->t->f;
  const int x = op1(f, MS_OP_cast, below(d, 2) ? d->tokens : d->targets, ATTRS(.out_dtype = 1 + MS_F32));
  return op1(f, MS_OP_scale, x, ATTRS(.scale = {.alpha = 0.1, .beta = -0.5}));
}

/* A constant of x's shape. */
static inline int constant_like(draw *d, int x) {
  const ms_value_info from = *shape(d, x);
  ms_op_attrs attrs = {.out_dtype = 1 + MS_F32, .shape = {.d = {1, 1, 1, 1, 1, 1}, .ndim = from.ndim, .value = 0.6}};
  int out[MS_MAX_OUTPUTS];
  for (int k = 0; k < from.ndim; k++) attrs.shape.d[k] = from.dims[k];
  apply(&d->t->f, MS_OP_fill, 0, NULL, &attrs, out);
  return out[0];
}

/* The last axes of x, each as it is or 1. */
static inline int broadcast_param(draw *d, int x) {
  const ms_value_info from = *shape(d, x);
  const int fewer = from.ndim ? below(d, from.ndim) : 0;
  ms_value_info w = {.ndim = from.ndim - fewer};
  for (int k = 0; k < w.ndim; k++) w.dims[k] = below(d, 5) ? from.dims[k + fewer] : 1;
  return some_param(d, w.ndim, w.dims);
}

/* x's mean over some axis, which stays with size 1. */
static inline int mean_along(draw *d, int x) {
  const int axis = below(d, shape(d, x)->ndim);
  return op1(&d->t->f, MS_OP_mean, x, ATTRS(.reduce = {.axis = axis, .keepdim = 1}));
}

static inline int binary_node(draw *d) {
  static const int ops[] = {MS_OP_add,     MS_OP_sub, MS_OP_mul,    MS_OP_maximum,
                            MS_OP_minimum, MS_OP_add, MS_OP_swiglu, MS_OP_div};
  fixture *f = &d->t->f;
  int op = ops[below(d, 8)], a = any(d), b = any_like(d, a);
  if (b < 0 || (below(d, 4) == 0 && op != MS_OP_swiglu)) {
    const int kind = below(d, 8);
    b = kind > 2 || !shape(d, a)->ndim ? broadcast_param(d, a) : kind ? mean_along(d, a) : constant_like(d, a);
    if (op == MS_OP_swiglu) op = MS_OP_mul;
  }
  if (op == MS_OP_mul) a = op1(f, MS_OP_tanh, a, NULL);
  if (op == MS_OP_div)
    b = op1(f, MS_OP_scale, op1(f, MS_OP_softplus, b, NULL), ATTRS(.scale = {.alpha = 1, .beta = 0.5}));
  if (op != MS_OP_swiglu && op != MS_OP_div && below(d, 4) == 0) return op2(f, op, b, a, NULL);
  return op2(f, op, a, b, NULL);
}

/* u8: of the first input's axes, or of the tokens' and one of size 1. */
static inline int condition(draw *d) {
  static const int ops[] = {MS_OP_less, MS_OP_less_equal, MS_OP_equal, MS_OP_not_equal};
  fixture *f = &d->t->f;
  if (below(d, 2)) return op2(f, ops[below(d, 2)], d->pool[0], broadcast_param(d, d->pool[0]), NULL);
  const int alike = op2(f, ops[below(d, 4)], d->tokens, d->targets, NULL);
  return reshape_to(f, alike, SHAPE(shape(d, alike)->dims[0], shape(d, alike)->dims[1], 1));
}

static inline int where_node(draw *d) {
  const int a = any(d), b = below(d, 3) ? any_like(d, a) : broadcast_param(d, a);
  if (b < 0 || shape(d, a)->ndim != 3) return -1;
  for (int k = 0; k < 3; k++)
    if (shape(d, a)->dims[k] != shape(d, d->pool[0])->dims[k]) return -1;
  return op3(&d->t->f, MS_OP_where, condition(d), a, b, NULL);
}

/* ---- sums and norms --------------------------------------------------------------------------------------------- */

static inline int norm_node(draw *d) {
  const int x = with_axes(d, 1);
  if (shape(d, x)->ndim < 1) return -1;
  const int64_t width = last_size(d, x);
  if (width < 4) return -1;
  if (below(d, 3) == 0) return op1(&d->t->f, below(d, 2) ? MS_OP_softmax : MS_OP_log_softmax, x, NULL);
  const int gain = some_param(d, SHAPE(width));
  if (below(d, 2)) return op2(&d->t->f, MS_OP_rms_norm, x, gain, ATTRS(.norm = {.eps = 0.1}));
  return op3(&d->t->f, MS_OP_layer_norm, x, gain, some_param(d, SHAPE(width)), ATTRS(.norm = {.eps = 0.1}));
}

/* x plus a number of its own for each index of an axis, so that rounding does not decide which is the largest. */
static inline int apart_along(draw *d, int x, int axis) {
  ms_value_info own = {.ndim = shape(d, x)->ndim - axis, .dims = {shape(d, x)->dims[axis], 1, 1, 1, 1, 1}};
  return op2(&d->t->f, MS_OP_add, x, some_param(d, own.ndim, own.dims), NULL);
}

/* A sum of many is made small: with large numbers, what they cancel to is rounding alone. */
static inline int reduce_node(draw *d) {
  static const int ops[] = {MS_OP_sum, MS_OP_mean, MS_OP_mean, MS_OP_max, MS_OP_min};
  const int op = ops[below(d, 5)], chooses = op == MS_OP_max || op == MS_OP_min, all = !chooses && below(d, 12) == 0;
  int x = with_axes(d, 2);
  if (shape(d, x)->ndim < 1) return -1;
  const int axis = below(d, shape(d, x)->ndim);
  if (chooses) x = apart_along(d, x, axis);
  const int y = op1(&d->t->f, op, x, ATTRS(.reduce = {.axis = axis, .keepdim = below(d, 2), .all = all}));
  return op == MS_OP_sum ? op1(&d->t->f, MS_OP_scale, y, ATTRS(.scale = {.alpha = all ? 0.01 : 0.25})) : y;
}

static inline int sized_node(draw *d) {
  const int x = with_axes(d, 2);
  ms_value_info to = *shape(d, x);
  ms_op_attrs attrs = {.shape = {.d = {1, 1, 1, 1, 1, 1}, .ndim = to.ndim}};
  if (!to.ndim) return -1;
  for (int k = 0; k < to.ndim; k++) attrs.shape.d[k] = to.dims[k];
  attrs.shape.d[below(d, to.ndim)] = 1;
  const int y = op1(&d->t->f, MS_OP_sum_to, x, &attrs);
  if (below(d, 2)) return op1(&d->t->f, MS_OP_tanh, y, NULL);
  for (int k = 0; k < to.ndim; k++) attrs.shape.d[k] = to.dims[k];
  return op1(&d->t->f, MS_OP_broadcast_to, op1(&d->t->f, MS_OP_tanh, y, NULL), &attrs);
}

/* ---- products and tables ---------------------------------------------------------------------------------------- */

static inline int linear_node(draw *d) {
  static const int64_t widths[] = {4, 6, 12, 24, 12};
  const int x = with_axes(d, 2);
  if (shape(d, x)->ndim < 2) return -1;
  const int64_t from = last_size(d, x), to = below(d, 2) ? from : widths[below(d, 5)];
  const int swapped = below(d, 2), w = swapped ? some_param(d, SHAPE(to, from)) : some_param(d, SHAPE(from, to));
  if (below(d, 4) == 0)
    return op3(&d->t->f, MS_OP_matmul, x, w, some_param(d, SHAPE(to)),
               ATTRS(.product = {.trans_b = swapped, .activation = below(d, 2)}));
  const int y = op2(&d->t->f, MS_OP_matmul, x, w, ATTRS(.product = {.trans_b = swapped}));
  return below(d, 2) ? op2(&d->t->f, MS_OP_add, y, some_param(d, SHAPE(to)), NULL) : y;
}

/* The product of a value and its transpose. */
static inline int product_node(draw *d) {
  const int x = with_axes(d, 2), swap = below(d, 2);
  if (shape(d, x)->ndim < 2) return -1;
  const int small = op1(&d->t->f, MS_OP_tanh, x, NULL);
  const int y = op2(&d->t->f, MS_OP_matmul, small, x, ATTRS(.product = {.trans_a = swap, .trans_b = !swap}));
  return op1(&d->t->f, MS_OP_scale, y, ATTRS(.scale = {.alpha = 0.2}));
}

/* A table's rows for the tokens, sometimes folded to a row. */
static inline int table_node(draw *d) {
  fixture *f = &d->t->f;
  const int64_t width = below(d, 2) ? 12 : 24;
  const int table = some_param(d, SHAPE(12, width));
  const int tokens = below(d, 5) ? d->tokens : reshape_to(f, d->tokens, SHAPE(-1));
  return op2(f, MS_OP_embedding, table, tokens, below(d, 2) ? ATTRS(.table = {.rows = DRAW_INTEGERS}) : NULL);
}

/* ---- attention -------------------------------------------------------------------------------------------------- */

/* [.., .., heads, size] of a value with three axes. */
static inline int heads_of(draw *d, int x, int64_t heads, int64_t size, int rotated) {
  fixture *f = &d->t->f;
  const ms_value_info from = *shape(d, x);
  int y = op2(f, MS_OP_matmul, x, some_param(d, SHAPE(heads * size, from.dims[2])), ATTRS(.product = {.trans_b = 1}));
  y = reshape_to(f, y, SHAPE(from.dims[0], from.dims[1], heads, size));
  if (!rotated || size % 2) return y;
  return op1(
      f, MS_OP_rope, y,
      ATTRS(.rope = {
                .offset = below(d, 3), .interleaved = below(d, 2), .theta = 100, .factor = 1, .low = 1, .high = 4}));
}

static inline int attention_node(draw *d) {
  fixture *f = &d->t->f;
  const int x = with_axes(d, 3), rotated = below(d, 2);
  int in[4], out[MS_MAX_OUTPUTS];
  const ms_value_info from = *shape(d, x), tokens = *shape(d, d->tokens); /* copies: new nodes move the list */
  if (from.ndim != 3 || from.dims[2] % 12) return -1;
  const int64_t heads = below(d, 2) ? 12 : 6, size = from.dims[2] / heads;
  const int64_t fewer[] = {heads, heads / 2, 2, 1}, keys = fewer[below(d, 4)];
  for (int k = 0; k < 3; k++) in[k] = heads_of(d, x, k ? keys : heads, size, rotated && k < 2);
  in[3] = d->tokens;
  const int documents = from.dims[0] == tokens.dims[0] && from.dims[1] == tokens.dims[1] && below(d, 3) == 0;
  const int causal = below(d, 3) > 0;
  const int64_t window = below(d, 2) ? 1 + below(d, (int)from.dims[1] + 2) : 0;
  const double softcap = below(d, 3) ? 0 : 0.7;
  const ms_op_attrs attrs = {.attention = {.start = documents ? 3 : 0,
                                           .causal = !documents && causal,
                                           .window = window,
                                           .prefix = !documents && causal && !window ? below(d, 4) : 0,
                                           .softcap = softcap}};
  if (below(d, 4) == 0) {
    const int scored[] = {op1(f, MS_OP_detach, in[0], NULL), op1(f, MS_OP_detach, in[1], NULL), d->tokens};
    ms_op_attrs uncapped = attrs;
    uncapped.attention.softcap = 0;
    apply(f, documents ? MS_OP_document_attention_max : MS_OP_attention_max, 2 + documents, scored, &uncapped, out);
    return out[0];
  }
  apply(f, documents ? MS_OP_document_attention : MS_OP_attention, 3 + documents, in, &attrs, out);
  if (below(d, 2)) {
    const int with[] = {in[0], in[1], in[2], out[0], out[1], some_param(d, SHAPE(heads)), d->tokens};
    apply(f, documents ? MS_OP_document_attention_sink : MS_OP_attention_sink, 6 + documents, with, &attrs, out);
  }
  return below(d, 2) ? reshape_to(f, out[0], SHAPE(from.dims[0], from.dims[1], -1)) : out[0];
}

/* Keys short enough, and numbers of heads within bounds, that the state does not grow. */
static inline int delta_rule_node(draw *d) {
  fixture *f = &d->t->f;
  const int x = op1(f, MS_OP_tanh, with_axes(d, 3), NULL), tokens = d->tokens;
  const ms_value_info from = *shape(d, x), of_tokens = *shape(d, tokens);
  if (from.ndim != 3 || from.dims[2] % 12) return -1;
  const int64_t groups = below(d, 2) ? 6 : 2, heads = groups * (1 + below(d, 2)), size = from.dims[2] / 6;
  const int documents = from.dims[0] == of_tokens.dims[0] && from.dims[1] == of_tokens.dims[1] && below(d, 2);
  int in[6] = {heads_of(d, x, groups, size, 0), -1, heads_of(d, x, heads, size + 1, 0), -1, -1, tokens};
  in[1] =
      op1(f, MS_OP_scale, op1(f, MS_OP_tanh, heads_of(d, x, groups, size, 0), NULL), ATTRS(.scale = {.alpha = 0.4}));
  for (int i = 3; i < 5; i++)
    in[i] = reshape_to(f, op1(f, MS_OP_sigmoid, heads_of(d, x, heads, 1, 0), NULL),
                       SHAPE(from.dims[0], from.dims[1], heads));
  in[3] = op1(f, MS_OP_scale, in[3], ATTRS(.scale = {.alpha = -0.5}));
  int out[MS_MAX_OUTPUTS];
  apply(f, documents ? MS_OP_document_gated_delta_rule : MS_OP_gated_delta_rule, 5 + documents, in,
        ATTRS(.delta_rule = {.start = documents ? 3 : 0}), out);
  return reshape_to(f, out[0], SHAPE(from.dims[0], from.dims[1], -1));
}

/* ---- shapes ----------------------------------------------------------------------------------------------------- */

static inline int transpose_node(draw *d) {
  const int x = with_axes(d, 2), n = shape(d, x)->ndim;
  ms_op_attrs attrs = {.permutation = {.p = {0, 1, 2, 3, 4, 5}}};
  for (int k = n - 1; k > 0; k--) {
    const int j = below(d, k + 1);
    int64_t *p = attrs.permutation.p;
    const int64_t last = p[k];
    p[k] = p[j], p[j] = last;
  }
  return n < 2 ? -1 : op1(&d->t->f, MS_OP_transpose, x, &attrs);
}

/* Folds two axes, or unfolds one. */
static inline int reshape_node(draw *d) {
  static const int64_t factors[] = {2, 3, 4, 6, 12};
  const int x = with_axes(d, 1);
  const ms_value_info from = *shape(d, x);
  ms_value_info to = {0};
  if (!from.ndim) return -1;
  const int at = below(d, from.ndim), folds = from.ndim > 1 && at + 1 < from.ndim && below(d, 2);
  const int64_t factor = factors[below(d, 5)];
  if (!folds && (from.dims[at] % factor || from.ndim == 4)) return -1;
  for (int k = 0; k < from.ndim; k++) {
    if (k != at) to.dims[to.ndim++] = from.dims[k];
    else if (folds) to.dims[to.ndim++] = from.dims[k] * from.dims[k + 1], k++;
    else to.dims[to.ndim++] = factor, to.dims[to.ndim++] = from.dims[k] / factor;
  }
  return reshape_to(&d->t->f, x, to.ndim, to.dims);
}

static inline int cut_node(draw *d) {
  const int x = with_axes(d, 1);
  const ms_value_info from = *shape(d, x);
  if (!from.ndim) return -1;
  const int axis = below(d, from.ndim), kind = below(d, 3);
  const int64_t size = from.dims[axis];
  if (kind == 0)
    return op2(&d->t->f, MS_OP_concat, x, op1(&d->t->f, MS_OP_tanh, x, NULL), ATTRS(.cut = {.axis = axis}));
  if (kind == 1)
    return op1(&d->t->f, MS_OP_pad, x, ATTRS(.cut = {.axis = axis, .before = below(d, 3), .after = below(d, 3)}));
  if (size % 2) return -1;
  const int second = below(d, 2);
  return op1(&d->t->f, MS_OP_slice, x,
             ATTRS(.cut = {.axis = axis, .start = second ? size / 2 : 0, .stop = second ? size : size / 2}));
}

/* A hint, mostly one that fits, for a dimension of the mesh or another one. */
static inline int hint_node(draw *d) {
  const int x = any(d), k = below(d, d->t->dims + 1);
  const int dim = k < d->t->dims ? d->t->spec[k].dim : 3 - TRIAL_DIMS;
  const ms_value_info *info = shape(d, x);
  int axis = below(d, 2) && info->ndim ? below(d, info->ndim) : -1;
  for (int i = 0; axis >= 0 && i < d->t->dims; i++) {
    const int64_t ranks = d->t->spec[i].ranks * (d->t->spec[i].divides_samples ? 2 : 1);
    if (info->dims[axis] % ranks && below(d, 20)) axis = -1;
  }
  return op1(&d->t->f, MS_OP_redistribute, x, ATTRS(.across = {.dim = dim, .along = axis}));
}

#endif
