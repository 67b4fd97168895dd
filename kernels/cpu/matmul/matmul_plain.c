/* matmul_plain.c - the matrix product in plain loops: for small products, for builds in which a sanitizer must see
 * every access, and as a reference for oneDNN.
 *
 * op(b) is widened to f32 rows [k][n] in the workspace. Each thread widens MS_ROWS rows of op(a) and adds k scaled rows
 * of b to MS_ROWS rows of results at once. Large products run at a tenth of oneDNN's speed.
 */
#include "kernels/cpu/elementwise/activation.h"
#include "kernels/cpu/block.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/matmul/product_cut.h"
#include "kernels/cpu/team.h"

enum { MS_ROWS = 4 };

/* A small product takes about 1.5 us, with whole blocks of rows, and b's copy, which takes as long as a block. */
int ms_plain_suits(const ms_product *p) {
  return p->batch * ((p->m + MS_ROWS - 1) / MS_ROWS + 1) * MS_ROWS * p->k * p->n <= 1 << 13;
}

static int64_t thread_floats(const ms_product *p) { return MS_ROWS * (ms_round_up(p->k, 16) + ms_round_up(p->n, 16)); }

int64_t ms_plain_workspace(const ms_product *product, int threads) {
  return (ms_round_up(product->k * product->n, 16) + threads * thread_floats(product)) * (int64_t)sizeof(float);
}

/* y[r][c] = x[r * row_stride + c * column_stride] as f32 */
MS_INLINE void widen_matrix(float *restrict y, int64_t y_stride, const void *restrict x, int bf16, int64_t rows,
                            int64_t columns, int64_t row_stride, int64_t column_stride) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++)
      y[r * y_stride + c] = ms_simd_load(x, r * row_stride + c * column_stride, bf16);
}

/* c[MS_ROWS][n] += a[MS_ROWS][k] b[k][n] */
MS_CLONES static void add_products(float *restrict c, const float *restrict a, const float *restrict b, int64_t n,
                                   int64_t k, int64_t a_stride, int64_t c_stride) {
  float *c0 = c, *c1 = c + c_stride, *c2 = c + 2 * c_stride, *c3 = c + 3 * c_stride;
  for (int64_t i = 0; i < k; i++) {
    const float *row = b + i * n;
    const float a0 = a[i], a1 = a[i + a_stride], a2 = a[i + 2 * a_stride], a3 = a[i + 3 * a_stride];
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
      c0[j] += a0 * row[j];
      c1[j] += a1 * row[j];
      c2[j] += a2 * row[j];
      c3[j] += a3 * row[j];
    }
  }
}

/* Computes rows [first, first + rows) of matrix `batch`; scratch is f32 [thread_floats]. */
static void run_rows(const ms_kernel_call *call, const ms_product *p, int64_t batch, int64_t first, int64_t rows,
                     const float *b, float *scratch) {
  const int64_t a_stride = ms_round_up(p->k, 16), c_stride = ms_round_up(p->n, 16);
  const int64_t row_stride = p->trans_a ? 1 : p->k, column_stride = p->trans_a ? p->m : 1;
  float *a = scratch, *c = scratch + MS_ROWS * a_stride;
  const char *a_data =
      (const char *)call->in_data[0] + (batch * p->m * p->k + first * row_stride) * ms_dtype_size(p->dtype);
  memset(scratch, 0, (size_t)thread_floats(p) * sizeof *scratch);
  widen_matrix(a, a_stride, a_data, p->dtype == MS_BF16, rows, p->k, row_stride, column_stride);
  add_products(c, a, b, p->n, p->k, a_stride, c_stride);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < p->n; j++) {
      float bias = p->bias_dtype >= 0 ? ms_scalar_at(call->in_data[2], p->bias_dtype, j) : 0.0f;
      const int64_t at = (batch * p->m + first + r) * p->n + j;
      float value = ms_activate(c[r * c_stride + j] + bias, p->activation);
      if (p->accumulate) value += ms_simd_load(call->out_data[0], at, p->c_dtype == MS_BF16);
      ms_simd_store(call->out_data[0], at, value, p->c_dtype == MS_BF16);
    }
}

/* One product of the batch; b is already widened to f32 [k][n]. */
typedef struct plain_product {
  const ms_kernel_call *call;
  const ms_product *product;
  int64_t batch;
  const float *b;
  float *scratch; /* [threads][thread_floats] */
  int threads;
} plain_product;

static void run_tiles(void *context, int thread) {
  const plain_product *all = context;
  const ms_product *p = all->product;
  const int64_t tiles = (p->m + MS_ROWS - 1) / MS_ROWS;
  for (int64_t tile = tiles * thread / all->threads; tile < tiles * (thread + 1) / all->threads; tile++) {
    const int64_t first = tile * MS_ROWS, rows = p->m - first < MS_ROWS ? p->m - first : MS_ROWS;
    run_rows(all->call, p, all->batch, first, rows, all->b, all->scratch + thread * thread_floats(p));
  }
}

void ms_plain_run(const ms_kernel_call *call, const ms_product *p) {
  float *b = call->workspace;
  const int threads = ms_plain_suits(p) ? 1 : call->threads; /* waking others takes longer */
  for (int64_t batch = 0; batch < p->batch; batch++) {
    if (!batch || !p->shared_b)
      widen_matrix(b, p->n, (const char *)call->in_data[1] + batch * p->k * p->n * ms_dtype_size(p->dtype),
                   p->dtype == MS_BF16, p->k, p->n, p->trans_b ? 1 : p->n, p->trans_b ? p->k : 1);
    plain_product all = {call, p, batch, b, b + ms_round_up(p->k * p->n, 16), threads};
    ms_team_run(threads, run_tiles, &all);
  }
}
