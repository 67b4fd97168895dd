/* test_graph_product_sums.c - which sums of gradients the products compute themselves, which stay additions, and that
 * the gradients are those of additions.
 */
#include "tests/c/graph/graph_case.h"
#include "tests/c/graph/graph_model_run.h"

static int f32(int ndim, const int64_t *dims) { return param(&f, MS_F32, ndim, dims); }

/* The backward pass of a finished graph, with or without the rewrites. */
static void differentiate(int fuse, int loss) {
  must(ms_graph_set_loss(f.graph, loss, -1));
  must(ms_graph_differentiate(f.graph));
  if (fuse) must(ms_graph_rewrite_backward(f.graph));
  assert_well_formed(f.graph);
}

static int backward_adds(void) {
  int n = 0;
  for (int i = 0; i < f.graph->n_nodes; i++) n += f.graph->nodes[i].backward && f.graph->nodes[i].op == MS_OP_add;
  return n;
}

/* A sum of three different functions of three linear layers of h. */
static int three_layers(int h, int dtype) {
  const int ops[] = {MS_OP_exp, MS_OP_tanh, MS_OP_sigmoid};
  int sum = -1;
  for (int i = 0; i < 3; i++) {
    const int y = op1(&f, ops[i], linear(&f, h, param(&f, dtype, SHAPE(3, 4)), -1), NULL);
    sum = sum < 0 ? y : op2(&f, MS_OP_add, sum, y, NULL);
  }
  return sum_all(&f, sum);
}

static int some_layer(int dtype, int ndim, const int64_t *dims) {
  return linear(&f, input(&f, "x", dtype, ndim, dims), param(&f, dtype, SHAPE(4, 4)), -1);
}

static void layers_of_one_input_add_their_gradients(void **state) {
  (void)state;
  differentiate(1, three_layers(some_layer(MS_F32, SHAPE(2, 5, 4)), MS_F32));
  assert_int_equal(count_op(&f, MS_OP_matmul_add), 2);
  assert_int_equal(backward_adds(), 0);
  for (int n = 0; n < f.graph->n_nodes; n++)
    if (f.graph->nodes[n].op == MS_OP_matmul_add) {
      assert_string_equal(shape_of(&f, f.graph->nodes[n].out[0]), "[2,5,4]");
      assert_string_equal(shape_of(&f, f.graph->nodes[n].in[2]), "[2,5,4]");
    }
}

static void matrices_do_as_well(void **state) {
  (void)state;
  differentiate(1, three_layers(some_layer(MS_BF16, SHAPE(5, 4)), MS_BF16));
  assert_int_equal(count_op(&f, MS_OP_matmul_add), 2);
  assert_int_equal(backward_adds(), 0);
}

static void a_weight_of_several_products_sums_in_them(void **state) {
  (void)state;
  const int w = f32(SHAPE(4, 4)), x = input(&f, "x", MS_F32, SHAPE(5, 4));
  const int h = op1(&f, MS_OP_tanh, linear(&f, x, w, -1), NULL);
  differentiate(1, sum_all(&f, op1(&f, MS_OP_exp, linear(&f, h, w, -1), NULL)));
  assert_int_equal(count_op(&f, MS_OP_matmul_add), 1);
  assert_int_equal(maker(f.graph->param_grads[0])->op, MS_OP_matmul_add);
  assert_int_equal(backward_adds(), 0);
}

/* x + f(x): what the product multiplies is also what it would be added to, in whose memory the sum would be. */
static void a_product_does_not_add_to_what_it_reads(void **state) {
  (void)state;
  const int x = some_layer(MS_F32, SHAPE(5, 4));
  differentiate(
      1, sum_all(&f, op1(&f, MS_OP_exp, op2(&f, MS_OP_add, x, linear(&f, x, f32(SHAPE(4, 4)), -1), NULL), NULL)));
  assert_int_equal(count_op(&f, MS_OP_matmul_add), 0);
  assert_int_equal(backward_adds(), 1);
}

