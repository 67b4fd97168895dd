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
  const char *name;
  domain domain;
  int (*build)(fixture *f, int dtype);
} gradient_case;

/* ---- cases ------------------------------------------------------------------------------------------------------------ */

#define UNARY(op) \
  static int build_##op(fixture *f, int dtype) { return op1(f, MS_OP_##op, param(f, dtype, SHAPE(3, 5)), NULL); }
UNARY(exp)
UNARY(log) UNARY(sqrt) UNARY(rsqrt) UNARY(tanh) UNARY(sigmoid) UNARY(relu) UNARY(gelu) UNARY(gelu_tanh) UNARY(silu)
    UNARY(softmax) UNARY(log_softmax)
#define BINARY(op)                                                                                  \
  static int build_##op(fixture *f, int dtype) {                                                    \
    return op2(f, MS_OP_##op, param(f, dtype, SHAPE(3, 5)), param(f, dtype, SHAPE(3, 5)), NULL);    \
  }                                                                                                 \
  static int build_##op##_broadcast(fixture *f, int dtype) {                                        \
    return op2(f, MS_OP_##op, param(f, dtype, SHAPE(4, 1, 5)), param(f, dtype, SHAPE(3, 1)), NULL); \
  }                                                                                                 \
  static int build_##op##_scalar(fixture *f, int dtype) {                                           \
    return op2(f, MS_OP_##op, param(f, dtype, SCALAR), param(f, dtype, SHAPE(2, 3)), NULL);         \
  }
        BINARY(add) BINARY(sub) BINARY(mul) BINARY(div)

            static int build_square(fixture *f, int dtype) {
  int x = param(f, dtype, SHAPE(7));
  return op2(f, MS_OP_mul, x, x, NULL);
}

static int build_swiglu(fixture *f, int dtype) {
  return op2(f, MS_OP_swiglu, param(f, dtype, SHAPE(3, 5)), param(f, dtype, SHAPE(3, 5)), NULL);
}

static int build_where(fixture *f, int dtype) {
  return op3(f, MS_OP_where, input(f, "mask", MS_U8, SHAPE(4, 5)), param(f, dtype, SHAPE(4, 5)),
             param(f, dtype, SCALAR), NULL);
}

static int build_scale(fixture *f, int dtype) {
  return op1(f, MS_OP_scale, param(f, dtype, SHAPE(6)), ATTRS(.f = {-1.5, 0.25}));
}

static int build_dropout(fixture *f, int dtype) {
  return op1(f, MS_OP_dropout, param(f, dtype, SHAPE(8, 9)), ATTRS(.i = {3}, .f = {0.4}));
}

static int build_cast(fixture *f, int dtype) {
  return op1(f, MS_OP_cast, param(f, dtype, SHAPE(8)), ATTRS(.i = {[7] = 1 + MS_F32}));
}

#define REDUCE(op)                                                                  \
  static int build_##op##_last(fixture *f, int dtype) {                             \
    return op1(f, MS_OP_##op, param(f, dtype, SHAPE(3, 4, 5)), NULL);               \
  }                                                                                 \
  static int build_##op##_middle(fixture *f, int dtype) {                           \
    return op1(f, MS_OP_##op, param(f, dtype, SHAPE(3, 4, 5)), ATTRS(.i = {1}));    \
  }                                                                                 \
  static int build_##op##_kept(fixture *f, int dtype) {                             \
    return op1(f, MS_OP_##op, param(f, dtype, SHAPE(3, 4)), ATTRS(.i = {-2, 1}));   \
  }                                                                                 \
  static int build_##op##_all(fixture *f, int dtype) {                              \
    return op1(f, MS_OP_##op, param(f, dtype, SHAPE(3, 4)), ATTRS(.i = {0, 0, 1})); \
  }
REDUCE(sum)
REDUCE(mean) REDUCE(max)

    static int build_matmul(fixture *f, int dtype) {
  return op2(f, MS_OP_matmul, param(f, dtype, SHAPE(4, 5)), param(f, dtype, SHAPE(5, 3)), NULL);
}

