/* norm.c - layer_norm (Ba et al. 2016) and rms_norm (Zhang & Sennrich 2019) over the last axis of x, or of the sum a +
 * b, which is then an output too.
 *
 * x, a, b, y [rows][D]; gain, bias [D]; stats f32 [rows][2] = mean, rstd, or [rows] = rstd for rms_norm, saved for
 * backward. A row is read from memory once; further passes over it hit L1. A sum is rounded to its dtype before it is
 * normalised, so the fused op has the same bits as add followed by the norm.
 */
#include "kernels/cpu/block.h"

#include <math.h>

#include "kernels/cpu/parallel.h"
#include "kernels/shape.h"

/* Scratch rows per part: gain and bias in f32. */
enum { GAIN, BIAS, SCRATCH };

/* The sum of x[first .. first + n), in two chains of additions to hide the latency of an addition. */
MS_INLINE float row_sum(const void *x, int bf16, int64_t first, int64_t n) {
  float low = 0.0f, high = 0.0f;
  const int64_t half = n / 2, middle = first + half;
#pragma omp simd reduction(+ : low, high)
  for (int64_t i = 0; i < half; i++) {
    low += ms_simd_load(x, first + i, bf16);
    high += ms_simd_load(x, middle + i, bf16);
  }
  return low + high + (n % 2 ? ms_simd_load(x, first + n - 1, bf16) : 0.0f);
}

/* The sum of (x - centre)^2 over x[first .. first + n). */
MS_INLINE float row_squares(const void *x, int bf16, int64_t first, float centre, int64_t n) {
  float low = 0.0f, high = 0.0f;
  const int64_t half = n / 2, middle = first + half;
#pragma omp simd reduction(+ : low, high)
  for (int64_t i = 0; i < half; i++) {
    float a = ms_simd_load(x, first + i, bf16) - centre, b = ms_simd_load(x, middle + i, bf16) - centre;
    low += a * a;
    high += b * b;
  }
  const float last = n % 2 ? ms_simd_load(x, first + n - 1, bf16) - centre : 0.0f;
  return low + high + last * last;
}

/* sum = a + b, rounded to their dtype; elements [first, first + n) of each. */
MS_INLINE void add_row(const void *a, const void *b, void *sum, int bf16, int64_t first, int64_t n) {
#pragma omp simd
  for (int64_t i = first; i < first + n; i++)
    ms_simd_store(sum, i, ms_simd_load(a, i, bf16) + ms_simd_load(b, i, bf16), bf16);
}

MS_INLINE void norm_rows(const ms_kernel_call *call, int part, int64_t begin, int64_t end, int bf16, int centred) {
  const int summed = call->op == MS_OP_add_layer_norm || call->op == MS_OP_add_rms_norm;
  const int64_t n = ms_row_length(&call->in[0]);
  const float eps = (float)call->attrs.norm.eps;
  const ms_value_info *of_channels = &call->in[1 + summed];
  const void *const *channels = &call->in_data[1 + summed];
  const float *gain = ms_block_in(channels[0], of_channels->dtype, 0, n, ms_scratch_row(call, part, SCRATCH, GAIN, n));
  const float *bias =
      centred ? ms_block_in(channels[1], of_channels->dtype, 0, n, ms_scratch_row(call, part, SCRATCH, BIAS, n)) : NULL;
  const void *x = summed ? call->out_data[2] : call->in_data[0];
  void *y = call->out_data[0];
  float *stats = call->out_data[1];

  for (int64_t r = begin; r < end; r++) {
    const int64_t first = r * n;
    if (summed) add_row(call->in_data[0], call->in_data[1], call->out_data[2], bf16, first, n);
    const float mean = centred ? row_sum(x, bf16, first, n) / (float)n : 0.0f;
    const float rstd = 1.0f / sqrtf(row_squares(x, bf16, first, mean, n) / (float)n + eps);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
      float value = (ms_simd_load(x, first + i, bf16) - mean) * rstd * gain[i];
      ms_simd_store(y, first + i, centred ? value + bias[i] : value, bf16);
    }
    if (centred) stats[2 * r] = mean;
    stats[centred ? 2 * r + 1 : r] = rstd;
  }
}

#define NORM(name, bf16, centred)                                                                \
  MS_CLONES static void name(const ms_kernel_call *call, int part, int64_t begin, int64_t end) { \
    norm_rows(call, part, begin, end, bf16, centred);                                            \
  }
NORM(layer_norm_f32, 0, 1)
NORM(layer_norm_bf16, 1, 1)
NORM(rms_norm_f32, 0, 0)
NORM(rms_norm_bf16, 1, 0)

static int parts_of(const ms_kernel_call *call) {
  return ms_part_count(call, ms_row_count(&call->in[0]), ms_call_bytes(call));
}

static int prepare(ms_kernel_call *call) {
  call->workspace_bytes = ms_scratch_bytes(parts_of(call), SCRATCH, ms_row_length(&call->in[0]));
  return MS_OK;
}

static int run_layer_norm(const ms_kernel_call *call) {
  ms_run_parts(call, parts_of(call), ms_row_count(&call->in[0]), 1,
               call->in[0].dtype == MS_BF16 ? layer_norm_bf16 : layer_norm_f32);
  return MS_OK;
}

static int run_rms_norm(const ms_kernel_call *call) {
  ms_run_parts(call, parts_of(call), ms_row_count(&call->in[0]), 1,
               call->in[0].dtype == MS_BF16 ? rms_norm_bf16 : rms_norm_f32);
  return MS_OK;
}

/* The sum of a row is written before its result, which reads the sum, so both outputs can overwrite either summand. */
#define OVER_SUMMANDS (MS_OVER(0, 0) | MS_OVER(0, 1) | MS_OVER(2, 0) | MS_OVER(2, 1))

const ms_kernel ms_cpu_layer_norm = {.prepare = prepare, .run = run_layer_norm, .in_place = MS_OVER(0, 0)};
const ms_kernel ms_cpu_rms_norm = {.prepare = prepare, .run = run_rms_norm, .in_place = MS_OVER(0, 0)};
const ms_kernel ms_cpu_add_layer_norm = {.prepare = prepare, .run = run_layer_norm, .in_place = OVER_SUMMANDS};
const ms_kernel ms_cpu_add_rms_norm = {.prepare = prepare, .run = run_rms_norm, .in_place = OVER_SUMMANDS};
