/* reduce.h - combines one value per thread across a warp or a block. All threads receive the result, which is the same
 * in every run: lanes are combined by a butterfly, warps in order. */
#ifndef MS_KERNELS_CUDA_REDUCE_H
#define MS_KERNELS_CUDA_REDUCE_H

#include "kernels/cuda/launch.h"

constexpr int MS_WARP = 32, MS_MAX_WARPS = 32;

struct ms_add {
  template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};

/* The larger of two; ignores a NaN. */
struct ms_maximum {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/* The larger of two; NaN if either is NaN. */
struct ms_larger {
  __device__ __forceinline__ float operator()(float a, float b) const { return b > a || b != b ? b : a; }
};

/* The larger of two numbers of bits: of magnitudes (kernels/formats/quantise_code.h), among which NaN is the largest.
 */
struct ms_larger_bits {
  __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b) const { return a > b ? a : b; }
};

template <class T, class Join> __device__ __forceinline__ T ms_warp_reduce(T value, Join join) {
#pragma unroll
  for (int bits = MS_WARP / 2; bits > 0; bits /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, bits));
  return value;
}

/* Combines the threads with equal threadIdx.y; blockDim.x is a multiple of 32. Every thread of the block must call it.
 * If a row is a single warp, no barrier is needed. */
template <class T, class Join> __device__ __forceinline__ T ms_row_reduce(T value, T neutral, Join join) {
  __shared__ T of_warp[MS_MAX_WARPS];
  value = ms_warp_reduce(value, join);
  if (blockDim.x == MS_WARP) return value;
  const int warps = blockDim.x / MS_WARP, lane = threadIdx.x % MS_WARP;
  if (lane == 0) of_warp[threadIdx.y * warps + threadIdx.x / MS_WARP] = value;
  __syncthreads();
  value = lane < warps ? of_warp[threadIdx.y * warps + lane] : neutral;
  __syncthreads();
  return ms_warp_reduce(value, join);
}

/* Two sums, with the barriers of one. */
__device__ __forceinline__ float2 ms_row_sums(float a, float b) {
  __shared__ float2 of_warp[MS_MAX_WARPS];
  a = ms_warp_reduce(a, ms_add());
  b = ms_warp_reduce(b, ms_add());
  if (blockDim.x == MS_WARP) return make_float2(a, b);
  const int warps = blockDim.x / MS_WARP, lane = threadIdx.x % MS_WARP;
  if (lane == 0) of_warp[threadIdx.y * warps + threadIdx.x / MS_WARP] = make_float2(a, b);
  __syncthreads();
  const float2 other = lane < warps ? of_warp[threadIdx.y * warps + lane] : make_float2(0.0f, 0.0f);
  __syncthreads();
  return make_float2(ms_warp_reduce(other.x, ms_add()), ms_warp_reduce(other.y, ms_add()));
}

__device__ __forceinline__ float ms_row_sum(float value) { return ms_row_reduce(value, 0.0f, ms_add()); }
__device__ __forceinline__ float ms_row_max(float value) { return ms_row_reduce(value, -INFINITY, ms_maximum()); }

/* to [1] = the sum of sums [parts]. One block. */
template <int THREADS>
__global__ void __launch_bounds__(THREADS) ms_add_parts(const double *sums, int64_t parts, float *to) {
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < parts; i += THREADS) sum += sums[i];
  sum = ms_row_reduce(sum, 0.0, ms_add());
  if (threadIdx.x == 0) *to = static_cast<float>(sum);
}

#endif
