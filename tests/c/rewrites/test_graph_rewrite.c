/* test_graph_rewrite.c - which nodes the rewrites fuse, which they must leave, and that a fused model computes the same
 * loss and gradients as the model as written.
 */
#include "tests/c/graph/graph_case.h"
#include "tests/c/graph/graph_model_run.h"

static void rewrite(int evaluate) {
  must(ms_graph_rewrite(f.graph, evaluate));
  assert_well_formed(f.graph);
}

/* Keeps a value alive, as a recipe does that wants to read it. */
static void keep(const char *name, int value) { must(ms_graph_output(f.graph, name, value)); }

static int f32(int ndim, const int64_t *dims) { return param(&f, MS_F32, ndim, dims); }

/* ---- forward ---------------------------------------------------------------------------------------------------- */

static void bias_and_relu_join_the_matmul(void **state) {
  (void)state;
  int x = input(&f, "x", MS_F32, SHAPE(2, 5, 4)), w = f32(SHAPE(3, 4)), bias = f32(SHAPE(3));
  int y = op1(&f, MS_OP_relu, op2(&f, MS_OP_add, bias, linear(&f, x, w, -1), NULL), NULL);
  keep("y", y);
  rewrite(0);
  assert_int_equal(f.graph->n_nodes, 1);
  assert_int_equal(maker(y)->op, MS_OP_matmul);
  assert_int_equal(maker(y)->inputs, 3);
  assert_int_equal(maker(y)->in[2], bias);
  assert_int_equal(maker(y)->attrs.product.activation, MS_ACT_RELU);
}

static void a_product_that_others_read_keeps_its_place(void **state) {
  (void)state;
  int x = input(&f, "x", MS_F32, SHAPE(5, 4)), w = f32(SHAPE(3, 4)), bias = f32(SHAPE(3)),
      product = linear(&f, x, w, -1);
  keep("sum", op2(&f, MS_OP_add, product, bias, NULL));
  keep("relu", op1(&f, MS_OP_relu, product, NULL));
  rewrite(0);
  assert_int_equal(f.graph->n_nodes, 3);
}

static void a_named_output_is_not_fused_away(void **state) {
  (void)state;
  int x = input(&f, "x", MS_F32, SHAPE(5, 4)), product = linear(&f, x, f32(SHAPE(3, 4)), -1);
  keep("product", product);
  keep("relu", op1(&f, MS_OP_relu, product, NULL));
  rewrite(0);
  assert_int_equal(maker(product)->op, MS_OP_matmul);
  assert_int_equal(maker(product)->attrs.product.activation, MS_ACT_NONE);
}

static void what_is_no_bias_stays_an_addition(void **state) {
  (void)state;
  int x = input(&f, "x", MS_F32, SHAPE(5, 4)), w = f32(SHAPE(3, 4)), h = input(&f, "h", MS_BF16, SHAPE(5, 4));
  keep("row", op2(&f, MS_OP_add, linear(&f, x, w, -1), f32(SHAPE(1)), NULL));
  keep("matrix", op2(&f, MS_OP_add, linear(&f, x, w, -1), f32(SHAPE(5, 3)), NULL));
  keep("mixed", op2(&f, MS_OP_add, linear(&f, h, param(&f, MS_BF16, SHAPE(3, 4)), -1), f32(SHAPE(3)), NULL));
  rewrite(0);
  assert_int_equal(count_op(&f, MS_OP_add), 3);
}

static void a_bias_made_after_the_product_moves_it(void **state) {
  (void)state;
  int x = input(&f, "x", MS_F32, SHAPE(5, 4)), w = f32(SHAPE(3, 4));
  int product = linear(&f, x, w, -1), late = op1(&f, MS_OP_exp, f32(SHAPE(3)), NULL);
  int sum = op2(&f, MS_OP_add, late, product, NULL);
  keep("sum", sum);
  rewrite(0);
  assert_int_equal(f.graph->n_nodes, 2);
  assert_int_equal(maker(sum)->op, MS_OP_matmul);
  assert_int_equal(maker(sum)->in[2], late);
}

