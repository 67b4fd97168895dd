/* graph_gradient_models.h - graphs of the ops that transformers are made of, for graph_gradient_cases.h: products,
 * norms, embeddings, positions, attention and losses.
 */
#ifndef MS_TESTS_GRAPH_GRADIENT_MODELS_H
#define MS_TESTS_GRAPH_GRADIENT_MODELS_H

#include "tests/c/graph/graph_fixture.h"

/* A parameter [..., rows, columns] with n leading dimensions of 2, its last two swapped when transposed. */
static int matrices(fixture *f, int dtype, int n, int64_t rows, int64_t columns, int transposed) {
  int64_t dims[MS_MAX_DIMS] = {2, 2, 2, 2};
  dims[n] = transposed ? columns : rows;
  dims[n + 1] = transposed ? rows : columns;
  return param(f, dtype, n + 2, dims);
}

/* Products with each operand plain and transposed, added up so that all four stand in one graph. */
static int products(fixture *f, int op, int dtype, int leading_a, int leading_b) {
  int sum = -1;
  for (int trans = 0; trans < 4; trans++) {
    int a = matrices(f, dtype, leading_a, 4, 5, trans & 1), b = matrices(f, dtype, leading_b, 5, 3, trans >> 1);
    int product = op2(f, op, a, b, ATTRS(.product = {.trans_a = trans & 1, .trans_b = trans >> 1}));
    sum = sum < 0 ? product : op2(f, MS_OP_add, sum, product, NULL);
  }
  return sum;
}

static int build_plain(fixture *f, int op, int dtype) { return products(f, op, dtype, 0, 0); }
static int build_shared(fixture *f, int op, int dtype) { return products(f, op, dtype, 2, 0); }
static int build_batched(fixture *f, int op, int dtype) { return products(f, op, dtype, 1, 1); }
static int build_batched_twice(fixture *f, int op, int dtype) { return products(f, op, dtype, 2, 2); }

static int build_matmul_bias(fixture *f, int op, int dtype) {
  return op3(f, op, param(f, dtype, SHAPE(2, 4, 5)), param(f, dtype, SHAPE(3, 5)), param(f, dtype, SHAPE(3)),
             ATTRS(.product = {.trans_b = 1}));
}

static int build_matmul_relu(fixture *f, int op, int dtype) {
  return op3(f, op, param(f, dtype, SHAPE(4, 5)), param(f, dtype, SHAPE(3, 5)), param(f, dtype, SHAPE(3)),
             ATTRS(.product = {.trans_b = 1, .activation = MS_ACT_RELU}));
}

static int build_layer_norm(fixture *f, int op, int dtype) {
  return op3(f, op, param(f, dtype, SHAPE(2, 3, 8)), param(f, dtype, SHAPE(8)), param(f, dtype, SHAPE(8)), NULL);
}

static int build_rms_norm(fixture *f, int op, int dtype) {
  return op2(f, op, param(f, dtype, SHAPE(2, 3, 8)), param(f, dtype, SHAPE(8)), NULL);
}

/* Both float outputs count: the normalised value and the sum. */
static int build_add_layer_norm(fixture *f, int op, int dtype) {
  int out[MS_MAX_OUTPUTS], in[] = {param(f, dtype, SHAPE(2, 3, 8)), param(f, dtype, SHAPE(2, 3, 8)),
                                   param(f, dtype, SHAPE(8)), param(f, dtype, SHAPE(8))};
  apply(f, op, 4, in, NULL, out);
  return op2(f, MS_OP_add, out[0], op1(f, MS_OP_scale, out[2], ATTRS(.scale = {.alpha = 0.5})), NULL);
}

static int build_add_rms_norm(fixture *f, int op, int dtype) {
  int out[MS_MAX_OUTPUTS],
      in[] = {param(f, dtype, SHAPE(2, 3, 8)), param(f, dtype, SHAPE(2, 3, 8)), param(f, dtype, SHAPE(8))};
  apply(f, op, 3, in, NULL, out);
  return op2(f, MS_OP_add, out[0], op1(f, MS_OP_scale, out[2], ATTRS(.scale = {.alpha = 0.5})), NULL);
}

static int build_add_rms_norm_sum_only(fixture *f, int op, int dtype) {
  int out[MS_MAX_OUTPUTS],
      in[] = {param(f, dtype, SHAPE(3, 8)), param(f, dtype, SHAPE(3, 8)), param(f, dtype, SHAPE(8))};
  apply(f, op, 3, in, NULL, out);
  return op2(f, MS_OP_mul, out[2], out[2], NULL);
}