#define MATMUL(name, trans_a, trans_b, a, b)                                                             \
  static int build_matmul_##name(fixture *f, int dtype) {                                                \
    return op2(f, MS_OP_matmul, param(f, dtype, a), param(f, dtype, b), ATTRS(.i = {trans_a, trans_b})); \
  }
MATMUL(ta, 1, 0, SHAPE(5, 4), SHAPE(5, 3))
MATMUL(tb, 0, 1, SHAPE(4, 5), SHAPE(3, 5))
MATMUL(tab, 1, 1, SHAPE(5, 4), SHAPE(3, 5))
MATMUL(shared, 0, 0, SHAPE(2, 3, 4, 5), SHAPE(5, 3))
MATMUL(shared_ta, 1, 0, SHAPE(2, 5, 4), SHAPE(5, 3))
MATMUL(shared_tb, 0, 1, SHAPE(2, 4, 5), SHAPE(3, 5))
MATMUL(shared_tab, 1, 1, SHAPE(2, 5, 4), SHAPE(3, 5))
MATMUL(batched, 0, 0, SHAPE(2, 4, 5), SHAPE(2, 5, 3))
MATMUL(batched_ta, 1, 0, SHAPE(2, 5, 4), SHAPE(2, 5, 3))
MATMUL(batched_tb, 0, 1, SHAPE(2, 2, 4, 5), SHAPE(2, 2, 3, 5))
MATMUL(batched_tab, 1, 1, SHAPE(2, 5, 4), SHAPE(2, 3, 5))

static int build_matmul_bias(fixture *f, int dtype) {
  return op3(f, MS_OP_matmul, param(f, dtype, SHAPE(2, 4, 5)), param(f, dtype, SHAPE(3, 5)), param(f, dtype, SHAPE(3)),
             ATTRS(.i = {0, 1}));
}

static int build_matmul_relu(fixture *f, int dtype) {
  return op3(f, MS_OP_matmul, param(f, dtype, SHAPE(4, 5)), param(f, dtype, SHAPE(3, 5)), param(f, dtype, SHAPE(3)),
             ATTRS(.i = {0, 1, MS_ACT_RELU}));
}

static int build_layer_norm(fixture *f, int dtype) {
  return op3(f, MS_OP_layer_norm, param(f, dtype, SHAPE(2, 3, 8)), param(f, dtype, SHAPE(8)), param(f, dtype, SHAPE(8)),
             NULL);
}

static int build_rms_norm(fixture *f, int dtype) {
  return op2(f, MS_OP_rms_norm, param(f, dtype, SHAPE(2, 3, 8)), param(f, dtype, SHAPE(8)), NULL);
}

/* Both float outputs count: the normalised value and the sum. */
static int build_add_layer_norm(fixture *f, int dtype) {
  int out[MS_MAX_OUTPUTS], in[] = {param(f, dtype, SHAPE(2, 3, 8)), param(f, dtype, SHAPE(2, 3, 8)),
                                   param(f, dtype, SHAPE(8)), param(f, dtype, SHAPE(8))};
  apply(f, MS_OP_add_layer_norm, 4, in, NULL, out);
  return op2(f, MS_OP_add, out[0], op1(f, MS_OP_scale, out[2], ATTRS(.f = {0.5})), NULL);
}

static int build_add_rms_norm(fixture *f, int dtype) {
  int out[MS_MAX_OUTPUTS],
      in[] = {param(f, dtype, SHAPE(2, 3, 8)), param(f, dtype, SHAPE(2, 3, 8)), param(f, dtype, SHAPE(8))};
  apply(f, MS_OP_add_rms_norm, 3, in, NULL, out);
  return op2(f, MS_OP_add, out[0], op1(f, MS_OP_scale, out[2], ATTRS(.f = {0.5})), NULL);
}

static int build_add_rms_norm_sum_only(fixture *f, int dtype) {
  int out[MS_MAX_OUTPUTS],
      in[] = {param(f, dtype, SHAPE(3, 8)), param(f, dtype, SHAPE(3, 8)), param(f, dtype, SHAPE(8))};
  apply(f, MS_OP_add_rms_norm, 3, in, NULL, out);
  return op2(f, MS_OP_mul, out[2], out[2], NULL);
}