static void smooth_activations_join_in_evaluation_only(void **state) {
  (void)state;
  for (int evaluate = 0; evaluate < 2; evaluate++) {
    static const int ops[] = {MS_OP_gelu, MS_OP_gelu_tanh, MS_OP_silu};
    fixture_end(&f);
    fixture_start(&f);
    int x = input(&f, "x", MS_F32, SHAPE(5, 4)), y[3];
    for (int i = 0; i < 3; i++) {
      char name[16];
      snprintf(name, sizeof name, "y%d", i);
      keep(name, y[i] = op1(&f, ops[i], linear(&f, x, f32(SHAPE(3, 4)), f32(SHAPE(3))), NULL));
    }
    rewrite(evaluate);
    assert_int_equal(f.graph->n_nodes, evaluate ? 3 : 6);
    for (int i = 0; i < 3; i++)
      if (evaluate) assert_int_equal(maker(y[i])->attrs.product.activation, MS_ACT_GELU + i);
  }
}

static void silu_times_becomes_swiglu(void **state) {
  (void)state;
  int a = f32(SHAPE(5, 4)), b = f32(SHAPE(5, 4)), row = f32(SHAPE(4)), twice = op1(&f, MS_OP_silu, a, NULL);
  keep("left", op2(&f, MS_OP_mul, op1(&f, MS_OP_silu, a, NULL), b, NULL));
  keep("right", op2(&f, MS_OP_mul, b, op1(&f, MS_OP_silu, a, NULL), NULL));
  keep("broadcast", op2(&f, MS_OP_mul, op1(&f, MS_OP_silu, a, NULL), row, NULL));
  keep("square", op2(&f, MS_OP_mul, twice, twice, NULL));
  rewrite(0);
  assert_int_equal(count_op(&f, MS_OP_swiglu), 2);
  assert_int_equal(count_op(&f, MS_OP_silu), 2);
  for (int n = 0; n < f.graph->n_nodes; n++) {
    if (f.graph->nodes[n].op != MS_OP_swiglu) continue;
    assert_int_equal(f.graph->nodes[n].in[0], a);
    assert_int_equal(f.graph->nodes[n].in[1], b);
  }
}

/* Logits of a padded vocabulary, 5 of 8: a loss reads them where they are, a slice of anything else stays. */
static void a_loss_reads_padded_logits(void **state) {
  (void)state;
  int tokens = input(&f, "tokens", MS_I32, SHAPE(6)), out[MS_MAX_OUTPUTS];
  int padded = f32(SHAPE(6, 8)), shown = f32(SHAPE(6, 8)), later = f32(SHAPE(6, 8)), rows = f32(SHAPE(9, 8));
  int logits = op1(&f, MS_OP_slice, padded, ATTRS(.cut = {.axis = -1, .stop = 5}));
  apply(&f, MS_OP_cross_entropy, 2, (int[]){logits, tokens}, NULL, out);
  keep("loss", out[0]);
  keep("logits", op1(&f, MS_OP_slice, shown, ATTRS(.cut = {.axis = 1, .stop = 5})));
  const int left[] = {f.graph->outputs[1].value,
                      op1(&f, MS_OP_slice, later, ATTRS(.cut = {.axis = 1, .start = 1, .stop = 5})),
                      op1(&f, MS_OP_slice, rows, ATTRS(.cut = {.stop = 6}))};
  static const char *const names[] = {"shown", "later", "rows"};
  for (int i = 0; i < 3; i++) {
    int others[MS_MAX_OUTPUTS];
    apply(&f, MS_OP_cross_entropy, 2, (int[]){left[i], tokens}, NULL, others);
    keep(names[i], others[0]);
  }
  rewrite(0);
  assert_int_equal(count_op(&f, MS_OP_slice), 3);
  assert_int_equal(maker(out[0])->in[0], padded);
  assert_int_equal(maker(out[0])->attrs.loss.classes, 5);
  assert_int_equal(maker(out[0])->attrs.loss.ignore_index, -100);
}