static int build_embedding(fixture *f, int op, int dtype) {
  return op2(f, op, param(f, dtype, SHAPE(7, 4)), input(f, "tokens", MS_I32, SHAPE(3, 5)), NULL);
}

static int build_rope(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(2, 3, 2, 8)), ATTRS(.rope = {.offset = 5, .theta = 100}));
}

static int build_rope_interleaved(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(2, 3, 2, 8)), ATTRS(.rope = {.interleaved = 1, .inverse = 1, .theta = 100}));
}

static int build_rope_scaled(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(2, 3, 2, 8)),
             ATTRS(.rope = {.offset = 5, .original = 32, .theta = 100, .factor = 8, .low = 1, .high = 4}));
}

/* Some pairs of each head, with frequencies and factors that are an input. */
static int build_rope_turns(fixture *f, int op, int dtype) {
  return op2(f, op, param(f, dtype, SHAPE(2, 3, 2, 8)), input(f, "turns", MS_F32, SHAPE(2, 3)),
             ATTRS(.rope = {.offset = 5, .theta = 100}));
}

static int attention(fixture *f, int op, int dtype, int64_t queries, int64_t keys, int64_t kv_heads,
                     const ms_op_attrs *attrs) {
  return op3(f, op, param(f, dtype, SHAPE(2, queries, 4, 8)), param(f, dtype, SHAPE(2, keys, kv_heads, 8)),
             param(f, dtype, SHAPE(2, keys, kv_heads, 8)), attrs);
}

static int build_attention(fixture *f, int op, int dtype) { return attention(f, op, dtype, 6, 6, 4, NULL); }
static int build_attention_grouped(fixture *f, int op, int dtype) { return attention(f, op, dtype, 6, 6, 2, NULL); }
static int build_attention_later(fixture *f, int op, int dtype) { return attention(f, op, dtype, 3, 7, 2, NULL); }
static int build_attention_full(fixture *f, int op, int dtype) {
  return attention(f, op, dtype, 5, 7, 1, ATTRS(.attention = {.scale = 0.6}));
}
static int build_attention_long(fixture *f, int op, int dtype) { return attention(f, op, dtype, 150, 150, 2, NULL); }
static int build_attention_narrow(fixture *f, int op, int dtype) {
  return attention(f, op, dtype, 90, 95, 2, ATTRS(.attention = {.causal = 1, .window = 33}));
}
static int build_attention_around(fixture *f, int op, int dtype) {
  return attention(f, op, dtype, 40, 45, 2, ATTRS(.attention = {.window = 7}));
}
static int build_attention_prefix(fixture *f, int op, int dtype) {
  return attention(f, op, dtype, 40, 45, 2, ATTRS(.attention = {.causal = 1, .prefix = 13}));
}
/* Values are wider than keys, or narrower. */
static int build_attention_widths(fixture *f, int op, int dtype, int64_t columns) {
  return op3(f, op, param(f, dtype, SHAPE(2, 9, 4, 8)), param(f, dtype, SHAPE(2, 9, 2, 8)),
             param(f, dtype, SHAPE(2, 9, 2, columns)), ATTRS(.attention = {.causal = 1}));
}
static int build_attention_wide(fixture *f, int op, int dtype) { return build_attention_widths(f, op, dtype, 12); }
static int build_attention_slim(fixture *f, int op, int dtype) { return build_attention_widths(f, op, dtype, 3); }
static int build_attention_capped(fixture *f, int op, int dtype) {
  return attention(f, op, dtype, 9, 11, 2,
                   ATTRS(.attention = {.causal = 1, .window = 4, .scale = 0.6, .softcap = 0.8}));
}

static int documents(fixture *f, int op, int dtype, int64_t length, int64_t kv_heads, const ms_op_attrs *attrs) {
  int in[] = {param(f, dtype, SHAPE(2, length, 4, 8)), param(f, dtype, SHAPE(2, length, kv_heads, 8)),
              param(f, dtype, SHAPE(2, length, kv_heads, 8)), input(f, "tokens", MS_I32, SHAPE(2, length))};
  int out[MS_MAX_OUTPUTS];
  apply(f, op, 4, in, attrs, out);
  return out[0];
}

