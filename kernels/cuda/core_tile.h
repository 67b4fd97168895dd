/* core_tile.h - a tile of a matrix product on tensor cores, of bf16 operands with f32 sums. Each warp has a part of it,
 * in registers; steps of 64 along k pass through a ring of stages in shared memory (tiles.h). While one is multiplied,
 * the others are on their way, and fragments are loaded one instruction's depth ahead of the products that need them.
 * An operand is read as it is stored: along k, or across it, in which case its fragments are transposed as they are
 * loaded. Every shape adds the products of a result in the same order. */
#ifndef MS_KERNELS_CUDA_CORE_TILE_H
#define MS_KERNELS_CUDA_CORE_TILE_H

#include "kernels/cuda/tiles.h"

constexpr int MS_CORE_DEPTH = 64;

/* A warp has 16 M rows and 8 N columns; a block has DOWN x ACROSS warps. */
template <int M_, int N_, int DOWN_, int ACROSS_, int STAGES_> struct ms_core_shape {
  static constexpr int M = M_, N = N_, DOWN = DOWN_, ACROSS = ACROSS_, STAGES = STAGES_;
  static constexpr int ROWS = 16 * M * DOWN, COLUMNS = 8 * N * ACROSS, THREADS = MS_WARP * DOWN * ACROSS;
  static constexpr int STAGE = (ROWS + COLUMNS) * MS_CORE_DEPTH; /* elements */
  static constexpr int BYTES = STAGES * STAGE * static_cast<int>(sizeof(ms_b16));
  static_assert(THREADS * 16 * M * 8 * N / MS_WARP * 4 <= BYTES, "results of f32 pass through the stages' memory");

  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / MS_WARP; }
  static __device__ __forceinline__ int row() { return warp() / ACROSS * 16 * M; } /* the warp's first */
  static __device__ __forceinline__ int column() { return warp() % ACROSS * 8 * N; }
};

template <class S> using ms_core_sums = float[S::M][S::N][4];

/* Rows of op(a), or columns of op(b), below `count`. ALONG: x [count][stride], k of each; otherwise x [k][stride].
 * whole: rows in memory are whole units of 16 bytes, to which they are aligned. */
struct ms_core_operand {
  const ms_b16 *x;
  int count;
  int64_t stride;
  bool whole;
};

/* Starts copying LENGTH rows, or columns, of an operand from `first` on, of the step that begins at `depth`. */
template <class S, bool ALONG, int LENGTH>
__device__ __forceinline__ void ms_core_load(ms_b16 *tile, const ms_core_operand &o, int first, int depth, int k) {
  constexpr int DEPTH = MS_CORE_DEPTH;
  if constexpr (ALONG)
    ms_load_tile<DEPTH, LENGTH, S::THREADS>(tile, o.x + depth, first, o.count, o.stride, k - depth, o.whole);
  else ms_load_tile<LENGTH, DEPTH, S::THREADS>(tile, o.x + first, depth, k, o.stride, o.count - first, o.whole);
}

/* What a warp multiplies at once: 16 of k. */
template <class S> struct ms_core_fragments { unsigned left[S::M][4], right[S::N / 2][4]; };

