/* matmul_case.h - cases of matrix products, and their comparison with sums in double. */
#ifndef MS_TESTS_MATMUL_CASE_H
#define MS_TESTS_MATMUL_CASE_H

#include "tests/c/support/kernel_case.h"

typedef struct product {
  int64_t m, n, k;
  int64_t leading[2]; /* batch dimensions of a and c; 0: none */
  int batched_b, trans_a, trans_b, bias, activation, dtype, out_dtype, bias_dtype;
} product;

static int64_t batch_of(const product *p) {
  return (p->leading[0] ? p->leading[0] : 1) * (p->leading[1] ? p->leading[1] : 1);
}

static ms_value_info matrix(const product *p, int batched, int dtype, int64_t rows, int64_t columns) {
  ms_value_info info = {.dtype = dtype};
  for (int d = 0; d < 2; d++)
    if (batched && p->leading[d]) info.dims[info.ndim++] = p->leading[d];
  info.dims[info.ndim++] = rows;
  info.dims[info.ndim++] = columns;
  return info;
}

static kernel_case case_of_product(const product *p) {
  kernel_case c = case_of(MS_OP_matmul);
  c.call.attrs.product.trans_a = p->trans_a;
  c.call.attrs.product.trans_b = p->trans_b;
  c.call.attrs.product.activation = p->activation;
  add_input(&c, matrix(p, 1, p->dtype, p->trans_a ? p->k : p->m, p->trans_a ? p->m : p->k));
  add_input(&c, matrix(p, p->batched_b, p->dtype, p->trans_b ? p->n : p->k, p->trans_b ? p->k : p->n));
  if (p->bias) add_input(&c, SHAPE(p->bias_dtype, p->n));
  add_output(&c, matrix(p, 1, p->out_dtype, p->m, p->n));
  return c;
}

static double activate(double x, int activation) {
  switch (activation) {
    case MS_ACT_RELU: return x < 0 ? 0 : x;
    case MS_ACT_GELU: return 0.5 * x * (1 + erf(x * M_SQRT1_2));
    case MS_ACT_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case MS_ACT_SILU: return x / (1 + exp(-x));
    default: return x;
  }
}

/* Element (row, column) of matrix `batch`, and the sum of absolute products, to which rounding errors are relative. */
static inline double reference(const kernel_case *c, const product *p, int64_t batch, int64_t row, int64_t column,
                               double *size) {
  int64_t a = batch * p->m * p->k, b = p->batched_b ? batch * p->k * p->n : 0;
  double sum = 0;
  *size = 0;
  for (int64_t i = 0; i < p->k; i++) {
    double x = input_at(c, 0, a + (p->trans_a ? i * p->m + row : row * p->k + i));
    double y = input_at(c, 1, b + (p->trans_b ? column * p->k + i : i * p->n + column));
    sum += x * y;
    *size += fabs(x * y);
  }
  if (p->bias) sum += input_at(c, 2, column);
  return sum;
}

/* Additional rounding of a bf16 result beyond assert_output's, where CUDA adds a bias, or applies an activation, to a
 * product that is already rounded. */
static double rounded_if(const product *p, int biased_later) {
#ifdef MS_TEST_CUDA
  const int passes = biased_later || p->activation != MS_ACT_NONE;
  return passes && p->dtype == MS_BF16 && p->out_dtype == MS_BF16 ? 1.0 / 256 : 0;
#else
  (void)p, (void)biased_later;
  return 0;
#endif
}

/* A bias of another dtype comes later; on a GPU any may: some of cuBLASLt's algorithms round before they add a bf16 one
 * (seen in 13.1 on an H100). */
static double rounded_before(const product *p) {
#ifdef EMULATED_CUDA
  return rounded_if(p, p->bias && p->bias_dtype != p->out_dtype);
#else
  return rounded_if(p, p->bias);
#endif
}

static inline void check_product(const product *p) {
  if (too_large(batch_of(p) * p->m * p->n * p->k / 10)) return;
  kernel_case c = case_of_product(p);
  run_case(&c);
  for (int64_t batch = 0; batch < batch_of(p); batch++)
    for (int64_t row = 0; row < p->m; row++)
      for (int64_t column = 0; column < p->n; column++) {
        double size, sum = reference(&c, p, batch, row, column, &size);
        assert_output(&c, 0, (batch * p->m + row) * p->n + column, activate(sum, p->activation),
                      1e-6 * (2 + size) + rounded_before(p));
      }
  free_case(&c);
}

/* Set-up functions: who computes the products of a group of tests. */
static inline int by_parts(void **state) {
  (void)state;
  return setenv("MOONSHARD_MATMUL", "split", 1);
}

static inline int by_size(void **state) {
  (void)state;
  return unsetenv("MOONSHARD_MATMUL");
}

static inline int by_cublaslt(void **state) {
  (void)state;
  return setenv("MOONSHARD_CUDA_MATMUL", "cublaslt", 1);
}

#endif
