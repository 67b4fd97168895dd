/* activation.h - activations and their gradients, one element at a time, for loops that the compiler vectorises. NaN in
** gives NaN out. Each gradient is d act / dx, from what its op hands over: y for relu, tanh and sigmoid, x for the others.
*/
#ifndef MS_KERNELS_CPU_ACTIVATION_H
#define MS_KERNELS_CPU_ACTIVATION_H

#include "kernels/cpu/simd.h"

/* sqrt(1/2), 1/sqrt(2 pi), sqrt(2/pi), and the cubic term of the tanh form. */
#define MS_SQRT_HALF 0.70710678118654752f
#define MS_NORMAL_PEAK 0.39894228040143268f
#define MS_SQRT_2_OVER_PI 0.79788456080286536f
#define MS_GELU_CUBIC 0.044715f

MS_INLINE float ms_relu(float x) { return x < 0.0f ? 0.0f : x; }

MS_INLINE float ms_gelu(float x) { return 0.5f * x * (1.0f + ms_erf(x * MS_SQRT_HALF)); }

/* (1 + tanh u) / 2 is sigmoid(2u): one exponential and one division. */
MS_INLINE float ms_gelu_tanh_gate(float x) {
  return ms_sigmoid(2.0f * MS_SQRT_2_OVER_PI * x * (1.0f + MS_GELU_CUBIC * x * x));
}

MS_INLINE float ms_gelu_tanh(float x) { return x * ms_gelu_tanh_gate(x); }

MS_INLINE float ms_silu(float x) { return x / (1.0f + ms_exp(-x)); }

MS_INLINE float ms_relu_grad(float y) { return y <= 0.0f ? 0.0f : 1.0f; }

MS_INLINE float ms_tanh_grad(float y) { return 1.0f - y * y; }

MS_INLINE float ms_sigmoid_grad(float y) { return y * (1.0f - y); }

/* Phi(x) + x phi(x), the standard normal's distribution and density. */
MS_INLINE float ms_gelu_grad(float x) {
  return 0.5f * (1.0f + ms_erf(x * MS_SQRT_HALF)) + x * MS_NORMAL_PEAK * ms_exp_nonpositive(-0.5f * x * x);
}

/* s + x s (1 - s) 2u', s the gate, u' = sqrt(2/pi) (1 + 3 0.044715 x^2) */
MS_INLINE float ms_gelu_tanh_grad(float x) {
  float s = ms_gelu_tanh_gate(x);
  return s + x * s * (1.0f - s) * (2.0f * MS_SQRT_2_OVER_PI) * (1.0f + 3.0f * MS_GELU_CUBIC * x * x);
}

/* s (1 + x (1 - s)), s = sigmoid(x) */
MS_INLINE float ms_silu_grad(float x) {
  float s = ms_sigmoid(x);
  return s * (1.0f + x * (1.0f - s));
}

#endif
