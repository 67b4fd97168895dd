/* embedding_backward.cu - the gradient of an embedding's table. Memory traffic: s bytes per element of dy, and twice
 * the table, which is zeroed before rows that have tokens are written. If there is another gradient of the table, rows
 * that have tokens are added to it and the others are left alone. Tokens of other parts of a divided table are sorted
 * after the last row, and no block writes them. There are no atomic additions, so the bits are the same in every run.
 *
 * Positions are sorted by token (sort.h). A block processes 32 consecutive sorted positions and a strip of columns, and
 * sums runs of equal tokens in f32, in the order of positions. A run that is complete within the block is a row of the
 * result. For other runs the block stores its part in the workspace, f32 [blocks][2][D] (the run that began before, the
 * run that continues), and the block where a run begins adds the parts in order: many blocks sum a frequent token.
 */
#include "kernels/cuda/places/sort.h"
#include "kernels/cuda/vector.h"

namespace {

constexpr int THREADS = 128, RUN = MS_EMBEDDING_RUN;

struct gradient {
  ms_sorted sorted;
  int64_t n, rows, columns;
  int adds; /* 1: add to the contents of dw */
  float *partial;
  /* Whether sorted position i and the one before it have the same token. */
  __device__ __forceinline__ bool continues(int64_t i) const {
    return i > 0 && i < n && sorted.key[i - 1] == sorted.key[i];
  }
  __device__ __forceinline__ float *part(int64_t block, int which) const {
    return partial + (block * 2 + which) * columns;
  }
};

/* Writes a row's sum to dw [rows][columns], or adds it; each thread has V of its columns. */
template <int V, class Y>
__device__ __forceinline__ void put_row(const gradient &g, Y *dw, int64_t row, int64_t column, float (&sum)[V]) {
  Y *at = dw + row * g.columns + column;
  if (g.adds) {
    float x[V];
    ms_vector_load<V>(at, x);
#pragma unroll
    for (int l = 0; l < V; l++) sum[l] = x[l] + ms_rounded<Y>(sum[l]);
  }
  ms_vector_store<V>(at, sum);
}

/* dw [rows][columns] = sums of dy [n][columns] for the runs that are complete in a block; parts of other runs. */
template <int V, class T, class Y> __global__ void __launch_bounds__(THREADS) sum_runs(gradient g, const T *dy, Y *dw) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * THREADS + threadIdx.x) * V;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * RUN, end = min(g.n, begin + RUN);
  if (column >= g.columns) return;
  float sum[V] = {};
  int64_t run = begin;
#pragma unroll 4
  for (int64_t i = begin; i < end; i++) {
    float x[V];
    ms_vector_load<V>(dy + static_cast<int64_t>(g.sorted.position[i]) * g.columns + column, x);
#pragma unroll
    for (int l = 0; l < V; l++) sum[l] += x[l];
    if (i + 1 < end && g.continues(i + 1)) continue;
    const bool before = run == begin && g.continues(begin), after = i + 1 == end && g.continues(end);
    const int64_t row = g.sorted.key[i];
    if (row < g.rows) {
      if (before || after) ms_vector_store<V>(g.part(blockIdx.x, before ? 0 : 1) + column, sum);
      else put_row<V>(g, dw, row, column, sum);
    }
#pragma unroll
    for (int l = 0; l < V; l++) sum[l] = 0.0f;
    run = i + 1;
  }
}

/* Adds up the run that begins in this block and continues in others. */
template <int V, class Y> __global__ void __launch_bounds__(THREADS) join_runs(gradient g, Y *dw) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * THREADS + threadIdx.x) * V;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * RUN, end = begin + RUN;
  if (column >= g.columns || end >= g.n || !g.continues(end)) return;
  const uint32_t row = g.sorted.key[end];
  if (row >= g.rows || (g.sorted.key[begin] == row && g.continues(begin))) return;
  float sum[V];
  ms_vector_load<V>(g.part(blockIdx.x, 1) + column, sum);
  for (int64_t block = blockIdx.x + 1; block * RUN < g.n && g.sorted.key[block * RUN] == row; block++) {
    float x[V];
    ms_vector_load<V>(g.part(block, 0) + column, x);
#pragma unroll
    for (int l = 0; l < V; l++) sum[l] += x[l];
  }
  put_row<V>(g, dw, row, column, sum);
}

template <int V, class T, class Y> int sum_vectors(const ms_kernel_call *call, const gradient &g) {
  const dim3 grid(static_cast<unsigned>(ms_embedding_blocks(g.n)),
                  static_cast<unsigned>(ms_cuda_ceil(g.columns, THREADS * V)));
  Y *dw = static_cast<Y *>(call->out_data[0]);
  MS_TRY(MS_CUDA_LAUNCH((sum_runs<V, T, Y>), grid, THREADS, 0, call->stream, g,
                        static_cast<const T *>(call->in_data[1]), dw));
  return MS_CUDA_LAUNCH((join_runs<V, Y>), grid, THREADS, 0, call->stream, g, dw);
}

template <class T, class Y> int sum_typed(const ms_kernel_call *call, const gradient &g) {
  constexpr int V = ms_lanes<T, Y>;
  const int vectors = g.columns % V == 0 && ms_cuda_aligned(call->in_data[1]) && ms_cuda_aligned(call->out_data[0]);
  return vectors ? sum_vectors<V, T, Y>(call, g) : sum_vectors<1, T, Y>(call, g);
}

int run(const ms_kernel_call *call) {
  gradient g = {{nullptr, nullptr},   ms_numel(&call->in[0]), call->out[0].dims[0],
                call->out[0].dims[1], call->inputs == 3,      nullptr};
  const auto stream = static_cast<cudaStream_t>(call->stream);
  const size_t bytes = static_cast<size_t>(ms_numel(&call->out[0]) * ms_dtype_size(call->out[0].dtype));
  if (bytes == 0) return MS_OK;
  if (!g.adds) MS_TRY(ms_cuda_status(cudaMemsetAsync(call->out_data[0], 0, bytes, stream), "cudaMemsetAsync"));
  else if (call->in_data[2] != call->out_data[0])
    MS_TRY(ms_cuda_status(cudaMemcpyAsync(call->out_data[0], call->in_data[2], bytes, cudaMemcpyDeviceToDevice, stream),
                          "cudaMemcpyAsync"));
  if (g.n == 0) return MS_OK;
  const ms_sorted_rows rows = {call->attrs.table.first, g.rows, g.rows * ms_table_parts(&call->attrs)};
  MS_TRY(ms_sort_positions(static_cast<const int32_t *>(call->in_data[0]), g.n, rows, call->workspace, call->op,
                           call->fault, call->stream, &g.sorted));
  g.partial = reinterpret_cast<float *>(static_cast<char *>(call->workspace) + ms_sort_bytes(g.n));
  return MS_CUDA_FLOATS(call->in[1].dtype, T, MS_CUDA_FLOATS(call->out[0].dtype, Y, sum_typed<T, Y>(call, g)));
}

} // namespace

extern const ms_kernel ms_cuda_embedding_backward = {ms_cuda_prepare_embedding_backward, run, nullptr,
                                                     MS_CUDA_OVER_embedding_backward};
