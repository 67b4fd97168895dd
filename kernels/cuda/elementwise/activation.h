/* activation.h - activations and their gradients for one element; NaN in gives NaN out. Each gradient is d act / dx as
 * a function of the value that the op saves: y for relu, tanh and sigmoid, x for the others. Exponentials use the
 * hardware's instruction (relative error about 1e-7 times 1 + |x|), because memory bounds these kernels only up to
 * about twenty instructions per element. */
#ifndef MS_KERNELS_CUDA_ACTIVATION_H
#define MS_KERNELS_CUDA_ACTIVATION_H

#include "kernels/cuda/launch.h"

/* 1/sqrt(2), 1/sqrt(2 pi), sqrt(2/pi), and the coefficient of x^3 in the tanh form of gelu. */
#define MS_SQRT_HALF 0.70710678118654752f
#define MS_NORMAL_PEAK 0.39894228040143268f
#define MS_SQRT_2_OVER_PI 0.79788456080286536f
#define MS_GELU_CUBIC 0.044715f

static __device__ __forceinline__ float ms_relu(float x) { return x < 0.0f ? 0.0f : x; }

/* sigmoid(x) and its slope sigmoid(x) (1 - sigmoid(x)), computed from e^-|x|, which avoids overflow and
 * cancellation. */
struct ms_gate_value {
  float gate, slope;
};

static __device__ __forceinline__ ms_gate_value ms_gate_and_slope(float x) {
  const float e = __expf(-fabsf(x)), r = __fdividef(1.0f, 1.0f + e); /* the divisor is between 1 and 2: 2 ulp */
  return {(x < 0.0f ? e : 1.0f) * r, e * r * r};
}

static __device__ __forceinline__ float ms_gate(float x) { return ms_gate_and_slope(x).gate; }

static __device__ __forceinline__ float ms_silu(float x) { return x * ms_gate(x); }

/* 2u, where u = sqrt(2/pi) (x + 0.044715 x^3): gelu_tanh needs (1 + tanh u) / 2, which is sigmoid(2u). */
static __device__ __forceinline__ float ms_gelu_tanh_argument(float x) {
  return x * fmaf(2.0f * MS_SQRT_2_OVER_PI * MS_GELU_CUBIC, x * x, 2.0f * MS_SQRT_2_OVER_PI);
}

static __device__ __forceinline__ float ms_gelu_tanh(float x) { return x * ms_gate(ms_gelu_tanh_argument(x)); }

static __device__ __forceinline__ float ms_normal_cdf(float x) { return fmaf(0.5f, erff(x * MS_SQRT_HALF), 0.5f); }

static __device__ __forceinline__ float ms_gelu(float x) { return x * ms_normal_cdf(x); }

static __device__ __forceinline__ float ms_gelu_grad(float x) {
  return fmaf(x * MS_NORMAL_PEAK, __expf(-0.5f * x * x), ms_normal_cdf(x));
}

/* s + x s (1 - s) 2u', where s = sigmoid(2u) and u' = sqrt(2/pi) (1 + 3 0.044715 x^2) */
static __device__ __forceinline__ float ms_gelu_tanh_grad(float x) {
  const ms_gate_value s = ms_gate_and_slope(ms_gelu_tanh_argument(x));
  return fmaf(x * s.slope, fmaf(6.0f * MS_SQRT_2_OVER_PI * MS_GELU_CUBIC, x * x, 2.0f * MS_SQRT_2_OVER_PI), s.gate);
}

/* s + x s (1 - s), where s = sigmoid(x) */
static __device__ __forceinline__ float ms_silu_grad_of(float x, ms_gate_value s) { return fmaf(x, s.slope, s.gate); }

static __device__ __forceinline__ float ms_silu_grad(float x) { return ms_silu_grad_of(x, ms_gate_and_slope(x)); }

/* Applies an activation (enum ms_activation); the switch costs nothing compared with memory access. */
static __device__ __forceinline__ float ms_activate(float x, int activation) {
  switch (activation) {
    case MS_ACT_RELU: return ms_relu(x);
    case MS_ACT_GELU: return ms_gelu(x);
    case MS_ACT_GELU_TANH: return ms_gelu_tanh(x);
    case MS_ACT_SILU: return ms_silu(x);
    default: return x;
  }
}

#endif
