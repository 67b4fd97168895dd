/* simd.h - elementary functions and bf16 conversions, written so that gcc vectorises plain loops over them.
 *
 * Kernels are ordinary C loops. Three things make them fast on every x86-64: this header compiles the code after it
 * at -O3 with fused multiply-adds; MS_CLONES makes the loader choose between an SSE2, an AVX2 and an AVX-512 copy;
 * and the functions below contain no branch and no call, so a loop over ms_exp(x[i]) processes 16 elements at a time.
 *
 * Include it before other headers with inline code. How to write a kernel with it:
 *
 *   - put MS_CLONES on a static function that works on a range, with `restrict` pointers, and pass that function to
 *     ms_run_parts;
 *   - write a sum as `#pragma omp simd reduction(+ : s)`, which permits the use of vector lanes in a fixed order;
 *   - implement both dtypes by one always-inline body with a constant `int bf16` argument, ms_simd_load and
 *     ms_simd_store.
 *
 * Sanitizers start after the loader resolves clones, so with them MS_CLONES is empty (build with -march=native to
 * check the wide code).
 */
#ifndef MS_KERNELS_CPU_SIMD_H
#define MS_KERNELS_CPU_SIMD_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  #pragma GCC optimize("fp-contract=fast", "no-math-errno", "no-trapping-math")
#elif !defined(__clang__)
  #pragma GCC optimize("O3", "fp-contract=fast", "no-math-errno", "no-trapping-math")
#endif

#include <stdint.h>
#include <string.h>

#include "base/numbers/bf16.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(MS_NO_CLONES) || !defined(__x86_64__) || \
    defined(__clang__)
  #define MS_CLONES
#else
  #define MS_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#endif

#define MS_INLINE static inline __attribute__((always_inline, unused))

MS_INLINE float ms_float_of_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

MS_INLINE uint32_t ms_bits_of_float(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  return bits;
}

/* ---- elements of either dtype ------------------------------------------------------------------------------------ */

MS_INLINE float ms_from_bf16(ms_bf16 x) { return ms_float_of_bits((uint32_t)x << 16); }

/* Round to nearest even, NaN stays NaN: the same bits as ms_f32_to_bf16, in a form that vectorises well. */
MS_INLINE ms_bf16 ms_to_bf16(float f) {
  uint32_t bits = ms_bits_of_float(f);
  uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  uint32_t result = (bits & 0x7fffffffu) > 0x7f800000u ? (bits | 0x400000u) : rounded;
  return (ms_bf16)(result >> 16);
}

/* Element i of an array that is bf16 if `bf16` is 1, otherwise f32. Pass a constant, or the loop does not vectorise. */
MS_INLINE float ms_simd_load(const void *x, int64_t i, int bf16) {
  return bf16 ? ms_from_bf16(((const ms_bf16 *)x)[i]) : ((const float *)x)[i];
}

MS_INLINE void ms_simd_store(void *y, int64_t i, float value, int bf16) {
  if (bf16) ((ms_bf16 *)y)[i] = ms_to_bf16(value);
  else ((float *)y)[i] = value;
}

/* ---- elementary functions ---------------------------------------------------------------------------------------- */

/* Adding and subtracting 1.5 * 2^23 rounds to an integer, which is in the low bits of the intermediate sum. */
#define MS_ROUND_MAGIC 12582912.0f

/* p 2^n for n in [-150, 128], in two factors so that subnormal results do not need an exponent out of range. */
MS_INLINE float ms_scale_by_power(float p, int32_t n) {
  int32_t half = n >> 1, rest = n - half;
  return p * ms_float_of_bits((uint32_t)(half + 127) << 23) * ms_float_of_bits((uint32_t)(rest + 127) << 23);
}

/* e^x to 1 ulp; 0 below -104, inf above 88.73, NaN for NaN. x = n ln 2 + r with |r| <= ln 2 / 2, and e^r a minimax
 * polynomial. NaN passes both clamps (each comparison is false), and every later operation preserves it. */
MS_INLINE float ms_exp(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  float shifted = x * 1.44269504f + MS_ROUND_MAGIC;
  float n = shifted - MS_ROUND_MAGIC;
  float r = x - n * 0.693359375f; /* ln 2 in two parts; the first has 9 bits, so its product with n is exact */
  r = r + n * 2.12194440e-4f;
  float p = 1.395032508e-03f;
  p = p * r + 8.368816227e-03f;
  p = p * r + 4.166620970e-02f;
  p = p * r + 1.666651964e-01f;
  p = p * r + 0.5f;
  p = 1.0f + (r + (r * r) * p);
  int32_t exponent = (int32_t)(ms_bits_of_float(shifted) - ms_bits_of_float(MS_ROUND_MAGIC));
  exponent = exponent < -150 ? -150 : exponent > 128 ? 128 : exponent; /* NaN leaves an arbitrary value here */
  return ms_scale_by_power(p, exponent);
}