static int build_embedding(fixture *f, int dtype) {
  return op2(f, MS_OP_embedding, param(f, dtype, SHAPE(7, 4)), input(f, "tokens", MS_I32, SHAPE(3, 5)), NULL);
}

static int build_rope(fixture *f, int dtype) {
  return op1(f, MS_OP_rope, param(f, dtype, SHAPE(2, 3, 2, 8)), ATTRS(.i = {5}, .f = {100}));
}

static int build_rope_interleaved(fixture *f, int dtype) {
  return op1(f, MS_OP_rope, param(f, dtype, SHAPE(2, 3, 2, 8)), ATTRS(.i = {0, 1, 1}, .f = {100}));
}

static int attention(fixture *f, int dtype, int64_t queries, int64_t keys, int64_t kv_heads, const ms_attrs *attrs) {
  return op3(f, MS_OP_attention, param(f, dtype, SHAPE(2, queries, 4, 8)), param(f, dtype, SHAPE(2, keys, kv_heads, 8)),
             param(f, dtype, SHAPE(2, keys, kv_heads, 8)), attrs);
}

static int build_attention(fixture *f, int dtype) { return attention(f, dtype, 6, 6, 4, NULL); }
static int build_attention_grouped(fixture *f, int dtype) { return attention(f, dtype, 6, 6, 2, NULL); }
static int build_attention_full(fixture *f, int dtype) {
  return attention(f, dtype, 5, 7, 1, ATTRS(.i = {0}, .f = {0.6}));
}
static int build_attention_long(fixture *f, int dtype) { return attention(f, dtype, 150, 150, 2, NULL); }

static int build_cross_entropy(fixture *f, int dtype) {
  return op2(f, MS_OP_cross_entropy, param(f, dtype, SHAPE(2, 5, 7)), input(f, "tokens", MS_I32, SHAPE(2, 5)),
             ATTRS(.i = {2}));
}

/* The sum over counted targets: the count is a constant for the gradient. */
static int build_cross_entropy_sum(fixture *f, int dtype) {
  int out[MS_MAX_OUTPUTS], in[] = {param(f, dtype, SHAPE(6, 7)), input(f, "tokens", MS_I32, SHAPE(6))};
  apply(f, MS_OP_cross_entropy, 2, in, NULL, out);
  return op2(f, MS_OP_mul, out[0], out[2], NULL);
}

static int build_reshape(fixture *f, int dtype) {
  return op1(f, MS_OP_exp, reshape_to(f, param(f, dtype, SHAPE(3, 4)), SHAPE(2, -1)), NULL);
}

static int build_transpose(fixture *f, int dtype) {
  return op1(f, MS_OP_transpose, param(f, dtype, SHAPE(2, 3, 4, 5)), ATTRS(.i = {2, 0, 3, 1}));
}

static int build_slice(fixture *f, int dtype) {
  return op1(f, MS_OP_slice, param(f, dtype, SHAPE(3, 6, 2)), ATTRS(.i = {1, 2, 5}));
}
static int build_pad(fixture *f, int dtype) {
  return op1(f, MS_OP_pad, param(f, dtype, SHAPE(3, 6)), ATTRS(.i = {-1, 2, 1}));
}

static int build_concat(fixture *f, int dtype) {
  return op3(f, MS_OP_concat, param(f, dtype, SHAPE(3, 2, 2)), param(f, dtype, SHAPE(3, 1, 2)),
             param(f, dtype, SHAPE(3, 4, 2)), ATTRS(.i = {1}));
}

static int build_broadcast_to(fixture *f, int dtype) {
  return op1(f, MS_OP_broadcast_to, param(f, dtype, SHAPE(3, 1)), ATTRS(.i = {2, 3, 4, 1, 1, 1, 3}));
}

