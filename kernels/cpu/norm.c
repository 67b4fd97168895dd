/* norm.c - layer_norm (Ba et al. 2016) and rms_norm (Zhang & Sennrich 2019) over the last axis, alone or of a sum a + b,
** which is then an output too. A row is read from memory once; the passes over it find it in L1. The statistics that
** backward needs are written beside y: mean and rstd, or rstd alone. A sum is normalised as it was stored, so that the
** fused op gives the bits of add followed by the norm.
*/
#include "kernels/cpu/block.h"

#include <math.h>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/shape.h"

/* Scratch rows of a part: gain and bias widened once, and room for rows that are not f32 in memory. */
enum { GAIN, BIAS, FIRST_IN, SECOND_IN, RESULT, SCRATCH };

/* The sum of x [n]: two chains of additions, because one alone waits for its adder. */
MS_INLINE float row_sum(const float *x, int64_t n) {
  float low = 0.0f, high = 0.0f;
  const int64_t half = n / 2;
  const float *upper = x + half;
#pragma omp simd reduction(+ : low, high)
  for (int64_t i = 0; i < half; i++) {
    low += x[i];
    high += upper[i];
  }
  return low + high + (n % 2 ? x[n - 1] : 0.0f);
}

/* The sum of (x - centre)^2 over x [n]. */
MS_INLINE float row_squares(const float *x, float centre, int64_t n) {
  float low = 0.0f, high = 0.0f;
  const int64_t half = n / 2;
  const float *upper = x + half;
#pragma omp simd reduction(+ : low, high)
  for (int64_t i = 0; i < half; i++) {
    low += (x[i] - centre) * (x[i] - centre);
    high += (upper[i] - centre) * (upper[i] - centre);
  }
  const float last = n % 2 ? x[n - 1] - centre : 0.0f;
  return low + high + last * last;
}

/* y = (x - mean) rstd gain + bias; all [n], y may be x */
MS_INLINE void layer_norm_row(const float *x, const float *gain, const float *bias, float eps, float *y, float *stats,
                              int64_t n) {
  const float mean = row_sum(x, n) / (float)n;
  const float rstd = 1.0f / sqrtf(row_squares(x, mean, n) / (float)n + eps);
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * gain[i] + bias[i];
  stats[0] = mean;
  stats[1] = rstd;
}

/* y = x rstd gain; all [n], y may be x */
MS_INLINE void rms_norm_row(const float *x, const float *gain, float eps, float *y, float *stats, int64_t n) {
  const float rstd = 1.0f / sqrtf(row_squares(x, 0.0f, n) / (float)n + eps);
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * rstd * gain[i];
  stats[0] = rstd;
}

/* Row r of a + b, stored as output 2 and given back as it was stored. */
MS_INLINE const float *summed_row(const ms_kernel_call *call, int64_t r, int64_t n, float *a_row, float *b_row) {
  const float *a = ms_block_in(call->in_data[0], call->in[0].dtype, r * n, n, a_row);
  const float *b = ms_block_in(call->in_data[1], call->in[1].dtype, r * n, n, b_row);
  float *sum = ms_block_out(call->out_data[2], call->out[2].dtype, r * n, a_row);
#pragma omp simd
  for (int64_t i = 0; i < n; i++) sum[i] = a[i] + b[i];
  ms_block_done(call->out_data[2], call->out[2].dtype, r * n, n, a_row);
  return ms_block_in(call->out_data[2], call->out[2].dtype, r * n, n, a_row);
}

MS_CLONES static void norm_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const int summed = call->op == MS_OP_add_layer_norm || call->op == MS_OP_add_rms_norm;
  const int centred = call->op == MS_OP_add_layer_norm || call->op == MS_OP_layer_norm;
  const int64_t n = ms_row_length(&call->in[0]);
  const float eps = (float)call->attrs.f[0];
  float *row[SCRATCH];
  for (int i = 0; i < SCRATCH; i++) row[i] = ms_scratch_row(call, part, SCRATCH, i, n);
  const float *gain = ms_block_in(call->in_data[1 + summed], call->in[1 + summed].dtype, 0, n, row[GAIN]);
  const float *bias =
      centred ? ms_block_in(call->in_data[2 + summed], call->in[2 + summed].dtype, 0, n, row[BIAS]) : NULL;
  float *stats = call->out_data[1];

  for (int64_t r = begin; r < end; r++) {
    const float *x = summed ? summed_row(call, r, n, row[FIRST_IN], row[SECOND_IN])
                            : ms_block_in(call->in_data[0], call->in[0].dtype, r * n, n, row[FIRST_IN]);
    float *y = ms_block_out(call->out_data[0], call->out[0].dtype, r * n, row[RESULT]);
    if (centred) layer_norm_row(x, gain, bias, eps, y, stats + 2 * r, n);
    else rms_norm_row(x, gain, eps, y, stats + r, n);
    ms_block_done(call->out_data[0], call->out[0].dtype, r * n, n, row[RESULT]);
  }
}

static int parts_of(const ms_kernel_call *call) {
  return ms_part_count(call, ms_row_count(&call->in[0]), ms_call_bytes(call));
}

static int prepare(ms_kernel_call *call) {
  call->workspace_bytes = ms_scratch_bytes(parts_of(call), SCRATCH, ms_row_length(&call->in[0]));
  return MS_OK;
}

static int run(const ms_kernel_call *call) {
  ms_run_parts(call, parts_of(call), ms_row_count(&call->in[0]), 1, norm_part);
  return MS_OK;
}

const ms_kernel ms_cpu_layer_norm = {.prepare = prepare, .run = run, .in_place = 1};
const ms_kernel ms_cpu_rms_norm = {.prepare = prepare, .run = run, .in_place = 1};
