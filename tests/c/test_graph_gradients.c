/* test_graph_gradients.c - every differentiable row of the op table against central differences.
**
** A case builds a value from f32 parameters; the scalar that is differentiated is the sum of its elements times fixed random
** numbers. Along random directions d of each parameter, (L(x + h d) - L(x - h d)) / 2h must equal <gradient, d>; L is summed
** in double outside the graph. The same case in bf16 must then give nearly the f32 gradient at the same (rounded) point.
*/
#include "tests/c/graph_interpreter.h"
#include "tests/c/graph_models.h"

enum { DIRECTIONS = 4 };

/* Where parameters are drawn from: away from what the op cannot be differentiated at. */
typedef enum domain { NORMAL, POSITIVE, AWAY_FROM_ZERO, DISTINCT } domain;

typedef struct gradient_case {
  int op;
  const char *variant;
  domain domain;
  int (*build)(fixture *f, int op, int dtype);
} gradient_case;

/* ---- cases ------------------------------------------------------------------------------------------------------------ */

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

static int build_scale(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(6)), ATTRS(.f = {-1.5, 0.25}));
}

static int build_dropout(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(8, 9)), ATTRS(.i = {3}, .f = {0.4}));
}

static int build_cast(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(8)), ATTRS(.i = {[7] = 1 + MS_F32}));
}

static int build_last(fixture *f, int op, int dtype) { return op1(f, op, param(f, dtype, SHAPE(3, 4, 5)), NULL); }

static int build_middle(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 4, 5)), ATTRS(.i = {1}));
}

static int build_kept(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 4)), ATTRS(.i = {-2, 1}));
}

static int build_all(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 4)), ATTRS(.i = {0, 0, 1}));
}

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
    int product = op2(f, op, a, b, ATTRS(.i = {trans & 1, trans >> 1}));
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
             ATTRS(.i = {0, 1}));
}

static int build_matmul_relu(fixture *f, int op, int dtype) {
  return op3(f, op, param(f, dtype, SHAPE(4, 5)), param(f, dtype, SHAPE(3, 5)), param(f, dtype, SHAPE(3)),
             ATTRS(.i = {0, 1, MS_ACT_RELU}));
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
  return op2(f, MS_OP_add, out[0], op1(f, MS_OP_scale, out[2], ATTRS(.f = {0.5})), NULL);
}

static int build_add_rms_norm(fixture *f, int op, int dtype) {
  int out[MS_MAX_OUTPUTS],
      in[] = {param(f, dtype, SHAPE(2, 3, 8)), param(f, dtype, SHAPE(2, 3, 8)), param(f, dtype, SHAPE(8))};
  apply(f, op, 3, in, NULL, out);
  return op2(f, MS_OP_add, out[0], op1(f, MS_OP_scale, out[2], ATTRS(.f = {0.5})), NULL);
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
  return op1(f, op, param(f, dtype, SHAPE(2, 3, 2, 8)), ATTRS(.i = {5}, .f = {100}));
}

static int build_rope_interleaved(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(2, 3, 2, 8)), ATTRS(.i = {0, 1, 1}, .f = {100}));
}

static int attention(fixture *f, int op, int dtype, int64_t queries, int64_t keys, int64_t kv_heads,
                     const ms_attrs *attrs) {
  return op3(f, op, param(f, dtype, SHAPE(2, queries, 4, 8)), param(f, dtype, SHAPE(2, keys, kv_heads, 8)),
             param(f, dtype, SHAPE(2, keys, kv_heads, 8)), attrs);
}

static int build_attention(fixture *f, int op, int dtype) { return attention(f, op, dtype, 6, 6, 4, NULL); }
static int build_attention_grouped(fixture *f, int op, int dtype) { return attention(f, op, dtype, 6, 6, 2, NULL); }
static int build_attention_later(fixture *f, int op, int dtype) { return attention(f, op, dtype, 3, 7, 2, NULL); }
static int build_attention_full(fixture *f, int op, int dtype) {
  return attention(f, op, dtype, 5, 7, 1, ATTRS(.i = {0}, .f = {0.6}));
}
static int build_attention_long(fixture *f, int op, int dtype) { return attention(f, op, dtype, 150, 150, 2, NULL); }

static int build_cross_entropy(fixture *f, int op, int dtype) {
  return op2(f, op, param(f, dtype, SHAPE(2, 5, 7)), input(f, "tokens", MS_I32, SHAPE(2, 5)), ATTRS(.i = {2}));
}

/* The sum over counted targets: the count is a constant for the gradient. */
static int build_cross_entropy_sum(fixture *f, int op, int dtype) {
  int out[MS_MAX_OUTPUTS], in[] = {param(f, dtype, SHAPE(6, 7)), input(f, "tokens", MS_I32, SHAPE(6))};
  apply(f, op, 2, in, NULL, out);
  return op2(f, MS_OP_mul, out[0], out[2], NULL);
}

static int build_reshape(fixture *f, int op, int dtype) {
  int x = op1(f, op, param(f, dtype, SHAPE(3, 4)), ATTRS(.i = {2, -1, 1, 1, 1, 1, 2}));
  return op1(f, MS_OP_exp, x, NULL);
}

