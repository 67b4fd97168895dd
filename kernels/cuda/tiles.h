/* tiles.h - tiles in shared memory, and their products by one warp with f32 sums: bf16 on tensor cores, f32 on tensor
 * cores that round operands to TF32, or f32 arithmetic.
 *
 * A tile has rows of DIM elements in units of 16 bytes. Unit u of row r is stored at position u xor (r mod 8), so that
 * the same unit of eight rows, which ldmatrix reads at once, is in different banks. Results stay in registers in mma's
 * layout: of c[m][n], lane l holds rows 16 m + l / 4 (elements 0, 1) and 8 below (2, 3), columns 8 n + 2 (l mod 4) and
 * the next. The next product uses them in this layout, so no result passes through memory. Two adjacent n, rounded to
 * bf16, form a left operand. One n, rounded to TF32, forms one with columns in the order 0 2 4 6 1 3 5 7, and the rows
 * of the right operand are read in that order; f32 arithmetic fetches elements from the lanes that hold them.
 */
#ifndef MS_KERNELS_CUDA_TILES_H
#define MS_KERNELS_CUDA_TILES_H

#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

/* The arithmetic of a product, and the element type of its tiles. */
struct ms_bf16_cores {
  using T = ms_b16;
};
struct ms_tf32_cores {
  using T = float;
};
struct ms_f32_arithmetic {
  using T = float;
};

/* Elements per 16 bytes. */
template <class T> constexpr int ms_unit = 16 / static_cast<int>(sizeof(T));

static __device__ __forceinline__ int ms_lane() { return static_cast<int>(threadIdx.x) % MS_WARP; }

/* The row of element pair `half` (0 or 1), and the column of the first pair, within c[0][0]. */
static __device__ __forceinline__ int ms_own_row_of_tile(int half) { return ms_lane() / 4 + half * 8; }
static __device__ __forceinline__ int ms_own_column() { return ms_lane() % 4 * 2; }

template <int DIM, class T> __device__ __forceinline__ T *ms_tile_at(T *tile, int row, int unit) {
  return tile + row * DIM + (unit ^ row % 8) * ms_unit<T>;
}

/* Starts copying rows [first, first + ROWS) of x to a tile, with THREADS threads. Rows of x are `stride` elements apart
 * and d long; the tile is zero from row `count` and from column d on. whole: rows are 16-byte aligned and consist of
 * whole units; otherwise elements are copied one by one. */
template <int DIM, int ROWS, int THREADS, class T>
__device__ __forceinline__ void ms_load_tile(T *tile, const T *x, int first, int count, int64_t stride, int d,
                                             bool whole) {
  constexpr int UNIT = ms_unit<T>, UNITS = DIM / UNIT, STEP = THREADS / UNITS; /* rows copied at a time */
  static_assert(THREADS % UNITS == 0 && ROWS % STEP == 0, "a thread copies one unit of some rows");
  const int row = static_cast<int>(threadIdx.x) / UNITS, unit = static_cast<int>(threadIdx.x) % UNITS;
  const int rows = unit * UNIT < d ? count - first - row : 0;
  const T *from = x + (first + row) * stride + unit * UNIT;
  if (whole) {
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP, from += STEP * stride)
      ms_copy_async<16>(ms_shared_at(ms_tile_at<DIM>(tile, row + i, unit)), i < rows ? from : x, i < rows);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < ROWS; i += STEP, from += STEP * stride)
#pragma unroll
    for (int e = 0; e < UNIT; e++) {
      const bool there = i < rows && unit * UNIT + e < d;
      ms_tile_at<DIM>(tile, row + i, unit)[e] = there ? from[e] : T{};
    }
}

/* The shared address from which the calling lane reads unit `unit` of its row of a tile with DIM elements per row.
 * ms_other_unit gives that of unit ^ other (other even); the address 8 n rows below is 8 n rows' bytes further. */
template <int DIM, class T> __device__ __forceinline__ ms_shared ms_lane_at(T *tile, int row, int unit) {
  return ms_shared_at(ms_tile_at<DIM>(tile, row, unit));
}
static __device__ __forceinline__ ms_shared ms_other_unit(ms_shared at, unsigned other) {
  return (at ^ other % 8 * 16) + other / 8 * 128;
}

/* ---- on tensor cores --------------------------------------------------------------------------------------------- */

/* Multiplies 16 rows by 8 rows of 32 bytes: the operands of one instruction. */
static __device__ __forceinline__ void ms_multiply_part(ms_bf16_cores, float (&c)[4], const unsigned (&a)[4],
                                                        unsigned b_low, unsigned b_high) {
  ms_multiply_tiles(c, a, b_low, b_high);
}
static __device__ __forceinline__ void ms_multiply_part(ms_tf32_cores, float (&c)[4], const unsigned (&a)[4],
                                                        unsigned b_low, unsigned b_high) {
  ms_multiply_tf32(c, a, b_low, b_high);
}

