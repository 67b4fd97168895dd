/* random_rounding.h - stochastic rounding to bf16, with the bits of kernels/cpu/optimizers/random_rounding.h. */
#ifndef MS_KERNELS_CUDA_RANDOM_ROUNDING_H
#define MS_KERNELS_CUDA_RANDOM_ROUNDING_H

#include "kernels/cuda/launch.h"

/* The rounded value, with 16 random bits. Infinity and NaN are kept. */
static __device__ __forceinline__ float ms_round_at_random(float x, unsigned random) {
  const unsigned bits = __float_as_uint(x);
  return (bits & 0x7f800000u) == 0x7f800000u ? x : __uint_as_float((bits + random) & 0xffff0000u);
}

#endif