static int build_transpose(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(2, 3, 4, 5)), ATTRS(.i = {2, 0, 3, 1}));
}

static int build_slice(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 6, 2)), ATTRS(.i = {1, 2, 5}));
}
static int build_pad(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 6)), ATTRS(.i = {-1, 2, 1}));
}

static int build_concat(fixture *f, int op, int dtype) {
  return op3(f, op, param(f, dtype, SHAPE(3, 2, 2)), param(f, dtype, SHAPE(3, 1, 2)), param(f, dtype, SHAPE(3, 4, 2)),
             ATTRS(.i = {1}));
}

static int build_broadcast_to(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(3, 1)), ATTRS(.i = {2, 3, 4, 1, 1, 1, 3}));
}

static int build_sum_to(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(2, 3, 4)), ATTRS(.i = {3, 1, 1, 1, 1, 1, 2, 1 + MS_F32}));
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
    {MS_OP_where, "", NORMAL, build_where},
    {MS_OP_scale, "", NORMAL, build_scale},
    {MS_OP_exp, "", NORMAL, build_unary},
    {MS_OP_log, "", POSITIVE, build_unary},
    {MS_OP_sqrt, "", POSITIVE, build_unary},
    {MS_OP_rsqrt, "", POSITIVE, build_unary},
    {MS_OP_tanh, "", NORMAL, build_unary},
    {MS_OP_sigmoid, "", NORMAL, build_unary},
    {MS_OP_relu, "", AWAY_FROM_ZERO, build_unary},
    {MS_OP_gelu, "", NORMAL, build_unary},
    {MS_OP_gelu_tanh, "", NORMAL, build_unary},
    {MS_OP_silu, "", NORMAL, build_unary},
    {MS_OP_swiglu, "", NORMAL, build_binary},
    {MS_OP_dropout, "", NORMAL, build_dropout},
    {MS_OP_cast, "", NORMAL, build_cast},
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
    {MS_OP_attention, "", NORMAL, build_attention},
    {MS_OP_attention, " grouped", NORMAL, build_attention_grouped},
    {MS_OP_attention, " later queries", NORMAL, build_attention_later},
    {MS_OP_attention, " full", NORMAL, build_attention_full},
    {MS_OP_attention, " long", NORMAL, build_attention_long},
    {MS_OP_cross_entropy, "", NORMAL, build_cross_entropy},
    {MS_OP_cross_entropy, " sum", NORMAL, build_cross_entropy_sum},
    {MS_OP_reshape, "", NORMAL, build_reshape},
    {MS_OP_transpose, "", NORMAL, build_transpose},
    {MS_OP_slice, "", NORMAL, build_slice},
    {MS_OP_pad, "", NORMAL, build_pad},
    {MS_OP_concat, "", NORMAL, build_concat},
    {MS_OP_broadcast_to, "", NORMAL, build_broadcast_to},
    {MS_OP_sum_to, "", NORMAL, build_sum_to},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

/* ---- harness ------------------------------------------------------------------------------------------------------------ */

typedef struct trial {
  fixture f;
  interpreter it;
  int y, weights; /* values: what the case built, and what its elements are multiplied with */
  int forward_end;
} trial;

static void draw_param(interpreter *it, int value, int p, domain domain) {
  int64_t n = interpreter_numel(it, value);
  interpreter_draw(it, value, 100 + (uint64_t)p, 0, 1);
  for (int64_t i = 0; i < n; i++) {
    double x = interpreter_get(it, value, i);
    if (domain == POSITIVE) x = 0.6 + 0.4 * fabs(x);
    if (domain == AWAY_FROM_ZERO) x += x < 0 ? -0.2 : 0.2;
    if (domain == DISTINCT) x = (double)((7 * i + 3) % n) / 4; /* exact in bf16 too; neighbours are 1/4 apart */
    interpreter_set(it, value, i, x);
  }
}

static void trial_start(trial *t, const gradient_case *c, int dtype) {
  fixture_start(&t->f);
  ms_graph *g = t->f.graph;
  t->y = c->build(&t->f, c->op, dtype);
  const ms_value_info y = g->values[t->y].info;
  t->weights = input(&t->f, "weights", MS_F32, y.ndim, y.dims);
  ok(ms_graph_set_loss(g, sum_all(&t->f, op2(&t->f, MS_OP_mul, t->y, t->weights, NULL))));
  ok(ms_graph_differentiate(g));
  assert_well_formed(g);
  interpreter_start(&t->it, g);
  t->forward_end = interpreter_forward_end(&t->it);
  for (int v = 0; v < g->n_values; v++) {
    if (g->values[v].kind == MS_VALUE_PARAM) draw_param(&t->it, v, g->values[v].param, c->domain);
    if (g->values[v].kind != MS_VALUE_INPUT) continue;
    if (v == t->weights) interpreter_draw(&t->it, v, 1, 0, 1);
    else interpreter_draw_integers(&t->it, v, 2, g->values[v].info.dtype == MS_U8 ? 2 : 5);
  }
}

