/* test_kernels_dropout.c - which elements dropout keeps: the share that was asked for, by the generator's numbers alone. */
#include "tests/c/support/kernel_case.h"

/* Runs dropout on ones; the caller frees. */
static kernel_case dropout_of_ones(int dtype, int64_t n, double p, uint64_t seed, int64_t stream) {
  kernel_case c = case_of(MS_OP_dropout);
  c.call.attrs.f[0] = p;
  c.call.attrs.i[0] = stream;
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

/* Element by element the mask is that of the generator's uniform numbers. */
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

/* The mask depends on seed, stream and element alone: not on dtype or on how long the tensor is. */
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

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(dropout_keeps_the_mean),
      TEST(dropout_mask_is_keyed),
      TEST(dropout_follows_philox),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
