/* test_kernels_dropout.c - checks which elements dropout keeps: the requested share, determined only by the generator's
 * numbers. */
#include "tests/c/support/kernel_case.h"

/* Runs dropout on ones; the caller frees. */
static kernel_case dropout_of_ones(int dtype, int64_t n, double p, uint64_t seed, int64_t stream) {
  kernel_case c = case_of(MS_OP_dropout);
  c.call.attrs.mask.p = p;
  c.call.attrs.mask.stream = stream;
  c.scalars.seed = seed;
  add_input(&c, SHAPE(dtype, n));
  add_output(&c, SHAPE(dtype, n));
  for (int64_t i = 0; i < n; i++) set_input(&c, 0, i, 1.0);
  run_case(&c);
  return c;
}

static void dropout_keeps_the_mean(void **state) {
  (void)state;
  static const double rates[] = {0.0, 0.1, 0.5, 0.9};
  FOR_EACH(dtype, dtypes)
  FOR_EACH(p, rates) {
    int64_t n = 70001, kept = 0;
    kernel_case c = dropout_of_ones(dtype, n, p, 11, 3);
    for (int64_t i = 0; i < n; i++) {
      double y = output_at(&c, 0, i);
      kept += y != 0.0;
      if (y != 0.0) assert_output(&c, 0, i, 1.0 / (1.0 - p), 1e-6);
    }
    assert_true(fabs((double)kept / (double)n - (1.0 - p)) <= 5.0 * sqrt(p * (1.0 - p) / (double)n));
    free_case(&c);
  }
}

/* Each element of the mask follows from the generator's uniform number. */
static void dropout_follows_philox(void **state) {
  (void)state;
  int64_t n = 70001;
  float *uniform = malloc((size_t)n * sizeof *uniform);
  uint64_t seed = 0x123456789abcdef0u, stream = 0xfedcba9876543210u;
  ms_philox_uniform(seed, stream, 0, n, uniform);
  kernel_case c = dropout_of_ones(MS_F32, n, 0.3, seed, (int64_t)stream);
  for (int64_t i = 0; i < n; i++) assert_int_equal(output_at(&c, 0, i) != 0.0, uniform[i] >= 0.3f);
  free(uniform);
  free_case(&c);
}

/* Without rows, the mask depends only on seed, stream and element, not on the dtype or the length of the tensor. */
static void dropout_mask_is_keyed(void **state) {
  (void)state;
  int64_t n = 5003, differ_by_seed = 0, differ_by_stream = 0;
  kernel_case c = dropout_of_ones(MS_F32, n, 0.5, 11, 3), half = dropout_of_ones(MS_BF16, 2001, 0.5, 11, 3);
  kernel_case seed = dropout_of_ones(MS_F32, n, 0.5, 12, 3), stream = dropout_of_ones(MS_F32, n, 0.5, 11, 4);
  for (int64_t i = 0; i < 2001; i++) assert_true(output_at(&c, 0, i) == output_at(&half, 0, i));
  for (int64_t i = 0; i < n; i++) {
    differ_by_seed += output_at(&c, 0, i) != output_at(&seed, 0, i);
    differ_by_stream += output_at(&c, 0, i) != output_at(&stream, 0, i);
  }
  assert_in_range(differ_by_seed, n * 45 / 100, n * 55 / 100);
  assert_in_range(differ_by_stream, n * 45 / 100, n * 55 / 100);
  free_case(&c);
  free_case(&half);
  free_case(&seed);
  free_case(&stream);
}

/* A part of a batch with `rows` rows of [outer][rows][inner], at positions first, first + step, ..., must have the mask
 * that the whole batch has there. */
static void check_part(int64_t outer, int64_t rows, int64_t inner, int64_t first, int64_t step, int64_t skipped) {
  const int64_t whole_rows = first + step * (skipped + rows) + 1, wide = outer * inner;
  float *uniform = malloc((size_t)(whole_rows * wide) * sizeof *uniform);
  ms_philox_uniform(11, 3, 0, whole_rows * wide, uniform);
  FOR_EACH(dtype, dtypes) {
    kernel_case c = case_of(MS_OP_dropout);
    c.call.attrs = (ms_op_attrs){.mask = {.stream = 3, .outer = outer, .rows = rows, .first = skipped, .p = 0.4}};
    c.scalars.seed = 11;
    c.scalars.rows = (ms_axis_part){first, step};
    add_input(&c, SHAPE(dtype, outer, rows, inner));
    add_output(&c, SHAPE(dtype, outer, rows, inner));
    for (int64_t i = 0; i < outer * rows * inner; i++) set_input(&c, 0, i, 1.0);
    run_case(&c);
    for (int64_t o = 0; o < outer; o++)
      for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < inner; i++) {
          int64_t key = (first + step * (skipped + r)) * wide + o * inner + i;
          assert_int_equal(output_at(&c, 0, (o * rows + r) * inner + i) != 0.0, uniform[key] >= 0.4f);
        }
    free_case(&c);
  }
  free(uniform);
}

/* Wherever a row is computed, it has the mask of the global batch. */
static void dropout_is_keyed_by_row(void **state) {
  (void)state;
  check_part(1, 6, 32, 0, 1, 0);
  check_part(1, 6, 32, 18, 1, 0);
  check_part(1, 5, 1001, 7, 1, 0); /* rows that begin inside a group of the generator */
  check_part(1, 5, 1024, 2, 3, 0); /* distributed round robin */
  check_part(1, 40, 3, 1, 4, 0);   /* short rows */
  check_part(12, 7, 1, 14, 1, 0);  /* [columns][rows] */
  check_part(3, 4, 250, 8, 2, 0);  /* [heads][rows][...] */
  check_part(3, 1, 250, 9, 1, 0);  /* a single row */
  check_part(1, 3, 64, 8, 1, 2);   /* the last rows of a micro-batch */
  check_part(2, 3, 10, 8, 2, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(dropout_keeps_the_mean),
      TEST(dropout_mask_is_keyed),
      TEST(dropout_follows_philox),
      TEST(dropout_is_keyed_by_row),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