static int build_documents(fixture *f, int op, int dtype) {
  return documents(f, op, dtype, 17, 4, ATTRS(.attention = {.start = 2}));
}
static int build_documents_grouped(fixture *f, int op, int dtype) {
  return documents(f, op, dtype, 40, 2, ATTRS(.attention = {.start = 1}));
}
static int build_documents_one(fixture *f, int op, int dtype) {
  return documents(f, op, dtype, 9, 1, ATTRS(.attention = {.start = -1}));
}
static int build_documents_narrow(fixture *f, int op, int dtype) {
  return documents(f, op, dtype, 40, 2, ATTRS(.attention = {.start = 1, .window = 5, .softcap = 0.8}));
}

/* The attention before the sinks, too: its inputs get its gradient from them. */
static int sinks(fixture *f, int op, int dtype, int64_t kv_heads, const ms_op_attrs *attrs) {
  const int documents = op == MS_OP_document_attention_sink,
            before = documents ? MS_OP_document_attention : MS_OP_attention;
  int in[] = {param(f, dtype, SHAPE(2, 20, 4, 8)), param(f, dtype, SHAPE(2, 20, kv_heads, 8)),
              param(f, dtype, SHAPE(2, 20, kv_heads, 8)), documents ? input(f, "tokens", MS_I32, SHAPE(2, 20)) : -1};
  int out[MS_MAX_OUTPUTS];
  apply(f, before, 3 + documents, in, attrs, out);
  int with[] = {in[0], in[1], in[2], out[0], out[1], param(f, dtype, SHAPE(4)), in[3]};
  apply(f, op, 6 + documents, with, attrs, out);
  return out[0];
}

static int build_sinks(fixture *f, int op, int dtype) {
  return sinks(f, op, dtype, 2, ATTRS(.attention = {.causal = 1}));
}
static int build_sinks_narrow(fixture *f, int op, int dtype) {
  return sinks(f, op, dtype, 1, ATTRS(.attention = {.causal = 1, .window = 5, .scale = 0.6, .softcap = 0.8}));
}
static int build_sinks_documents(fixture *f, int op, int dtype) {
  return sinks(f, op, dtype, 4, ATTRS(.attention = {.start = 2, .window = 6}));
}

/* As a layer makes them: short keys, g below 0 and beta between 0 and 1. */
static int delta_rule(fixture *f, int op, int dtype, int64_t t, int64_t groups, int64_t heads,
                      const ms_op_attrs *attrs) {
  const int documents = op == MS_OP_document_gated_delta_rule;
  const int k = op1(f, MS_OP_scale, param(f, dtype, SHAPE(2, t, groups, 4)), ATTRS(.scale = {.alpha = 0.4}));
  const int decay = op1(f, MS_OP_softplus, param(f, dtype, SHAPE(2, t, heads)), NULL);
  const int in[] = {param(f, dtype, SHAPE(2, t, groups, 4)),
                    k,
                    param(f, dtype, SHAPE(2, t, heads, 3)),
                    op1(f, MS_OP_scale, decay, ATTRS(.scale = {.alpha = -0.3})),
                    op1(f, MS_OP_sigmoid, param(f, dtype, SHAPE(2, t, heads)), NULL),
                    documents ? input(f, "tokens", MS_I32, SHAPE(2, t)) : -1};
  int out[MS_MAX_OUTPUTS];
  apply(f, op, 5 + documents, in, attrs, out);
  return out[0];
}

static int build_delta_rule(fixture *f, int op, int dtype) { return delta_rule(f, op, dtype, 9, 2, 2, NULL); }
static int build_delta_rule_grouped(fixture *f, int op, int dtype) {
  return delta_rule(f, op, dtype, 6, 2, 4, ATTRS(.delta_rule = {.scale = 0.8}));
}
static int build_delta_rule_chunks(fixture *f, int op, int dtype) { return delta_rule(f, op, dtype, 66, 1, 1, NULL); }
static int build_delta_rule_documents(fixture *f, int op, int dtype) {
  return delta_rule(f, op, dtype, 17, 2, 2, ATTRS(.delta_rule = {.start = 2}));
}

static int build_cross_entropy(fixture *f, int op, int dtype) {
  return op2(f, op, param(f, dtype, SHAPE(2, 5, 7)), input(f, "tokens", MS_I32, SHAPE(2, 5)),
             ATTRS(.loss = {.ignore_index = 2}));
}

/* The sum over counted targets: the count is a constant for the gradient. */
static int build_cross_entropy_sum(fixture *f, int op, int dtype) {
  int out[MS_MAX_OUTPUTS], in[] = {param(f, dtype, SHAPE(6, 7)), input(f, "tokens", MS_I32, SHAPE(6))};
  apply(f, op, 2, in, NULL, out);
  return op2(f, MS_OP_mul, out[0], out[2], NULL);
}

