/* matmul_f8_blocks.h - where the scales of blocks are: in tiles (plan/products/matmul_f8.h), the order in which tensor
 * cores read them. Rounding writes them there, and our own products read them. */
#ifndef MS_KERNELS_CUDA_MATMUL_F8_BLOCKS_H
#define MS_KERNELS_CUDA_MATMUL_F8_BLOCKS_H

#include "kernels/cuda/launch.h"

extern "C" {
#include "kernels/cuda/matmul/matmul_f8.h"
}

/* The byte of the scale of a row's block, of `blocks` that a row has. */
static __device__ __forceinline__ int64_t ms_f8_block_place(int64_t row, int64_t block, int64_t blocks) {
  const int64_t across = ms_cuda_ceil(blocks, static_cast<int64_t>(MS_F8_TILE_BLOCKS));
  const int64_t tile = row / MS_F8_TILE_ROWS * across + block / MS_F8_TILE_BLOCKS;
  const int64_t inside = row % 32 * 16 + row % MS_F8_TILE_ROWS / 32 * 4 + block % MS_F8_TILE_BLOCKS;
  return tile * MS_F8_TILE_BYTES + inside;
}

#endif
