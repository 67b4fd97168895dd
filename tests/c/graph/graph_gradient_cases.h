/* graph_gradient_cases.h - for every differentiable row of the op table, graphs that use it on small parameters: with
 * broadcasting, transposed operands, several outputs, and whatever else takes another path through its gradient.
 */
#ifndef MS_TESTS_GRAPH_GRADIENT_CASES_H
#define MS_TESTS_GRAPH_GRADIENT_CASES_H

#include <math.h>

#include "tests/c/graph/graph_fixture.h"
#include "tests/c/graph/graph_gradient_models.h"

/* Where parameters are drawn from: away from what the op cannot be differentiated at. */
typedef enum domain { NORMAL, POSITIVE, AWAY_FROM_ZERO, DISTINCT } domain;

typedef struct gradient_case {
  int op;
  const char *variant;
  domain domain;
  int (*build)(fixture *f, int op, int dtype);
} gradient_case;

/* ---- cases ------------------------------------------------------------------------------------------------------ */

static int build_unary(fixture *f, int op, int dtype) { return op1(f, op, param(f, dtype, SHAPE(3, 5)), NULL); }

static int build_binary(fixture *f, int op, int dtype) {
  return op2(f, op, param(f, dtype, SHAPE(3, 5)), param(f, dtype, SHAPE(3, 5)), NULL);
}

static int build_broadcast(fixture *f, int op, int dtype) {
  return op2(f, op, param(f, dtype, SHAPE(4, 1, 5)), param(f, dtype, SHAPE(3, 1)), NULL);
}

static int build_scalar(fixture *f, int op, int dtype) {
  return op2(f, op, param(f, dtype, SCALAR), param(f, dtype, SHAPE(2, 3)), NULL);
}

static int build_square(fixture *f, int op, int dtype) {
  int x = param(f, dtype, SHAPE(7));
  return op2(f, op, x, x, NULL);
}

static int build_where(fixture *f, int op, int dtype) {
  return op3(f, op, input(f, "mask", MS_U8, SHAPE(4, 5)), param(f, dtype, SHAPE(4, 5)), param(f, dtype, SCALAR), NULL);
}

/* Bounds between the elements of DISTINCT, which are multiples of 1/4. */
static int build_clamp(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 5)), ATTRS(.clamp = {.min = 0.625, .max = 2.375}));
}

static int build_clamp_below(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 5)), ATTRS(.clamp = {.min = 0.625, .max = INFINITY}));
}

/* Of DISTINCT numbers, and these less 7/8: no two are equal. */
static int build_apart(fixture *f, int op, int dtype) {
  int b = op1(f, MS_OP_scale, param(f, dtype, SHAPE(3, 1)), ATTRS(.scale = {.alpha = 1, .beta = 0.875}));
  return op2(f, op, param(f, dtype, SHAPE(4, 1, 5)), b, NULL);
}

/* A padding mask from tokens, as 1 and 0 that a value is multiplied by. */
static int build_mask_from_tokens(fixture *f, int op, int dtype) {
  int tokens = input(f, "tokens", MS_I32, SHAPE(4, 5)), pad = input(f, "pad", MS_I32, SCALAR);
  int mask = op1(f, op, op2(f, MS_OP_not_equal, tokens, pad, NULL), ATTRS(.out_dtype = 1 + dtype));
  return op2(f, MS_OP_mul, param(f, dtype, SHAPE(4, 5)), mask, NULL);
}

static int build_scale(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(6)), ATTRS(.scale = {.alpha = -1.5, .beta = 0.25}));
}

static int build_dropout(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(8, 9)), ATTRS(.mask = {.stream = 3, .p = 0.4}));
}

static int build_cast(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(8)), ATTRS(.out_dtype = 1 + MS_F32));
}

static int build_last(fixture *f, int op, int dtype) { return op1(f, op, param(f, dtype, SHAPE(3, 4, 5)), NULL); }

static int build_middle(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 4, 5)), ATTRS(.reduce = {.axis = 1}));
}

static int build_kept(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 4)), ATTRS(.reduce = {.axis = -2, .keepdim = 1}));
}

static int build_all(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 4)), ATTRS(.reduce = {.all = 1}));
}

static int build_reshape(fixture *f, int op, int dtype) {
  int x = op1(f, op, param(f, dtype, SHAPE(3, 4)), ATTRS(.shape = {.d = {2, -1, 1, 1, 1, 1}, .ndim = 2}));
  return op1(f, MS_OP_exp, x, NULL);
}

