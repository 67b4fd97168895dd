/* activation.h - activations and their gradients for one element, for loops that the compiler vectorises. NaN in gives
 * NaN out. Each gradient is d act / dx as a function of the value that the op saves: y for relu, tanh and sigmoid, x
 * for the others. */
#ifndef MS_KERNELS_CPU_ACTIVATION_H
#define MS_KERNELS_CPU_ACTIVATION_H

#include "kernels/cpu/simd.h"
#include "kernels/op.h"

/* 1/sqrt(2 pi), sqrt(2/pi), and the coefficient of x^3 in the tanh form of gelu. */
#define MS_NORMAL_PEAK 0.39894228040143268f
#define MS_SQRT_2_OVER_PI 0.79788456080286536f
#define MS_GELU_CUBIC 0.044715f

MS_INLINE float ms_relu(float x) { return x < 0.0f ? 0.0f : x; }

/* sigmoid(x) and its slope sigmoid(x) (1 - sigmoid(x)), computed from e^-|x|, which avoids overflow and
 * cancellation. */
typedef struct ms_gate_value {
  float gate, slope;
} ms_gate_value;

MS_INLINE ms_gate_value ms_gate_and_slope(float x) {
  float e = ms_exp_nonpositive(-__builtin_fabsf(x)), r = 1.0f / (1.0f + e);
  return (ms_gate_value){(x < 0.0f ? e : 1.0f) * r, e * r * r};
}

MS_INLINE float ms_gate(float x) { return ms_gate_and_slope(x).gate; }

MS_INLINE float ms_silu(float x) { return x * ms_gate(x); }

/* 2u, where u = sqrt(2/pi) (x + 0.044715 x^3): gelu_tanh needs (1 + tanh u) / 2, which is sigmoid(2u). */
MS_INLINE float ms_gelu_tanh_argument(float x) {
  return x * (2.0f * MS_SQRT_2_OVER_PI + 2.0f * MS_SQRT_2_OVER_PI * MS_GELU_CUBIC * (x * x));
}

MS_INLINE float ms_gelu_tanh(float x) { return x * ms_gate(ms_gelu_tanh_argument(x)); }

/* e^(-x^2 / 2), from which the normal distribution and its density are computed. */
MS_INLINE float ms_bell(float x) { return ms_exp_nonpositive(-0.5f * x * x); }

/* Phi(x) to 1e-7; bell = ms_bell(x). The tail Phi(-|x|) is the bell times a smooth function (half the scaled
 * complementary error function). The polynomial approximates that function on [0, 6] and minimises the error of the
 * product. */
MS_INLINE float ms_normal_cdf(float x, float bell) {
  float a = __builtin_fabsf(x);
  a = a > 6.0f ? 6.0f : a;
  float p = -3.155415567e-07f;
  p = p * a + 7.708748605e-06f;
  p = p * a - 8.477073093e-05f;
  p = p * a + 5.636514703e-04f;
  p = p * a - 2.590086633e-03f;
  p = p * a + 9.003840435e-03f;
  p = p * a - 2.547180884e-02f;
  p = p * a + 6.192392558e-02f;
  p = p * a - 1.328057835e-01f;
  p = p * a + 2.499725721e-01f;
  p = p * a - 3.989406022e-01f;
  p = p * a + 4.999999830e-01f;
  float tail = p * bell;
  return x < 0.0f ? tail : 1.0f - tail;
}

MS_INLINE float ms_gelu(float x) { return x * ms_normal_cdf(x, ms_bell(x)); }

/* Applies an activation (enum ms_activation). In loops that vectorise it is constant. */
MS_INLINE float ms_activate(float x, int activation) {
  switch (activation) {
    case MS_ACT_RELU: return ms_relu(x);
    case MS_ACT_GELU: return ms_gelu(x);
    case MS_ACT_GELU_TANH: return ms_gelu_tanh(x);
    case MS_ACT_SILU: return ms_silu(x);
    default: return x;
  }
}

MS_INLINE void ms_activate_as(float *restrict x, int64_t n, int activation) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) x[i] = ms_activate(x[i], activation);
}

/* x [n] in place. */
MS_INLINE void ms_activate_row(float *restrict x, int64_t n, int activation) {
  switch (activation) {
    case MS_ACT_RELU: ms_activate_as(x, n, MS_ACT_RELU); break;
    case MS_ACT_GELU: ms_activate_as(x, n, MS_ACT_GELU); break;
    case MS_ACT_GELU_TANH: ms_activate_as(x, n, MS_ACT_GELU_TANH); break;
    case MS_ACT_SILU: ms_activate_as(x, n, MS_ACT_SILU); break;
    default: break;
  }
}

MS_INLINE float ms_relu_grad(float y) { return y <= 0.0f ? 0.0f : 1.0f; }

MS_INLINE float ms_tanh_grad(float y) { return 1.0f - y * y; }

MS_INLINE float ms_sigmoid_grad(float y) { return y * (1.0f - y); }

/* Phi(x) + x phi(x), with the cumulative distribution Phi and the density phi of the standard normal. */
MS_INLINE float ms_gelu_grad(float x) {
  float bell = ms_bell(x);
  return ms_normal_cdf(x, bell) + x * MS_NORMAL_PEAK * bell;
}

/* s + x s (1 - s) 2u', where s = sigmoid(2u) and u' = sqrt(2/pi) (1 + 3 0.044715 x^2) */
MS_INLINE float ms_gelu_tanh_grad(float x) {
  ms_gate_value s = ms_gate_and_slope(ms_gelu_tanh_argument(x));
  return s.gate + x * s.slope * (2.0f * MS_SQRT_2_OVER_PI + 6.0f * MS_SQRT_2_OVER_PI * MS_GELU_CUBIC * (x * x));
}

/* s + x s (1 - s), where s = sigmoid(x) */
MS_INLINE float ms_silu_grad(float x) {
  ms_gate_value s = ms_gate_and_slope(x);
  return s.gate + x * s.slope;
}

#endif
