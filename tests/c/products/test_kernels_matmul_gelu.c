/* test_kernels_matmul_gelu.c - compares products followed by gelu or its gradient with sums in double: transposes, rows
 * of a batch, both dtypes; on CUDA by the library's epilogue and by two kernels. */
#include "tests/c/support/kernel_case.h"

#ifdef MS_TEST_CUDA
  #include "kernels/cuda/matmul/cublaslt.h"
#endif

typedef struct product {
  int64_t batch, m, n, k; /* batch 0: a is a matrix */
  int trans_a, trans_b, dtype;
} product;

static int64_t rows_of(const product *p) { return (p->batch ? p->batch : 1) * p->m; }

static kernel_case case_of_product(int op, const product *p) {
  kernel_case c = case_of(op);
  const int64_t a_rows = p->trans_a ? p->k : p->m, a_columns = p->trans_a ? p->m : p->k;
  c.call.attrs.product.trans_a = p->trans_a;
  c.call.attrs.product.trans_b = p->trans_b;
  add_input(&c, p->batch ? SHAPE(p->dtype, p->batch, a_rows, a_columns) : SHAPE(p->dtype, a_rows, a_columns));
  add_input(&c, p->trans_b ? SHAPE(p->dtype, p->n, p->k) : SHAPE(p->dtype, p->k, p->n));
  const ms_value_info result = p->batch ? SHAPE(p->dtype, p->batch, p->m, p->n) : SHAPE(p->dtype, p->m, p->n);
  add_input(&c, op == MS_OP_matmul_gelu ? SHAPE(p->dtype, p->n) : result);
  for (int64_t i = 0; i < ms_numel(&c.call.in[1]); i++) set_input(&c, 1, i, input_at(&c, 1, i) / sqrt((double)p->k));
  add_output(&c, result);
  if (op == MS_OP_matmul_gelu) add_output(&c, result);
  if (op == MS_OP_matmul_gelu_backward_bias) add_output(&c, SHAPE(p->dtype, p->n));
  return c;
}

static double dot(const kernel_case *c, const product *p, int64_t row, int64_t column) {
  double sum = 0;
  for (int64_t i = 0; i < p->k; i++)
    sum += input_at(c, 0, p->trans_a ? i * p->m + row : row * p->k + i) *
           input_at(c, 1, p->trans_b ? column * p->k + i : i * p->n + column);
  return sum;
}

static const double ROOT = 0.79788456080286536, CUBIC = 0.044715; /* sqrt(2 / pi) */

static double gelu(double x) { return 0.5 * x * (1 + tanh(ROOT * (x + CUBIC * x * x * x))); }

