/* test_graph_rows.c - which elements of a value belong to which row of the batch: what dropout's mask is keyed by. */
#include "tests/c/graph/graph_fixture.h"

static fixture f;

static int start(void **state) {
  (void)state;
  fixture_start(&f);
  return 0;
}

static int end(void **state) {
  (void)state;
  fixture_end(&f);
  return 0;
}

static void assert_rows(int value, int64_t outer, int64_t rows, int64_t first) {
  int out, rc = typed_op(f.graph, "dropout", 1, &value, ATTRS(.mask = {.p = 0.5}), &out);
  must(rc);
  const ms_op_attrs *attrs = &f.graph->nodes[f.graph->n_nodes - 1].attrs;
  assert_int_equal(attrs->mask.rows, rows);
  if (!rows) return;
  assert_int_equal(attrs->mask.outer, outer);
  assert_int_equal(attrs->mask.first, first);
}

static void assert_torn(int value) {
  int out;
  assert_fails(typed_op(f.graph, "dropout", 1, &value, NULL, &out), MS_EUNSUPPORTED, "dropout | rows");
}

static int transposed(int x, int a, int b, int c) {
  return op1(&f, MS_OP_transpose, x, ATTRS(.permutation = {.p = {a, b, c, 3, 4, 5}}));
}

static int cut(int x, int axis, int from, int to) {
  return op1(&f, MS_OP_slice, x, ATTRS(.cut = {.axis = axis, .start = from, .stop = to}));
}

static void reshaping_moves_no_rows(void **state) {
  (void)state;
  int x = input(&f, "x", MS_F32, SHAPE(4, 6, 10));
  assert_rows(x, 1, 4, 0);
  assert_rows(reshape_to(&f, x, SHAPE(24, 10)), 1, 4, 0);
  assert_rows(reshape_to(&f, x, SHAPE(2, 2, 60)), 1, 4, 0);
  assert_rows(reshape_to(&f, transposed(x, 1, 0, 2), SHAPE(24, 10)), 6, 4, 0);
  /* [rows * positions, D] turned: positions stay with their row. */
  int flat = reshape_to(&f, x, SHAPE(24, 10));
  assert_rows(op1(&f, MS_OP_transpose, flat, ATTRS(.permutation = {.p = {1, 0}})), 10, 4, 0);
  /* Rows on two axes, in another order. */
  assert_torn(transposed(reshape_to(&f, x, SHAPE(2, 2, 60)), 1, 0, 2));
}

static void ops_carry_rows_along(void **state) {
  (void)state;
  int x = input(&f, "x", MS_F32, SHAPE(4, 6, 10)), w = param(&f, MS_F32, SHAPE(10, 7));
  int across = transposed(x, 1, 0, 2), tokens = input(&f, "tokens", MS_I32, SHAPE(4, 6));
  assert_rows(op2(&f, MS_OP_matmul, x, w, NULL), 1, 4, 0);
  assert_rows(op2(&f, MS_OP_matmul, across, w, NULL), 6, 4, 0);
  /* x' x of [6,10] within a row; of rows with columns [10,4] and [4,10] across them. */
  assert_rows(op2(&f, MS_OP_matmul, x, x, ATTRS(.product = {.trans_a = 1})), 1, 4, 0);
  int two = cut(across, 0, 0, 1), flat = reshape_to(&f, two, SHAPE(4, 10));
  assert_rows(op2(&f, MS_OP_matmul, flat, flat, ATTRS(.product = {.trans_b = 1})), 1, 4, 0);
  assert_rows(op2(&f, MS_OP_matmul, flat, flat, ATTRS(.product = {.trans_a = 1})), 0, 0, 0);
  assert_rows(op2(&f, MS_OP_matmul, w, flat, ATTRS(.product = {.trans_a = 1, .trans_b = 1})), 7, 4, 0);
  assert_rows(op2(&f, MS_OP_embedding, w, tokens, NULL), 1, 4, 0);
  assert_rows(op2(&f, MS_OP_add, param(&f, MS_F32, SHAPE(10)), across, NULL), 6, 4, 0);
  int per_row = op1(&f, MS_OP_mean, x, ATTRS(.reduce = {.axis = 2, .keepdim = 1}));
  assert_rows(per_row, 1, 4, 0);
  assert_rows(op2(&f, MS_OP_mul, per_row, param(&f, MS_F32, SHAPE(5, 1, 6, 1)), NULL), 5, 4, 0);
}

