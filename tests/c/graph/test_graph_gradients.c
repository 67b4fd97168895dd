/* test_graph_gradients.c - every differentiable row of the op table against central differences.
 *
 * A case builds a value from f32 parameters; the scalar that is differentiated is the sum of its elements times fixed
 * random numbers. Along random directions d of each parameter, (L(x + h d) - L(x - h d)) / 2h must equal <gradient, d>;
 * L is summed in double outside the graph. The same case in bf16 must then give nearly the f32 gradient at the same
 * (rounded) point.
 */
#include "tests/c/graph/graph_gradient_cases.h"
#include "tests/c/graph/graph_interpreter.h"

enum { DIRECTIONS = 4 };

/* ---- harness ---------------------------------------------------------------------------------------------------- */

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
  must(ms_graph_set_loss(g, sum_all(&t->f, op2(&t->f, MS_OP_mul, t->y, t->weights, NULL)), -1));
  must(ms_graph_differentiate(g));
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

/* Their results are step functions of their inputs: test_graph_float8.c looks at their gradients. */
static int rounds(int op) { return op == MS_OP_matmul_f8 || op == MS_OP_grouped_matmul_f8; }

static void every_differentiable_row_has_a_case(void **state) {
  (void)state;
  for (int op = 0; op < ms_op_count(); op++) {
    ms_op_info info;
    int found = 0;
    must(ms_op_describe(op, &info, sizeof info));
    for (int i = 0; i < N_CASES; i++) found |= cases[i].op == op;
    if (info.differentiable && !found && !rounds(op)) fail_msg("%s is differentiable and has no case here", info.name);
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
