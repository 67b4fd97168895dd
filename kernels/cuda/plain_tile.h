/* plain_tile.h - a tile of a matrix product in f32 arithmetic, without tensor cores: 64 x 64 results by 256 threads,
 * which compute 4 x 4 each from steps of 16 in shared memory. Any transpose is a pair of strides. */
#ifndef MS_KERNELS_CUDA_PLAIN_TILE_H
#define MS_KERNELS_CUDA_PLAIN_TILE_H

#include "kernels/cuda/vector.h"

constexpr int MS_PLAIN_TILE = 64, MS_PLAIN_DEPTH = 16, MS_PLAIN_SIDE = 4, MS_PLAIN_THREADS = 256;
constexpr int MS_PLAIN_ACROSS = MS_PLAIN_TILE / MS_PLAIN_SIDE;

/* Rows of op(a) [count][k], or columns of op(b) [k][count]: element (i, j) is at i stride + j k_stride. */
template <class T> struct ms_plain_operand {
  const T *x;
  int64_t count, stride, k_stride;
};

/* tile[j][i] = element (first + i, depth + j); zero outside. Adjacent threads read adjacent addresses. */
template <class T>
__device__ __forceinline__ void ms_plain_load(float (*tile)[MS_PLAIN_TILE + 1], const ms_plain_operand<T> &o,
                                              int64_t first, int64_t depth, int64_t k) {
#pragma unroll
  for (int e = threadIdx.x; e < MS_PLAIN_TILE * MS_PLAIN_DEPTH; e += MS_PLAIN_THREADS) {
    const int i = o.k_stride == 1 ? e / MS_PLAIN_DEPTH : e % MS_PLAIN_TILE;
    const int j = o.k_stride == 1 ? e % MS_PLAIN_DEPTH : e / MS_PLAIN_TILE;
    const bool inside = first + i < o.count && depth + j < k;
    tile[j][i] = inside ? ms_element_load(o.x + (first + i) * o.stride + (depth + j) * o.k_stride) : 0.0f;
  }
}

/* The row, or column, of the thread's result (r, s) within a tile. */
static __device__ __forceinline__ int ms_plain_row(int r) {
  return static_cast<int>(threadIdx.x) / MS_PLAIN_ACROSS + r * MS_PLAIN_ACROSS;
}
static __device__ __forceinline__ int ms_plain_column(int s) {
  return static_cast<int>(threadIdx.x) % MS_PLAIN_ACROSS + s * MS_PLAIN_ACROSS;
}

/* sum[r][s] += the products of row `row` + ms_plain_row(r) and column `column` + ms_plain_column(s) over k. All threads
 * of the block must call it. */
template <class T>
__device__ __forceinline__ void ms_plain_multiply(float (&sum)[MS_PLAIN_SIDE][MS_PLAIN_SIDE],
                                                  const ms_plain_operand<T> &a, int64_t row,
                                                  const ms_plain_operand<T> &b, int64_t column, int64_t k) {
  __shared__ float as[MS_PLAIN_DEPTH][MS_PLAIN_TILE + 1], bs[MS_PLAIN_DEPTH][MS_PLAIN_TILE + 1];
  for (int64_t depth = 0; depth < k; depth += MS_PLAIN_DEPTH) {
    ms_plain_load(as, a, row, depth, k);
    ms_plain_load(bs, b, column, depth, k);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < MS_PLAIN_DEPTH; j++) {
      float p[MS_PLAIN_SIDE], q[MS_PLAIN_SIDE];
#pragma unroll
      for (int i = 0; i < MS_PLAIN_SIDE; i++) p[i] = as[j][ms_plain_row(i)], q[i] = bs[j][ms_plain_column(i)];
#pragma unroll
      for (int r = 0; r < MS_PLAIN_SIDE; r++)
#pragma unroll
        for (int s = 0; s < MS_PLAIN_SIDE; s++) sum[r][s] = fmaf(p[r], q[s], sum[r][s]);
    }
    __syncthreads();
  }
}

#endif
