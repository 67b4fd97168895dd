/* test_graph_float8.c - which products of weights with a recipe become matmul_f8, with which gradients; how near those
 * are to gradients without rounding; and what is refused, by parameter.
 */
#include "tests/c/graph/graph_case.h"
#include "tests/c/graph/graph_interpreter.h"

#include "kernels/products/matmul_f8.h"

enum { ROWS = 32, INPUTS = 64, OUTPUTS = 32 };

typedef struct layer {
  int x, w, y;
} layer;

/* A parameter whose products are rounded by a recipe. */
static int weight(int recipe, int64_t rows, int64_t columns) {
  const int w = param(&f, MS_F32, SHAPE(rows, columns));
  f.param[f.params - 1].fp8 = recipe;
  return w;
}

static int hidden(int64_t rows, int64_t columns) {
  return op1(&f, MS_OP_tanh, param(&f, MS_F32, SHAPE(rows, columns)), NULL);
}

static layer layer_of(int recipe, int trans_b) {
  layer l = {.x = hidden(ROWS, INPUTS)};
  l.w = trans_b ? weight(recipe, OUTPUTS, INPUTS) : weight(recipe, INPUTS, OUTPUTS);
  l.y = op2(&f, MS_OP_matmul, l.x, l.w, ATTRS(.product = {.trans_b = trans_b}));
  return l;
}

/* A loss whose gradient differs from element to element. */
static void set_loss(int y) { must(ms_graph_set_loss(f.graph, sum_all(&f, op2(&f, MS_OP_mul, y, y, NULL)), -1)); }

static const ms_node *product(int op, int which) {
  for (int n = 0; n < f.graph->n_nodes; n++) {
    const ms_node *node = &f.graph->nodes[n];
    if (node->op == op && (op != MS_OP_matmul_f8 || node->attrs.product.product == which)) return node;
  }
  fail_msg("no product %d", which);
  return NULL;
}

static void Q4_a_layer_has_three_rounded_products(void **state) {
  (void)state;
  const layer l = layer_of(MS_FP8_ROWWISE, 1);
  set_loss(l.y);
  must(ms_graph_round_products(f.graph, 1));
  must(ms_graph_differentiate(f.graph));
  assert_well_formed(f.graph);
  assert_int_equal(count_op(&f, MS_OP_matmul_f8), 3);
  assert_int_equal(count_op(&f, MS_OP_matmul), 0);
  assert_int_equal(maker(l.y)->attrs.product.recipe, MS_FP8_ROWWISE);
  assert_int_equal(product(MS_OP_matmul_f8, MS_F8_DX)->in[1], l.w);
  assert_int_equal(product(MS_OP_matmul_f8, MS_F8_DW)->in[1], l.x);
  assert_string_equal(shape_of(&f, f.graph->param_grads[1]), "[32,64]");
}

static void Q4_weights_may_be_stored_either_way(void **state) {
  (void)state;
  const layer l = layer_of(MS_FP8_TENSORWISE, 0);
  set_loss(l.y);
  must(ms_graph_round_products(f.graph, 1));
  must(ms_graph_differentiate(f.graph));
  assert_int_equal(product(MS_OP_matmul_f8, MS_F8_DW_TURNED)->in[0], l.x);
  assert_int_equal(product(MS_OP_matmul_f8, MS_F8_DX)->in[1], l.w);
}

static void Q4_the_weights_gradient_may_stay_as_it_is(void **state) {
  (void)state;
  set_loss(layer_of(MS_FP8_ROWWISE_WITH_GW_HP, 1).y);
  must(ms_graph_round_products(f.graph, 1));
  must(ms_graph_differentiate(f.graph));
  assert_int_equal(count_op(&f, MS_OP_matmul_f8), 2);
  assert_int_equal(count_op(&f, MS_OP_matmul), 1);
}

static void Q4_biases_and_activations_are_fused(void **state) {
  (void)state;
  const int x = hidden(ROWS, INPUTS), w = weight(MS_FP8_ROWWISE, OUTPUTS, INPUTS);
  const int y = op1(&f, MS_OP_relu, linear(&f, x, w, param(&f, MS_F32, SHAPE(OUTPUTS))), NULL);
  const int other = linear(&f, y, param(&f, MS_F32, SHAPE(3, OUTPUTS)), -1);
  set_loss(other);
  must(ms_graph_round_products(f.graph, 1));
  must(ms_graph_rewrite(f.graph, 0));
  assert_well_formed(f.graph);
  assert_int_equal(maker(y)->op, MS_OP_matmul_f8);
  assert_int_equal(maker(y)->inputs, 3);
  assert_int_equal(maker(y)->attrs.product.activation, MS_ACT_RELU);
  assert_int_equal(maker(other)->op, MS_OP_matmul);
}

