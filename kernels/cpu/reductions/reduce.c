/* reduce.c - sum, mean, max and min over one axis or all axes. min is computed as minus the maximum of -x.
 *
 * The tensor is viewed as [outer][n][inner]. For inner > 1, rows of `inner` elements are added to a row of f32 sums,
 * four at a time: reads are sequential and the sums stay in cache, so memory bandwidth bounds it. For inner = 1, each
 * result is the sum of one contiguous range. Threads divide the outer axis; if outer is 1, they divide n, and their
 * sums are added in order.
 */
#include "kernels/cpu/block.h"

#include <math.h>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reductions/reduce.h"

/* Several rows narrower than NARROW are treated as one row of at most WIDE elements. */
enum { NARROW = 64, WIDE = 256, LANES = 32 };

/* The larger number; NaN if either is NaN. */
MS_INLINE float larger(float a, float b) { return b > a || b != b ? b : a; }

/* sums[i] += x[r][i] over all rows; x f32 or bf16 [rows][inner], sums f32 [inner]. */
MS_INLINE void add_rows(const void *x, int bf16, int64_t rows, int64_t inner, float *sums) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const int64_t a = r * inner, b = a + inner, c = b + inner, d = c + inner;
#pragma omp simd
    for (int64_t i = 0; i < inner; i++)
      sums[i] += (ms_simd_load(x, a + i, bf16) + ms_simd_load(x, b + i, bf16)) +
                 (ms_simd_load(x, c + i, bf16) + ms_simd_load(x, d + i, bf16));
  }
  for (; r < rows; r++) {
    const int64_t a = r * inner;
#pragma omp simd
    for (int64_t i = 0; i < inner; i++) sums[i] += ms_simd_load(x, a + i, bf16);
  }
}

/* The same for narrow rows: k adjacent rows form one wide row, whose sums are added up at the end. */
MS_INLINE void add_narrow_rows(const void *x, int bf16, int64_t rows, int64_t inner, float *sums) {
  const int64_t k = WIDE / inner, wide = k * inner, wide_rows = rows / k;
  float wide_sums[WIDE] = {0};
  add_rows(x, bf16, wide_rows, wide, wide_sums);
  add_rows(wide_sums, 0, k, inner, sums);
  add_rows((const char *)x + wide_rows * wide * (bf16 ? 2 : 4), bf16, rows - wide_rows * k, inner, sums);
}

/* largest[i] = max(largest[i], sign x[r][i]) over all rows; sign is 1 or -1. */
MS_INLINE void keep_largest(const void *x, int bf16, int64_t rows, int64_t inner, float sign, float *largest) {
  for (int64_t r = 0; r < rows; r++)
#pragma omp simd
    for (int64_t i = 0; i < inner; i++) largest[i] = larger(largest[i], sign * ms_simd_load(x, r * inner + i, bf16));
}

/* The sum of x [n]: each block is summed in f32 lanes, the blocks in double. */
MS_INLINE double sum_stretch(const void *x, int bf16, int64_t n) {
  double total = 0.0;
  for (int64_t first = 0; first < n; first += MS_BLOCK) {
    int64_t end = first + ms_block_length(first, n);
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = first; i < end; i++) sum += ms_simd_load(x, i, bf16);
    total += sum;
  }
  return total;
}

MS_INLINE float largest_of_stretch(const void *x, int bf16, int64_t n, float sign) {
  float lanes[LANES];
  ms_block_fill(lanes, -INFINITY, LANES);
  int64_t whole = n / LANES * LANES;
  for (int64_t i = 0; i < whole; i += LANES)
#pragma omp simd
    for (int l = 0; l < LANES; l++) lanes[l] = larger(lanes[l], sign * ms_simd_load(x, i + l, bf16));
  for (int64_t i = whole; i < n; i++) lanes[i - whole] = larger(lanes[i - whole], sign * ms_simd_load(x, i, bf16));
  float largest = lanes[0];
  for (int l = 1; l < LANES; l++) largest = larger(largest, lanes[l]);
  return largest;
}

/* Reduces x [n][inner] to f32 [inner]; for the minimum, to minus the minimum. */
MS_INLINE void reduce_rows(const void *x, int bf16, int64_t n, int64_t inner, int reduction, float *result) {
  const float sign = reduction == MS_REDUCE_SMALLEST ? -1.0f : 1.0f;
  if (inner == 1) {
    result[0] = reduction == MS_REDUCE_SUM ? (float)sum_stretch(x, bf16, n) : largest_of_stretch(x, bf16, n, sign);
    return;
  }
  ms_block_fill(result, reduction == MS_REDUCE_SUM ? 0.0f : -INFINITY, inner);
  if (reduction != MS_REDUCE_SUM) keep_largest(x, bf16, n, inner, sign, result);
  else if (inner < NARROW) add_narrow_rows(x, bf16, n, inner, result);
  else add_rows(x, bf16, n, inner, result);
}

