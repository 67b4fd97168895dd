/* rows.h - distributes rows [rows][n] over threads.
 *
 * Held rows stay in registers between passes, MS_ROW_VECTORS vectors per thread, so memory is read once. Four rows that
 * each fit one warp share a block, and their sums need no barrier; a longer row has its own block.
 *
 * Streamed rows are too long for that, or cannot be read as vectors (n is not a multiple of the vector, or a pointer is
 * not aligned): each pass reads the row again, mostly from cache. A block can also keep a row in shared memory.
 */
#ifndef MS_KERNELS_CUDA_ROWS_H
#define MS_KERNELS_CUDA_ROWS_H

#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

constexpr int MS_ROW_VECTORS = 4, MS_ROWS_OF_WARPS = 4, MS_STREAM_THREADS = 256;

struct ms_row_shape {
  int held;
  unsigned blocks;
  dim3 block; /* x: threads per row; y: rows */
};

/* For `rows` rows of n elements in vectors of `lanes`, with at most `most` threads per row that hold `vectors` vectors
 * each. */
static inline ms_row_shape ms_row_shape_of(int64_t rows, int64_t n, int aligned, int lanes, int vectors, int most) {
  ms_row_shape shape;
  const int64_t wanted = ms_cuda_ceil(ms_cuda_ceil(n, static_cast<int64_t>(lanes) * vectors), MS_WARP) * MS_WARP;
  shape.held = aligned && n % lanes == 0 && wanted <= most;
  int64_t threads = shape.held ? wanted : n < 4 * MS_STREAM_THREADS ? MS_WARP : MS_STREAM_THREADS;
  shape.block = dim3(static_cast<unsigned>(threads), threads == MS_WARP ? MS_ROWS_OF_WARPS : 1);
  shape.blocks = static_cast<unsigned>(ms_cuda_ceil(rows, shape.block.y));
  return shape;
}

/* The row of this thread; threads after the last row recompute it and store nothing. */
__device__ __forceinline__ int64_t ms_own_row() { return static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; }

/* Calls f(first, x) for the thread's elements of row [n]: x is float [V] from element `first`, V a constant. Any
 * alignment. */
template <class T, class F> __device__ __forceinline__ void ms_for_row(const T *row, int64_t n, F &&f) {
  constexpr int V = ms_lanes<T>;
  const int64_t misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  const int64_t head = min(n, static_cast<int64_t>((V - misaligned) % V)), vectors = (n - head) / V;
  for (int64_t i = threadIdx.x; i < head; i += blockDim.x) {
    float x[1] = {ms_element_load(row + i)};
    f(i, x);
  }
#pragma unroll 4
  for (int64_t v = threadIdx.x; v < vectors; v += blockDim.x) {
    float x[V];
    ms_vector_load<V>(row + head + v * V, x);
    f(head + v * V, x);
  }
  for (int64_t i = head + vectors * V + threadIdx.x; i < n; i += blockDim.x) {
    float x[1] = {ms_element_load(row + i)};
    f(i, x);
  }
}

/* The most bytes of a row in shared memory: what a block of an A100 can have, less what kernels need themselves. */
constexpr int64_t MS_KEPT_BYTES = 160 * 1024;

/* The shared memory that a row [n] of T needs. It may begin anywhere in 16 bytes. */
template <class T> constexpr int64_t ms_kept_bytes(int64_t n) {
  return n * static_cast<int64_t>(sizeof(T)) + MS_CUDA_VECTOR_BYTES;
}

/* Copies row [n] to `shared`, aligned like the row itself, so that ms_for_row gives every thread the same elements. All
 * threads of the block must call it. */
template <class T> __device__ __forceinline__ const T *ms_keep_row(const T *row, int64_t n, T *shared) {
  constexpr int V = ms_lanes<T>;
  const int64_t misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  const int64_t head = min(n, static_cast<int64_t>((V - misaligned) % V)), vectors = (n - head) / V;
  T *kept = shared + misaligned;
#pragma unroll 4
  for (int64_t v = threadIdx.x; v < vectors; v += blockDim.x)
    ms_copy_async<MS_CUDA_VECTOR_BYTES>(ms_shared_at(kept + head + v * V), row + head + v * V, true);
  ms_commit_copies();
  for (int64_t i = threadIdx.x; i < head; i += blockDim.x) kept[i] = row[i];
  for (int64_t i = head + vectors * V + threadIdx.x; i < n; i += blockDim.x) kept[i] = row[i];
  ms_wait_copies<0>();
  __syncthreads();
  return kept;
}

/* ms_for_row, which also stores x after f to `to` [n]; that can be the row itself. */
template <class T, class F> __device__ __forceinline__ void ms_map_row(const T *row, T *to, int64_t n, F &&f) {
  const bool alike = reinterpret_cast<uintptr_t>(row) % 16 == reinterpret_cast<uintptr_t>(to) % 16;
  if (alike) {
    ms_for_row(row, n, [&](int64_t first, auto &x) {
      f(first, x);
      ms_vector_store(to + first, x);
    });
    return;
  }
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    float x[1] = {ms_element_load(row + i)};
    f(i, x);
    ms_element_store(to + i, x[0]);
  }
}

#endif