/* Rows of three experts, and their weights [experts, outputs, inputs]. */
static int experts_of(int recipe, int64_t inputs, int64_t outputs) {
  const int index = input(&f, "index", MS_I32, SHAPE(ROWS));
  int order[3];
  const ms_op_attrs experts = {.experts = {.experts = 3}};
  must(ms_graph_emit(f.graph, MS_OP_expert_order, 1, &index, &experts, order));
  const int w = param(&f, MS_F32, SHAPE(3, outputs, inputs));
  f.param[f.params - 1].fp8 = recipe;
  return op3(&f, MS_OP_grouped_matmul, hidden(ROWS, inputs), w, order[2], ATTRS(.product = {.trans_b = 1}));
}

static void Q4_experts_have_three_rounded_products(void **state) {
  (void)state;
  set_loss(experts_of(MS_FP8_BLOCKWISE, INPUTS, OUTPUTS));
  must(ms_graph_round_products(f.graph, 1));
  must(ms_graph_differentiate(f.graph));
  assert_well_formed(f.graph);
  assert_int_equal(count_op(&f, MS_OP_grouped_matmul_f8), 2);
  assert_int_equal(count_op(&f, MS_OP_grouped_matmul_f8_backward_weight), 1);
  assert_int_equal(count_op(&f, MS_OP_grouped_matmul) + count_op(&f, MS_OP_grouped_matmul_backward_weight), 0);
}

