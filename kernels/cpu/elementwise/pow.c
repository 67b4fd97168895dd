/* pow.c - a^b and its gradients with respect to a and b, all with broadcasting (operand.h). Conventions are those of C
 * and PyTorch: x^0 is 1, even for NaN; the gradient of the base is 0 where the exponent is 0, and that of the exponent
 * is 0 where the base is 0 and the exponent is not negative.
 *
 * Powers of normal positive numbers are 2^(b log2 a) in double, in loops that vectorise; others are powf's. */
#include "kernels/cpu/matmul/operand.h"

#include <float.h>
#include <math.h>

#include "kernels/cpu/parallel.h"

/* Adding and subtracting 1.5 * 2^52 rounds to an integer, which is in the low bits of the intermediate sum. */
#define ROUND_MAGIC 6755399441055744.0

/* log2 a = e + log2 m, m in [sqrt(1/2), sqrt 2): with z = (m - 1) / (m + 1), ln m = 2 (z + z^3/3 + z^5/5 + ...). */
MS_INLINE double log2_of(float a) {
  const uint32_t bits = ms_bits_of_float(a);
  const int32_t e = (int32_t)(bits - 0x3f3504f3u) >> 23;
  const double m = (double)ms_float_of_bits(bits - ((uint32_t)e << 23)), z = (m - 1) / (m + 1), s = z * z;
  const double series =
      1 + s * (1. / 3 + s * (1. / 5 + s * (1. / 7 + s * (1. / 9 + s * (1. / 11 + s * (1. / 13 + s * (1. / 15)))))));
  return (double)e + 2 * M_LOG2E * z * series;
}

/* 2^t, t in [-200, 200]: 2^n by the exponent's bits, and the series of e^x for the rest, |x| below 0.35. */
MS_INLINE float exp2_of(double t) {
  const double sum = t + ROUND_MAGIC, x = (t - (sum - ROUND_MAGIC)) * M_LN2;
  const double series =
      1 + x * (1 + x * (1. / 2 + x * (1. / 6 + x * (1. / 24 + x * (1. / 120 + x * (1. / 720 + x * (1. / 5040)))))));
  uint64_t bits;
  double power;
  memcpy(&bits, &sum, sizeof bits);
  bits = (bits + 1023) << 52;
  memcpy(&power, &bits, sizeof power);
  return (float)(power * series);
}

/* 1 where plain_pow gives a^b, within a unit in the last place. */
MS_INLINE int is_plain(float a, float b) { return a >= FLT_MIN && a <= FLT_MAX && fabsf(b) <= FLT_MAX; }

MS_INLINE float plain_pow(float a, float b) {
  const double t = (double)b * log2_of(a);
  return exp2_of(t < -200 ? -200 : t > 200 ? 200 : t);
}

/* power [n] = a^(b - less). */
MS_INLINE void power_block(const float *a, const float *b, float less, float *power, int64_t n) {
  int others = 0;
#pragma omp simd reduction(+ : others)
  for (int64_t i = 0; i < n; i++) {
    power[i] = plain_pow(a[i], b[i] - less);
    others += !is_plain(a[i], b[i] - less);
  }
  for (int64_t i = 0; i < n && others; i++)
    if (!is_plain(a[i], b[i] - less)) power[i] = powf(a[i], b[i] - less);
}

/* y can be one of the inputs. */
MS_INLINE void compute_block(int op, const float *a, const float *b, const float *dy, float *y, int64_t n) {
  MS_BLOCK_BUFFER(power);
  power_block(a, b, op == MS_OP_pow_backward_base ? 1.0f : 0.0f, power, n);
  switch (op) {
    case MS_OP_pow: memcpy(y, power, (size_t)n * sizeof *y); break;
    case MS_OP_pow_backward_base:
#pragma omp simd
      for (int64_t i = 0; i < n; i++) y[i] = dy[i] * (b[i] == 0.0f ? 0.0f : b[i] * power[i]);
      break;
    default:
#pragma omp simd
      for (int64_t i = 0; i < n; i++) y[i] = dy[i] * (a[i] == 0.0f && b[i] >= 0.0f ? 0.0f : power[i] * ms_log(a[i]));
  }
}

MS_CLONES static void pow_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const ms_broadcast broadcast = ms_broadcast_of(&call->out[0], call->inputs, call->in);
  MS_BLOCK_BUFFER(a_buffer);
  MS_BLOCK_BUFFER(b_buffer);
  MS_BLOCK_BUFFER(dy_buffer);
  MS_BLOCK_BUFFER(y_buffer);
  const float *dy = NULL;
  int64_t from[3], n;
  for (int64_t first = begin; first < end; first += n) {
    n = ms_broadcast_run(&broadcast, call->inputs, first, first + ms_block_length(first, end), from);
    const float *a = ms_operand(call, &broadcast, 0, from[0], n, a_buffer);
    const float *b = ms_operand(call, &broadcast, 1, from[1], n, b_buffer);
    float *y = ms_block_out(call->out_data[0], call->out[0].dtype, first, y_buffer);
    if (call->op != MS_OP_pow) dy = ms_operand(call, &broadcast, 2, from[2], n, dy_buffer);
    compute_block(call->op, a, b, dy, y, n);
    ms_block_done(call->out_data[0], call->out[0].dtype, first, n, y_buffer);
  }
}

static int run(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->out[0]), pow_part); }

const ms_kernel ms_cpu_pow = {.run = run, .in_place = MS_OVER(0, 0) | MS_OVER(0, 1) | MS_OVER(0, 2)};
