/* test_graph_collectives.c - the ops across ranks: shapes, gradients by placement, and that plans refuse them. */
#include "tests/c/graph/graph_case.h"
#include "tests/c/support/networks/planned.h"

enum { RANKS = 3 };

static int x_of(void) { return param(&f, MS_F32, SHAPE(4, 12, 6)); }

/* The op along axis 1 in 2 blocks. */
static int along(int op, int x, int option) {
  return op1(&f, op, x,
             ATTRS(.across = {.dim = 3,
                              .ranks = RANKS,
                              .along = 1,
                              .outer = 2,
                              .split = op == MS_OP_all_gather && option,
                              .pad = op == MS_OP_split && option}));
}

static void shapes(void **state) {
  (void)state;
  const int x = x_of();
  assert_string_equal(shape_of(&f, op1(&f, MS_OP_all_reduce, x, ATTRS(.across = {.dim = 3, .ranks = RANKS}))),
                      "[4,12,6]");
  assert_string_equal(shape_of(&f, along(MS_OP_all_gather, x, 0)), "[4,36,6]");
  assert_string_equal(shape_of(&f, along(MS_OP_unsplit, x, 0)), "[4,36,6]");
  assert_string_equal(shape_of(&f, along(MS_OP_reduce_scatter, x, 0)), "[4,4,6]");
  assert_string_equal(shape_of(&f, along(MS_OP_split, x, 0)), "[4,4,6]");
  assert_string_equal(
      shape_of(&f, op1(&f, MS_OP_all_to_all, x, ATTRS(.across = {.dim = 3, .ranks = RANKS, .split_axis = 2}))),
      "[12,12,2]");
}

static void refuses(int op, ms_op_attrs attrs, int status, const char *facts) {
  int x = x_of(), out[MS_MAX_OUTPUTS];
  assert_fails(ms_graph_emit(f.graph, op, 1, &x, &attrs, out), status, facts);
}

static void what_does_not_fit_is_refused(void **state) {
  (void)state;
  refuses(MS_OP_split, (ms_op_attrs){.across = {.dim = 3, .ranks = 5, .along = 1, .outer = 1}}, MS_ESHAPE,
          "split | axis 1 | [4,12,6] | multiple of 5");
  refuses(MS_OP_reduce_scatter, (ms_op_attrs){.across = {.dim = 3, .ranks = 4, .along = 1, .outer = 2}}, MS_ESHAPE,
          "reduce_scatter | [4,12,6] | multiple of 8");
  refuses(MS_OP_all_gather, (ms_op_attrs){.across = {.dim = 3, .ranks = 2, .along = 3, .outer = 1}}, MS_EINVAL,
          "all_gather | axis 3 | 3");
  refuses(MS_OP_all_gather, (ms_op_attrs){.across = {.dim = 3, .ranks = 2, .along = 1}}, MS_ESHAPE,
          "all_gather | multiple of 0");
  refuses(MS_OP_split, (ms_op_attrs){.across = {.dim = 3, .along = 1, .outer = 1}}, MS_EINVAL, "split | 0 ranks");
  refuses(MS_OP_split, (ms_op_attrs){.across = {.dim = 3, .ranks = 2, .along = 1, .outer = INT64_MAX}}, MS_ESHAPE,
          "split | multiple of 9223372036854775807");
  refuses(MS_OP_all_gather, (ms_op_attrs){.across = {.dim = 3, .ranks = INT64_MAX, .along = 1, .outer = 1}}, MS_EINVAL,
          "all_gather | ranks | 4096");
  refuses(MS_OP_all_to_all, (ms_op_attrs){.across = {.dim = 3, .ranks = 4, .split_axis = 2}}, MS_ESHAPE,
          "all_to_all | axis 2 | multiple of 4");
}