static void Q4_experts_gradients_may_stay_as_they_are(void **state) {
  (void)state;
  set_loss(experts_of(MS_FP8_ROWWISE_WITH_GW_HP, INPUTS, OUTPUTS));
  must(ms_graph_round_products(f.graph, 1));
  must(ms_graph_differentiate(f.graph));
  assert_int_equal(count_op(&f, MS_OP_grouped_matmul_f8), 2);
  assert_int_equal(count_op(&f, MS_OP_grouped_matmul_backward_weight), 1);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

typedef struct gradients {
  float dx[ROWS * INPUTS], dw[INPUTS * OUTPUTS];
} gradients;

static void compute(int recipe, int trans_b, gradients *g) {
  interpreter it;
  fixture_start(&f);
  set_loss(layer_of(recipe, trans_b).y);
  must(ms_graph_round_products(f.graph, 1));
  must(ms_graph_differentiate(f.graph));
  interpreter_start(&it, f.graph);
  for (int p = 0; p < 2; p++) interpreter_draw(&it, f.graph->param_values[p], 5 + (uint64_t)p, 0, 1);
  interpreter_run(&it, 0, f.graph->n_nodes);
  for (int i = 0; i < ROWS * INPUTS; i++) g->dx[i] = (float)interpreter_get(&it, f.graph->param_grads[0], i);
  for (int i = 0; i < INPUTS * OUTPUTS; i++) g->dw[i] = (float)interpreter_get(&it, f.graph->param_grads[1], i);
  interpreter_end(&it);
  fixture_end(&f);
}

static double apart(const float *a, const float *b, int n) {
  double distance = 0, norm = 0;
  for (int i = 0; i < n; i++) {
    distance += pow((double)a[i] - (double)b[i], 2);
    norm += pow((double)b[i], 2);
  }
  return sqrt(distance / norm);
}

/* Roundings to 4 significant bits are off by 2^-4 at most and a 38th on average, to 3 by twice as much; they join here
 * those of y, which the gradient of the loss reads. */
static void Q4_gradients_are_near_those_without_rounding(void **state) {
  static const double MAX[] = {
      [MS_FP8_TENSORWISE] = 0.09, [MS_FP8_ROWWISE] = 0.06,   [MS_FP8_ROWWISE_WITH_GW_HP] = 0.06,
      [MS_FP8_MXFP8] = 0.06,      [MS_FP8_BLOCKWISE] = 0.06, [MS_FP8_BLOCKWISE_POWER_2_SCALE] = 0.06};
  (void)state;
  for (int trans_b = 0; trans_b < 2; trans_b++) {
    gradients exact, near;
    compute(MS_FP8_NONE, trans_b, &exact);
    for (int recipe = MS_FP8_TENSORWISE; recipe <= MS_FP8_BLOCKWISE_POWER_2_SCALE; recipe++) {
      compute(recipe, trans_b, &near);
      const double dx = apart(near.dx, exact.dx, ROWS * INPUTS), dw = apart(near.dw, exact.dw, INPUTS * OUTPUTS);
      if (!(dx > 0 && dx < MAX[recipe] && dw > 0 && dw < MAX[recipe]))
        fail_msg("%s: dx is off by %.3g, dw by %.3g", ms_f8_recipe_name(recipe), dx, dw);
    }
  }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void assert_refused(int y, int backward, int status, const char *facts) {
  set_loss(y);
  assert_fails(ms_graph_round_products(f.graph, backward), status, facts);
}

static void Q5_other_readers_are_refused(void **state) {
  (void)state;
  const int tokens = input(&f, "tokens", MS_I32, SHAPE(ROWS));
  assert_refused(op2(&f, MS_OP_embedding, weight(MS_FP8_ROWWISE, 32, 16), tokens, NULL), 1, MS_EUNSUPPORTED,
                 "'p0' | rowwise | embedding reads it");
}

/* A weight that is gathered as codes. */
static void Q5_a_weight_that_is_a_result_is_refused(void **state) {
  (void)state;
  const layer l = layer_of(MS_FP8_TENSORWISE, 1);
  must(ms_graph_output(f.graph, "weight", l.w));
  assert_refused(l.y, 1, MS_EUNSUPPORTED, "'p1' | tensorwise | returns it as 'weight'");
}

static void Q5_a_weight_on_the_left_is_refused(void **state) {
  (void)state;
  const int w = weight(MS_FP8_TENSORWISE, 32, 16);
  assert_refused(op2(&f, MS_OP_matmul, w, hidden(16, 16), NULL), 1, MS_EUNSUPPORTED, "'p0' | tensorwise | matmul");
}

static void Q5_sizes_are_refused_by_name(void **state) {
  (void)state;
  const int x = hidden(ROWS, 40);
  assert_refused(linear(&f, x, weight(MS_FP8_ROWWISE, 16, 40), -1), 1, MS_ESHAPE, "'p1' | 40 inputs | multiple of 16");
}

static void Q5_sizes_of_experts_are_refused_by_name(void **state) {
  (void)state;
  assert_refused(experts_of(MS_FP8_BLOCKWISE, 40, 32), 1, MS_ESHAPE, "'p0' | blockwise | 40 inputs | multiple of 16");
}

/* The weight's gradient sums over rows, and nothing else does. */
static void Q5_rows_matter_where_they_are_summed(void **state) {
  (void)state;
  const int x = hidden(20, 32), y = linear(&f, x, weight(MS_FP8_ROWWISE, 16, 32), -1);
  assert_refused(y, 1, MS_ESHAPE, "'p1' | 20 rows | multiple of 16");
  must(ms_graph_round_products(f.graph, 0));
}

static void Q5_rows_do_not_matter_without_the_weights_gradient(void **state) {
  (void)state;
  set_loss(linear(&f, hidden(20, 32), weight(MS_FP8_ROWWISE_WITH_GW_HP, 16, 32), -1));
  must(ms_graph_round_products(f.graph, 1));
  must(ms_graph_differentiate(f.graph));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(Q4_a_layer_has_three_rounded_products),        CASE(Q4_weights_may_be_stored_either_way),
      CASE(Q4_the_weights_gradient_may_stay_as_it_is),    CASE(Q4_biases_and_activations_are_fused),
      CASE(Q4_experts_have_three_rounded_products),       CASE(Q4_experts_gradients_may_stay_as_they_are),
      TEST(Q4_gradients_are_near_those_without_rounding), CASE(Q5_other_readers_are_refused),
      CASE(Q5_a_weight_on_the_left_is_refused),           CASE(Q5_sizes_are_refused_by_name),
      CASE(Q5_sizes_of_experts_are_refused_by_name),      CASE(Q5_a_weight_that_is_a_result_is_refused),
      CASE(Q5_rows_matter_where_they_are_summed),         CASE(Q5_rows_do_not_matter_without_the_weights_gradient),
  };
  return cmocka_run_group_tests_name("products in 8 bits", tests, NULL, NULL);
}