static void a_sum_joins_its_norm(void **state) {
  (void)state;
  int a = f32(SHAPE(5, 4)), b = f32(SHAPE(5, 4)), g = f32(SHAPE(4)), bias = f32(SHAPE(4));
  int sum = op2(&f, MS_OP_add, a, b, NULL), y = op3(&f, MS_OP_layer_norm, sum, g, bias, ATTRS(.norm = {.eps = 1e-3}));
  int rms = op2(&f, MS_OP_rms_norm, op2(&f, MS_OP_add, sum, y, NULL), g, NULL);
  keep("sum", sum);
  keep("rms", rms);
  rewrite(0);
  assert_int_equal(f.graph->n_nodes, 2);
  const ms_node *norm = maker(y);
  assert_int_equal(norm->op, MS_OP_add_layer_norm);
  assert_true(norm->attrs.norm.eps == 1e-3);
  assert_memory_equal(norm->in, ((int[]){a, b, g, bias}), 4 * sizeof(int));
  assert_int_equal(norm->out[2], sum);
  assert_int_equal(maker(rms)->op, MS_OP_add_rms_norm);
}

static void a_sum_read_before_the_norm_stays(void **state) {
  (void)state;
  int a = f32(SHAPE(5, 4)), b = f32(SHAPE(5, 4)), g = f32(SHAPE(4)), row = f32(SHAPE(4));
  int sum = op2(&f, MS_OP_add, a, b, NULL), early = op1(&f, MS_OP_exp, sum, NULL);
  keep("norm", op2(&f, MS_OP_add, op2(&f, MS_OP_rms_norm, sum, g, NULL), early, NULL));
  keep("broadcast", op2(&f, MS_OP_rms_norm, op2(&f, MS_OP_add, a, row, NULL), g, NULL));
  rewrite(0);
  assert_int_equal(count_op(&f, MS_OP_rms_norm), 2);
  assert_int_equal(count_op(&f, MS_OP_add), 3);
}

static void dropout_ends_in_evaluation(void **state) {
  (void)state;
  for (int evaluate = 0; evaluate < 2; evaluate++) {
    fixture_end(&f);
    fixture_start(&f);
    int x = f32(SHAPE(5, 4)), dropped = op1(&f, MS_OP_dropout, x, NULL);
    int never = op1(&f, MS_OP_dropout, dropped, ATTRS(.mask = {.p = 0}));
    keep("y", op1(&f, MS_OP_exp, op1(&f, MS_OP_dropout, never, ATTRS(.mask = {.stream = 5, .p = 0.2})), NULL));
    keep("dropped", dropped);
    must(ms_graph_pass_identities(f.graph, evaluate, 1));
    assert_well_formed(f.graph);
    assert_int_equal(count_op(&f, MS_OP_dropout), evaluate ? 0 : 2);
    assert_int_equal(f.graph->outputs[1].value, evaluate ? x : dropped);
  }
}

