/* test_graph_rematerialize.c - which results backward makes again, which it must leave, and that gradients keep their
 * bits although nothing of the results is left when backward begins.
 */
#include "base/numbers/dtype.h"
#include "tests/c/graph/graph_case.h"
#include "tests/c/graph/graph_model_run.h"

static int f32(int ndim, const int64_t *dims) { return param(&f, MS_F32, ndim, dims); }

static void train(int loss) {
  must(ms_graph_set_loss(f.graph, loss, -1));
  must(ms_graph_rewrite(f.graph, 0));
  must(ms_graph_differentiate(f.graph));
  must(ms_graph_rewrite_backward(f.graph));
  must(ms_graph_rematerialize(f.graph));
  assert_well_formed(f.graph);
}

static int is_read_in_backward(const ms_graph *graph, int value) {
  for (int n = 0; n < graph->n_nodes; n++)
    for (int i = 0; i < graph->nodes[n].inputs; i++)
      if (graph->nodes[n].backward && graph->nodes[n].in[i] == value) return 1;
  return 0;
}

static int can_be_made_again(int op) {
  static const int ops[] = {MS_OP_gelu,       MS_OP_gelu_tanh, MS_OP_silu,           MS_OP_swiglu,
                            MS_OP_layer_norm, MS_OP_rms_norm,  MS_OP_add_layer_norm, MS_OP_add_rms_norm};
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
    if (ops[i] == op) return 1;
  return 0;
}

static void each_activation_is_made_again(void **state) {
  (void)state;
  static const int ops[] = {MS_OP_gelu, MS_OP_gelu_tanh, MS_OP_silu};
  for (int biased = 0; biased < 2; biased++) {
    fixture_end(&f);
    fixture_start(&f);
    int x = input(&f, "x", MS_F32, SHAPE(5, 4)), y[3];
    for (int i = 0; i < 3; i++) {
      int bias = biased ? f32(SHAPE(4)) : -1;
      y[i] = op1(&f, ops[i], linear(&f, x, f32(SHAPE(4, 4)), bias), NULL);
      x = linear(&f, y[i], f32(SHAPE(4, 4)), -1);
    }
    train(sum_all(&f, x));
    assert_int_equal(
        count_op(&f, biased ? MS_OP_activation_backward_bias_recompute : MS_OP_activation_backward_recompute), 3);
    for (int i = 0; i < 3; i++) assert_int_equal(is_read_in_backward(f.graph, y[i]), 0);
  }
}

/* The square's gradient reads y to make what the gelu's gradient is made of. */
static void what_the_gradient_itself_needs_is_kept(void **state) {
  (void)state;
  int x = linear(&f, input(&f, "x", MS_F32, SHAPE(5, 4)), f32(SHAPE(4, 4)), -1), y = op1(&f, MS_OP_gelu, x, NULL);
  train(sum_all(&f, linear(&f, op2(&f, MS_OP_mul, y, y, NULL), f32(SHAPE(4, 4)), -1)));
  assert_int_equal(count_op(&f, MS_OP_activation_backward_recompute), 0);
  assert_int_equal(is_read_in_backward(f.graph, y), 1);
}

static void what_stays_anyway_is_read_where_it_is(void **state) {
  (void)state;
  int x = linear(&f, input(&f, "x", MS_F32, SHAPE(5, 4)), f32(SHAPE(4, 4)), -1);
  int named = op1(&f, MS_OP_gelu, x, NULL), relu, norm, out[MS_MAX_OUTPUTS];
  must(ms_graph_output(f.graph, "named", named));
  relu = op1(&f, MS_OP_relu, linear(&f, named, f32(SHAPE(4, 4)), -1), NULL);
  apply(&f, MS_OP_rms_norm, 2, (int[]){linear(&f, relu, f32(SHAPE(4, 4)), -1), f32(SHAPE(4))}, NULL, out);
  norm = reshape_to(&f, out[0], SHAPE(4, 5)); /* its bytes under another shape */
  train(sum_all(&f, linear(&f, norm, f32(SHAPE(4, 5)), -1)));
  for (int n = 0; n < f.graph->n_nodes; n++) {
    const ms_node *node = &f.graph->nodes[n];
    assert_true(node->op != MS_OP_activation_backward_recompute && node->op != MS_OP_rms_norm_backward_recompute);
  }
}

