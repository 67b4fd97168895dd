/* tiles.h - tiles of bf16 in shared memory, and products of them on tensor cores by one warp, accumulated in f32.
**
** A tile has rows of DIM elements in units of 16 bytes; unit u of row r lies at place u xor (r mod 8), so that eight rows of
** one unit, which is what ldmatrix reads at once, fall into different banks. Results stay in registers as mma leaves them:
** in c[m][n] lane l holds rows 16 m + l / 4 (elements 0, 1) and 8 below (2, 3), columns 8 n + 2 (l mod 4) and the next. Two
** neighbouring n are, rounded to bf16, a left operand: no product goes through memory on its way to the next.
*/
#ifndef MS_KERNELS_CUDA_TILES_H
#define MS_KERNELS_CUDA_TILES_H

#include "kernels/cuda/reduce.h"

/* Elements of 16 bytes. */
constexpr int MS_UNIT = 8;

static __device__ __forceinline__ int ms_lane() { return static_cast<int>(threadIdx.x) % MS_WARP; }

/* Row of element `half` (0 or 1: of the pairs) and column of the first pair within c[0][0]. */
static __device__ __forceinline__ int ms_own_row_of_tile(int half) { return ms_lane() / 4 + half * 8; }
static __device__ __forceinline__ int ms_own_column() { return ms_lane() % 4 * 2; }

template <int DIM> __device__ __forceinline__ ms_b16 *ms_tile_at(ms_b16 *tile, int row, int unit) {
  return tile + row * DIM + (unit ^ row % MS_UNIT) * MS_UNIT;
}

/* Begins to copy rows [first, first + ROWS) of x, `stride` elements apart and d long, by THREADS threads; zeros beyond row
** `count` and column d. */
template <int DIM, int ROWS, int THREADS>
__device__ __forceinline__ void ms_load_tile(ms_b16 *tile, const ms_b16 *x, int first, int count, int64_t stride,
                                             int d) {
  constexpr int UNITS = DIM / MS_UNIT, STEP = THREADS / UNITS; /* rows at a time */
  static_assert(THREADS % UNITS == 0 && STEP % MS_UNIT == 0 && ROWS % STEP == 0,
                "a thread copies one unit of some rows");
  const int row = static_cast<int>(threadIdx.x) / UNITS, unit = static_cast<int>(threadIdx.x) % UNITS;
  const int rows = unit * MS_UNIT < d ? count - first - row : 0;
  const ms_shared to = ms_shared_at(ms_tile_at<DIM>(tile, row, unit));
  const ms_b16 *from = x + (first + row) * stride + unit * MS_UNIT;
#pragma unroll
  for (int i = 0; i < ROWS; i += STEP, from += STEP * stride)
    ms_copy_async<16>(to + static_cast<unsigned>(i * DIM) * sizeof(ms_b16), i < rows ? from : x, i < rows);
}

/* Where the calling lane reads unit `unit` of its row of a tile of DIM elements a row. The same of unit ^ u, u even, is at
** that address ^ 16 u, and of 8 n rows below n 16 DIM bytes on. */
template <int DIM> __device__ __forceinline__ ms_shared ms_lane_at(ms_b16 *tile, int row, int unit) {
  return ms_shared_at(ms_tile_at<DIM>(tile, row, unit));
}

/* c += a b': a the 16 M rows of one tile from `row` on, b the 8 N rows of another from `other` on. */
template <int DIM, int M, int N>
__device__ __forceinline__ void ms_multiply_rows(float (&c)[M][N][4], ms_b16 *a, int row, ms_b16 *b, int other) {
  static_assert(N % 2 == 0, "two columns of tiles at a time");
  constexpr unsigned ROW = DIM * sizeof(ms_b16);
  const int lane = ms_lane();
  const ms_shared own = ms_lane_at<DIM>(a, row + lane % 16, lane / 16);
  const ms_shared others = ms_lane_at<DIM>(b, other + lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (unsigned k = 0; k < DIM / 16; k++) {
    unsigned left[M][4];
#pragma unroll
    for (unsigned m = 0; m < M; m++) ms_load_matrices(left[m], (own ^ k * 32) + m * 16 * ROW);
#pragma unroll
    for (unsigned n = 0; n < N; n += 2) {
      unsigned right[4];
      ms_load_matrices(right, (others ^ k * 32) + n * 8 * ROW);
#pragma unroll
      for (unsigned m = 0; m < M; m++) {
        ms_multiply_tiles(c[m][n], left[m], right[0], right[1]);
        ms_multiply_tiles(c[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

/* c += a b: a the left operand made of [16 M, 16 K] numbers, b the 16 K rows of a tile from `row` on. Parts of 16 rows
** outside of [begin, end) are passed over: a has zeros there, and what meets them need not be a number. */
template <int DIM, int M, int K>
__device__ __forceinline__ void ms_multiply_columns(float (&c)[M][DIM / 8][4], const unsigned (&a)[M][K][4], ms_b16 *b,
                                                    int row, int begin, int end) {
  constexpr unsigned ROW = DIM * sizeof(ms_b16);
  const int lane = ms_lane();
  const ms_shared others = ms_lane_at<DIM>(b, row + lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < K; k++) {
    if (k * 16 >= end || k * 16 + 16 <= begin) continue;
#pragma unroll
    for (unsigned n = 0; n < DIM / 8; n += 2) {
      unsigned right[4];
      ms_load_transposed(right, (others ^ n * 16) + static_cast<unsigned>(k) * 16 * ROW);
#pragma unroll
      for (int m = 0; m < M; m++) {
        ms_multiply_tiles(c[m][n], a[m][k], right[0], right[1]);
        ms_multiply_tiles(c[m][n + 1], a[m][k], right[2], right[3]);
      }
    }
  }
}

/* Results rounded to bf16 as a left operand. */
template <int M, int K>
__device__ __forceinline__ void ms_as_operand(unsigned (&a)[M][K][4], const float (&c)[M][2 * K][4]) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        a[m][k][i] = ms_pack_bf16(c[m][2 * k + i / 2][i % 2 * 2], c[m][2 * k + i / 2][i % 2 * 2 + 1]);
}

/* Writes the warp's 16 M rows of c factor[m][half] to rows [first, first + 16 M) of x, as far as there are `count`, through
** as many rows of a tile from `row` on, which nobody else may use. */
template <int DIM, int M>
__device__ __forceinline__ void ms_store_rows(ms_b16 *x, int first, int count, int64_t stride, int d, ms_b16 *tile,
                                              int row, const float (&c)[M][DIM / 8][4], const float (&factor)[M][2]) {
  constexpr int UNITS = DIM / MS_UNIT;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int n = 0; n < UNITS; n++)
        *reinterpret_cast<unsigned *>(ms_tile_at<DIM>(tile, row + m * 16 + ms_own_row_of_tile(half), n) +
                                      ms_own_column()) =
            ms_pack_bf16(c[m][n][half * 2] * factor[m][half], c[m][n][half * 2 + 1] * factor[m][half]);
  __syncwarp();
  for (int e = ms_lane(); e < M * 16 * UNITS; e += MS_WARP) {
    const int at = e / UNITS, unit = e % UNITS;
    if (first + at < count && unit * MS_UNIT < d)
      *reinterpret_cast<uint4 *>(x + (first + at) * stride + unit * MS_UNIT) =
          *reinterpret_cast<const uint4 *>(ms_tile_at<DIM>(tile, row + at, unit));
  }
}

#endif
