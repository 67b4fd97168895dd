/* test_graph_builder.c - the builder: nodes, inputs, parameters and outputs, and in which words it refuses them.
 */
#include "tests/c/graph/graph_attempt.h"

static void errors_carry_the_module_path(void **state) {
  (void)state;
  int out[MS_MAX_OUTPUTS], x = tensor(SHAPE(8, 256, 128)), w = tensor(SHAPE(64, 512));
  must(ms_graph_set_scope(f.graph, "layers.3.attn.wq"));
  assert_fails(ms_graph_op(f.graph, "matmul", 2, (int[]){x, w}, NULL, out), MS_ESHAPE,
               "layers.3.attn.wq | matmul | [8,256,128] | [64,512]");
  assert_fails(ms_graph_op(f.graph, "matmull", 2, (int[]){x, w}, NULL, out), MS_ENAME, "layers.3.attn.wq | matmull");
  assert_fails(ms_graph_param(f.graph, 99, out), MS_EINVAL, "layers.3.attn.wq | parameter 99");
  assert_fails(ms_graph_input(f.graph, "x", MS_F32, SHAPE(2, 0), -1, out), MS_ESHAPE, "layers.3.attn.wq | input x | 0");
  must(ms_graph_set_scope(f.graph, ""));
  ms_graph_op(f.graph, "matmul", 2, (int[]){x, w}, NULL, out);
  assert_has(ms_error_message(), "matmul | [8,256,128] | [64,512]");
  ms_error_clear();
}

static void inputs_and_parameters(void **state) {
  (void)state;
  ms_value_info info;
  int out[MS_MAX_OUTPUTS], again, w = tensor(SHAPE(4, 3));
  int x = ints("tokens", SHAPE(2, 5));
  must(ms_graph_param(f.graph, 0, &again));
  assert_int_equal(again, w);
  must(ms_graph_describe(f.graph, x, &info, sizeof info));
  assert_int_equal(info.dtype, MS_I32);
  assert_int_equal(info.dims[1], 5);
  assert_fails(ms_graph_input(f.graph, "tokens", MS_I32, SHAPE(2, 5), -1, out), MS_ENAME, "input | tokens");
  assert_fails(ms_graph_input(f.graph, "", MS_I32, SHAPE(2, 5), -1, out), MS_ENAME, "input | name");
  assert_fails(ms_graph_input(f.graph, "y", 17, SHAPE(2, 5), -1, out), MS_EDTYPE, "dtype 17");
  assert_fails(ms_graph_input(f.graph, "y", MS_F32, 7, (int64_t[7]){0}, -1, out), MS_ESHAPE, "7 | 0 | 6");
  assert_fails(ms_graph_input(f.graph, "y", MS_F32, SHAPE((int64_t)1 << 40, (int64_t)1 << 40), -1, out), MS_ESHAPE,
               "y | 2^60");
  assert_fails(ms_graph_describe(f.graph, 1000, &info, sizeof info), MS_EINVAL, "value 1000");
}

static void arity_and_value_ids(void **state) {
  (void)state;
  int x = tensor(SHAPE(2, 3));
  REFUSED(MS_OP_add, NULL, MS_EINVAL, "add | 1 | input | 2", x);
  REFUSED(MS_OP_matmul, NULL, MS_EINVAL, "matmul | 4 | inputs | 2 | 3", x, x, x, x);
  REFUSED(MS_OP_add, NULL, MS_EINVAL, "add | input 2 | value 77", x, 77);
  REFUSED(MS_OP_add, NULL, MS_EINVAL, "add | input 1 | value -1", -1, x);
  assert_fails(attempt(MS_OP_COUNT, 0, NULL, NULL), MS_EINVAL, "ops | 0");
}

static void recipes_cannot_make_internal_ops(void **state) {
  (void)state;
  int out[MS_MAX_OUTPUTS], x = tensor(SHAPE(2, 3));
  assert_fails(ms_graph_op(f.graph, "relu_backward", 2, (int[]){x, x}, NULL, out), MS_EINVAL, "engine | op");
  must(ms_graph_op(f.graph, "fill", 0, NULL, NULL, out));
  assert_value(out[0], MS_F32, "[]");
}

