/* norm.h - the formulas of layer_norm and rms_norm for one element. Forward, its recomputation and the gradients use
 * the same ones, for held and for streamed rows (rows.h), so that a number has the same bits on every path. */
#ifndef MS_KERNELS_CUDA_NORM_H
#define MS_KERNELS_CUDA_NORM_H

#include "kernels/cuda/launch.h"

/* `sum` of squared differences from the mean, with one more. */
static __device__ __forceinline__ float ms_norm_add_square(float sum, float x, float mean) {
  return fmaf(x - mean, x - mean, sum);
}

static __device__ __forceinline__ float ms_norm_rstd(float squares, int64_t n, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(n) + eps);
}

/* h: x with a mean of 0 and a variance of 1. */
static __device__ __forceinline__ float ms_norm_scaled(float x, float mean, float rstd) { return (x - mean) * rstd; }

/* y = h gain, plus a bias if the norm has one. */
static __device__ __forceinline__ float ms_norm_result(float h, float gain, float bias, bool biased) {
  return biased ? fmaf(h, gain, bias) : h * gain;
}

/* g, which is added to sums and differences. */
static __device__ __forceinline__ float ms_norm_weighed(float dy, float gain) { return __fmul_rn(dy, gain); }

/* dx of g = dy gain, with the row's averages of g and of g h; rms_norm: the first is 0. */
static __device__ __forceinline__ float ms_norm_gradient(float g, float h, float rstd, float g_average,
                                                         float gh_average) {
  return __fmul_rn(rstd, fmaf(-h, gh_average, g - g_average));
}

#endif