template <class S, bool A_ALONG, bool B_ALONG>
__device__ __forceinline__ void ms_core_fetch(ms_core_fragments<S> &f, ms_b16 *stage, unsigned k) {
  constexpr int LEFT_DIM = A_ALONG ? MS_CORE_DEPTH : S::ROWS, RIGHT_DIM = B_ALONG ? MS_CORE_DEPTH : S::COLUMNS;
  constexpr unsigned SIZE = sizeof(ms_b16);
  ms_b16 *a = stage, *b = stage + S::ROWS * MS_CORE_DEPTH;
  const int lane = ms_lane(), row = S::row(), column = S::column();
  const ms_shared left_at = A_ALONG ? ms_lane_at<LEFT_DIM>(a, row + lane % 16, lane / 16)
                                    : ms_lane_at<LEFT_DIM>(a, lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const ms_shared right_at = B_ALONG ? ms_lane_at<RIGHT_DIM>(b, column + lane / 16 * 8 + lane % 8, lane / 8 % 2)
                                     : ms_lane_at<RIGHT_DIM>(b, lane % 16, lane / 16);
#pragma unroll
  for (unsigned m = 0; m < S::M; m++) {
    if constexpr (A_ALONG) ms_load_matrices(f.left[m], ms_other_unit(left_at, 2 * k) + m * 16 * LEFT_DIM * SIZE);
    else
      ms_load_transposed(f.left[m],
                         ms_other_unit(left_at, static_cast<unsigned>(row) / 8 + 2 * m) + k * 16 * LEFT_DIM * SIZE);
  }
#pragma unroll
  for (unsigned n = 0; n < S::N / 2; n++) {
    if constexpr (B_ALONG) ms_load_matrices(f.right[n], ms_other_unit(right_at, 2 * k) + n * 16 * RIGHT_DIM * SIZE);
    else
      ms_load_transposed(f.right[n], ms_other_unit(right_at, static_cast<unsigned>(column) / 8 + 2 * n) +
                                         k * 16 * RIGHT_DIM * SIZE);
  }
}

template <class S> __device__ __forceinline__ void ms_core_add(ms_core_sums<S> &c, const ms_core_fragments<S> &f) {
#pragma unroll
  for (int n = 0; n < S::N; n++)
#pragma unroll
    for (int m = 0; m < S::M; m++)
      ms_multiply_tiles(c[m][n], f.left[m], f.right[n / 2][n % 2 * 2], f.right[n / 2][n % 2 * 2 + 1]);
}

/* c += the product of rows of op(a) from `row` on and columns of op(b) from `column` on, over k. shared: S::BYTES,
 * aligned to 128 bytes; afterwards its contents are no longer needed. All threads of the block must call it. */
template <class S, bool A_ALONG, bool B_ALONG>
__device__ __forceinline__ void ms_core_multiply(ms_core_sums<S> &c, const ms_core_operand &a, int row,
                                                 const ms_core_operand &b, int column, int k, ms_b16 *shared) {
  constexpr int FETCHES = MS_CORE_DEPTH / 16;
  const int steps = (k + MS_CORE_DEPTH - 1) / MS_CORE_DEPTH;
  const auto load = [&](int step) {
    ms_b16 *stage = shared + step % S::STAGES * S::STAGE;
    if (step < steps) {
      ms_core_load<S, A_ALONG, S::ROWS>(stage, a, row, step * MS_CORE_DEPTH, k);
      ms_core_load<S, B_ALONG, S::COLUMNS>(stage + S::ROWS * MS_CORE_DEPTH, b, column, step * MS_CORE_DEPTH, k);
    }
    ms_commit_copies(); /* also of nothing, so that the number of groups tells which step has arrived */
  };
  const auto wait = [] {
    ms_wait_copies<S::STAGES - 2>();
    __syncthreads();
  };
  if (k <= 0) return;
#pragma unroll
  for (int step = 0; step < S::STAGES - 1; step++) load(step);
  wait();
  ms_core_fragments<S> f[2];
  ms_core_fetch<S, A_ALONG, B_ALONG>(f[0], shared, 0);
  for (int step = 0; step < steps; step++) {
    ms_b16 *stage = shared + step % S::STAGES * S::STAGE;
#pragma unroll
    for (int i = 0; i < FETCHES; i++) {
      if (i + 1 < FETCHES) ms_core_fetch<S, A_ALONG, B_ALONG>(f[(i + 1) % 2], stage, static_cast<unsigned>(i) + 1);
      else {
        wait();
        if (step + 1 < steps) ms_core_fetch<S, A_ALONG, B_ALONG>(f[0], shared + (step + 1) % S::STAGES * S::STAGE, 0);
      }
      if (i == 0) load(step + S::STAGES - 1); /* to the stage that all warps have read */
      ms_core_add<S>(c, f[i % 2]);
    }
  }
}

/* Writes the warp's results to y [count][stride], where they are rows from `row` on and columns from `column` on, up to
 * row `count` and column `columns`. They pass through the shared memory of ms_core_multiply. */
template <class S, class Y>
__device__ __forceinline__ void ms_core_store(Y *y, const ms_core_sums<S> &c, int row, int count, int column,
                                              int64_t columns, bool whole, ms_b16 *shared) {
  constexpr int OWN = 16 * S::M * 8 * S::N;
  float ones[S::M][2];
#pragma unroll
  for (auto &pair : ones) pair[0] = pair[1] = 1.0f;
  const int first = column + S::column();
  ms_store_rows<8 * S::N, S::M>(y + first, row + S::row(), count, columns, static_cast<int>(columns) - first, whole,
                                reinterpret_cast<Y *>(shared) + S::warp() * OWN, 0, c, ones);
}

#endif