static void nothing_is_made_that_nobody_reads(void **state) {
  (void)state;
  int x = linear(&f, input(&f, "x", MS_F32, SHAPE(5, 4)), f32(SHAPE(4, 4)), -1), fixed = f32(SHAPE(4, 4));
  f.param[f.params - 1].frozen = 1;
  train(sum_all(&f, linear(&f, op1(&f, MS_OP_gelu, x, NULL), fixed, -1)));
  assert_int_equal(count_op(&f, MS_OP_gelu_backward), 1);
  assert_int_equal(count_op(&f, MS_OP_activation_backward_recompute), 0);
}

/* ---- whole models ----------------------------------------------------------------------------------------------- */

static void run_start(run *r, model_fn model, const model_shape *shape, int again, int regions) {
  fixture_start(&r->f);
  ms_graph *g = r->f.graph;
  if (regions) must(ms_graph_set_recompute(g, 1, NULL));
  model(&r->f, shape);
  must(ms_graph_rewrite(g, 0));
  must(ms_graph_differentiate(g));
  must(ms_graph_rewrite_backward(g));
  if (again) must(ms_graph_rematerialize(g));
  must(ms_graph_insert_recomputation(g));
  must(ms_graph_prune(g));
  run_draw(r, shape);
  interpreter_run(&r->it, 0, interpreter_forward_end(&r->it));
}

/* Nothing that backward reads of those ops' results is left. Returns how many there are. */
static int forget_results(run *r) {
  const ms_graph *g = r->f.graph;
  int forgotten = 0;
  for (int n = 0; n < interpreter_forward_end(&r->it); n++) {
    const ms_node *node = &g->nodes[n];
    if (!can_be_made_again(node->op)) continue;
    int v = node->out[0];
    memset(r->it.data[v], 0xff, (size_t)(interpreter_numel(&r->it, v) * ms_dtype_size(g->values[v].info.dtype)));
    forgotten++;
  }
  return forgotten;
}

static void compare(model_fn model, model_shape shape, int regions) {
  run kept, again;
  run_start(&kept, model, &shape, 0, regions);
  run_start(&again, model, &shape, 1, regions);
  assert_true(forget_results(&again) >= 3 * shape.layers + 1);
  interpreter_run(&kept.it, interpreter_forward_end(&kept.it), kept.f.graph->n_nodes);
  interpreter_run(&again.it, interpreter_forward_end(&again.it), again.f.graph->n_nodes);
  for (int p = 0; p < kept.f.params; p++) {
    int a = again.f.graph->param_grads[p], b = kept.f.graph->param_grads[p];
    assert_memory_equal(again.it.data[a], kept.it.data[b],
                        (size_t)(interpreter_numel(&kept.it, b) * ms_dtype_size(dtype_of(&kept.f, b))));
  }
  run_end(&kept);
  run_end(&again);
}

static void models_keep_their_bits(void **state) {
  (void)state;
  static const model_fn models[] = {gpt_model, llama_model};
  for (int m = 0; m < 2; m++)
    for (int bf16 = 0; bf16 < 2; bf16++) {
      model_shape shape = m ? llama : gpt, dropping;
      shape.dtype = bf16 ? MS_BF16 : MS_F32;
      dropping = shape;
      dropping.dropout = 0.3;
      compare(models[m], shape, 0);
      compare(models[m], dropping, 0);
      compare(models[m], shape, 1);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(each_activation_is_made_again),
      CASE(what_the_gradient_itself_needs_is_kept),
      CASE(what_stays_anyway_is_read_where_it_is),
      CASE(nothing_is_made_that_nobody_reads),
      TEST(models_keep_their_bits),
  };
  return cmocka_run_group_tests_name("graph rematerialize", tests, NULL, NULL);
}
