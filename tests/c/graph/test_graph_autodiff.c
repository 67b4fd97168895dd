/* test_graph_autodiff.c - what the backward pass is made of: which gradients there are, in which dtype, and that each
 * has storage of its own. What the numbers are is tested in test_graph_gradients.c.
 */
#include <time.h>

#include "tests/c/graph/graph_case.h"
#include "tests/c/graph/graph_models.h"

static void differentiate(int loss) {
  must(ms_graph_set_loss(f.graph, loss, -1));
  must(ms_graph_differentiate(f.graph));
  assert_well_formed(f.graph);
}

static int gradient(int p) { return f.graph->param_grads[p]; }

/* No op reads a parameter's gradient, no two share one, and its shape and dtype are what was asked for. */
static void assert_gradients_are_settled(const fixture *fx) {
  const ms_graph *g = fx->graph;
  for (int p = 0; p < fx->params; p++) {
    if (g->param_grads[p] < 0) continue;
    const ms_value_info *have = &g->values[g->param_grads[p]].info, *want = &fx->param[p].info;
    char text[128], other[128];
    assert_int_equal(have->dtype, fx->param[p].grad_dtype);
    assert_string_equal(ms_shape_text(have, text), ms_shape_text(want, other));
    for (int q = 0; q < p; q++) assert_int_not_equal(g->param_grads[p], g->param_grads[q]);
    for (int n = 0; n < g->n_nodes; n++)
      for (int i = 0; i < g->nodes[n].inputs; i++) assert_int_not_equal(g->nodes[n].in[i], g->param_grads[p]);
  }
}

static void frozen_and_unreached_parameters_have_none(void **state) {
  (void)state;
  int x = input(&f, "x", MS_F32, SHAPE(5, 4)), w = param(&f, MS_F32, SHAPE(3, 4)), bias = param(&f, MS_F32, SHAPE(3));
  param(&f, MS_F32, SHAPE(7));
  f.param[0].frozen = 1;
  differentiate(sum_all(&f, op1(&f, MS_OP_gelu, linear(&f, x, w, bias), NULL)));
  assert_int_equal(gradient(0), -1);
  assert_true(gradient(1) >= 0);
  assert_int_equal(gradient(2), -1);
  assert_int_equal(gradient(3), -1);
  assert_int_equal(count_op(&f, MS_OP_matmul), 1);
  assert_gradients_are_settled(&f);
}

static void nothing_trainable_makes_no_backward_nodes(void **state) {
  (void)state;
  int x = input(&f, "x", MS_F32, SHAPE(5, 4)), w = param(&f, MS_F32, SHAPE(3, 4));
  f.param[0].frozen = 1;
  int loss = sum_all(&f, linear(&f, x, w, -1)), nodes = f.graph->n_nodes;
  differentiate(loss);
  assert_int_equal(f.graph->n_nodes, nodes);
}

static void bf16_weight_gradients_are_written_in_f32(void **state) {
  (void)state;
  int x = input(&f, "x", MS_BF16, SHAPE(2, 5, 4)), w = param(&f, MS_BF16, SHAPE(4, 4)),
      bias = param(&f, MS_BF16, SHAPE(4));
  x = linear(&f, linear(&f, x, w, bias), param(&f, MS_BF16, SHAPE(3, 4)), -1);
  differentiate(sum_all(&f, x));
  assert_int_equal(maker(gradient(0))->op, MS_OP_matmul);
  assert_int_equal(maker(gradient(1))->op, MS_OP_sum_to);
  assert_int_equal(maker(gradient(2))->op, MS_OP_matmul);
  assert_int_equal(maker(gradient(2))->attrs.out_dtype, 1 + MS_F32);
  assert_gradients_are_settled(&f);
  for (int n = 0; n < f.graph->n_nodes; n++)
    if (f.graph->nodes[n].op == MS_OP_cast) assert_true(ms_numel(&f.graph->values[f.graph->nodes[n].out[0]].info) == 1);
}

