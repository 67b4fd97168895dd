/* test_graph_epilogues.c - which products take gelu and its gradient into their epilogues, which are left as they are,
 * and that gradients stay what they were.
 */
#include "tests/c/graph/graph_case.h"
#include "tests/c/graph/graph_interpreter.h"

enum { ROWS = 6, WIDTH = 16, HIDDEN = 24, LAYERS = 2 };

typedef struct setting {
  int grad_dtype;
  int kept;    /* gelu's result is kept for backward, not made again */
  int regions; /* of recomputation */
  int frozen;
  int fused;
} setting;

static const setting f32 = {MS_F32, 0, 0, 0, 1}, bf16 = {MS_BF16, 0, 0, 0, 1};

static int weight(int64_t rows, int64_t columns, const setting *s) {
  const int value = columns ? param(&f, MS_BF16, SHAPE(rows, columns)) : param(&f, MS_BF16, SHAPE(rows));
  f.param[f.params - 1].grad_dtype = s->grad_dtype;
  f.param[f.params - 1].frozen = s->frozen;
  return value;
}

/* Blocks whose hidden width, activation and bias may be others; everything that a training graph goes through. */
static void train_blocks(const setting *s, int activation, int64_t hidden, int biased) {
  if (s->regions) must(ms_graph_set_recompute(f.graph, 1, NULL));
  int x = input(&f, "x", MS_BF16, SHAPE(ROWS, WIDTH));
  for (int layer = 0; layer < LAYERS; layer++) {
    const int u = linear(&f, x, weight(hidden, WIDTH, s), biased ? weight(hidden, 0, s) : -1);
    const int h = op1(&f, activation, u, NULL);
    x = op2(&f, MS_OP_add, x, linear(&f, h, weight(WIDTH, hidden, s), -1), NULL);
  }
  const setting trained = {.grad_dtype = s->grad_dtype};
  must(ms_graph_set_loss(f.graph, sum_all(&f, linear(&f, x, weight(WIDTH, WIDTH, &trained), -1)), -1));
  must(ms_graph_rewrite(f.graph, 0));
  must(ms_graph_differentiate(f.graph));
  must(ms_graph_rewrite_backward(f.graph));
  if (!s->kept) must(ms_graph_rematerialize(f.graph));
  must(ms_graph_insert_recomputation(f.graph));
  must(ms_graph_prune(f.graph));
  if (s->fused) must(ms_graph_fuse_epilogues(f.graph));
  assert_well_formed(f.graph);
}

static void train(const setting *s) { train_blocks(s, MS_OP_gelu_tanh, HIDDEN, 1); }

static int gradients_apart(void) {
  return count_op(&f, MS_OP_gelu_tanh_backward) + count_op(&f, MS_OP_activation_backward_bias) +
         count_op(&f, MS_OP_activation_backward_recompute) + count_op(&f, MS_OP_activation_backward_bias_recompute);
}

static int fused_nodes(void) {
  return count_op(&f, MS_OP_matmul_gelu) + count_op(&f, MS_OP_matmul_gelu_backward) +
         count_op(&f, MS_OP_matmul_gelu_backward_bias);
}

static void gelu_is_written_by_its_product(void **state) {
  (void)state;
  train(&f32);
  assert_int_equal(count_op(&f, MS_OP_matmul_gelu), LAYERS);
  assert_int_equal(count_op(&f, MS_OP_gelu_tanh), 0);
}

/* As many bytes, and a bias's gradient in f32: nothing is won. */
static void the_gradient_stays_where_as_many_bytes_would_move(void **state) {
  (void)state;
  train(&f32);
  assert_int_equal(count_op(&f, MS_OP_activation_backward_bias_recompute), LAYERS);
  assert_int_equal(fused_nodes(), LAYERS);
}

static void a_bias_gradient_in_the_products_dtype_comes_with_it(void **state) {
  (void)state;
  train(&bf16);
  assert_int_equal(count_op(&f, MS_OP_matmul_gelu_backward_bias), LAYERS);
  assert_int_equal(count_op(&f, MS_OP_gelu_tanh), LAYERS); /* once more, for the gradients of weights */
  assert_int_equal(gradients_apart(), 0);
}

static void what_is_kept_is_not_made_again(void **state) {
  (void)state;
  train(&(setting){MS_BF16, .kept = 1, .fused = 1});
  assert_int_equal(count_op(&f, MS_OP_matmul_gelu_backward_bias), LAYERS);
  assert_int_equal(count_op(&f, MS_OP_gelu_tanh) + gradients_apart(), 0);
}

