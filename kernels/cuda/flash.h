/* flash.h - what both directions of attention on tensor cores share (FlashAttention-2, Dao 2023, arXiv:2307.08691).
**
** A block owns 128 rows of one head: queries, or keys where their gradients are made. It walks over the other side in tiles
** of 64 rows that come by cp.async, the next while one is computed with, one barrier a tile. A warp has 16 or 32 of the
** rows for itself, so nothing is exchanged between warps, and no tensor of scores leaves the registers. Tiles, and a
** warp's share of a tile, that the mask hides are passed over; what is visible of the others is told row by row.
**
** Every gradient is summed by one warp in one order: that of queries by blocks of queries, those of keys by blocks of keys,
** which makes the scores twice (7 products where atomic sums would need 5) and the bits the same in every run.
*/
#ifndef MS_KERNELS_CUDA_FLASH_H
#define MS_KERNELS_CUDA_FLASH_H

#include "kernels/cuda/attention.h"
#include "kernels/cuda/tiles.h"

/* Rows of a block, and of a tile that passes. */
constexpr int MS_FLASH_OWN = 128, MS_FLASH_TILE = 64;
constexpr float MS_LOG2E = 1.44269504088896340736f;

struct ms_flash_tensors {
  const ms_b16 *q, *k, *v, *gradient;
  const float *lse, *delta; /* of backward */
  ms_b16 *o, *dq, *dk, *dv;
  float *to_lse;
};

/* Positions fit an int. */
struct ms_flash_range {
  int begin, end;
};

static __device__ __forceinline__ ms_flash_range ms_flash_of(const ms_cuda_range &range) {
  const int begin = static_cast<int>(range.begin), end = static_cast<int>(range.end);
  return {begin, max(begin, end)};
}

/* What of a range lies in `rows` rows from `first` on, counted from there; nothing of it: an empty part. */
static __device__ __forceinline__ ms_flash_range ms_flash_part(const ms_flash_range &range, int first, int rows) {
  const int begin = min(max(range.begin - first, 0), rows), end = min(max(range.end - first, 0), rows);
  return {begin, max(begin, end)};
}

/* Which rows a range of own rows sees together: all that any does, and those that every one does. */
struct ms_flash_view {
  ms_flash_range any, every;
};

static __device__ __forceinline__ ms_flash_view ms_flash_view_of(const ms_cuda_range &first,
                                                                 const ms_cuda_range &last) {
  const ms_flash_range a = ms_flash_of(first), b = ms_flash_of(last);
  return {{a.begin, max(b.end, a.begin)}, {b.begin, a.end}};
}

static __device__ __forceinline__ const ms_b16 *ms_flash_head(const ms_b16 *x, int64_t row, int64_t rows, int64_t heads,
                                                              int64_t head, int64_t d) {
  return x + (row * rows * heads + head) * d;
}

/* A kernel with more shared memory than any may have unasked. */
#define MS_FLASH_LAUNCH(kernel, grid, threads, shared, call, tensors, attention)                                     \
  [&] {                                                                                                              \
    MS_TRY(ms_cuda_status(cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),                               \
                                               cudaFuncAttributeMaxDynamicSharedMemorySize, (shared)),               \
                          "shared memory of " #kernel));                                                             \
    return MS_CUDA_LAUNCH(kernel, static_cast<unsigned>(grid), threads, shared, (call)->stream, tensors, attention); \
  }()

#endif