static int build_redistribute(fixture *f, int op, int dtype) {
  return op1(f, MS_OP_exp, op1(f, op, param(f, dtype, SHAPE(4, 6)), ATTRS(.across = {.dim = 2, .along = 1})), NULL);
}

static int build_transpose(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(2, 3, 4, 5)), ATTRS(.permutation = {.p = {2, 0, 3, 1}}));
}

static int build_slice(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 6, 2)), ATTRS(.cut = {.axis = 1, .start = 2, .stop = 5}));
}
static int build_pad(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 6)), ATTRS(.cut = {.axis = -1, .before = 2, .after = 1}));
}

static int build_concat(fixture *f, int op, int dtype) {
  return op3(f, op, param(f, dtype, SHAPE(3, 2, 2)), param(f, dtype, SHAPE(3, 1, 2)), param(f, dtype, SHAPE(3, 4, 2)),
             ATTRS(.cut = {.axis = 1}));
}

static int build_roll(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 6, 2)), ATTRS(.cut = {.axis = 1, .by = -2}));
}

static int build_cumsum(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 6, 2)), ATTRS(.cumsum = {.axis = -2}));
}
static int build_cumsum_reverse(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 6)), ATTRS(.cumsum = {.axis = -1, .reverse = 1}));
}

static int build_topk(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(4, 6, 2)), ATTRS(.topk = {.axis = 1, .k = 3, .largest = 1}));
}
static int build_smallest(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(4, 6)), ATTRS(.topk = {.axis = -1, .k = 2}));
}

/* Tokens, which are below 5, as an index of elements. */
static int build_gather(fixture *f, int op, int dtype) {
  return op2(f, op, param(f, dtype, SHAPE(4, 6, 2)), input(f, "tokens", MS_I32, SHAPE(4, 8, 2)),
             ATTRS(.cut = {.axis = 1}));
}
static int build_gather_last(fixture *f, int op, int dtype) {
  return op2(f, op, param(f, dtype, SHAPE(4, 6)), input(f, "tokens", MS_I32, SHAPE(4, 3)), ATTRS(.cut = {.axis = -1}));
}

static int build_scatter_add(fixture *f, int op, int dtype) {
  return op3(f, op, param(f, dtype, SHAPE(4, 6, 2)), input(f, "tokens", MS_I32, SHAPE(4, 8, 2)),
             param(f, dtype, SHAPE(4, 8, 2)), ATTRS(.cut = {.axis = 1}));
}

/* Two choices of 5 experts for each of 6 tokens, sorted: order, places, offsets. */
static void sorted_choices(fixture *f, int *sorted) {
  const int index = input(f, "tokens", MS_I32, SHAPE(6, 2));
  apply(f, MS_OP_expert_order, 1, &index, ATTRS(.experts = {.experts = 5}), sorted);
}
static int build_expert_rows(fixture *f, int op, int dtype) {
  int s[MS_MAX_OUTPUTS];
  sorted_choices(f, s);
  return op3(f, op, param(f, dtype, SHAPE(op == MS_OP_expert_dispatch ? 6 : 12, 4)), s[0], s[1], NULL);
}
static int build_weighted_rows(fixture *f, int op, int dtype) {
  int s[MS_MAX_OUTPUTS], out[MS_MAX_OUTPUTS];
  sorted_choices(f, s);
  const int x = param(f, dtype, SHAPE(op == MS_OP_expert_dispatch ? 6 : 12, 4));
  const int in[4] = {x, s[0], s[1], param(f, MS_F32, SHAPE(6, 2))};
  apply(f, op, 4, in, NULL, out);
  return out[0];
}
static int build_grouped_matmul(fixture *f, int op, int dtype) {
  int s[MS_MAX_OUTPUTS];
  sorted_choices(f, s);
  return op3(f, op, param(f, dtype, SHAPE(12, 4)), param(f, dtype, SHAPE(5, 4, 6)), s[2], NULL);
}
static int build_grouped_matmul_turned(fixture *f, int op, int dtype) {
  int s[MS_MAX_OUTPUTS];
  sorted_choices(f, s);
  return op3(f, op, param(f, dtype, SHAPE(12, 4)), param(f, dtype, SHAPE(5, 6, 4)), s[2],
             ATTRS(.product = {.trans_b = 1}));
}

static int build_broadcast_to(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 1)), ATTRS(.shape = {.d = {2, 3, 4, 1, 1, 1}, .ndim = 3}));
}

static int build_sum_to(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(2, 3, 4)),
             ATTRS(.out_dtype = 1 + MS_F32, .shape = {.d = {3, 1, 1, 1, 1, 1}, .ndim = 2}));
}