static void what_nothing_needs_is_removed(void **state) {
  (void)state;
  int x = f32(SHAPE(5, 4)), out[MS_MAX_OUTPUTS];
  op1(&f, MS_OP_exp, op1(&f, MS_OP_log, x, NULL), NULL);
  apply(&f, MS_OP_rms_norm, 2, (int[]){x, f32(SHAPE(4))}, NULL, out);
  keep("rstd", out[1]);
  rewrite(0);
  assert_int_equal(f.graph->n_nodes, 1);
  assert_int_equal(maker(out[0])->op, MS_OP_rms_norm);
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

static void train(int loss) {
  must(ms_graph_set_loss(f.graph, loss, -1));
  rewrite(0);
  must(ms_graph_differentiate(f.graph));
  must(ms_graph_rewrite_backward(f.graph));
  assert_well_formed(f.graph);
}

static void bias_gradients_join_the_activation(void **state) {
  (void)state;
  static const int ops[] = {MS_OP_relu, MS_OP_gelu, MS_OP_gelu_tanh, MS_OP_silu};
  int x = input(&f, "x", MS_BF16, SHAPE(2, 5, 4));
  for (int i = 0; i < 4; i++) {
    int w = param(&f, MS_BF16, SHAPE(4, 4)), bias = param(&f, MS_BF16, SHAPE(4));
    x = op1(&f, ops[i], linear(&f, x, w, bias), NULL);
  }
  train(sum_all(&f, x));
  assert_int_equal(count_op(&f, MS_OP_activation_backward_bias), 4);
  assert_int_equal(count_op(&f, MS_OP_sum_to), 0);
  for (int p = 1; p < 8; p += 2) {
    const ms_node *node = maker(f.graph->param_grads[p]);
    assert_int_equal(node->op, MS_OP_activation_backward_bias);
    assert_int_equal(node->attrs.product.activation, MS_ACT_RELU + p / 2);
    assert_int_equal(dtype_of(&f, f.graph->param_grads[p]), MS_F32);
  }
}

static void residual_gradients_join_the_norm(void **state) {
  (void)state;
  int x = input(&f, "x", MS_F32, SHAPE(5, 4));
  x = linear(&f, x, f32(SHAPE(4, 4)), -1);
  for (int i = 0; i < 2; i++) {
    int g = f32(SHAPE(4)),
        h = i ? op2(&f, MS_OP_rms_norm, x, g, NULL) : op3(&f, MS_OP_layer_norm, x, g, f32(SHAPE(4)), NULL);
    x = op2(&f, MS_OP_add, x, linear(&f, op1(&f, MS_OP_exp, h, NULL), f32(SHAPE(4, 4)), -1), NULL);
  }
  train(sum_all(&f, x));
  for (int n = 0; n < f.graph->n_nodes; n++) {
    const ms_node *node = &f.graph->nodes[n];
    if (node->op == MS_OP_layer_norm_backward || node->op == MS_OP_rms_norm_backward) assert_int_equal(node->inputs, 5);
    if (node->backward) assert_int_not_equal(node->op, MS_OP_add);
  }
}

static void slices_of_a_whole_are_put_together(void **state) {
  (void)state;
  int x = linear(&f, input(&f, "x", MS_F32, SHAPE(5, 4)), f32(SHAPE(12, 4)), -1), part[3], loss;
  for (int i = 0; i < 3; i++)
    part[2 - i] = op1(&f, MS_OP_slice, x, ATTRS(.cut = {.axis = 1, .start = 4 * i, .stop = 4 * i + 4}));
  loss = sum_all(
      &f, op2(&f, MS_OP_mul, op1(&f, MS_OP_exp, part[0], NULL), op2(&f, MS_OP_mul, part[1], part[2], NULL), NULL));
  train(loss);
  assert_int_equal(count_op(&f, MS_OP_concat), 1);
  assert_int_equal(count_op(&f, MS_OP_pad), 0);
  assert_int_equal(count_op(&f, MS_OP_add), 0);
}

static void slices_that_overlap_or_leave_gaps_are_added(void **state) {
  (void)state;
  int x = op1(&f, MS_OP_exp, f32(SHAPE(5, 12)), NULL), a, b;
  a = op1(&f, MS_OP_slice, x, ATTRS(.cut = {.axis = 1, .stop = 7}));
  b = op1(&f, MS_OP_slice, x, ATTRS(.cut = {.axis = 1, .start = 5, .stop = 12}));
  train(sum_all(&f, op2(&f, MS_OP_mul, a, b, NULL)));
  assert_int_equal(count_op(&f, MS_OP_concat), 0);
  assert_int_equal(count_op(&f, MS_OP_pad), 2);
}

/* ---- fused and unfused agree ------------------------------------------------------------------------------------ */

enum { AS_WRITTEN = 0, FUSED = 1 };

/* Builds, compiles as training or evaluation, and runs; parameters depend only on their index. */
static void run_start(run *r, model_fn model, model_shape shape, int fused, int evaluate) {
  fixture_start(&r->f);
  ms_graph *g = r->f.graph;
  model(&r->f, &shape);
  if (fused) must(ms_graph_rewrite(g, evaluate));
  else must(ms_graph_pass_identities(g, evaluate, 1));
  if (!evaluate) must(ms_graph_differentiate(g));
  if (!evaluate && fused) must(ms_graph_rewrite_backward(g));
  run_draw(r, &shape);
  interpreter_run(&r->it, 0, g->n_nodes);
}

static void compare_training(model_fn model, model_shape shape, double tolerance) {
  run written, fused;
  run_start(&written, model, shape, AS_WRITTEN, 0);
  run_start(&fused, model, shape, FUSED, 0);
  assert_true(fused.f.graph->n_nodes < written.f.graph->n_nodes);
  double loss = interpreter_get(&written.it, written.f.graph->loss, 0);
  assert_true(loss > 1 && loss < 10);
  assert_true(interpreter_difference(&fused.it, fused.f.graph->loss, &written.it, written.f.graph->loss) < tolerance);
  for (int p = 0; p < written.f.params; p++) {
    int a = fused.f.graph->param_grads[p], b = written.f.graph->param_grads[p];
    assert_true(a >= 0 && b >= 0);
    double apart = interpreter_difference(&fused.it, a, &written.it, b);
    if (!(apart < tolerance)) fail_msg("parameter %d: fused and unfused gradients differ by %.3g", p, apart);
  }
  run_end(&written);
  run_end(&fused);
}

static void fused_gpt_trains_alike(void **state) {
  (void)state;
  model_shape dropping = gpt, half = gpt;
  compare_training(gpt_model, gpt, 1e-5);
  dropping.dropout = 0.3;
  compare_training(gpt_model, dropping, 1e-5);
  half.dtype = MS_BF16;
  compare_training(gpt_model, half, 4e-2);
}

static void fused_llama_trains_alike(void **state) {
  (void)state;
  model_shape half = llama;
  compare_training(llama_model, llama, 1e-5);
  half.dtype = MS_BF16;
  compare_training(llama_model, half, 4e-2);
}

static void fused_models_evaluate_alike(void **state) {
  (void)state;
  static const model_fn models[] = {gpt_model, llama_model};
  for (int m = 0; m < 2; m++) {
    run written, fused;
    model_shape dropping = m ? llama : gpt;
    dropping.dropout = 0.3;
    run_start(&written, models[m], m ? llama : gpt, AS_WRITTEN, 0);
    run_start(&fused, models[m], dropping, FUSED, 1);
    assert_int_equal(
        count_op(&fused.f, MS_OP_gelu) + count_op(&fused.f, MS_OP_dropout) + count_op(&fused.f, MS_OP_silu), 0);
    assert_true(interpreter_difference(&fused.it, fused.f.graph->loss, &written.it, written.f.graph->loss) < 1e-5);
    int a = fused.f.graph->outputs[0].value, b = written.f.graph->outputs[0].value;
    assert_true(interpreter_difference(&fused.it, a, &written.it, b) < 1e-5);
    run_end(&written);
    run_end(&fused);
  }
}

static void a_block_has_no_loose_ends(void **state) {
  (void)state;
  fixture_end(&f);
  fixture_start(&f);
  model_shape shape = gpt;
  gpt_model(&f, &shape);
  rewrite(0);
  /* Left: the position embedding's addition and the last block's last one, whose norm it joins. */
  assert_int_equal(count_op(&f, MS_OP_add), 1);
  assert_int_equal(count_op(&f, MS_OP_layer_norm), 1);
  assert_int_equal(count_op(&f, MS_OP_add_layer_norm), 4);
  must(ms_graph_differentiate(f.graph));
  must(ms_graph_rewrite_backward(f.graph));
  assert_well_formed(f.graph);
  assert_int_equal(count_op(&f, MS_OP_pad), 0);
  /* The tied embedding adds its gradient to the head's. */
  assert_int_equal(count_op(&f, MS_OP_add), 1);
  assert_int_equal(count_op(&f, MS_OP_cast), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(bias_and_relu_join_the_matmul),
      CASE(a_product_that_others_read_keeps_its_place),
      CASE(a_named_output_is_not_fused_away),
      CASE(what_is_no_bias_stays_an_addition),
      CASE(a_bias_made_after_the_product_moves_it),
      CASE(smooth_activations_join_in_evaluation_only),
      CASE(silu_times_becomes_swiglu),
      CASE(a_loss_reads_padded_logits),
      CASE(a_sum_joins_its_norm),
      CASE(a_sum_read_before_the_norm_stays),
      CASE(dropout_ends_in_evaluation),
      CASE(what_nothing_needs_is_removed),
      CASE(bias_gradients_join_the_activation),
      CASE(residual_gradients_join_the_norm),
      CASE(slices_of_a_whole_are_put_together),
      CASE(slices_that_overlap_or_leave_gaps_are_added),
      CASE(a_block_has_no_loose_ends),
      TEST(fused_gpt_trains_alike),
      TEST(fused_llama_trains_alike),
      TEST(fused_models_evaluate_alike),
  };
  return cmocka_run_group_tests_name("graph rewrite", tests, NULL, NULL);
}
