/* matmul_f8_blocks.h - codes and their scales on CUDA; and where those of blocks are (plan/products/matmul_f8.h): in
 * the order in which tensor cores read them. Rounding writes them there, and our own products read them. */
#ifndef MS_KERNELS_CUDA_MATMUL_F8_BLOCKS_H
#define MS_KERNELS_CUDA_MATMUL_F8_BLOCKS_H

#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/cuda/matmul/matmul_f8.h"
}

#include "kernels/formats/quantise_code.h"

/* Two codes, the first in the low byte. */
template <int DTYPE> __device__ __forceinline__ unsigned ms_f8_code_pair(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short pair;
  if constexpr (DTYPE == MS_F8E4M3)
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  return pair;
#else
  return ms_code_of(first, DTYPE) | static_cast<unsigned>(ms_code_of(second, DTYPE)) << 8;
#endif
}

template <int DTYPE> __device__ __forceinline__ unsigned ms_f8_code_four(const float *x) {
  return ms_f8_code_pair<DTYPE>(x[0], x[1]) | ms_f8_code_pair<DTYPE>(x[2], x[3]) << 16;
}

/* Stores V codes; with V > 1, `to` is aligned to V. */
template <int DTYPE, int V> __device__ __forceinline__ void ms_f8_store_codes(uint8_t *to, const float (&x)[V]) {
  if constexpr (V == 1) *to = static_cast<uint8_t>(ms_f8_code_pair<DTYPE>(x[0], 0.0f));
  else if constexpr (V == 4) *reinterpret_cast<unsigned *>(to) = ms_f8_code_four<DTYPE>(x);
  else *reinterpret_cast<uint2 *>(to) = make_uint2(ms_f8_code_four<DTYPE>(x), ms_f8_code_four<DTYPE>(x + 4));
}

template <int V> __device__ __forceinline__ uint32_t ms_f8_largest_of(const float (&x)[V], uint32_t most) {
#pragma unroll
  for (int l = 0; l < V; l++) most = ms_larger_bits()(most, ms_magnitude(x[l]));
  return most;
}

static __device__ __forceinline__ float ms_f8_scale_of(uint32_t magnitude, int dtype, int powers) {
  const float scale = ms_tensor_scale(magnitude, dtype);
  return powers ? ms_power_below(scale) : scale;
}

/* The byte of the scale of a row's block, of `blocks` that a row has. */
static __device__ __forceinline__ int64_t ms_f8_block_place(int64_t row, int64_t block, int64_t blocks) {
  const int64_t across = ms_cuda_ceil(blocks, static_cast<int64_t>(MS_F8_TILE_BLOCKS));
  const int64_t tile = row / MS_F8_TILE_ROWS * across + block / MS_F8_TILE_BLOCKS;
  const int64_t inside = row % 32 * 16 + row % MS_F8_TILE_ROWS / 32 * 4 + block % MS_F8_TILE_BLOCKS;
  return tile * MS_F8_TILE_BYTES + inside;
}

/* The place of the f32 scale of a row's block. side: of squares, or 1. */
static __device__ __forceinline__ int64_t ms_f8_scale_place(int64_t row, int64_t block, int side, int64_t pitch) {
  return side > 1 ? row / side * pitch + block : block * pitch + row;
}

/* Rounds an operand x f32 or bf16 whose scales are of 128 elements, or 128 x 128 (matmul_f8_tiles.cu). vectors: 1 if
 * its rows begin at multiples of 16 bytes. */
template <class X>
int ms_f8_round_tiles_run(const ms_kernel_call *call, const ms_f8 *f8, const ms_f8_operand *operand, const X *x,
                          int vectors, const ms_f8_memory *to);

#endif