static void gradients_may_be_wanted_in_bf16(void **state) {
  (void)state;
  int x = input(&f, "x", MS_F32, SHAPE(5, 4)), w = param(&f, MS_F32, SHAPE(4)), out[MS_MAX_OUTPUTS];
  int b = param(&f, MS_F32, SHAPE(4)), w2 = param(&f, MS_F32, SHAPE(3, 4));
  for (int p = 0; p < 3; p++) f.param[p].grad_dtype = MS_BF16;
  apply(&f, MS_OP_layer_norm, 3, (int[]){x, w, b}, NULL, out);
  differentiate(sum_all(&f, linear(&f, out[0], w2, -1)));
  assert_int_equal(maker(gradient(0))->op, MS_OP_layer_norm_backward);
  assert_int_equal(maker(gradient(2))->op, MS_OP_matmul);
  assert_gradients_are_settled(&f);
}

static void a_norm_of_mixed_wishes_casts(void **state) {
  (void)state;
  int x = input(&f, "x", MS_F32, SHAPE(5, 4)), g = param(&f, MS_F32, SHAPE(4)), b = param(&f, MS_F32, SHAPE(4));
  f.param[1].grad_dtype = MS_BF16;
  differentiate(sum_all(&f, op3(&f, MS_OP_layer_norm, x, g, b, NULL)));
  assert_int_equal(maker(gradient(0))->op, MS_OP_layer_norm_backward);
  assert_int_equal(maker(gradient(1))->op, MS_OP_cast);
  assert_gradients_are_settled(&f);
}

static void tied_weights_add_f32_contributions(void **state) {
  (void)state;
  int tokens = input(&f, "tokens", MS_I32, SHAPE(6)), w = param(&f, MS_BF16, SHAPE(10, 4));
  differentiate(sum_all(&f, linear(&f, op2(&f, MS_OP_embedding, w, tokens, NULL), w, -1)));
  const ms_node *sum = maker(gradient(0));
  assert_int_equal(sum->op, MS_OP_add);
  for (int i = 0; i < 2; i++) assert_int_equal(dtype_of(&f, sum->in[i]), MS_F32);
  assert_int_equal(maker(sum->in[0])->op, MS_OP_matmul);
  assert_int_equal(maker(sum->in[1])->op, MS_OP_embedding_backward);
  assert_gradients_are_settled(&f);
}

static void shared_gradients_are_copied(void **state) {
  (void)state;
  int a = param(&f, MS_F32, SHAPE(5, 4)), b = param(&f, MS_F32, SHAPE(5, 4)), c = param(&f, MS_F32, SHAPE(5, 4));
  int sum = op2(&f, MS_OP_add, op2(&f, MS_OP_add, a, b, NULL), c, NULL);
  differentiate(sum_all(&f, op1(&f, MS_OP_gelu, sum, NULL)));
  assert_gradients_are_settled(&f);
}

static void a_gradient_read_elsewhere_is_copied(void **state) {
  (void)state;
  int x = input(&f, "x", MS_BF16, SHAPE(5, 4)), w = param(&f, MS_BF16, SHAPE(4, 4)),
      p = param(&f, MS_BF16, SHAPE(5, 4));
  int sum = op2(&f, MS_OP_add, linear(&f, x, w, -1), p, NULL);
  differentiate(sum_all(&f, op1(&f, MS_OP_gelu, sum, NULL)));
  assert_int_equal(maker(gradient(1))->op, MS_OP_cast);
  assert_gradients_are_settled(&f);
}

static void a_reshaped_weight_keeps_the_matmul_in_f32(void **state) {
  (void)state;
  int x = input(&f, "x", MS_BF16, SHAPE(5, 4)), w = param(&f, MS_BF16, SHAPE(2, 3, 4));
  differentiate(sum_all(&f, linear(&f, x, reshape_to(&f, w, SHAPE(6, 4)), -1)));
  const ms_node *alias = maker(gradient(0));
  assert_int_equal(alias->op, MS_OP_reshape);
  assert_int_equal(dtype_of(&f, alias->in[0]), MS_F32);
  assert_int_equal(maker(alias->in[0])->op, MS_OP_matmul);
  assert_int_equal(maker(alias->in[0])->attrs.out_dtype, 1 + MS_F32);
  assert_gradients_are_settled(&f);
}