MS_CLONES static void reduce_f32(const float *x, int64_t n, int64_t inner, int reduction, float *result) {
  reduce_rows(x, 0, n, inner, reduction, result);
}

MS_CLONES static void reduce_bf16(const ms_bf16 *x, int64_t n, int64_t inner, int reduction, float *result) {
  reduce_rows(x, 1, n, inner, reduction, result);
}

static void reduce_from(const ms_kernel_call *call, int64_t element, int64_t n, int64_t inner, int reduction,
                        float *result) {
  if (call->in[0].dtype == MS_BF16)
    reduce_bf16((const ms_bf16 *)call->in_data[0] + element, n, inner, reduction, result);
  else reduce_f32((const float *)call->in_data[0] + element, n, inner, reduction, result);
}

/* out[first .. first + n) = x [n] / divisor */
static void store(const ms_kernel_call *call, int64_t first, const float *x, int64_t n, double divisor) {
  const int bf16 = call->out[0].dtype == MS_BF16;
  for (int64_t i = 0; i < n; i++) ms_simd_store(call->out_data[0], first + i, (float)(x[i] / divisor), bf16);
}

/* The arguments of all parts, at the beginning of the workspace; the sums of the parts follow. */
typedef struct job {
  ms_axis_view view;
  double divisor;
  int reduction;
} job;

enum { JOB_BYTES = 64 };

static int64_t stride_of(ms_axis_view view) { return (view.inner + 15) / 16 * 16; }

static float *sums_of(const ms_kernel_call *call, ms_axis_view view, int part) {
  return (float *)((char *)call->workspace + JOB_BYTES) + part * stride_of(view);
}

static int parts_of(const ms_kernel_call *call, ms_axis_view view) {
  return ms_part_count(call, view.outer == 1 ? view.n : view.outer, ms_call_bytes(call));
}

static void outer_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const job *j = call->workspace;
  float *sums = sums_of(call, j->view, part);
  for (int64_t o = begin; o < end; o++) {
    reduce_from(call, o * j->view.n * j->view.inner, j->view.n, j->view.inner, j->reduction, sums);
    store(call, o * j->view.inner, sums, j->view.inner, j->divisor);
  }
}

static void n_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const job *j = call->workspace;
  reduce_from(call, begin * j->view.inner, end - begin, j->view.inner, j->reduction, sums_of(call, j->view, part));
}

int64_t ms_reduce_workspace(const ms_kernel_call *call, ms_axis_view view) {
  return JOB_BYTES + parts_of(call, view) * stride_of(view) * (int64_t)sizeof(float);
}

int ms_reduce_run(const ms_kernel_call *call, ms_axis_view view, int reduction, double divisor) {
  if (reduction == MS_REDUCE_SMALLEST) divisor = -1.0;
  *(job *)call->workspace = (job){view, divisor, reduction};
  int parts = parts_of(call, view);
  if (view.outer != 1) {
    ms_run_parts(call, parts, view.outer, 1, outer_part);
    return MS_OK;
  }
  ms_run_parts(call, parts, view.n, 1, n_part);
  float *sums = sums_of(call, view, 0);
  for (int p = 1; p < parts; p++) {
    const float *more = sums_of(call, view, p);
    for (int64_t i = 0; i < view.inner; i++)
      sums[i] = reduction == MS_REDUCE_SUM ? sums[i] + more[i] : larger(sums[i], more[i]);
  }
  store(call, 0, sums, view.inner, divisor);
  return MS_OK;
}

static ms_axis_view view_of(const ms_kernel_call *call) {
  if (call->attrs.reduce.all) return (ms_axis_view){1, ms_numel(&call->in[0]), 1};
  return ms_view_axis(&call->in[0], call->attrs.reduce.axis);
}

static int prepare(ms_kernel_call *call) {
  call->workspace_bytes = ms_reduce_workspace(call, view_of(call));
  return MS_OK;
}

static int run(const ms_kernel_call *call) {
  ms_axis_view view = view_of(call);
  switch (call->op) {
    case MS_OP_max: return ms_reduce_run(call, view, MS_REDUCE_LARGEST, 1.0);
    case MS_OP_min: return ms_reduce_run(call, view, MS_REDUCE_SMALLEST, 1.0);
    case MS_OP_mean: return ms_reduce_run(call, view, MS_REDUCE_SUM, (double)view.n);
    default: return ms_reduce_run(call, view, MS_REDUCE_SUM, 1.0);
  }
}

const ms_kernel ms_cpu_reduce = {.prepare = prepare, .run = run};