static __device__ __forceinline__ void ms_round_operand(ms_bf16_cores, unsigned (&)[4]) {}
static __device__ __forceinline__ void ms_round_operand(ms_tf32_cores, unsigned (&operand)[4]) {
#pragma unroll
  for (unsigned &element : operand) element = ms_round_tf32(__uint_as_float(element));
}

/* c += a b': a is the 16 M rows of one tile from `row` on, b the 8 N rows of another tile from `other` on. */
template <int DIM, class Cores, int M, int N>
__device__ __forceinline__ void ms_multiply_rows(Cores cores, float (&c)[M][N][4], typename Cores::T *a, int row,
                                                 typename Cores::T *b, int other) {
  static_assert(N % 2 == 0, "two columns of tiles at a time");
  constexpr unsigned ROW = DIM * sizeof(typename Cores::T);
  const int lane = ms_lane();
  const ms_shared own = ms_lane_at<DIM>(a, row + lane % 16, lane / 16);
  const ms_shared others = ms_lane_at<DIM>(b, other + lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (unsigned k = 0; k < ROW / 32; k++) {
    unsigned left[M][4];
#pragma unroll
    for (unsigned m = 0; m < M; m++) {
      ms_load_matrices(left[m], ms_other_unit(own, 2 * k) + m * 16 * ROW);
      ms_round_operand(cores, left[m]);
    }
#pragma unroll
    for (unsigned n = 0; n < N; n += 2) {
      unsigned right[4];
      ms_load_matrices(right, ms_other_unit(others, 2 * k) + n * 8 * ROW);
      ms_round_operand(cores, right);
#pragma unroll
      for (unsigned m = 0; m < M; m++) {
        ms_multiply_part(cores, c[m][n], left[m], right[0], right[1]);
        ms_multiply_part(cores, c[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

/* c += a b: a [16 M][8 N] in the layout of a product's result, b the 8 N rows of a tile from `row` on, a multiple of 8.
 * Parts of 16 rows (f32: 8) outside [begin, end) are skipped: a is zero there, and the rows of b can contain anything,
 * even NaN. */
template <int DIM, int M, int N>
__device__ __forceinline__ void ms_multiply_columns(ms_bf16_cores, float (&c)[M][DIM / 8][4], const float (&a)[M][N][4],
                                                    ms_b16 *b, int row, int begin, int end) {
  constexpr unsigned ROW = DIM * sizeof(ms_b16);
  constexpr int K = N / 2;
  const int lane = ms_lane();
  const ms_shared others = ms_lane_at<DIM>(b, row + lane % 16, lane / 16);
  unsigned left[M][K][4];
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        left[m][k][i] = ms_pack_bf16(a[m][2 * k + i / 2][i % 2 * 2], a[m][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
  for (int k = 0; k < K; k++) {
    if (k * 16 >= end || k * 16 + 16 <= begin) continue;
#pragma unroll
    for (unsigned n = 0; n < DIM / 8; n += 2) {
      unsigned right[4];
      ms_load_transposed(right, ms_other_unit(others, n) + static_cast<unsigned>(k) * 16 * ROW);
#pragma unroll
      for (int m = 0; m < M; m++) {
        ms_multiply_tiles(c[m][n], left[m][k], right[0], right[1]);
        ms_multiply_tiles(c[m][n + 1], left[m][k], right[2], right[3]);
      }
    }
  }
}

/* The position of an f32 element in column 8 n + `column` of a tile row; `at` is its position for n = 0. */
static __device__ __forceinline__ int ms_other_column(int at, int n) { return (at ^ n % 4 * 8) + n / 4 * 32; }

template <int DIM, int M, int N>
__device__ __forceinline__ void ms_multiply_columns(ms_tf32_cores, float (&c)[M][DIM / 8][4], const float (&a)[M][N][4],
                                                    float *b, int row, int begin, int end) {
  const int own = ms_lane() % 4 * 2, column = ms_lane() / 4;
  const int low = row * DIM + static_cast<int>(ms_tile_at<DIM>(b, own, column / 4) - b) + column % 4;
  const int high = row * DIM + static_cast<int>(ms_tile_at<DIM>(b, own + 1, column / 4) - b) + column % 4;
#pragma unroll
  for (int k = 0; k < N; k++) {
    if (k * 8 >= end || k * 8 + 8 <= begin) continue;
    unsigned left[M][4];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) left[m][i] = ms_round_tf32(a[m][k][i % 2 * 2 + i / 2]);
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
      const unsigned above = ms_round_tf32(b[ms_other_column(low, n) + k * 8 * DIM]);
      const unsigned below = ms_round_tf32(b[ms_other_column(high, n) + k * 8 * DIM]);
#pragma unroll
      for (int m = 0; m < M; m++) ms_multiply_tf32(c[m][n], left[m], above, below);
    }
  }
}

/* ---- in f32 arithmetic ------------------------------------------------------------------------------------------- */

template <int DIM> __device__ __forceinline__ float4 ms_four_at(float *tile, int row, int unit) {
  return *reinterpret_cast<const float4 *>(ms_tile_at<DIM>(tile, row, unit));
}

template <int DIM, int M, int N>
__device__ __forceinline__ void ms_multiply_rows(ms_f32_arithmetic, float (&c)[M][N][4], float *a, int row, float *b,
                                                 int other) {
#pragma unroll 1
  for (int unit = 0; unit < DIM / 4; unit++) {
    float4 left[M][2];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        left[m][half] = ms_four_at<DIM>(a, row + m * 16 + ms_own_row_of_tile(half), unit);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float4 right = ms_four_at<DIM>(b, other + n * 8 + ms_own_column() + e, unit);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const float4 x = left[m][half];
            float &sum = c[m][n][half * 2 + e];
            sum = fmaf(x.x, right.x, sum), sum = fmaf(x.y, right.y, sum);
            sum = fmaf(x.z, right.z, sum), sum = fmaf(x.w, right.w, sum);
          }
      }
  }
}

template <int DIM, int M, int N>
__device__ __forceinline__ void ms_multiply_columns(ms_f32_arithmetic, float (&c)[M][DIM / 8][4],
                                                    const float (&a)[M][N][4], float *b, int row, int begin, int end) {
  const int quad = ms_lane() & ~3, own = ms_own_column();
#pragma unroll
  for (int k = 0; k < N; k++) {
    if (k * 8 >= end || k * 8 + 8 <= begin) continue;
#pragma unroll 1
    for (int other = 0; other < 4; other++) /* the lane, of four, that holds the factors of two rows of b */
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float left[M][2];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
          for (int half = 0; half < 2; half++)
            left[m][half] = __shfl_sync(0xffffffffu, a[m][k][half * 2 + i], quad + other);
        const float *from = b + (row + k * 8) * DIM;
        const int at = static_cast<int>(ms_tile_at<DIM>(b, other * 2 + i, own / 4) - b) + own % 4;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
          const float2 right = *reinterpret_cast<const float2 *>(from + ms_other_column(at, n));
#pragma unroll
          for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
              c[m][n][half * 2] = fmaf(left[m][half], right.x, c[m][n][half * 2]);
              c[m][n][half * 2 + 1] = fmaf(left[m][half], right.y, c[m][n][half * 2 + 1]);
            }
        }
      }
  }
}

/* ---- stores ------------------------------------------------------------------------------------------------------ */

static __device__ __forceinline__ void ms_store_pair(ms_b16 *at, float first, float second) {
  *reinterpret_cast<unsigned *>(at) = ms_pack_bf16(first, second);
}
static __device__ __forceinline__ void ms_store_pair(float *at, float first, float second) {
  *reinterpret_cast<float2 *>(at) = make_float2(first, second);
}

/* Writes the warp's 16 M rows of c, times factor[m][half], to rows [first, first + 16 M) of x, up to row `count`. The
 * rows pass through as many rows of a tile from `row` on, which no other warp may use. */
template <int DIM, int M, class T>
__device__ __forceinline__ void ms_store_rows(T *x, int first, int count, int64_t stride, int d, bool whole, T *tile,
                                              int row, const float (&c)[M][DIM / 8][4], const float (&factor)[M][2]) {
  constexpr int UNIT = ms_unit<T>, UNITS = DIM / UNIT;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int n = 0; n < DIM / 8; n++) {
        const int column = n * 8 + ms_own_column();
        ms_store_pair(ms_tile_at<DIM>(tile, row + m * 16 + ms_own_row_of_tile(half), column / UNIT) + column % UNIT,
                      c[m][n][half * 2] * factor[m][half], c[m][n][half * 2 + 1] * factor[m][half]);
      }
  __syncwarp();
  for (int e = ms_lane(); e < M * 16 * UNITS; e += MS_WARP) {
    const int at = e / UNITS, column = e % UNITS * UNIT;
    if (first + at >= count || column >= d) continue;
    const T *from = ms_tile_at<DIM>(tile, row + at, e % UNITS);
    T *to = x + (first + at) * stride + column;
    if (whole) *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
    else
      for (int i = 0; i < min(UNIT, d - column); i++) to[i] = from[i];
  }
}

#endif
