/* flash.h - shared by both directions of our own attention kernels (FlashAttention-2, Dao 2023, arXiv:2307.08691).
 *
 * A block owns up to 128 rows of one head: queries, or keys when it computes their gradients. It iterates over the
 * other side in tiles of up to 64 rows loaded with cp.async, loading the next tile while it computes with the current
 * one, with one barrier per tile. Each warp owns 16 or 32 of the rows, so warps exchange nothing, and scores never
 * leave the registers. Tiles, and a warp's part of a tile, are skipped if they are fully masked; in partly masked ones,
 * visibility is checked row by row.
 *
 * The product is a parameter (tiles.h): bf16 on tensor cores; f32 on tensor cores if TF32 is allowed, otherwise f32
 * arithmetic. Heads are padded with zeros to 64, 128 or 256 columns. Longer rows mean fewer rows per block and tile: no
 * block uses more than the 163 KiB of shared memory of an A100.
 *
 * One warp sums each gradient in a fixed order: dq in blocks of queries, dk and dv in blocks of keys. This computes the
 * scores twice (7 products, where atomic sums would need 5), but gives the same bits in every run.
 */
#ifndef MS_KERNELS_CUDA_FLASH_H
#define MS_KERNELS_CUDA_FLASH_H

#include <type_traits>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/tiles.h"

constexpr float MS_LOG2E = 1.44269504088896340736f;

/* The tensors of both directions: q, dq [batch][t][heads][d]; o, gradient (of o) [batch][t][heads][e]; k, dk
 * [batch][s][groups][d]; v, dv [batch][s][groups][e]; lse, to_lse, delta f32 [batch][heads][t]. Tiles of all have the
 * columns of the wider ones. */
template <class T> struct ms_flash_tensors {
  const T *q, *k, *v, *gradient;
  const float *lse, *delta; /* backward only */
  T *o, *dq, *dk, *dv;
  float *to_lse;
  bool whole; /* rows of all tensors are aligned to 16 bytes and consist of whole 16-byte units */
};

/* Rows owned by a block, warps per block, 16-row tiles per warp (M), and rows of an incoming tile, of which STEP are
 * processed at a time. */
template <int OWN_ROWS, int WARPS_OF_BLOCK, int TILE_ROWS, int MAX_AT_ONCE> struct ms_flash_shape {
  static constexpr int OWN = OWN_ROWS, WARPS = WARPS_OF_BLOCK, THREADS = WARPS * MS_WARP, M = OWN / WARPS / 16;
  static constexpr int TILE = TILE_ROWS, STEP = TILE < MAX_AT_ONCE ? TILE : MAX_AT_ONCE, N = STEP / 8;
};

/* The shapes by bytes per row. With two results of 128 columns (dk and dv), a warp has registers for 16 rows. */
template <int ROW>
using ms_flash_forward =
    std::conditional_t<ROW <= 256, ms_flash_shape<128, 4, 64, 64>,
                       std::conditional_t<ROW <= 512, ms_flash_shape<128, 8, 32, 32>, ms_flash_shape<64, 4, 16, 16>>>;
template <int ROW>
using ms_flash_backward =
    std::conditional_t<ROW <= 256,
                       std::conditional_t<ROW <= 128, ms_flash_shape<128, 4, 64, 32>, ms_flash_shape<128, 8, 64, 64>>,
                       std::conditional_t<ROW <= 512, ms_flash_shape<64, 4, 32, 32>, ms_flash_shape<32, 2, 16, 16>>>;

/* Like ms_cuda_range, in int: positions are below 2^30. */
struct ms_flash_range {
  int begin, end;
};

static __device__ __forceinline__ ms_flash_range ms_flash_of(const ms_cuda_range &range) {
  const int begin = static_cast<int>(range.begin), end = static_cast<int>(range.end);
  return {begin, max(begin, end)};
}

/* The part of a range within `rows` rows from `first` on, relative to `first`; empty if they do not overlap. */
static __device__ __forceinline__ ms_flash_range ms_flash_part(const ms_flash_range &range, int first, int rows) {
  const int begin = min(max(range.begin - first, 0), rows), end = min(max(range.end - first, 0), rows);
  return {begin, max(begin, end)};
}

/* What a range of own rows sees: the union and the intersection over its rows, from those of its first and last row. */
struct ms_flash_view {
  ms_flash_range any, every;
};

static __device__ __forceinline__ ms_flash_view ms_flash_view_of(const ms_cuda_range &first,
                                                                 const ms_cuda_range &last) {
  const ms_flash_range a = ms_flash_of(first), b = ms_flash_of(last);
  return {{a.begin, max(b.end, a.begin)}, {b.begin, a.end}};
}

/* The first row of a head: x [batch][rows][heads][d] at batch entry `row`. */
template <class T>
__device__ __forceinline__ const T *ms_flash_head(const T *x, int64_t row, int64_t rows, int64_t heads, int64_t head,
                                                  int64_t d) {
  return x + (row * rows * heads + head) * d;
}

/* Replaces scores by the tanh of the factor times them. */
template <int M, int N> __device__ __forceinline__ void ms_flash_cap(float (&score)[M][N][4], float factor) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) score[m][n][e] = tanhf(score[m][n][e] * factor);
}

/* Calls function(arithmetic, columns, limited) for the call's dtype, head size and TF32 setting. Windows, prefixes and
 * capped scores have kernels of their own (limited), so that others do not spend registers on them. */
template <class Arithmetic, int COLUMNS, class Function>
static int ms_flash_by_limits(const ms_cuda_attention &a, const Function &function) {
  const std::integral_constant<int, COLUMNS> columns;
  if (a.window || a.prefix || a.softcap > 0.0f) return function(Arithmetic{}, columns, std::true_type{});
  return function(Arithmetic{}, columns, std::false_type{});
}

template <class Arithmetic, class Function>
static int ms_flash_by_columns(const ms_cuda_attention &a, const Function &function) {
  const int64_t widest = a.d > a.e ? a.d : a.e;
  if (widest <= 64) return ms_flash_by_limits<Arithmetic, 64>(a, function);
  if (widest <= 128) return ms_flash_by_limits<Arithmetic, 128>(a, function);
  return ms_flash_by_limits<Arithmetic, 256>(a, function);
}

template <class Function>
static int ms_flash_by_arithmetic(int dtype, int tf32, const ms_cuda_attention &a, const Function &function) {
  if (dtype == MS_BF16) return ms_flash_by_columns<ms_bf16_cores>(a, function);
  return tf32 ? ms_flash_by_columns<ms_tf32_cores>(a, function) : ms_flash_by_columns<ms_f32_arithmetic>(a, function);
}

#endif