static int build_conv2d(fixture *f, int op, int dtype) {
  return op2(
      f, op, param(f, dtype, SHAPE(2, 3, 5, 6)), param(f, dtype, SHAPE(4, 3, 3, 2)),
      ATTRS(.windows = {.stride_h = 1, .stride_w = 1, .pad_h = 1, .dilation_h = 1, .dilation_w = 1, .groups = 1}));
}
static int build_conv2d_bias(fixture *f, int op, int dtype) {
  return op3(
      f, op, param(f, dtype, SHAPE(2, 4, 6, 5)), param(f, dtype, SHAPE(6, 2, 2, 3)), param(f, dtype, SHAPE(6)),
      ATTRS(.windows = {
                .stride_h = 2, .stride_w = 1, .pad_h = 1, .pad_w = 2, .dilation_h = 1, .dilation_w = 2, .groups = 2}));
}

static int build_group_norm(fixture *f, int op, int dtype) {
  return op3(f, op, param(f, dtype, SHAPE(2, 6, 5)), param(f, dtype, SHAPE(6)), param(f, dtype, SHAPE(6)),
             ATTRS(.norm = {.groups = 3, .eps = 1e-5}));
}

static int build_max_pool(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(2, 2, 5, 4)), ATTRS(.windows = {.kernel_h = 2, .kernel_w = 2}));
}
static int build_max_pool_overlapping(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(2, 1, 6, 5)),
             ATTRS(.windows = {.kernel_h = 3, .kernel_w = 2, .stride_h = 1, .stride_w = 2, .pad_h = 1, .pad_w = 1}));
}
static int build_avg_pool(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(2, 2, 5, 4)),
             ATTRS(.windows = {.kernel_h = 3,
                               .kernel_w = 2,
                               .stride_h = 2,
                               .stride_w = 1,
                               .pad_h = 1,
                               .pad_w = 1,
                               .count_include_pad = 1}));
}
static int build_avg_pool_inside(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(2, 1, 5, 4)),
             ATTRS(.windows = {.kernel_h = 3, .kernel_w = 2, .stride_h = 2, .stride_w = 1, .pad_h = 1, .pad_w = 1}));
}

/* Ops across ranks, of which there is one. */
static int build_alone(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(4, 6)), ATTRS(.across = {.ranks = 1}));
}

static int build_part_alone(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(4, 6)), ATTRS(.across = {.ranks = 1, .along = 1, .outer = 2}));
}

static int build_own_part_alone(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(4, 6)), ATTRS(.across = {.ranks = 1, .along = 1, .outer = 2, .split = 1}));
}

static int build_exchange_alone(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(4, 6, 2)), ATTRS(.across = {.ranks = 1, .split_axis = 1, .concat_axis = 2}));
}

