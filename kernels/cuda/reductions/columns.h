/* columns.h - sums (or maxima) down the columns of [outer][rows][columns], for sums over an axis other than the last
 * and for the gradients of bias and gain.
 *
 * A block of 32 x 8 threads covers 32 vectors of columns and a part of the rows. Each thread processes every eighth row
 * of its columns, the eight sums are combined in shared memory in order, and a second kernel combines the parts, also
 * several side by side, since one after the other is a chain of loads from memory. The sums of the parts are f32 in the
 * workspace, [sums][outer][parts][columns]: at most 1/64 of the bytes read (plan/partial_sums.c divides the rows).
 *
 * F defines what is summed:
 *
 *   static constexpr int SUMS, typename Join (ms_column_sum or a similar type)
 *   template <int V> add(outer, row, column, float (&sum)[SUMS][V])    combines the elements of V columns with sum
 */
#ifndef MS_KERNELS_CUDA_COLUMNS_H
#define MS_KERNELS_CUDA_COLUMNS_H

extern "C" {
#include "kernels/cuda/plan/partial_sums.h"
}

#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

constexpr int MS_COLUMN_ROWS = 8, MS_JOIN_ROWS = 32;

struct ms_column_sum {
  static __device__ __forceinline__ float neutral() { return 0.0f; }
  static __device__ __forceinline__ float join(float a, float b) { return a + b; }
};

template <int V, class F>
__global__ void __launch_bounds__(MS_COLUMN_LANES *MS_COLUMN_ROWS) ms_sum_columns(F f, ms_columns c, float *partial) {
  __shared__ float joined[MS_COLUMN_ROWS][MS_COLUMN_LANES * V];
  const int64_t strip = blockIdx.x % c.strips, part = blockIdx.x / c.strips % c.parts,
                o = blockIdx.x / c.strips / c.parts;
  const int64_t column = (strip * MS_COLUMN_LANES + threadIdx.x) * V;
  const int64_t begin = c.rows * part / c.parts, end = c.rows * (part + 1) / c.parts;
  float sum[F::SUMS][V];
#pragma unroll
  for (int s = 0; s < F::SUMS; s++)
#pragma unroll
    for (int l = 0; l < V; l++) sum[s][l] = F::Join::neutral();
  if (column < c.columns)
#pragma unroll 8
    for (int64_t r = begin + threadIdx.y; r < end; r += MS_COLUMN_ROWS) f.template add<V>(o, r, column, sum);
#pragma unroll
  for (int s = 0; s < F::SUMS; s++) {
#pragma unroll
    for (int l = 0; l < V; l++) joined[threadIdx.y][threadIdx.x * V + l] = sum[s][l];
    __syncthreads();
    const int thread = threadIdx.y * MS_COLUMN_LANES + threadIdx.x;
    const int64_t first = strip * MS_COLUMN_LANES * V;
    for (int i = thread; i < MS_COLUMN_LANES * V; i += MS_COLUMN_LANES * MS_COLUMN_ROWS) {
      float total = joined[0][i];
#pragma unroll
      for (int r = 1; r < MS_COLUMN_ROWS; r++) total = F::Join::join(total, joined[r][i]);
      if (first + i < c.columns) partial[((s * c.outer + o) * c.parts + part) * c.columns + first + i] = total;
    }
    __syncthreads();
  }
}

/* to[o][column] = the combined parts, divided by divisor; partial is one of the sums: [outer][parts][columns]. Row y of
 * a block combines the parts y, y + blockDim.y, ... of 32 columns; then the rows are combined in order. */
template <class Y, class Join>
__global__ void __launch_bounds__(MS_COLUMN_LANES *MS_JOIN_ROWS)
    ms_join_parts(const float *partial, Y *to, ms_columns c, float divisor) {
  __shared__ float joined[MS_JOIN_ROWS][MS_COLUMN_LANES];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * MS_COLUMN_LANES + threadIdx.x;
  const bool real = i < c.outer * c.columns;
  float total = Join::neutral();
  if (real) {
    const float *from = partial + i / c.columns * c.parts * c.columns + i % c.columns;
#pragma unroll 8
    for (int64_t p = threadIdx.y; p < c.parts; p += blockDim.y) total = Join::join(total, from[p * c.columns]);
  }
  joined[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || !real) return;
  for (unsigned r = 1; r < blockDim.y; r++) total = Join::join(total, joined[r][threadIdx.x]);
  ms_element_store(to + i, total / divisor);
}

/* A row of a block for every eight parts, so that a thread has all its loads in flight at once. */
static inline unsigned ms_join_rows(int64_t parts) {
  unsigned rows = 1;
  while (rows < MS_JOIN_ROWS && rows * 8 < parts) rows *= 2;
  return rows;
}

template <class Join>
static int ms_join_to(const ms_kernel_call *call, int output, const float *partial, const ms_columns &c,
                      float divisor) {
  const unsigned blocks = static_cast<unsigned>(ms_cuda_ceil(c.outer * c.columns, MS_COLUMN_LANES));
  const dim3 block(MS_COLUMN_LANES, ms_join_rows(c.parts));
  if (blocks == 0) return MS_OK;
  return MS_CUDA_FLOATS(call->out[output].dtype, Y,
                        MS_CUDA_LAUNCH((ms_join_parts<Y, Join>), blocks, block, 0, call->stream, partial,
                                       static_cast<Y *>(call->out_data[output]), c, divisor));
}

/* Runs f over all elements, LANES columns at a time if every pointer is aligned. partial is described above. */
template <int LANES, class F>
static int ms_run_columns(const ms_kernel_call *call, F f, ms_columns c, int aligned, float *partial) {
  const dim3 block(MS_COLUMN_LANES, MS_COLUMN_ROWS);
  const int vectors = aligned && c.columns % LANES == 0;
  c.strips = ms_cuda_ceil(c.columns, static_cast<int64_t>(vectors ? LANES : 1) * MS_COLUMN_LANES);
  const unsigned blocks = static_cast<unsigned>(c.outer * c.parts * c.strips);
  if (blocks == 0) return MS_OK;
  if (vectors) return MS_CUDA_LAUNCH((ms_sum_columns<LANES, F>), blocks, block, 0, call->stream, f, c, partial);
  return MS_CUDA_LAUNCH((ms_sum_columns<1, F>), blocks, block, 0, call->stream, f, c, partial);
}

#endif