/* The last two logits are padding; tokens are below 5. */
static int build_cross_entropy_padded(fixture *f, int op, int dtype) {
  int tokens = input(f, "few_tokens", MS_I32, SHAPE(6));
  return op2(f, op, param(f, dtype, SHAPE(6, 7)), tokens, ATTRS(.loss = {.ignore_index = 2, .classes = 5}));
}

/* Two parts of eight classes; the gradient is that of the first. */
static int build_cross_entropy_join(fixture *f, int op, int dtype) {
  const int tokens = input(f, "few_tokens", MS_I32, SHAPE(6)), own = param(f, dtype, SHAPE(6, 4));
  const int other = input(f, "logits", dtype, SHAPE(6, 4));
  const int added[] = {
      op2(f, MS_OP_cross_entropy_part, own, tokens, ATTRS(.loss = {.ignore_index = 2, .parts = 2})),
      op2(f, MS_OP_cross_entropy_part, other, tokens, ATTRS(.loss = {.ignore_index = 2, .parts = 2, .first = 4}))};
  const int all = op2(f, MS_OP_concat, added[0], added[1], ATTRS(.cut = {.axis = 0}));
  int out[MS_MAX_OUTPUTS];
  apply(f, op, 3, (int[]){own, tokens, all}, ATTRS(.loss = {.ignore_index = 2, .parts = 2}), out);
  return out[0];
}

/* x [2,3,5] of a linear layer with a weight [7,5], of which the last two rows are padding, in chunks of four rows; b
 * [7], -1: it has no bias. */
static int linear_cross_entropy(fixture *f, int op, int x, int w, int b) {
  const int in[] = {x, w, input(f, "few_tokens", MS_I32, SHAPE(2, 3)), b}, biased = b >= 0;
  const ms_op_attrs attrs = {.loss = {.ignore_index = 2, .parts = 1, .classes = 5, .fused = 4}};
  int out[MS_MAX_OUTPUTS];
  apply(f, MS_OP_linear_cross_entropy_part, 3 + biased, in, &attrs, out);
  apply(f, op, 4 + biased, (int[]){in[0], in[1], in[2], out[0], b}, &attrs, out);
  return out[0];
}

static int build_linear_cross_entropy(fixture *f, int op, int dtype) {
  return linear_cross_entropy(f, op, param(f, dtype, SHAPE(2, 3, 5)), param(f, dtype, SHAPE(7, 5)), -1);
}

static int build_linear_cross_entropy_frozen(fixture *f, int op, int dtype) {
  return linear_cross_entropy(f, op, param(f, dtype, SHAPE(2, 3, 5)), input(f, "w", dtype, SHAPE(7, 5)), -1);
}

static int build_linear_cross_entropy_bias(fixture *f, int op, int dtype) {
  const int x = param(f, dtype, SHAPE(2, 3, 5)), w = param(f, dtype, SHAPE(7, 5));
  return linear_cross_entropy(f, op, x, w, param(f, dtype, SHAPE(7)));
}

static int build_linear_cross_entropy_bias_alone(fixture *f, int op, int dtype) {
  const int x = param(f, dtype, SHAPE(2, 3, 5)), w = input(f, "w", dtype, SHAPE(7, 5));
  return linear_cross_entropy(f, op, x, w, param(f, dtype, SHAPE(7)));
}

static int build_linear_cross_entropy_frozen_bias(fixture *f, int op, int dtype) {
  const int x = param(f, dtype, SHAPE(2, 3, 5)), w = param(f, dtype, SHAPE(7, 5));
  return linear_cross_entropy(f, op, x, w, input(f, "b", dtype, SHAPE(7)));
}

/* A mean over some targets as a share of that over more. */
static int build_weigh(fixture *f, int op, int dtype) {
  const int tokens = input(f, "few_tokens", MS_I32, SHAPE(6));
  const int in[2][2] = {{param(f, dtype, SHAPE(6, 7)), tokens}, {input(f, "logits", dtype, SHAPE(6, 7)), tokens}};
  int own[MS_MAX_OUTPUTS], other[MS_MAX_OUTPUTS];
  apply(f, MS_OP_cross_entropy, 2, in[0], ATTRS(.loss = {.ignore_index = 2}), own);
  apply(f, MS_OP_cross_entropy, 2, in[1], NULL, other);
  const int total = op2(f, MS_OP_add, own[2], other[2], NULL);
  apply(f, op, 3, (int[]){own[0], own[2], total}, NULL, own);
  return own[0];
}

#endif
