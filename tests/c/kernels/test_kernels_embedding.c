/* test_kernels_embedding.c - compares embedding, forward and backward, with definitions in double. */
#include "tests/c/support/kernel_case.h"

#include "base/error.h"
#include "graph/graph.h"

/* Tokens in [0, rows), some of them frequent, some absent. */
static void draw_tokens(kernel_case *c, int input, int64_t n, int64_t rows) {
  for (int64_t i = 0; i < n; i++) set_input(c, input, i, (double)(i * i % 7 == 0 ? 0 : i * 37 % rows / 2 * 2));
}

static void embedding_matches(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
    enum { ROWS = 50, COLUMNS = 70, N = 600 };
    kernel_case c = case_of(MS_OP_embedding);
    add_input(&c, SHAPE(dtype, ROWS, COLUMNS));
    add_input(&c, SHAPE(MS_I32, 3, N / 3));
    add_output(&c, SHAPE(dtype, 3, N / 3, COLUMNS));
    draw_tokens(&c, 1, N, ROWS);
    run_case(&c);
    for (int64_t i = 0; i < N; i++)
      for (int64_t j = 0; j < COLUMNS; j++)
        assert_true(output_at(&c, 0, i * COLUMNS + j) == input_at(&c, 0, (int64_t)input_at(&c, 1, i) * COLUMNS + j));
    free_case(&c);
  }
}

/* Another gradient plus the result of the case, bit by bit. */
static void check_embedding_backward_onto(const kernel_case *alone) {
  const ms_value_info *dy = &alone->call.in[1], *dw = &alone->call.out[0];
  kernel_case c = case_of(MS_OP_embedding_backward);
  c.call.attrs = alone->call.attrs;
  add_input(&c, alone->call.in[0]);
  add_input(&c, *dy);
  add_input(&c, *dw);
  add_output(&c, *dw);
  for (int i = 0; i < 2; i++)
    for (int64_t k = 0; k < ms_numel(&alone->call.in[i]); k++) set_input(&c, i, k, input_at(alone, i, k));
  run_case(&c);
  for (int64_t k = 0; k < ms_numel(dw); k++) {
    float sum = (float)input_at(&c, 2, k) + (float)output_at(alone, 0, k);
    if (dw->dtype == MS_BF16) sum = ms_bf16_to_f32(ms_f32_to_bf16(sum));
    assert_true(output_at(&c, 0, k) == sum);
  }
  free_case(&c);
}

static void check_embedding_backward(int dtype, int out_dtype, int64_t rows, int64_t columns, int64_t n) {
  kernel_case c = case_of(MS_OP_embedding_backward);
  c.call.attrs.table.rows = rows;
  add_input(&c, SHAPE(MS_I32, n));
  add_input(&c, SHAPE(dtype, n, columns));
  add_output(&c, SHAPE(out_dtype, rows, columns));
  draw_tokens(&c, 0, n, rows);
  run_case(&c);
  double *sum = calloc((size_t)(rows * columns), sizeof *sum);
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < columns; j++)
      sum[(int64_t)input_at(&c, 0, i) * columns + j] += input_at(&c, 1, i * columns + j);
  /* Hundreds of terms added in sequence, in f32. */
  for (int64_t i = 0; i < rows * columns; i++) assert_output(&c, 0, i, sum[i], 1e-4);
  free(sum);
  check_embedding_backward_onto(&c);
  free_case(&c);
}

static void embedding_backward_matches(void **state) {
  (void)state;
  for (int bits = 0; bits < 4; bits++) {
    check_embedding_backward(bits & 1, bits >> 1, 1, 1, 1);
    check_embedding_backward(bits & 1, bits >> 1, 50, 70, 600);
    check_embedding_backward(bits & 1, bits >> 1, 4000, 33, 5);
    check_embedding_backward(bits & 1, bits >> 1, 3, 300, 2000);
    check_embedding_backward(bits & 1, bits >> 1, 300001, 1, 1500);
  }
}

/* Parts of a table: forward's results add up to that of the whole table, and backward's are parts of its gradient. */
static void parts_of_a_table_make_the_whole(void **state) {
  (void)state;
  enum { ROWS = 60, PARTS = 3, PART = ROWS / PARTS, COLUMNS = 5, N = 700 };
  for (int first = 0; first < ROWS; first += PART) {
    kernel_case c = case_of(MS_OP_embedding), g = case_of(MS_OP_embedding_backward);
    c.call.attrs = (ms_op_attrs){.table = {.rows = ROWS - 1, .parts = PARTS, .dim = 3, .first = first}};
    g.call.attrs = (ms_op_attrs){.table = {.rows = PART, .parts = PARTS, .dim = 3, .first = first}};
    add_input(&c, SHAPE(MS_F32, PART, COLUMNS));
    add_input(&c, SHAPE(MS_I32, N));
    add_output(&c, SHAPE(MS_F32, N, COLUMNS));
    add_input(&g, SHAPE(MS_I32, N));
    add_input(&g, SHAPE(MS_F32, N, COLUMNS));
    add_output(&g, SHAPE(MS_F32, PART, COLUMNS));
    draw_tokens(&c, 1, N, ROWS - 1);
    draw_tokens(&g, 0, N, ROWS - 1);
    run_case(&c);
    run_case(&g);
    double sum[PART][COLUMNS] = {{0}};
    for (int64_t i = 0; i < N; i++) {
      const int64_t row = (int64_t)input_at(&c, 1, i) - first;
      const int here = row >= 0 && row < PART;
      for (int64_t j = 0; j < COLUMNS; j++) {
        assert_true(output_at(&c, 0, i * COLUMNS + j) == (here ? input_at(&c, 0, row * COLUMNS + j) : 0));
        if (here) sum[row][j] += input_at(&g, 1, i * COLUMNS + j);
      }
    }
    for (int64_t i = 0; i < PART * COLUMNS; i++) assert_output(&g, 0, i, sum[i / COLUMNS][i % COLUMNS], 1e-4);
    check_embedding_backward_onto(&g);
    set_input(&c, 1, 4, ROWS - 1); /* a row of padding, which no part may give */
    assert_fails(run_status(&c, 1), MS_EINVAL, TOLD("token 59 | position 4 | [0,59)", "59 | [0,59)"));
    free_case(&c);
    free_case(&g);
  }
}

static void wrong_tokens_are_reported(void **state) {
  (void)state;
  kernel_case c = case_of(MS_OP_embedding);
  add_input(&c, SHAPE(MS_F32, 10, 4));
  add_input(&c, SHAPE(MS_I32, 6));
  add_output(&c, SHAPE(MS_F32, 6, 4));
  draw_tokens(&c, 1, 6, 10);
  set_input(&c, 1, 4, 10);
  assert_fails(run_status(&c, 1), MS_EINVAL, TOLD("token 10 | position 4 | [0,10)", "10 | [0,10)"));
  set_input(&c, 1, 4, 1);
  set_input(&c, 1, 2, -3);
  assert_fails(run_status(&c, 1), MS_EINVAL, TOLD("token -3 | position 2 | [0,10)", "-3 | [0,10)"));
  c.call.attrs.table.rows = 8; /* tokens must not select the last two rows */
  set_input(&c, 1, 2, 8);
  assert_fails(run_status(&c, 1), MS_EINVAL, TOLD("token 8 | position 2 | [0,8)", "8 | [0,8)"));
  free_case(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(embedding_matches), TEST(embedding_backward_matches),
                                     TEST(parts_of_a_table_make_the_whole), TEST(wrong_tokens_are_reported)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