/* exp's gradient of x + exp(f(x)) is another tensor than the residual's. */
static void a_product_adds_a_residual_gradient(void **state) {
  (void)state;
  const int x = some_layer(MS_F32, SHAPE(2, 5, 4));
  const int y = op1(&f, MS_OP_exp, linear(&f, x, f32(SHAPE(4, 4)), -1), NULL);
  differentiate(1, sum_all(&f, op1(&f, MS_OP_tanh, op2(&f, MS_OP_add, x, y, NULL), NULL)));
  assert_int_equal(count_op(&f, MS_OP_matmul_add), 1);
  assert_int_equal(backward_adds(), 0);
}

/* What else reads a product's gradient must find it there: here, a named output. */
static void a_product_that_others_read_is_not_added(void **state) {
  (void)state;
  const int h = some_layer(MS_F32, SHAPE(5, 4));
  must(ms_graph_set_loss(f.graph, three_layers(h, MS_F32), -1));
  must(ms_graph_differentiate(f.graph));
  for (int n = 0, named = 0; n < f.graph->n_nodes; n++) {
    const ms_node *node = &f.graph->nodes[n];
    char name[16];
    if (!node->backward || node->op != MS_OP_matmul || node->attrs.product.trans_a) continue;
    snprintf(name, sizeof name, "dh%d", named++);
    must(ms_graph_output(f.graph, name, node->out[0]));
  }
  must(ms_graph_rewrite_backward(f.graph));
  assert_int_equal(count_op(&f, MS_OP_matmul_add), 0);
  assert_int_equal(backward_adds(), 2);
}

/* Sums of f32 products that are returned in bf16 would be rounded twice. */
static void weight_gradients_in_another_dtype_stay_apart(void **state) {
  (void)state;
  const int w = f32(SHAPE(4, 4)), x = input(&f, "x", MS_F32, SHAPE(5, 4));
  f.param[0].grad_dtype = MS_BF16;
  const int h = op1(&f, MS_OP_tanh, linear(&f, x, w, -1), NULL);
  differentiate(1, sum_all(&f, op1(&f, MS_OP_exp, linear(&f, h, w, -1), NULL)));
  assert_int_equal(count_op(&f, MS_OP_matmul_add), 0);
  assert_int_equal(backward_adds(), 1);
}

/* Gradients of every parameter of three layers of one layer of x, by additions and by products. */
static void gradients_are_those_of_additions(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
    for (int matrix = 0; matrix < 2; matrix++) {
      interpreter it[2];
      fixture kept[2];
      for (int fuse = 0; fuse < 2; fuse++) {
        fixture_start(&f);
        const int h = matrix ? some_layer(dtype, SHAPE(10, 4)) : some_layer(dtype, SHAPE(2, 5, 4));
        differentiate(fuse, three_layers(h, dtype));
        assert_int_equal(count_op(&f, MS_OP_matmul_add), fuse ? 2 : 0);
        interpreter_start(&it[fuse], f.graph);
        for (int v = 0; v < f.graph->n_values; v++)
          if (f.graph->values[v].kind != MS_VALUE_NODE)
            interpreter_draw(&it[fuse], v, (uint64_t)f.graph->values[v].param + 1, 0, 0.5);
        interpreter_run(&it[fuse], 0, f.graph->n_nodes);
        kept[fuse] = f;
      }
      for (int p = 0; p < kept[0].params; p++)
        assert_true(interpreter_difference(&it[1], kept[1].graph->param_grads[p], &it[0],
                                           kept[0].graph->param_grads[p]) < (dtype == MS_F32 ? 1e-6 : 1e-2));
      for (int fuse = 0; fuse < 2; fuse++) {
        interpreter_end(&it[fuse]);
        fixture_end(&kept[fuse]);
      }
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(layers_of_one_input_add_their_gradients),      CASE(matrices_do_as_well),
      CASE(a_weight_of_several_products_sums_in_them),    CASE(a_product_does_not_add_to_what_it_reads),
      CASE(a_product_adds_a_residual_gradient),           CASE(a_product_that_others_read_is_not_added),
      CASE(weight_gradients_in_another_dtype_stay_apart), TEST(gradients_are_those_of_additions),
  };
  return cmocka_run_group_tests_name("product sums", tests, NULL, NULL);
}