/* e^x to 1 ulp for x <= 0, for softmax; half the work of ms_exp. Results below 1.2e-38 become 0; NaN stays NaN. */
MS_INLINE float ms_exp_nonpositive(float x) {
  x = x < -87.0f ? -88.02969f : x; /* -127 ln 2: the exponent field becomes 0 */
  float shifted = x * 1.44269504f + MS_ROUND_MAGIC;
  float n = shifted - MS_ROUND_MAGIC;
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.395032508e-03f;
  p = p * r + 8.368816227e-03f;
  p = p * r + 4.166620970e-02f;
  p = p * r + 1.666651964e-01f;
  p = p * r + 0.5f;
  p = 1.0f + (r + (r * r) * p);
  uint32_t power = (ms_bits_of_float(shifted) << 23) + 0x3f800000u;
  return p * ms_float_of_bits(power);
}

/* ln x to 2 ulp, subnormal x too; -inf for 0, NaN for x < 0 and NaN, inf for inf. x = 2^n (1 + m), m in [-0.293,
 * 0.414]. */
MS_INLINE float ms_log(float x) {
  int subnormal = x < 1.17549435e-38f;
  float scaled = subnormal ? x * 8388608.0f : x;
  uint32_t bits = ms_bits_of_float(scaled);
  int32_t n = (int32_t)(bits - 0x3f3504f3u) >> 23; /* floor of log2(x / sqrt(1/2)) */
  float m = ms_float_of_bits(bits - ((uint32_t)n << 23)) - 1.0f;
  float power = (float)n - (subnormal ? 23.0f : 0.0f);
  float p = 6.917984039e-02f;
  p = p * m - 1.177966669e-01f;
  p = p * m + 1.186603531e-01f;
  p = p * m - 1.238579825e-01f;
  p = p * m + 1.421991885e-01f;
  p = p * m - 1.666919738e-01f;
  p = p * m + 2.000215203e-01f;
  p = p * m - 2.499998659e-01f;
  p = p * m + 3.333331048e-01f;
  float m2 = m * m;
  float low = m2 * m * p - power * 2.12194440e-4f;
  float result = power * 0.693359375f + (m + (low - 0.5f * m2));
  result = x > 3.40282347e38f ? x : result;
  result = x == 0.0f ? -__builtin_inff() : result;
  return x >= 0.0f ? result : __builtin_nanf("");
}

/* ln(1 + e^x) to 4 ulp, as max(x, 0) + ln(1 + e^-|x|). The factor e / ((1 + e) - 1) corrects the rounding of 1 + e
 * for a small e; NaN stays NaN. */
MS_INLINE float ms_softplus(float x) {
  float e = ms_exp(-ms_float_of_bits(ms_bits_of_float(x) & 0x7fffffffu));
  float sum = 1.0f + e, kept = sum - 1.0f;
  float tail = kept == 0.0f ? e : ms_log(sum) * (e / kept);
  return (x > 0.0f ? x : 0.0f) + tail;
}

/* tanh x to 3 ulp: an odd polynomial below 0.625, else 1 - 2 / (e^2x + 1). */
MS_INLINE float ms_tanh(float x) {
  float a = ms_float_of_bits(ms_bits_of_float(x) & 0x7fffffffu);
  float t = x * x;
  float p = -5.721630063e-03f;
  p = p * t + 2.065521851e-02f;
  p = p * t - 5.374514312e-02f;
  p = p * t + 1.333151460e-01f;
  p = p * t - 3.333328366e-01f;
  float small = x + x * t * p;
  float large = 1.0f - 2.0f / (ms_exp(2.0f * a) + 1.0f);
  large = ms_float_of_bits(ms_bits_of_float(large) | (ms_bits_of_float(x) & 0x80000000u));
  return a < 0.625f ? small : large;
}

/* erf x to 3 ulp: an odd polynomial below 1, else 1 - e^q(x) with q fitted to ln erfc on [1, 4]; 1 beyond. */
MS_INLINE float ms_erf(float x) {
  float a = ms_float_of_bits(ms_bits_of_float(x) & 0x7fffffffu);
  float t = x * x;
  float p = 7.889119297e-05f;
  p = p * t - 8.020841051e-04f;
  p = p * t + 5.189535208e-03f;
  p = p * t - 2.685444430e-02f;
  p = p * t + 1.128360033e-01f;
  p = p * t - 3.761262596e-01f;
  p = p * t + 1.283791661e-01f;
  float small = x + x * p;
  float c = a > 4.0f ? 4.0f : a;
  float q = -2.169763866e-05f;
  q = q * c + 4.414729192e-04f;
  q = q * c - 4.205286037e-03f;
  q = q * c + 2.521034144e-02f;
  q = q * c - 1.084221005e-01f;
  q = q * c - 6.332163811e-01f;
  q = q * c - 1.129580259e+00f;
  q = q * c + 1.884677913e-04f;
  float large = 1.0f - ms_exp_nonpositive(q);
  large = ms_float_of_bits(ms_bits_of_float(large) | (ms_bits_of_float(x) & 0x80000000u));
  return a < 1.0f ? small : large;
}

/* 1 / (1 + e^-x) to 2 ulp. */
MS_INLINE float ms_sigmoid(float x) { return 1.0f / (1.0f + ms_exp(-x)); }

#endif