static const gradient_case cases[] = {
    {MS_OP_add, "", NORMAL, build_binary},
    {MS_OP_add, " broadcast", NORMAL, build_broadcast},
    {MS_OP_add, " scalar", NORMAL, build_scalar},
    {MS_OP_sub, "", NORMAL, build_binary},
    {MS_OP_sub, " broadcast", NORMAL, build_broadcast},
    {MS_OP_mul, "", NORMAL, build_binary},
    {MS_OP_mul, " broadcast", NORMAL, build_broadcast},
    {MS_OP_mul, " scalar", NORMAL, build_scalar},
    {MS_OP_mul, " square", NORMAL, build_square},
    {MS_OP_div, "", POSITIVE, build_binary},
    {MS_OP_div, " broadcast", POSITIVE, build_broadcast},
    {MS_OP_div, " scalar", POSITIVE, build_scalar},
    {MS_OP_maximum, "", DISTINCT, build_apart},
    {MS_OP_minimum, "", DISTINCT, build_apart},
    {MS_OP_pow, "", POSITIVE, build_binary},
    {MS_OP_pow, " broadcast", POSITIVE, build_broadcast},
    {MS_OP_pow, " of itself", POSITIVE, build_square},
    {MS_OP_where, "", NORMAL, build_where},
    {MS_OP_abs, "", AWAY_FROM_ZERO, build_unary},
    {MS_OP_clamp, "", DISTINCT, build_clamp},
    {MS_OP_clamp, " below", DISTINCT, build_clamp_below},
    {MS_OP_scale, "", NORMAL, build_scale},
    {MS_OP_exp, "", NORMAL, build_unary},
    {MS_OP_log, "", POSITIVE, build_unary},
    {MS_OP_sqrt, "", POSITIVE, build_unary},
    {MS_OP_rsqrt, "", POSITIVE, build_unary},
    {MS_OP_tanh, "", NORMAL, build_unary},
    {MS_OP_sigmoid, "", NORMAL, build_unary},
    {MS_OP_softplus, "", NORMAL, build_unary},
    {MS_OP_relu, "", AWAY_FROM_ZERO, build_unary},
    {MS_OP_gelu, "", NORMAL, build_unary},
    {MS_OP_gelu_tanh, "", NORMAL, build_unary},
    {MS_OP_silu, "", NORMAL, build_unary},
    {MS_OP_swiglu, "", NORMAL, build_binary},
    {MS_OP_dropout, "", NORMAL, build_dropout},
    {MS_OP_cast, "", NORMAL, build_cast},
    {MS_OP_cast, " of a mask", NORMAL, build_mask_from_tokens},
    {MS_OP_sum, " last", NORMAL, build_last},
    {MS_OP_sum, " middle", NORMAL, build_middle},
    {MS_OP_sum, " kept", NORMAL, build_kept},
    {MS_OP_sum, " all", NORMAL, build_all},
    {MS_OP_mean, " last", NORMAL, build_last},
    {MS_OP_mean, " middle", NORMAL, build_middle},
    {MS_OP_mean, " kept", NORMAL, build_kept},
    {MS_OP_mean, " all", NORMAL, build_all},
    {MS_OP_max, " last", DISTINCT, build_last},
    {MS_OP_max, " middle", DISTINCT, build_middle},
    {MS_OP_max, " kept", DISTINCT, build_kept},
    {MS_OP_max, " all", DISTINCT, build_all},
    {MS_OP_min, " last", DISTINCT, build_last},
    {MS_OP_min, " middle", DISTINCT, build_middle},
    {MS_OP_min, " kept", DISTINCT, build_kept},
    {MS_OP_min, " all", DISTINCT, build_all},
    {MS_OP_softmax, "", NORMAL, build_unary},
    {MS_OP_log_softmax, "", NORMAL, build_unary},
    {MS_OP_matmul, "", NORMAL, build_plain},
    {MS_OP_matmul, " shared", NORMAL, build_shared},
    {MS_OP_matmul, " batched", NORMAL, build_batched},
    {MS_OP_matmul, " batched twice", NORMAL, build_batched_twice},
    {MS_OP_matmul, " bias", NORMAL, build_matmul_bias},
    {MS_OP_matmul, " relu", AWAY_FROM_ZERO, build_matmul_relu},
    {MS_OP_layer_norm, "", NORMAL, build_layer_norm},
    {MS_OP_rms_norm, "", NORMAL, build_rms_norm},
    {MS_OP_add_layer_norm, "", NORMAL, build_add_layer_norm},
    {MS_OP_add_rms_norm, "", NORMAL, build_add_rms_norm},
    {MS_OP_add_rms_norm, " sum only", NORMAL, build_add_rms_norm_sum_only},
    {MS_OP_embedding, "", NORMAL, build_embedding},
    {MS_OP_rope, "", NORMAL, build_rope},
    {MS_OP_rope, " interleaved", NORMAL, build_rope_interleaved},
    {MS_OP_rope, " scaled", NORMAL, build_rope_scaled},
    {MS_OP_rope, " turns", NORMAL, build_rope_turns},
    {MS_OP_attention, "", NORMAL, build_attention},
    {MS_OP_attention, " grouped", NORMAL, build_attention_grouped},
    {MS_OP_attention, " later queries", NORMAL, build_attention_later},
    {MS_OP_attention, " full", NORMAL, build_attention_full},
    {MS_OP_attention, " long", NORMAL, build_attention_long},
    {MS_OP_attention, " narrow", NORMAL, build_attention_narrow},
    {MS_OP_attention, " capped", NORMAL, build_attention_capped},
    {MS_OP_attention, " around", NORMAL, build_attention_around},
    {MS_OP_attention, " prefix", NORMAL, build_attention_prefix},
    {MS_OP_attention, " wide values", NORMAL, build_attention_wide},
    {MS_OP_attention, " slim values", NORMAL, build_attention_slim},
    {MS_OP_attention_sink, "", NORMAL, build_sinks},
    {MS_OP_attention_sink, " narrow", NORMAL, build_sinks_narrow},
    {MS_OP_document_attention_sink, "", NORMAL, build_sinks_documents},
    {MS_OP_document_attention, "", NORMAL, build_documents},
    {MS_OP_document_attention, " grouped", NORMAL, build_documents_grouped},
    {MS_OP_document_attention, " one", NORMAL, build_documents_one},
    {MS_OP_document_attention, " narrow", NORMAL, build_documents_narrow},
    {MS_OP_gated_delta_rule, "", NORMAL, build_delta_rule},
    {MS_OP_gated_delta_rule, " grouped", NORMAL, build_delta_rule_grouped},
    {MS_OP_gated_delta_rule, " chunks", NORMAL, build_delta_rule_chunks},
    {MS_OP_document_gated_delta_rule, "", NORMAL, build_delta_rule_documents},
    {MS_OP_cross_entropy, "", NORMAL, build_cross_entropy},
    {MS_OP_cross_entropy, " sum", NORMAL, build_cross_entropy_sum},
    {MS_OP_cross_entropy, " padded", NORMAL, build_cross_entropy_padded},
    {MS_OP_cross_entropy_join, "", NORMAL, build_cross_entropy_join},
    {MS_OP_linear_cross_entropy_join, "", NORMAL, build_linear_cross_entropy},
    {MS_OP_linear_cross_entropy_join, " frozen", NORMAL, build_linear_cross_entropy_frozen},
    {MS_OP_linear_cross_entropy_join, " bias", NORMAL, build_linear_cross_entropy_bias},
    {MS_OP_linear_cross_entropy_join, " bias alone", NORMAL, build_linear_cross_entropy_bias_alone},
    {MS_OP_linear_cross_entropy_join, " frozen bias", NORMAL, build_linear_cross_entropy_frozen_bias},
    {MS_OP_weigh, "", NORMAL, build_weigh},
    {MS_OP_reshape, "", NORMAL, build_reshape},
    {MS_OP_redistribute, "", NORMAL, build_redistribute},
    {MS_OP_transpose, "", NORMAL, build_transpose},
    {MS_OP_slice, "", NORMAL, build_slice},
    {MS_OP_pad, "", NORMAL, build_pad},
    {MS_OP_concat, "", NORMAL, build_concat},
    {MS_OP_roll, "", NORMAL, build_roll},
    {MS_OP_cumsum, "", NORMAL, build_cumsum},
    {MS_OP_cumsum, " reverse", NORMAL, build_cumsum_reverse},
    {MS_OP_topk, "", DISTINCT, build_topk},
    {MS_OP_topk, " smallest", DISTINCT, build_smallest},
    {MS_OP_gather, "", NORMAL, build_gather},
    {MS_OP_gather, " last", NORMAL, build_gather_last},
    {MS_OP_scatter_add, "", NORMAL, build_scatter_add},
    {MS_OP_expert_dispatch, "", NORMAL, build_expert_rows},
    {MS_OP_expert_dispatch, " weighted", NORMAL, build_weighted_rows},
    {MS_OP_expert_combine, "", NORMAL, build_expert_rows},
    {MS_OP_expert_combine, " weighted", NORMAL, build_weighted_rows},
    {MS_OP_grouped_matmul, "", NORMAL, build_grouped_matmul},
    {MS_OP_grouped_matmul, " turned", NORMAL, build_grouped_matmul_turned},
    {MS_OP_broadcast_to, "", NORMAL, build_broadcast_to},
    {MS_OP_sum_to, "", NORMAL, build_sum_to},
    {MS_OP_conv2d, "", NORMAL, build_conv2d},
    {MS_OP_conv2d, " groups and bias", NORMAL, build_conv2d_bias},
    {MS_OP_group_norm, "", NORMAL, build_group_norm},
    {MS_OP_max_pool2d, "", DISTINCT, build_max_pool},
    {MS_OP_max_pool2d, " overlapping", DISTINCT, build_max_pool_overlapping},
    {MS_OP_avg_pool2d, "", NORMAL, build_avg_pool},
    {MS_OP_avg_pool2d, " inside", NORMAL, build_avg_pool_inside},
    {MS_OP_all_reduce, " alone", NORMAL, build_alone},
    {MS_OP_copy_to, " alone", NORMAL, build_alone},
    {MS_OP_all_gather, " alone", NORMAL, build_part_alone},
    {MS_OP_all_gather, " split alone", NORMAL, build_own_part_alone},
    {MS_OP_reduce_scatter, " alone", NORMAL, build_part_alone},
    {MS_OP_split, " alone", NORMAL, build_part_alone},
    {MS_OP_split, " pad alone", NORMAL, build_own_part_alone},
    {MS_OP_unvary, " alone", NORMAL, build_alone},
    {MS_OP_once, " alone", NORMAL, build_alone},
    {MS_OP_all_to_all, " alone", NORMAL, build_exchange_alone},
    {MS_OP_shift, " alone", NORMAL, build_alone},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

#endif