static void an_f32_bias_gradient_is_summed_behind(void **state) {
  (void)state;
  train(&(setting){MS_F32, .kept = 1, .fused = 1});
  assert_int_equal(count_op(&f, MS_OP_matmul_gelu_backward), LAYERS);
  assert_int_equal(count_op(&f, MS_OP_sum_to), LAYERS);
  assert_int_equal(gradients_apart(), 0);
}

static void without_a_bias_only_the_gradient_is(void **state) {
  (void)state;
  train_blocks(&f32, MS_OP_gelu_tanh, HIDDEN, 0);
  assert_int_equal(count_op(&f, MS_OP_matmul_gelu), 0);
  assert_int_equal(count_op(&f, MS_OP_matmul_gelu_backward), LAYERS);
}

static void recomputed_regions_are_left_in_forward(void **state) {
  (void)state;
  train(&(setting){MS_BF16, .regions = 1, .fused = 1});
  assert_int_equal(count_op(&f, MS_OP_matmul_gelu), 0);
  assert_int_equal(count_op(&f, MS_OP_matmul_gelu_backward_bias), LAYERS);
}

/* Gelu's input has no other reader: it is not written. */
static void without_a_gradient_the_product_gives_gelu_alone(void **state) {
  (void)state;
  train(&(setting){MS_F32, .frozen = 1, .fused = 1});
  int activated = 0;
  for (int n = 0; n < f.graph->n_nodes; n++)
    activated += f.graph->nodes[n].op == MS_OP_matmul && f.graph->nodes[n].attrs.product.activation == MS_ACT_GELU_TANH;
  assert_int_equal(activated, LAYERS);
  assert_int_equal(fused_nodes(), 0);
}

static void other_forms_and_sizes_are_left(void **state) {
  (void)state;
  static const struct {
    int activation;
    int64_t hidden;
  } others[] = {{MS_OP_gelu, HIDDEN}, {MS_OP_silu, HIDDEN}, {MS_OP_gelu_tanh, 20}};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    fixture_end(&f);
    fixture_start(&f);
    train_blocks(&bf16, others[i].activation, others[i].hidden, 1);
    assert_int_equal(fused_nodes(), 0);
  }
}

/* ---- numbers ---- */

static void compute(const setting *s, interpreter *it) {
  train(s);
  interpreter_start(it, f.graph);
  for (int v = 0; v < f.graph->n_values; v++)
    if (f.graph->values[v].kind != MS_VALUE_NODE)
      interpreter_draw(it, v, (uint64_t)(f.graph->values[v].param + 1), 0,
                       f.graph->values[v].kind == MS_VALUE_INPUT ? 1 : 0.3);
  interpreter_run(it, 0, f.graph->n_nodes);
}

static void gradients_stay_what_they_were(void **state) {
  (void)state;
  for (int bits = 0; bits < 8; bits++) {
    const setting s = {bits & 1 ? MS_BF16 : MS_F32, .kept = bits >> 1 & 1, .regions = bits >> 2, .fused = 1};
    setting apart = s;
    interpreter with, without;
    apart.fused = 0;
    fixture_end(&f);
    fixture_start(&f);
    compute(&s, &with);
    assert_true(fused_nodes() > 0 || (s.regions && !s.kept));
    fixture fused = f;
    fixture_start(&f);
    compute(&apart, &without);
    for (int p = 0; p < f.params; p++) {
      const int a = fused.graph->param_grads[p], b = f.graph->param_grads[p];
      for (int64_t i = 0; i < interpreter_numel(&without, b); i++) {
        const double x = interpreter_get(&with, a, i), y = interpreter_get(&without, b, i);
        if (fabs(x - y) > 0.02 * (0.2 + fabs(y)))
          fail_msg("setting %d, p%d, element %d: %g, %g", bits, p, (int)i, x, y);
      }
    }
    interpreter_end(&with);
    interpreter_end(&without);
    fixture_end(&fused);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(gelu_is_written_by_its_product),
      CASE(the_gradient_stays_where_as_many_bytes_would_move),
      CASE(a_bias_gradient_in_the_products_dtype_comes_with_it),
      CASE(what_is_kept_is_not_made_again),
      CASE(an_f32_bias_gradient_is_summed_behind),
      CASE(without_a_bias_only_the_gradient_is),
      CASE(recomputed_regions_are_left_in_forward),
      CASE(without_a_gradient_the_product_gives_gelu_alone),
      CASE(other_forms_and_sizes_are_left),
      CASE(gradients_stay_what_they_were),
  };
  return cmocka_run_group_tests_name("graph epilogues", tests, NULL, NULL);
}