static int build_sum_to(fixture *f, int dtype) {
  return op1(f, MS_OP_sum_to, param(f, dtype, SHAPE(2, 3, 4)), ATTRS(.i = {3, 1, 1, 1, 1, 1, 2, 1 + MS_F32}));
}

#define CASE(op, domain, suffix) \
  { MS_OP_##op, #op #suffix, domain, build_##op##suffix }
#define CASES_BINARY(op, domain) CASE(op, domain, ), CASE(op, domain, _broadcast), CASE(op, domain, _scalar)
#define CASES_REDUCE(op, domain) \
  CASE(op, domain, _last), CASE(op, domain, _middle), CASE(op, domain, _kept), CASE(op, domain, _all)
static const gradient_case cases[] = {
    CASES_BINARY(add, NORMAL),
    CASES_BINARY(sub, NORMAL),
    CASES_BINARY(mul, NORMAL),
    CASES_BINARY(div, POSITIVE),
    {MS_OP_mul, "square", NORMAL, build_square},
    CASE(where, NORMAL, ),
    CASE(scale, NORMAL, ),
    CASE(exp, NORMAL, ),
    CASE(log, POSITIVE, ),
    CASE(sqrt, POSITIVE, ),
    CASE(rsqrt, POSITIVE, ),
    CASE(tanh, NORMAL, ),
    CASE(sigmoid, NORMAL, ),
    CASE(relu, AWAY_FROM_ZERO, ),
    CASE(gelu, NORMAL, ),
    CASE(gelu_tanh, NORMAL, ),
    CASE(silu, NORMAL, ),
    CASE(swiglu, NORMAL, ),
    CASE(dropout, NORMAL, ),
    CASE(cast, NORMAL, ),
    CASES_REDUCE(sum, NORMAL),
    CASES_REDUCE(mean, NORMAL),
    CASES_REDUCE(max, DISTINCT),
    CASE(softmax, NORMAL, ),
    CASE(log_softmax, NORMAL, ),
    CASE(matmul, NORMAL, ),
    CASE(matmul, NORMAL, _ta),
    CASE(matmul, NORMAL, _tb),
    CASE(matmul, NORMAL, _tab),
    CASE(matmul, NORMAL, _shared),
    CASE(matmul, NORMAL, _shared_ta),
    CASE(matmul, NORMAL, _shared_tb),
    CASE(matmul, NORMAL, _shared_tab),
    CASE(matmul, NORMAL, _batched),
    CASE(matmul, NORMAL, _batched_ta),
    CASE(matmul, NORMAL, _batched_tb),
    CASE(matmul, NORMAL, _batched_tab),
    CASE(matmul, NORMAL, _bias),
    CASE(matmul, AWAY_FROM_ZERO, _relu),
    CASE(layer_norm, NORMAL, ),
    CASE(rms_norm, NORMAL, ),
    CASE(add_layer_norm, NORMAL, ),
    CASE(add_rms_norm, NORMAL, ),
    CASE(add_rms_norm, NORMAL, _sum_only),
    CASE(embedding, NORMAL, ),
    CASE(rope, NORMAL, ),
    CASE(rope, NORMAL, _interleaved),
    CASE(attention, NORMAL, ),
    CASE(attention, NORMAL, _grouped),
    CASE(attention, NORMAL, _full),
    CASE(attention, NORMAL, _long),
    CASE(cross_entropy, NORMAL, ),
    CASE(cross_entropy, NORMAL, _sum),
    CASE(reshape, NORMAL, ),
    CASE(transpose, NORMAL, ),
    CASE(slice, NORMAL, ),
    CASE(pad, NORMAL, ),
    CASE(concat, NORMAL, ),
    CASE(broadcast_to, NORMAL, ),
    CASE(sum_to, NORMAL, ),
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
  t->y = c->build(&t->f, dtype);
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
      fail_msg("%s: parameter %d, direction %d: the gradient gives %.6g, differences %.6g (|gradient| %.3g)", c->name,
               p, k, told, expected, norm);
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
        fail_msg("%s: parameter %d: the bf16 gradient is off by %.3g of its norm", cases[i].name, p, apart);
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