static void two_reshapes_of_one_gradient_do_not_share_bytes(void **state) {
  (void)state;
  int a = param(&f, MS_F32, SHAPE(20)), b = param(&f, MS_F32, SHAPE(4, 5));
  int sum = op2(&f, MS_OP_add, reshape_to(&f, a, SHAPE(2, 10)), reshape_to(&f, b, SHAPE(2, 10)), NULL);
  differentiate(sum_all(&f, op1(&f, MS_OP_gelu, sum, NULL)));
  assert_gradients_are_settled(&f);
  int aliases = (maker(gradient(0))->op == MS_OP_reshape) + (maker(gradient(1))->op == MS_OP_reshape);
  assert_true(aliases <= 1);
}

static void a_parameter_may_be_the_loss(void **state) {
  (void)state;
  differentiate(param(&f, MS_F32, SCALAR));
  assert_int_equal(maker(gradient(0))->op, MS_OP_fill);
  assert_gradients_are_settled(&f);
}

static void mixed_dtypes_meet_in_their_values_dtype(void **state) {
  (void)state;
  int x = param(&f, MS_BF16, SHAPE(5, 4)), scale = param(&f, MS_F32, SHAPE(4));
  int h = op1(&f, MS_OP_gelu, x, NULL);
  differentiate(sum_all(&f, op2(&f, MS_OP_mul, h, scale, NULL)));
  assert_int_equal(maker(gradient(1))->op, MS_OP_sum_to);
  for (int n = 0; n < f.graph->n_nodes; n++)
    if (f.graph->nodes[n].op == MS_OP_gelu_backward) assert_int_equal(dtype_of(&f, f.graph->nodes[n].in[1]), MS_BF16);
  assert_gradients_are_settled(&f);
}

static void integers_and_comparisons_stop_gradients(void **state) {
  (void)state;
  int x = param(&f, MS_F32, SHAPE(5, 4)), y = param(&f, MS_F32, SHAPE(5, 4));
  int mask = op2(&f, MS_OP_less, x, y, NULL);
  differentiate(sum_all(&f, op3(&f, MS_OP_where, mask, x, y, NULL)));
  assert_true(gradient(0) >= 0 && gradient(1) >= 0);
  assert_gradients_are_settled(&f);
}

/* Of x detach(x) the gradient is detach(x), not 2 x; what only a detached value reaches has none. */
static void detached_values_are_constants(void **state) {
  (void)state;
  const int x = param(&f, MS_F32, SHAPE(4)), w = param(&f, MS_F32, SHAPE(4));
  const int x_given = op1(&f, MS_OP_detach, x, NULL), w_given = op1(&f, MS_OP_detach, w, NULL);
  const int product = op2(&f, MS_OP_mul, x, x_given, NULL);
  differentiate(sum_all(&f, op2(&f, MS_OP_add, product, op1(&f, MS_OP_exp, w_given, NULL), NULL)));
  const ms_node *made = maker(gradient(0));
  assert_int_equal(made->op, MS_OP_mul);
  assert_true(made->in[0] == x_given || made->in[1] == x_given);
  assert_int_equal(gradient(1), -1);
  assert_gradients_are_settled(&f);
}

static void what_cannot_be_differentiated_is_named(void **state) {
  (void)state;
  int x = param(&f, MS_F32, SHAPE(5, 4)), g = param(&f, MS_F32, SHAPE(4)), out[MS_MAX_OUTPUTS];
  must(ms_graph_set_scope(f.graph, "layers.1.norm"));
  apply(&f, MS_OP_rms_norm, 2, (int[]){x, g}, NULL, out);
  must(ms_graph_set_scope(f.graph, ""));
  must(ms_graph_set_loss(f.graph, sum_all(&f, out[1]), -1));
  assert_fails(ms_graph_differentiate(f.graph), MS_EUNSUPPORTED, "layers.1.norm | rms_norm | output 2 | gradient");
}

static void rows_without_gradient_are_named(void **state) {
  (void)state;
  int x = param(&f, MS_F32, SHAPE(5, 4));
  must(ms_graph_set_loss(f.graph, sum_all(&f, op2(&f, MS_OP_gelu_backward, x, x, NULL)), -1));
  assert_fails(ms_graph_differentiate(f.graph), MS_EUNSUPPORTED, "gelu_backward | gradient");
}

