/* core_tile.h - a tile of a matrix product on tensor cores: 64 x 64 results of bf16 operands, with f32 sums, by four
 * warps of 32 x 32 each. Steps of 64 along k pass through shared memory (tiles.h), and the next one is on its way while
 * one is multiplied. An operand is read as it is stored: along k, or across it, in which case its fragments are
 * transposed as they are loaded. */
#ifndef MS_KERNELS_CUDA_CORE_TILE_H
#define MS_KERNELS_CUDA_CORE_TILE_H

#include "kernels/cuda/tiles.h"

constexpr int MS_CORE_TILE = 64, MS_CORE_THREADS = 4 * MS_WARP, MS_CORE_M = 2, MS_CORE_N = 4;
/* Two stages of two tiles. */
constexpr int MS_CORE_BYTES = 4 * MS_CORE_TILE * MS_CORE_TILE * static_cast<int>(sizeof(ms_b16));

/* Rows of op(a), or columns of op(b), below `count`. ALONG: x [count][stride], k of each; otherwise x [k][stride].
 * whole: rows in memory are whole units of 16 bytes, to which they are aligned. */
struct ms_core_operand {
  const ms_b16 *x;
  int count;
  int64_t stride;
  bool whole;
};

/* Starts copying rows, or columns, [first, first + 64) of an operand, of the step that begins at `depth`. */
template <bool ALONG>
__device__ __forceinline__ void ms_core_load(ms_b16 *tile, const ms_core_operand &o, int first, int depth, int k) {
  constexpr int T = MS_CORE_TILE;
  if constexpr (ALONG)
    ms_load_tile<T, T, MS_CORE_THREADS>(tile, o.x + depth, first, o.count, o.stride, k - depth, o.whole);
  else ms_load_tile<T, T, MS_CORE_THREADS>(tile, o.x + first, depth, k, o.stride, o.count - first, o.whole);
}

/* c += a tile's product, of rows and columns of the calling warp. */
template <bool A_ALONG, bool B_ALONG>
__device__ __forceinline__ void ms_core_step(float (&c)[MS_CORE_M][MS_CORE_N][4], ms_b16 *a, ms_b16 *b) {
  constexpr int DIM = MS_CORE_TILE;
  constexpr unsigned ROW = DIM * sizeof(ms_b16);
  const int lane = ms_lane(), warp = static_cast<int>(threadIdx.x) / MS_WARP, row = warp / 2 * 32,
            column = warp % 2 * 32;
  const ms_shared left_at = A_ALONG ? ms_lane_at<DIM>(a, row + lane % 16, lane / 16)
                                    : ms_lane_at<DIM>(a, lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const ms_shared right_at = B_ALONG ? ms_lane_at<DIM>(b, column + lane / 16 * 8 + lane % 8, lane / 8 % 2)
                                     : ms_lane_at<DIM>(b, lane % 16, lane / 16);
#pragma unroll
  for (unsigned k = 0; k < DIM / 16; k++) {
    unsigned left[MS_CORE_M][4];
#pragma unroll
    for (unsigned m = 0; m < MS_CORE_M; m++) {
      if constexpr (A_ALONG) ms_load_matrices(left[m], ms_other_unit(left_at, 2 * k) + m * 16 * ROW);
      else ms_load_transposed(left[m], ms_other_unit(left_at, static_cast<unsigned>(row) / 8 + 2 * m) + k * 16 * ROW);
    }
#pragma unroll
    for (unsigned n = 0; n < MS_CORE_N; n += 2) {
      unsigned right[4];
      if constexpr (B_ALONG) ms_load_matrices(right, ms_other_unit(right_at, 2 * k) + n * 8 * ROW);
      else ms_load_transposed(right, ms_other_unit(right_at, static_cast<unsigned>(column) / 8 + n) + k * 16 * ROW);
#pragma unroll
      for (int m = 0; m < MS_CORE_M; m++) {
        ms_multiply_tiles(c[m][n], left[m], right[0], right[1]);
        ms_multiply_tiles(c[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

/* c += the product of rows [row, row + 64) of op(a) and columns [column, column + 64) of op(b) over k. shared: 32 KiB,
 * aligned to 128 bytes. All threads of the block must call it. */
template <bool A_ALONG, bool B_ALONG>
__device__ __forceinline__ void ms_core_multiply(float (&c)[MS_CORE_M][MS_CORE_N][4], const ms_core_operand &a, int row,
                                                 const ms_core_operand &b, int column, int k, ms_b16 *shared) {
  constexpr int TILE = MS_CORE_TILE * MS_CORE_TILE;
  const auto load = [&](int depth, int stage) {
    ms_core_load<A_ALONG>(shared + 2 * stage * TILE, a, row, depth, k);
    ms_core_load<B_ALONG>(shared + (2 * stage + 1) * TILE, b, column, depth, k);
    ms_commit_copies();
  };
  if (k <= 0) return;
  load(0, 0);
  for (int depth = 0, stage = 0; depth < k; depth += MS_CORE_TILE, stage ^= 1) {
    const bool more = depth + MS_CORE_TILE < k;
    if (more) load(depth + MS_CORE_TILE, stage ^ 1);
    if (more) ms_wait_copies<1>();
    else ms_wait_copies<0>();
    __syncthreads();
    ms_core_step<A_ALONG, B_ALONG>(c, shared + 2 * stage * TILE, shared + (2 * stage + 1) * TILE);
    __syncthreads();
  }
}

/* Calls f(row, column, sum) for the thread's results, which are numbered within the tile. */
template <class F> __device__ __forceinline__ void ms_core_results(const float (&c)[MS_CORE_M][MS_CORE_N][4], F &&f) {
  const int warp = static_cast<int>(threadIdx.x) / MS_WARP, row = warp / 2 * 32, column = warp % 2 * 32;
#pragma unroll
  for (int m = 0; m < MS_CORE_M; m++)
#pragma unroll
    for (int n = 0; n < MS_CORE_N; n++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        f(row + m * 16 + ms_own_row_of_tile(e / 2), column + n * 8 + ms_own_column() + e % 2, c[m][n][e]);
}

#endif