/* The op that computes the gradient of the op's input. */
static int op_of_gradient(int op, int option) {
  end_graph(NULL);
  start_graph(NULL);
  const int x = x_of();
  const int y =
      ms_op_has(op, "along")
          ? along(op, x, option)
          : op1(&f, op, x, ATTRS(.across = {.dim = 3, .ranks = RANKS, .split_axis = op == MS_OP_all_to_all ? 2 : 0}));
  must(ms_graph_set_loss(f.graph, sum_all(&f, op1(&f, MS_OP_tanh, y, NULL)), -1));
  must(ms_graph_differentiate(f.graph));
  assert_string_equal(shape_of(&f, f.graph->param_grads[0]), "[4,12,6]");
  return maker(f.graph->param_grads[0])->op;
}

static void gradients_are_the_other_way(void **state) {
  (void)state;
  assert_int_equal(op_of_gradient(MS_OP_copy_to, 0), MS_OP_all_reduce);
  assert_int_equal(op_of_gradient(MS_OP_all_reduce, 0), MS_OP_tanh_backward);
  assert_int_equal(op_of_gradient(MS_OP_all_gather, 0), MS_OP_reduce_scatter);
  assert_int_equal(op_of_gradient(MS_OP_all_gather, 1), MS_OP_split);
  assert_int_equal(op_of_gradient(MS_OP_reduce_scatter, 0), MS_OP_all_gather);
  assert_int_equal(op_of_gradient(MS_OP_split, 0), MS_OP_all_gather);
  assert_int_equal(op_of_gradient(MS_OP_split, 1), MS_OP_unsplit);
  assert_int_equal(op_of_gradient(MS_OP_unvary, 0), MS_OP_scale);
  assert_int_equal(op_of_gradient(MS_OP_once, 0), MS_OP_once);
  assert_int_equal(op_of_gradient(MS_OP_all_to_all, 0), MS_OP_all_to_all);
}

/* Also by more places than there are ranks, of which any number is the same as one of a ring. */
static void a_shift_comes_back_by_as_many_places(void **state) {
  (void)state;
  const int64_t many[] = {1, -2, RANKS + 1, INT64_MAX, INT64_MIN};
  for (int i = 0; i < 5; i++) {
    end_graph(NULL);
    start_graph(NULL);
    const int y = op1(&f, MS_OP_shift, x_of(), ATTRS(.across = {.dim = 3, .ranks = RANKS, .by = many[i]}));
    must(ms_graph_set_loss(f.graph, sum_all(&f, op1(&f, MS_OP_tanh, y, NULL)), -1));
    must(ms_graph_differentiate(f.graph));
    const ms_node *back = maker(f.graph->param_grads[0]);
    assert_int_equal(back->op, MS_OP_shift);
    assert_int_equal(back->attrs.across.by, -(many[i] % RANKS));
  }
}

static void a_maximum_has_no_gradient(void **state) {
  (void)state;
  const int x = x_of(), y = op1(&f, MS_OP_all_reduce, x, ATTRS(.across = {.dim = 3, .ranks = RANKS, .max = 1}));
  must(ms_graph_set_loss(f.graph, sum_all(&f, y), -1));
  assert_fails(ms_graph_differentiate(f.graph), MS_EUNSUPPORTED, "all_reduce | gradient");
}

/* The mesh has no such dimension, or one of another size. */
static void plans_refuse_those_of_another_mesh(void **state) {
  (void)state;
  const mlp_config c = mlp_default(1, 1, 0);
  const ms_plan_config config = planned_config();
  for (int dim = 0; dim <= MS_DIMS; dim++) {
    const ms_op_attrs attrs = {.across = {.dim = dim, .ranks = RANKS}};
    mlp net = mlp_make(&c);
    ms_plan *plan;
    int loss;
    must(ms_graph_emit(net.graph, MS_OP_copy_to, 1, &net.graph->loss, &attrs, &loss));
    must(ms_graph_set_loss(net.graph, loss, -1));
    assert_fails(ms_plan_compile(net.graph, &config, &plan), MS_EINTERNAL, "3 ranks of dimension");
    mlp_free(&net);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(shapes),
      CASE(what_does_not_fit_is_refused),
      CASE(gradients_are_the_other_way),
      CASE(a_shift_comes_back_by_as_many_places),
      CASE(a_maximum_has_no_gradient),
      TEST(plans_refuse_those_of_another_mesh),
  };
  return cmocka_run_group_tests_name("graph collectives", tests, NULL, NULL);
}
