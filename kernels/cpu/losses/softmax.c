/* softmax.c - softmax and log_softmax over the last axis of [rows][n], and their gradients. A row is read from memory
 * once; the passes over it (maximum, exponentials, scaling) find it in cache. */
#include "kernels/cpu/block.h"

#include <math.h>

#include "kernels/cpu/parallel.h"
#include "kernels/shape.h"

/* Scratch rows per part, for tensors that are not f32. */
enum { FIRST_IN, SECOND_IN, RESULT, SCRATCH };

/* Ignores NaN; the NaN still reaches the result, through its own exponential. */
MS_INLINE float row_max(const float *x, int64_t n) {
  float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; i++) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

/* y = e^(x - max) / sum; x, y [n]; y can be x. */
MS_INLINE void softmax_row(const float *x, float *y, int64_t n) {
  const float largest = row_max(x, n);
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) {
    float e = ms_exp_nonpositive(x[i] - largest);
    y[i] = e;
    sum += e;
  }
  const float scale = 1.0f / sum;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] *= scale;
}

/* y = (x - max) - ln sum e^(x - max); x, y [n]; y can be x. */
MS_INLINE void log_softmax_row(const float *x, float *y, int64_t n) {
  const float largest = row_max(x, n);
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += ms_exp_nonpositive(x[i] - largest);
  const float log_sum = logf(sum);
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = (x[i] - largest) - log_sum;
}

/* dx = y (dy - sum y dy); all [n]; dx can be y. */
MS_INLINE void softmax_backward_row(const float *y, const float *dy, float *dx, int64_t n) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += y[i] * dy[i];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - sum);
}

/* dx = dy - e^y sum dy; all [n]; dx can be y. */
MS_INLINE void log_softmax_backward_row(const float *y, const float *dy, float *dx, int64_t n) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += dy[i];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) dx[i] = dy[i] - ms_exp_nonpositive(y[i]) * sum;
}

MS_CLONES static void forward_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const int64_t n = ms_row_length(&call->in[0]);
  const int log = call->op == MS_OP_log_softmax, in = call->in[0].dtype, out = call->out[0].dtype;
  float *x_row = ms_scratch_row(call, part, SCRATCH, FIRST_IN, n),
        *y_row = ms_scratch_row(call, part, SCRATCH, RESULT, n);
  for (int64_t r = begin; r < end; r++) {
    const float *x = ms_block_in(call->in_data[0], in, r * n, n, x_row);
    float *y = ms_block_out(call->out_data[0], out, r * n, y_row);
    if (log) log_softmax_row(x, y, n);
    else softmax_row(x, y, n);
    ms_block_done(call->out_data[0], out, r * n, n, y_row);
  }
}

MS_CLONES static void backward_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const int64_t n = ms_row_length(&call->in[0]);
  const int log = call->op == MS_OP_log_softmax_backward, out = call->out[0].dtype;
  float *y_row = ms_scratch_row(call, part, SCRATCH, FIRST_IN, n),
        *dy_row = ms_scratch_row(call, part, SCRATCH, SECOND_IN, n);
  float *dx_row = ms_scratch_row(call, part, SCRATCH, RESULT, n);
  for (int64_t r = begin; r < end; r++) {
    const float *y = ms_block_in(call->in_data[0], call->in[0].dtype, r * n, n, y_row);
    const float *dy = ms_block_in(call->in_data[1], call->in[1].dtype, r * n, n, dy_row);
    float *dx = ms_block_out(call->out_data[0], out, r * n, dx_row);
    if (log) log_softmax_backward_row(y, dy, dx, n);
    else softmax_backward_row(y, dy, dx, n);
    ms_block_done(call->out_data[0], out, r * n, n, dx_row);
  }
}

static int parts_of(const ms_kernel_call *call) {
  return ms_part_count(call, ms_row_count(&call->in[0]), ms_call_bytes(call));
}

static int prepare(ms_kernel_call *call) {
  call->workspace_bytes = ms_scratch_bytes(parts_of(call), SCRATCH, ms_row_length(&call->in[0]));
  return MS_OK;
}

static int run_forward(const ms_kernel_call *call) {
  ms_run_parts(call, parts_of(call), ms_row_count(&call->in[0]), 1, forward_part);
  return MS_OK;
}

static int run_backward(const ms_kernel_call *call) {
  ms_run_parts(call, parts_of(call), ms_row_count(&call->in[0]), 1, backward_part);
  return MS_OK;
}

const ms_kernel ms_cpu_softmax = {.prepare = prepare, .run = run_forward, .in_place = MS_OVER(0, 0)};
const ms_kernel ms_cpu_softmax_backward = {.prepare = prepare, .run = run_backward, .in_place = MS_OVER(0, 0)};