static double slope(double x) {
  const double t = tanh(ROOT * (x + CUBIC * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * ROOT * (1 + 3 * CUBIC * x * x);
}

/* The second kernel may read the product rounded to bf16; on a GPU the library may add a bias to it. */
static double tolerance_of(const product *p) { return p->dtype == MS_BF16 ? 1.0 / 128 : 2e-5; }

static double rounded_before_bias(const product *p) {
#if defined(MS_TEST_CUDA) && !defined(EMULATED_CUDA)
  if (p->dtype == MS_BF16) return 1.0 / 256;
#else
  (void)p;
#endif
  return 2e-5;
}

static void check_forward(const product *p) {
  kernel_case c = case_of_product(MS_OP_matmul_gelu, p);
  run_case(&c);
  for (int64_t row = 0; row < rows_of(p); row++)
    for (int64_t column = 0; column < p->n; column++) {
      const double x = dot(&c, p, row, column) + input_at(&c, 2, column);
      assert_output(&c, 0, row * p->n + column, x, rounded_before_bias(p));
      assert_output(&c, 1, row * p->n + column, gelu(x), tolerance_of(p));
    }
  free_case(&c);
}

static void check_backward(const product *p, int biased) {
  kernel_case c = case_of_product(biased ? MS_OP_matmul_gelu_backward_bias : MS_OP_matmul_gelu_backward, p);
  run_case(&c);
  for (int64_t column = 0; column < p->n; column++) {
    double sum = 0, size = 0;
    for (int64_t row = 0; row < rows_of(p); row++) {
      const double dx = dot(&c, p, row, column) * slope(input_at(&c, 2, row * p->n + column));
      sum += dx;
      size += fabs(dx);
      assert_output(&c, 0, row * p->n + column, dx, tolerance_of(p));
    }
    if (biased) assert_output(&c, 1, column, sum, tolerance_of(p) * (1 + size / (1 + fabs(sum))));
  }
  free_case(&c);
}

static void check_all(void) {
  static const product products[] = {{0, 33, 24, 40, .trans_b = 1},
                                     {3, 7, 16, 9, .trans_b = 0},
                                     {0, 20, 8, 12, .trans_a = 1},
                                     {2, 5, 13, 8, .trans_b = 1},
                                     {0, 1, 64, 70, .trans_b = 0}};
  FOR_EACH(dtype, dtypes)
  FOR_EACH(shape, products) {
    product p = shape;
    p.dtype = dtype;
    check_forward(&p);
    check_backward(&p, 0);
    check_backward(&p, 1);
  }
}

static void gelu_and_its_gradient_match(void **state) {
  (void)state;
  check_all();
}

#ifdef MS_TEST_CUDA
static void two_kernels_match(void **state) {
  (void)state;
  setenv("MOONSHARD_CUDA_EPILOGUES", "apart", 1);
  check_all();
  unsetenv("MOONSHARD_CUDA_EPILOGUES");
  setenv("MOONSHARD_CUDA_MATMUL", "plain", 1);
  check_all();
  unsetenv("MOONSHARD_CUDA_MATMUL");
}

static void tensors_may_begin_anywhere(void **state) {
  (void)state;
  const product p = {0, 33, 24, 40, .trans_b = 1, .dtype = MS_BF16};
  device_shift = 2;
  check_forward(&p);
  check_backward(&p, 1);
  device_shift = 0;
}

/* If gelu is applied to the unrounded product, at least one element shows it: the epilogue ran. */
static int rounds_first(void) {
  const product p = {0, 33, 24, 40, .dtype = MS_BF16};
  kernel_case c = case_of_product(MS_OP_matmul_gelu, &p);
  run_once(&c, c.call, 1);
  int first = 1;
  for (int64_t i = 0; i < p.m * p.n; i++) {
    const double again = gelu(output_at(&c, 0, i)), given = output_at(&c, 1, i);
    first &= fabs(given - again) <= (1.0 / 250) * fabs(again) + 1e-6;
  }
  free_case(&c);
  return first;
}

static void a_setting_chooses_the_implementation(void **state) {
  (void)state;
  char why[MS_LIBRARY_WHY_BYTES];
  if (!ms_handles_load(&ms_cublaslt_handles, why)) skip();
  assert_int_equal(rounds_first(), 0);
  setenv("MOONSHARD_CUDA_EPILOGUES", "apart", 1);
  assert_int_equal(rounds_first(), 1);
  setenv("MOONSHARD_CUDA_EPILOGUES", "fast", 1);
  const product p = {0, 8, 8, 8, .dtype = MS_BF16};
  kernel_case c = case_of_product(MS_OP_matmul_gelu, &p);
  const ms_kernel *kernel = kernel_of(c.call.op);
  must(kernel->prepare(&c.call));
  c.call.workspace = poisoned(c.call.workspace_bytes);
  assert_fails(run_kernel(kernel, &c.call), MS_EINVAL, "MOONSHARD_CUDA_EPILOGUES | fast | auto | fused | apart");
  kernel->release(c.call.prepared);
  free(c.call.workspace);
  unsetenv("MOONSHARD_CUDA_EPILOGUES");
  free_case(&c);
}
#endif

#ifdef EMULATED_CUDA
/* If the library has no algorithm with the epilogue, two kernels run and a note reports it. */
static void what_the_library_refuses_is_two_kernels(void **state) {
  (void)state;
  setenv("MOONSHARD_EMULATE_CUBLASLT_NONE", "96", 1);
  while (ms_note_next()) continue;
  check_all();
  int told = 0;
  for (const char *note = ms_note_next(); note; note = ms_note_next())
    told += !message_lacks(note, "cuBLASLt | algorithm | gelu");
  assert_true(told > 1);
  unsetenv("MOONSHARD_EMULATE_CUBLASLT_NONE");
}

/* Whether the library was asked for the gradients of gelu and a bias: it refuses, which a note reports. */
static int asks_for_gradients(void) {
  const product p = {0, 34, 32, 40, .trans_b = 1, .dtype = MS_BF16}; /* notes are not repeated */
  setenv("MOONSHARD_EMULATE_CUBLASLT_NONE", "64", 1);
  while (ms_note_next()) continue;
  check_backward(&p, 1);
  unsetenv("MOONSHARD_EMULATE_CUBLASLT_NONE");
  return ms_note_next() != NULL;
}

static void gradients_with_a_bias_are_two_kernels(void **state) {
  (void)state;
  assert_int_equal(asks_for_gradients(), 0);
  setenv("MOONSHARD_CUDA_EPILOGUES", "fused", 1);
  assert_int_equal(asks_for_gradients(), 1);
  unsetenv("MOONSHARD_CUDA_EPILOGUES");
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(gelu_and_its_gradient_match),
#ifdef MS_TEST_CUDA
      TEST(two_kernels_match),
      TEST(tensors_may_begin_anywhere),
      TEST(a_setting_chooses_the_implementation),
#endif
#ifdef EMULATED_CUDA
      TEST(what_the_library_refuses_is_two_kernels),
      TEST(gradients_with_a_bias_are_two_kernels),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
