/* flash.h - what both directions of own attention share (FlashAttention-2, Dao 2023, arXiv:2307.08691).
**
** A block owns up to 128 rows of one head: queries, or keys where their gradients are made. It walks over the other side in
** tiles of up to 64 rows that come by cp.async, the next while one is computed with, one barrier a tile. A warp has 16 or 32 of
** the rows for itself, so nothing is exchanged between warps, and no tensor of scores leaves the registers. Tiles, and a
** warp's share of a tile, that the mask hides are passed over; what is visible of the others is told row by row.
**
** How a warp multiplies is a parameter (tiles.h): bf16 on tensor cores; f32 on tensor cores where TF32 is allowed, else in f32
** arithmetic. Heads have up to 64, 128 or 256 columns, zeros behind those that are there. Rows of a block and a tile are fewer the
** longer they are: none takes more than the 163 KiB of shared memory that an A100 has.
**
** Every gradient is summed by one warp in one order: that of queries by blocks of queries, those of keys by blocks of keys,
** which makes the scores twice (7 products where atomic sums would need 5) and the bits the same in every run.
*/
#ifndef MS_KERNELS_CUDA_FLASH_H
#define MS_KERNELS_CUDA_FLASH_H

#include <type_traits>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/tiles.h"

constexpr float MS_LOG2E = 1.44269504088896340736f;

template <class T> struct ms_flash_tensors {
  const T *q, *k, *v, *gradient;
  const float *lse, *delta; /* of backward */
  T *o, *dq, *dk, *dv;
  float *to_lse;
  bool whole; /* rows of all tensors begin at 16 bytes and have whole units of them */
};

/* Rows of a block, its warps, tiles of 16 rows that a warp has, and rows of a tile that passes; of it, STEP at a time. */
template <int OWN_ROWS, int WARPS_OF_BLOCK, int TILE_ROWS, int MOST_AT_ONCE> struct ms_flash_shape {
  static constexpr int OWN = OWN_ROWS, WARPS = WARPS_OF_BLOCK, THREADS = WARPS * MS_WARP, M = OWN / WARPS / 16;
  static constexpr int TILE = TILE_ROWS, STEP = TILE < MOST_AT_ONCE ? TILE : MOST_AT_ONCE, N = STEP / 8;
};

/* By the bytes of a row. Two results of 128 columns leave a warp the registers of 16 rows. */
template <int ROW>
using ms_flash_forward =
    std::conditional_t<ROW <= 256, ms_flash_shape<128, 4, 64, 64>,
                       std::conditional_t<ROW <= 512, ms_flash_shape<128, 8, 32, 32>, ms_flash_shape<64, 4, 16, 16>>>;
template <int ROW>
using ms_flash_backward =
    std::conditional_t<ROW <= 256,
                       std::conditional_t<ROW <= 128, ms_flash_shape<128, 4, 64, 32>, ms_flash_shape<128, 8, 64, 64>>,
                       std::conditional_t<ROW <= 512, ms_flash_shape<64, 4, 32, 32>, ms_flash_shape<32, 2, 16, 16>>>;

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

template <class T>
__device__ __forceinline__ const T *ms_flash_head(const T *x, int64_t row, int64_t rows, int64_t heads, int64_t head,
                                                  int64_t d) {
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

/* function<arithmetic, columns>(...) for a call's dtype, heads and choice. */
template <class Arithmetic, class Function> static int ms_flash_by_columns(int64_t d, const Function &function) {
  if (d <= 64) return function(Arithmetic{}, std::integral_constant<int, 64>{});
  if (d <= 128) return function(Arithmetic{}, std::integral_constant<int, 128>{});
  return function(Arithmetic{}, std::integral_constant<int, 256>{});
}

template <class Function> static int ms_flash_by_arithmetic(int dtype, int tf32, int64_t d, const Function &function) {
  if (dtype == MS_BF16) return ms_flash_by_columns<ms_bf16_cores>(d, function);
  return tf32 ? ms_flash_by_columns<ms_tf32_cores>(d, function) : ms_flash_by_columns<ms_f32_arithmetic>(d, function);
}

#endif
