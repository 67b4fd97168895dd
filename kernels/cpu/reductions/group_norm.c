/* group_norm.c - group norm and its gradient. x [images][groups][channels of a group][pixels]; a group's elements are
 * contiguous, and work is divided by groups.
 *
 * With h = (x - mean) rstd, the sums over the pixels of a channel, a = sum dy and b = sum dy h, are this image's part
 * of the gradients of bias and gain, and give dx, too:
 *   dx = rstd (dy gain - (A + h B) / n)    A = sum over the group's channels of gain a, B the same of b
 * Each part sums the gradients of gain and bias of its groups in f32 in its scratch; the parts are then added in order.
 */
#include "kernels/cpu/block.h"

#include <math.h>

#include "kernels/cpu/parallel.h"

enum { X, GAIN, STATS_OR_BIAS, DY };
enum { GAIN_SUM, BIAS_SUM, SCRATCH }; /* scratch rows per part, of all channels */

typedef struct groups {
  int64_t images, groups, channels, pixels; /* channels: of a group */
} groups;

static groups groups_of(const ms_kernel_call *call) {
  const ms_value_info *x = &call->in[X];
  return (groups){x->dims[0], call->attrs.norm.groups, x->dims[1] / call->attrs.norm.groups, x->dims[2]};
}

static int parts_of(const ms_kernel_call *call) {
  const groups g = groups_of(call);
  return ms_part_count(call, g.images * g.groups, ms_call_bytes(call));
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

MS_INLINE float mean_of(const void *x, int64_t first, int64_t n, int bf16) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += ms_simd_load(x, first + i, bf16);
  return sum / (float)n;
}

MS_INLINE float rstd_of(const void *x, int64_t first, int64_t n, float mean, double eps, int bf16) {
  float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < n; i++) {
    const float distance = ms_simd_load(x, first + i, bf16) - mean;
    squares += distance * distance;
  }
  return 1.0f / sqrtf(squares / (float)n + (float)eps);
}

MS_INLINE void normalise(const ms_kernel_call *call, int64_t begin, int64_t end, int bf16) {
  const groups g = groups_of(call);
  const int64_t n = g.channels * g.pixels;
  const void *x = call->in_data[X];
  float *stats = call->out_data[1];
  for (int64_t at = begin; at < end; at++) {
    const float mean = mean_of(x, at * n, n, bf16), rstd = rstd_of(x, at * n, n, mean, call->attrs.norm.eps, bf16);
    stats[2 * at] = mean, stats[2 * at + 1] = rstd;
    for (int64_t c = 0; c < g.channels; c++) {
      const int64_t channel = at % g.groups * g.channels + c, first = at * n + c * g.pixels;
      const float gain = ms_scalar_at(call->in_data[GAIN], call->in[GAIN].dtype, channel);
      const float bias = ms_scalar_at(call->in_data[STATS_OR_BIAS], call->in[STATS_OR_BIAS].dtype, channel);
#pragma omp simd
      for (int64_t i = 0; i < g.pixels; i++) {
        const float h = (ms_simd_load(x, first + i, bf16) - mean) * rstd;
        ms_simd_store(call->out_data[0], first + i, h * gain + bias, bf16);
      }
    }
  }
}

MS_CLONES static void normalise_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  if (call->in[X].dtype == MS_BF16) normalise(call, begin, end, 1);
  else normalise(call, begin, end, 0);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef struct sums {
  float dy, dy_h;
} sums;

/* Over the pixels of a channel. */
MS_INLINE sums sums_of(const ms_kernel_call *call, int64_t first, int64_t pixels, float mean, float rstd, int bf16) {
  float of_dy = 0.0f, of_dy_h = 0.0f;
#pragma omp simd reduction(+ : of_dy, of_dy_h)
  for (int64_t i = 0; i < pixels; i++) {
    const float dy = ms_simd_load(call->in_data[DY], first + i, bf16);
    of_dy += dy;
    of_dy_h += dy * ((ms_simd_load(call->in_data[X], first + i, bf16) - mean) * rstd);
  }
  return (sums){of_dy, of_dy_h};
}

/* dx can share memory with x or dy. */
MS_INLINE void go_back(const ms_kernel_call *call, int part, int64_t begin, int64_t end, int bf16) {
  const groups g = groups_of(call);
  const int64_t n = g.channels * g.pixels, all = g.groups * g.channels;
  float *dgain = ms_scratch_row(call, part, SCRATCH, GAIN_SUM, all),
        *dbias = ms_scratch_row(call, part, SCRATCH, BIAS_SUM, all);
  const float *stats = call->in_data[STATS_OR_BIAS];
  ms_block_fill(dgain, 0.0f, all);
  ms_block_fill(dbias, 0.0f, all);
  for (int64_t at = begin; at < end; at++) {
    const int64_t channels = at % g.groups * g.channels;
    const float mean = stats[2 * at], rstd = stats[2 * at + 1];
    sums total = {0.0f, 0.0f};
    for (int64_t c = 0; c < g.channels; c++) {
      const float gain = ms_scalar_at(call->in_data[GAIN], call->in[GAIN].dtype, channels + c);
      const sums own = sums_of(call, at * n + c * g.pixels, g.pixels, mean, rstd, bf16);
      dbias[channels + c] += own.dy, dgain[channels + c] += own.dy_h;
      total.dy += gain * own.dy, total.dy_h += gain * own.dy_h;
    }
    const float average = total.dy / (float)n, average_h = total.dy_h / (float)n;
    for (int64_t c = 0; c < g.channels; c++) {
      const int64_t first = at * n + c * g.pixels;
      const float gain = ms_scalar_at(call->in_data[GAIN], call->in[GAIN].dtype, channels + c);
#pragma omp simd
      for (int64_t i = 0; i < g.pixels; i++) {
        const float h = (ms_simd_load(call->in_data[X], first + i, bf16) - mean) * rstd;
        const float dy = ms_simd_load(call->in_data[DY], first + i, bf16);
        ms_simd_store(call->out_data[0], first + i, rstd * (dy * gain - average - h * average_h), bf16);
      }
    }
  }
}

MS_CLONES static void back_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  if (call->in[X].dtype == MS_BF16) go_back(call, part, begin, end, 1);
  else go_back(call, part, begin, end, 0);
}

/* Writes the parts' sums, added in order, to an output [C]. */
static void store_sum(const ms_kernel_call *call, int parts, int sum, int output) {
  const int64_t n = call->in[X].dims[1];
  for (int64_t c = 0; c < n; c++) {
    float total = 0.0f;
    for (int p = 0; p < parts; p++) total += ms_scratch_row(call, p, SCRATCH, sum, n)[c];
    ms_simd_store(call->out_data[output], c, total, call->out[output].dtype == MS_BF16);
  }
}

static int prepare(ms_kernel_call *call) {
  if (call->op == MS_OP_group_norm_backward)
    call->workspace_bytes = ms_scratch_bytes(parts_of(call), SCRATCH, call->in[X].dims[1]);
  return MS_OK;
}

static int run(const ms_kernel_call *call) {
  const int backward = call->op == MS_OP_group_norm_backward, parts = parts_of(call);
  const groups g = groups_of(call);
  ms_run_parts(call, parts, g.images * g.groups, 1, backward ? back_part : normalise_part);
  if (!backward) return MS_OK;
  store_sum(call, parts, GAIN_SUM, 1);
  store_sum(call, parts, BIAS_SUM, 2);
  return MS_OK;
}

const ms_kernel ms_cpu_group_norm = {.prepare = prepare, .run = run, .in_place = MS_OVER(0, X) | MS_OVER(0, DY)};