static void fused_activations_that_lose_their_input_are_refused(void **state) {
  (void)state;
  int x = param(&f, MS_F32, SHAPE(5, 4));
  must(ms_graph_set_loss(
      f.graph, sum_all(&f, op2(&f, MS_OP_matmul, x, x, ATTRS(.product = {.trans_b = 1, .activation = MS_ACT_GELU}))),
      -1));
  assert_fails(ms_graph_differentiate(f.graph), MS_EUNSUPPORTED, "matmul | activation 2");
}

static void needs_a_loss_and_runs_once(void **state) {
  (void)state;
  int x = param(&f, MS_F32, SHAPE(5, 4));
  assert_fails(ms_graph_differentiate(f.graph), MS_EINVAL, "loss");
  differentiate(sum_all(&f, x));
  assert_fails(ms_graph_differentiate(f.graph), MS_EINVAL, "already");
}

static void backward_nodes_carry_scope_and_mark(void **state) {
  (void)state;
  int x = input(&f, "x", MS_F32, SHAPE(5, 4)), w = param(&f, MS_F32, SHAPE(3, 4));
  must(ms_graph_set_scope(f.graph, "head"));
  x = linear(&f, x, w, -1);
  must(ms_graph_set_scope(f.graph, "end"));
  differentiate(sum_all(&f, x));
  assert_string_equal(f.graph->scope, "end");
  assert_true(maker(gradient(0))->backward);
  assert_string_equal(maker(gradient(0))->scope, "head");
  assert_false(f.graph->nodes[0].backward);
}

static double processor_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What a chain of residual blocks, three nodes each, takes from the first node to the last rewrite; the
 * best of five. */
static double time_of_chain(int blocks) {
  double best = 1e9;
  for (int repeat = 0; repeat < 5; repeat++) {
    fixture chain;
    fixture_start(&chain);
    int x = param(&chain, MS_F32, SHAPE(8, 4)), w = param(&chain, MS_F32, SHAPE(4, 4));
    double begin = processor_seconds();
    for (int i = 0; i < blocks; i++)
      x = op2(&chain, MS_OP_add, x, op1(&chain, MS_OP_relu, linear(&chain, x, w, -1), NULL), NULL);
    must(ms_graph_set_loss(chain.graph, sum_all(&chain, x), -1));
    must(ms_graph_rewrite(chain.graph, 0));
    must(ms_graph_differentiate(chain.graph));
    must(ms_graph_rewrite_backward(chain.graph));
    double elapsed = processor_seconds() - begin;
    if (elapsed < best) best = elapsed;
    fixture_end(&chain);
  }
  return best;
}

/* Sixteen times the nodes take sixteen times as long and something for caches and pages, not 256 times. */
static void time_is_linear_in_the_nodes(void **state) {
  (void)state;
  double small = time_of_chain(1000), big = time_of_chain(16000);
  print_message("1000 blocks %.2f ms, 16000 blocks %.2f ms\n", 1e3 * small, 1e3 * big);
  assert_true(big < 100 * small);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(frozen_and_unreached_parameters_have_none),
      CASE(nothing_trainable_makes_no_backward_nodes),
      CASE(bf16_weight_gradients_are_written_in_f32),
      CASE(gradients_may_be_wanted_in_bf16),
      CASE(a_norm_of_mixed_wishes_casts),
      CASE(tied_weights_add_f32_contributions),
      CASE(shared_gradients_are_copied),
      CASE(a_gradient_read_elsewhere_is_copied),
      CASE(a_reshaped_weight_keeps_the_matmul_in_f32),
      CASE(two_reshapes_of_one_gradient_do_not_share_bytes),
      CASE(a_parameter_may_be_the_loss),
      CASE(mixed_dtypes_meet_in_their_values_dtype),
      CASE(integers_and_comparisons_stop_gradients),
      CASE(detached_values_are_constants),
      CASE(what_cannot_be_differentiated_is_named),
      CASE(rows_without_gradient_are_named),
      CASE(fused_activations_that_lose_their_input_are_refused),
      CASE(needs_a_loss_and_runs_once),
      CASE(backward_nodes_carry_scope_and_mark),
      CASE(time_is_linear_in_the_nodes),
  };
  return cmocka_run_group_tests_name("graph autodiff", tests, NULL, NULL);
}