static void trial_end(trial *t) {
  interpreter_end(&t->it);
  fixture_end(&t->f);
}

static double loss_of(trial *t) {
  double loss = 0;
  interpreter_run(&t->it, 0, t->forward_end);
  for (int64_t i = 0; i < interpreter_numel(&t->it, t->y); i++)
    loss += interpreter_get(&t->it, t->y, i) * interpreter_get(&t->it, t->weights, i);
  return loss;
}

/* L at x + step d; x [n] and d [n] of parameter p. */
static double loss_along(trial *t, int p, const float *x, const float *d, double step) {
  float *data = t->it.data[t->f.graph->param_values[p]];
  int64_t n = ms_numel(&t->f.param[p].info);
  for (int64_t i = 0; i < n; i++) data[i] = (float)(x[i] + step * d[i]);
  double loss = loss_of(t);
  memcpy(data, x, (size_t)n * sizeof *x);
  return loss;
}

/* A parameter that the loss does not reach has no gradient value: it is zero. */
static double gradient_at(const trial *t, int gradient, int64_t i) {
  return gradient < 0 ? 0 : interpreter_get(&t->it, gradient, i);
}

static void check_param(trial *t, const gradient_case *c, int p) {
  const double h = 4e-3;
  int64_t n = ms_numel(&t->f.param[p].info);
  int gradient = t->f.graph->param_grads[p];
  float *x = malloc((size_t)n * sizeof *x), *d = malloc((size_t)n * sizeof *d);
  double norm = 0;
  memcpy(x, t->it.data[t->f.graph->param_values[p]], (size_t)n * sizeof *x);
  for (int64_t i = 0; i < n; i++) norm += pow(gradient_at(t, gradient, i), 2);
  norm = sqrt(norm);
  for (int k = 0; k < DIRECTIONS; k++) {
    ms_philox_normal(5, (uint64_t)(10 * p + k), 0, n, d);
    double expected = (loss_along(t, p, x, d, h) - loss_along(t, p, x, d, -h)) / (2 * h), told = 0;
    for (int64_t i = 0; i < n; i++) told += gradient_at(t, gradient, i) * d[i];
    if (!(fabs(told - expected) <= 1e-3 * (norm + fabs(expected)) + 1e-4))
      fail_msg("%s%s: parameter %d, direction %d: the gradient gives %.6g, differences %.6g (|gradient| %.3g)",
               ms_op_row_of(c->op)->name, c->variant, p, k, told, expected, norm);
  }
  free(x);
  free(d);
}

static void gradients_equal_differences(void **state) {
  (void)state;
  for (int i = 0; i < N_CASES; i++) {
    trial t;
    trial_start(&t, &cases[i], MS_F32);
    interpreter_run(&t.it, 0, t.f.graph->n_nodes);
    for (int p = 0; p < t.f.params; p++) check_param(&t, &cases[i], p);
    trial_end(&t);
  }
}

static void bf16_gradients_are_near_those_of_f32(void **state) {
  (void)state;
  for (int i = 0; i < N_CASES; i++) {
    trial half, full;
    trial_start(&half, &cases[i], MS_BF16);
    trial_start(&full, &cases[i], MS_F32);
    for (int p = 0; p < half.f.params; p++) {
      int from = half.f.graph->param_values[p], to = full.f.graph->param_values[p];
      for (int64_t k = 0; k < interpreter_numel(&half.it, from); k++)
        interpreter_set(&full.it, to, k, interpreter_get(&half.it, from, k));
    }
    interpreter_run(&half.it, 0, half.f.graph->n_nodes);
    interpreter_run(&full.it, 0, full.f.graph->n_nodes);
    for (int p = 0; p < half.f.params; p++) {
      if (half.f.graph->param_grads[p] < 0) continue;
      assert_int_equal(dtype_of(&half.f, half.f.graph->param_grads[p]), MS_F32);
      double apart =
          interpreter_difference(&half.it, half.f.graph->param_grads[p], &full.it, full.f.graph->param_grads[p]);
      if (!(apart < 2e-2))
        fail_msg("%s%s: parameter %d: the bf16 gradient is off by %.3g of its norm", ms_op_row_of(cases[i].op)->name,
                 cases[i].variant, p, apart);
    }
    trial_end(&half);
    trial_end(&full);
  }
}

static void every_differentiable_row_has_a_case(void **state) {
  (void)state;
  for (int op = 0; op < ms_op_count(); op++) {
    ms_op_info info;
    int found = 0;
    ok(ms_op_describe(op, &info));
    for (int i = 0; i < N_CASES; i++) found |= cases[i].op == op;
    if (info.differentiable && !found) fail_msg("%s is differentiable and has no case here", info.name);
    if (!info.differentiable && found) fail_msg("%s has a case here and no gradient", info.name);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(every_differentiable_row_has_a_case),
      TEST(gradients_equal_differences),
      TEST(bf16_gradients_are_near_those_of_f32),
  };
  return cmocka_run_group_tests_name("graph gradients", tests, NULL, NULL);
}