static void dropouts_get_streams_of_their_own(void **state) {
  (void)state;
  int a[MS_MAX_OUTPUTS], b[MS_MAX_OUTPUTS], c[MS_MAX_OUTPUTS], x = tensor(SHAPE(2, 3));
  must(typed_op(f.graph, "dropout", 1, &x, NULL, a));
  must(typed_op(f.graph, "dropout", 1, a, ATTRS(.mask = {.p = 0.5}), b));
  must(typed_op(f.graph, "dropout", 1, b, ATTRS(.mask = {.stream = 77, .p = 0.5}), c));
  assert_true(f.graph->nodes[0].attrs.mask.stream != 0 && f.graph->nodes[1].attrs.mask.stream != 0);
  assert_true(f.graph->nodes[0].attrs.mask.stream != f.graph->nodes[1].attrs.mask.stream);
  assert_true(f.graph->nodes[0].attrs.mask.p == 0.1 && f.graph->nodes[1].attrs.mask.p == 0.5);
  assert_int_equal(f.graph->nodes[2].attrs.mask.stream, 77);
}

static void loss_and_outputs(void **state) {
  (void)state;
  int x = tensor(SHAPE(2, 3)), h = half(SCALAR), loss = sum_all(&f, x);
  assert_fails(ms_graph_set_loss(f.graph, x, -1), MS_ESHAPE, "the loss | f32 [2,3]");
  assert_fails(ms_graph_set_loss(f.graph, h, -1), MS_ESHAPE, "the loss | bf16 []");
  assert_fails(ms_graph_set_loss(f.graph, -3, -1), MS_EINVAL, "value -3");
  assert_fails(ms_graph_set_loss(f.graph, loss, x), MS_ESHAPE, "weight | f32 [2,3]");
  must(ms_graph_set_loss(f.graph, loss, -1));
  must(ms_graph_output(f.graph, "logits", x));
  assert_fails(ms_graph_output(f.graph, "logits", x), MS_ENAME, "output | logits");
  assert_fails(ms_graph_output(f.graph, "y", 99), MS_EINVAL, "value 99");
}

static void a_copy_stands_alone(void **state) {
  (void)state;
  ms_graph *copy;
  int x = tensor(SHAPE(2, 3));
  char scope[32];
  for (int i = 0; i < 300; i++) {
    snprintf(scope, sizeof scope, "layers.%d.norm", i);
    must(ms_graph_set_scope(f.graph, scope));
    x = op1(&f, MS_OP_relu, x, NULL);
  }
  must(ms_graph_set_loss(f.graph, sum_all(&f, x), -1));
  must(ms_graph_output(f.graph, "last", x));
  must(ms_graph_copy(f.graph, &copy));
  ms_free(f.graph);
  assert_int_equal(copy->n_nodes, 301);
  assert_string_equal(copy->nodes[7].scope, "layers.7.norm");
  assert_string_equal(copy->nodes[299].scope, "layers.299.norm");
  assert_string_equal(copy->outputs[0].name, "last");
  assert_int_equal(copy->outputs[0].value, x);
  assert_int_equal(copy->param_values[0], 0);
  assert_well_formed(copy);
  f.graph = copy;
  x = op1(&f, MS_OP_relu, x, NULL);
  assert_int_equal(f.graph->nodes[301].scope == f.graph->nodes[299].scope, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(errors_carry_the_module_path),
      CASE(inputs_and_parameters),
      CASE(arity_and_value_ids),
      CASE(recipes_cannot_make_internal_ops),
      CASE(dropouts_get_streams_of_their_own),
      CASE(loss_and_outputs),
      CASE(a_copy_stands_alone),
  };
  return cmocka_run_group_tests_name("graph builder", tests, NULL, NULL);
}