static void sums_over_rows_have_none(void **state) {
  (void)state;
  int x = input(&f, "x", MS_F32, SHAPE(4, 6, 10)), across = transposed(x, 1, 0, 2);
  assert_rows(op1(&f, MS_OP_sum, x, ATTRS(.reduce = {.axis = 0})), 0, 0, 0);
  assert_rows(op1(&f, MS_OP_sum, x, ATTRS(.reduce = {.axis = 1})), 1, 4, 0);
  assert_rows(op1(&f, MS_OP_sum, across, ATTRS(.reduce = {.axis = 0})), 1, 4, 0);
  assert_rows(op1(&f, MS_OP_max, across, ATTRS(.reduce = {.axis = -1, .keepdim = 1})), 6, 4, 0);
  assert_rows(op1(&f, MS_OP_sum_to, x, ATTRS(.shape = {.d = {6, 10}, .ndim = 2})), 0, 0, 0);
  assert_rows(sum_all(&f, x), 0, 0, 0);
  assert_rows(param(&f, MS_F32, SHAPE(4, 10)), 0, 0, 0);
}

static void parts_of_rows_know_which(void **state) {
  (void)state;
  int x = input(&f, "x", MS_F32, SHAPE(4, 6, 10)), across = transposed(x, 1, 0, 2);
  assert_rows(cut(x, 0, 1, 3), 1, 2, 1);
  assert_rows(cut(cut(x, 0, 1, 4), 0, 2, 3), 1, 1, 3);
  assert_rows(cut(across, 1, 2, 4), 6, 2, 2);
  assert_rows(cut(across, 0, 2, 4), 2, 4, 0);
  assert_rows(op2(&f, MS_OP_concat, x, x, ATTRS(.cut = {.axis = 2})), 1, 4, 0);
  assert_rows(op2(&f, MS_OP_concat, x, x, NULL), 2, 4, 0);
  assert_torn(op2(&f, MS_OP_concat, x, cut(x, 0, 0, 2), NULL));
  assert_torn(op1(&f, MS_OP_pad, x, ATTRS(.cut = {.before = 1})));
  assert_torn(cut(reshape_to(&f, x, SHAPE(24, 10)), 0, 3, 9));
  assert_torn(op1(&f, MS_OP_roll, x, ATTRS(.cut = {.by = 1})));
  assert_torn(op1(&f, MS_OP_cumsum, x, ATTRS(.cumsum = {.axis = 0})));
  assert_rows(op1(&f, MS_OP_roll, x, ATTRS(.cut = {.axis = 2, .by = 1})), 1, 4, 0);
  assert_rows(op1(&f, MS_OP_cumsum, x, ATTRS(.cumsum = {.axis = 1})), 1, 4, 0);
}

/* Rows that are sorted by expert belong to no row of the batch until they are back at their tokens. */
static void experts_reorder_rows_and_bring_them_back(void **state) {
  (void)state;
  const int x = reshape_to(&f, input(&f, "x", MS_F32, SHAPE(4, 6, 10)), SHAPE(24, 10));
  const int index = reshape_to(&f, input(&f, "index", MS_I32, SHAPE(4, 6, 2)), SHAPE(24, 2));
  const int weights = reshape_to(&f, input(&f, "weights", MS_F32, SHAPE(4, 6, 2)), SHAPE(24, 2));
  int s[MS_MAX_OUTPUTS], y[MS_MAX_OUTPUTS];
  apply(&f, MS_OP_expert_order, 1, &index, ATTRS(.experts = {.experts = 3}), s);
  const int sorted = op3(&f, MS_OP_expert_dispatch, x, s[0], s[1], NULL);
  assert_torn(sorted);
  const int made = op3(&f, MS_OP_grouped_matmul, sorted, param(&f, MS_F32, SHAPE(3, 10, 10)), s[2], NULL);
  assert_torn(made);
  assert_torn(op3(&f, MS_OP_expert_combine, made, s[0], s[1], NULL));
  apply(&f, MS_OP_expert_combine, 4, (int[]){made, s[0], s[1], weights}, NULL, y);
  assert_rows(y[0], 1, 4, 0);
}

static void inputs_say_how_many_rows_they_have(void **state) {
  (void)state;
  int x, y, scalar = input(&f, "t", MS_F32, SCALAR);
  const int64_t dims[2] = {8, 10};
  must(ms_graph_input(f.graph, "x", MS_F32, 2, dims, 4, &x));
  assert_rows(x, 1, 4, 0);
  must(ms_graph_input(f.graph, "y", MS_F32, 2, dims, 0, &y));
  assert_rows(y, 0, 0, 0);
  assert_rows(scalar, 0, 0, 0);
  assert_fails(ms_graph_input(f.graph, "z", MS_F32, 2, dims, 3, &y), MS_ESHAPE, "input z | 3 rows");
  assert_fails(ms_graph_input(f.graph, "s", MS_F32, 0, NULL, 1, &y), MS_ESHAPE, "input s | 1 rows");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(reshaping_moves_no_rows, start, end),
      cmocka_unit_test_setup_teardown(ops_carry_rows_along, start, end),
      cmocka_unit_test_setup_teardown(sums_over_rows_have_none, start, end),
      cmocka_unit_test_setup_teardown(parts_of_rows_know_which, start, end),
      cmocka_unit_test_setup_teardown(experts_reorder_rows_and_bring_them_back, start, end),
      cmocka_unit_test_setup_teardown(inputs_say_how_many_rows_they_have, start, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
