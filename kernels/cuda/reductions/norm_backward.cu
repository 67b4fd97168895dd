/* norm_backward.cu - the gradients of layer_norm and rms_norm in one pass over x and dy. Memory traffic: 3 s bytes per
 * element of s bytes, s more with a gradient to add, s more if the norm's result is recomputed.
 *
 * With h = (x - mean) rstd (mean is 0 for rms_norm) and g = dy gain:
 *   dx = rstd (g - average g - h average(g h))     rms_norm: without average g;  plus the optional last input
 *   dgain = sum over rows of dy h,  dbias = sum over rows of dy
 *
 * Held (rows.h): two blocks for each of 132 SMs stride over the rows, some side by side in a block. While a row is
 * computed, the next one is copied to shared memory, where registers would not suffice: each thread copies what it will
 * read itself, so no barrier is needed. x, dy and the sums of their columns are in registers. At the end a block
 * combines its sums in shared memory and writes them to the workspace, f32 [2][blocks][n], and columns.h combines the
 * blocks' sums in order. Streamed: one pass for the sums and one for dx. Outputs can overwrite all inputs of their
 * size.
 */
#include "kernels/cuda/reductions/columns.h"
#include "kernels/cuda/reductions/norm.h"
#include "kernels/cuda/reductions/rows.h"

namespace {

enum { X, GAIN, STATS, DY, LATER }; /* then the bias (recompute of layer_norm only), then the gradient to add to dx */
constexpr int THREADS = 512, VECTORS = 2, ROW_THREADS = 256;
constexpr int STAGES = 2; /* a row in use, and the next one */

/* x, dy, more, dx, y [rows][n]; gain, bias [n]; stats f32 [rows][2] = mean, rstd, or [rows] = rstd for rms_norm. */
template <class T, class G> struct arguments {
  const T *x, *dy, *more; /* more: gradient to add to dx, or NULL */
  const G *gain, *bias;   /* bias NULL: not needed for y */
  const float *stats;
  T *dx, *y; /* y: the norm's result; NULL: not wanted */
  int64_t rows, n;
  int centred; /* 1: layer_norm */
  __device__ __forceinline__ float mean(int64_t row) const { return centred ? stats[2 * row] : 0.0f; }
  __device__ __forceinline__ float rstd(int64_t row) const { return stats[centred ? 2 * row + 1 : row]; }
};

/* A thread's vectors of rows in shared memory: [STAGES][2 or 3 tensors][VECTORS][threads of the block]. */
template <class T, class G> struct staged_rows {
  static constexpr int V = ms_lanes<T>;
  const arguments<T, G> &a;
  T *data;
  __device__ __forceinline__ T *at(int stage, int tensor, int k) const {
    const int threads = blockDim.x * blockDim.y, tensors = a.more ? 3 : 2;
    const int slot = (stage * tensors + tensor) * VECTORS + k, thread = threadIdx.y * blockDim.x + threadIdx.x;
    return data + (slot * threads + thread) * V;
  }
  /* Starts copying a row, if there is one. */
  __device__ __forceinline__ void fetch(int64_t row, int stage) const {
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
      const int64_t column = static_cast<int64_t>(k * blockDim.x + threadIdx.x) * V, from = row * a.n + column;
      if (row >= a.rows || column >= a.n) continue;
      ms_copy_async<MS_CUDA_VECTOR_BYTES>(ms_shared_at(at(stage, 0, k)), a.x + from, true);
      ms_copy_async<MS_CUDA_VECTOR_BYTES>(ms_shared_at(at(stage, 1, k)), a.dy + from, true);
      if (a.more) ms_copy_async<MS_CUDA_VECTOR_BYTES>(ms_shared_at(at(stage, 2, k)), a.more + from, true);
    }
    ms_commit_copies();
  }
};

/* partial f32 [2][parts][n]: each block's sums of dgain and dbias. One block per part. */
template <class T, class G>
__global__ void __launch_bounds__(THREADS) held(arguments<T, G> a, float *partial, int64_t parts) {
  constexpr int V = ms_lanes<T>;
  MS_CUDA_DYNAMIC_SHARED(float, joined); /* [blockDim.y][n], after the last row */
  const staged_rows<T, G> staged = {a, reinterpret_cast<T *>(joined)};
  float gain[VECTORS][V], dgain[VECTORS][V], dbias[VECTORS][V];
#pragma unroll
  for (int k = 0; k < VECTORS; k++) {
    const int64_t at = static_cast<int64_t>(k * blockDim.x + threadIdx.x) * V;
    if (at < a.n) ms_vector_load<V>(a.gain + at, gain[k]);
#pragma unroll
    for (int l = 0; l < V; l++) dgain[k][l] = dbias[k][l] = 0.0f;
  }
  /* All rows of a block must reach its barriers, so they iterate together to the end. */
  const int64_t together = static_cast<int64_t>(gridDim.x) * blockDim.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  int stage = 0;
  staged.fetch(first, stage);
  float next_mean = first < a.rows ? a.mean(first) : 0.0f, next_rstd = first < a.rows ? a.rstd(first) : 0.0f;
  for (int64_t row = first; row - threadIdx.y < a.rows; row += together, stage ^= 1) {
    const int64_t from = row * a.n, next = row + together;
    const bool real = row < a.rows;
    const float mean = next_mean, rstd = next_rstd;
    staged.fetch(next, stage ^ 1);
    if (next < a.rows) next_mean = a.mean(next), next_rstd = a.rstd(next);
    ms_wait_copies<1>();
    float h[VECTORS][V], dy[VECTORS][V], g_sum = 0.0f, gh_sum = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
      if (!real || static_cast<int64_t>(k * blockDim.x + threadIdx.x) * V >= a.n) continue;
      ms_vector_load<V>(staged.at(stage, 0, k), h[k]);
      ms_vector_load<V>(staged.at(stage, 1, k), dy[k]);
#pragma unroll
      for (int l = 0; l < V; l++) {
        const float g = ms_norm_weighed(dy[k][l], gain[k][l]);
        h[k][l] = ms_norm_scaled(h[k][l], mean, rstd);
        dgain[k][l] = fmaf(dy[k][l], h[k][l], dgain[k][l]);
        dbias[k][l] += dy[k][l];
        g_sum += g;
        gh_sum = fmaf(g, h[k][l], gh_sum);
      }
    }
    const float2 sums = ms_row_sums(g_sum, gh_sum);
    const float g_average = a.centred ? sums.x / static_cast<float>(a.n) : 0.0f;
    const float gh_average = sums.y / static_cast<float>(a.n);
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
      const int64_t at = static_cast<int64_t>(k * blockDim.x + threadIdx.x) * V;
      if (!real || at >= a.n) continue;
      float more[V] = {};
      if (a.more) ms_vector_load<V>(staged.at(stage, 2, k), more);
      if (a.y) {
        float y[V], bias[V] = {};
        if (a.bias) ms_vector_load_constant<V>(a.bias + at, bias);
#pragma unroll
        for (int l = 0; l < V; l++) y[l] = ms_norm_result(h[k][l], gain[k][l], bias[l], a.bias);
        ms_vector_store<V>(a.y + from + at, y);
      }
#pragma unroll
      for (int l = 0; l < V; l++) {
        h[k][l] = ms_norm_gradient(ms_norm_weighed(dy[k][l], gain[k][l]), h[k][l], rstd, g_average, gh_average);
        if (a.more) h[k][l] += more[l];
      }
      ms_vector_store<V>(a.dx + from + at, h[k]);
    }
  }
#pragma unroll
  for (int s = 0; s < 2; s++) {
    if (s == 1 && !a.centred) continue;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
      const int64_t at = static_cast<int64_t>(k * blockDim.x + threadIdx.x) * V;
      if (at >= a.n) continue;
      if (s == 0) ms_shared_vector_store<V>(joined + threadIdx.y * a.n + at, dgain[k]);
      else ms_shared_vector_store<V>(joined + threadIdx.y * a.n + at, dbias[k]);
    }
    __syncthreads();
    for (int64_t i = threadIdx.y * blockDim.x + threadIdx.x; i < a.n; i += blockDim.x * blockDim.y) {
      float total = joined[i];
      for (int y = 1; y < static_cast<int>(blockDim.y); y++) total += joined[y * a.n + i];
      partial[(s * parts + blockIdx.x) * a.n + i] = total;
    }
  }
}

template <class T, class G> __global__ void streamed(arguments<T, G> a) {
  const int64_t own = ms_own_row(), row = min(own, a.rows - 1), from = row * a.n;
  const float mean = a.mean(row), rstd = a.rstd(row);
  float g_sum = 0.0f, gh_sum = 0.0f;
  for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x) {
    const float g = ms_norm_weighed(ms_element_load(a.dy + from + i), ms_element_load(a.gain + i));
    g_sum += g;
    gh_sum = fmaf(g, ms_norm_scaled(ms_element_load(a.x + from + i), mean, rstd), gh_sum);
  }
  const float2 sums = ms_row_sums(g_sum, gh_sum);
  const float g_average = a.centred ? sums.x / static_cast<float>(a.n) : 0.0f;
  const float gh_average = sums.y / static_cast<float>(a.n);
  for (int64_t i = threadIdx.x; i < a.n && own < a.rows; i += blockDim.x) {
    const float g = ms_norm_weighed(ms_element_load(a.dy + from + i), ms_element_load(a.gain + i));
    const float h = ms_norm_scaled(ms_element_load(a.x + from + i), mean, rstd);
    const float dx = ms_norm_gradient(g, h, rstd, g_average, gh_average);
    const float all = a.more ? dx + ms_element_load(a.more + from + i) : dx;
    if (a.y) {
      const float bias = a.bias ? ms_element_load(a.bias + i) : 0.0f;
      ms_element_store(a.y + from + i, ms_norm_result(h, ms_element_load(a.gain + i), bias, a.bias));
    }
    ms_element_store(a.dx + from + i, all);
  }
}

template <class T, class G> struct column_of {
  static constexpr int SUMS = 2;
  using Join = ms_column_sum;
  arguments<T, G> a;
  template <int V> __device__ __forceinline__ void add(int64_t, int64_t row, int64_t column, float (&sum)[2][V]) const {
    const float mean = a.mean(row), rstd = a.rstd(row);
    float x[V], dy[V];
    ms_vector_load<V>(a.x + row * a.n + column, x);
    ms_vector_load<V>(a.dy + row * a.n + column, dy);
#pragma unroll
    for (int l = 0; l < V; l++) {
      sum[0][l] = fmaf(dy[l], ms_norm_scaled(x[l], mean, rstd), sum[0][l]);
      sum[1][l] += dy[l];
    }
  }
};

template <class T, class G> int run_typed(const ms_kernel_call *call) {
  const bool again = call->op == MS_OP_layer_norm_backward_recompute || call->op == MS_OP_rms_norm_backward_recompute;
  const int centred = call->op == MS_OP_layer_norm_backward || call->op == MS_OP_layer_norm_backward_recompute;
  const int more = LATER + (again && centred);
  const arguments<T, G> a = {static_cast<const T *>(call->in_data[X]),
                             static_cast<const T *>(call->in_data[DY]),
                             call->inputs > more ? static_cast<const T *>(call->in_data[more]) : nullptr,
                             static_cast<const G *>(call->in_data[GAIN]),
                             again && centred ? static_cast<const G *>(call->in_data[LATER]) : nullptr,
                             static_cast<const float *>(call->in_data[STATS]),
                             static_cast<T *>(call->out_data[0]),
                             again ? static_cast<T *>(call->out_data[call->outputs - 1]) : nullptr,
                             ms_row_count(&call->in[X]),
                             ms_row_length(&call->in[X]),
                             centred};
  float *partial = static_cast<float *>(call->workspace);
  if (a.n == 0) return MS_OK;
  const int aligned = ms_cuda_aligned(a.x) && ms_cuda_aligned(a.dy) && ms_cuda_aligned(a.more) &&
                      ms_cuda_aligned(a.gain) && ms_cuda_aligned(a.bias) && ms_cuda_aligned(a.dx) &&
                      ms_cuda_aligned(a.y);
  ms_row_shape by = ms_row_shape_of(a.rows, a.n, aligned, ms_lanes<T>, VECTORS, THREADS);
  ms_columns c = ms_norm_streamed_columns(a.rows, a.n);
  if (by.held) {
    by.block.y = by.block.x < ROW_THREADS ? ROW_THREADS / by.block.x : 1;
    c = ms_norm_held_columns(a.rows, a.n);
    const int64_t groups = ms_cuda_ceil(a.rows, by.block.y);
    if (groups < c.parts) c.parts = groups > 0 ? groups : 1;
    const int64_t joined = by.block.y * a.n * static_cast<int64_t>(sizeof(float));
    const int64_t staged = STAGES * (a.more ? 3 : 2) * VECTORS * by.block.x * by.block.y * MS_CUDA_VECTOR_BYTES;
    MS_TRY(MS_CUDA_LAUNCH_SHARED((held<T, G>), static_cast<unsigned>(c.parts), by.block,
                                 joined > staged ? joined : staged, call->stream, a, partial, c.parts));
  } else {
    MS_TRY((ms_run_columns<1>(call, column_of<T, G>{a}, c, 0, partial)));
    if (a.rows) MS_TRY(MS_CUDA_LAUNCH((streamed<T, G>), by.blocks, by.block, 0, call->stream, a));
  }
  MS_TRY(ms_join_to<ms_column_sum>(call, 1, partial, c, 1.0f));
  return centred ? ms_join_to<ms_column_sum>(call, 2, partial + c.parts * a.n, c, 1.0f) : MS_OK;
}

int run(const ms_kernel_call *call) {
  return MS_CUDA_FLOATS(call->in[X].dtype, T, MS_CUDA_FLOATS(call->in[GAIN].dtype, G, run_typed<T, G>(call)));
}

} // namespace

extern const ms_kernel ms_cuda_layer_norm_backward = {ms_cuda_prepare_norm_backward, run, nullptr,
                                                      MS_CUDA_OVER_layer_norm_backward};
extern const ms_kernel ms_cuda_rms_norm_backward = {ms_cuda_prepare_norm_backward, run, nullptr,
                                                    MS_CUDA_OVER_rms_norm_backward};
extern const ms_kernel ms_cuda_layer_norm_backward_recompute = {ms_cuda_prepare_norm_backward, run, nullptr,
                                                                MS_CUDA_OVER_layer_norm_backward_recompute};
extern const ms_kernel ms_cuda_rms_norm_backward_recompute = {ms_cuda_prepare_norm_backward, run, nullptr,
                                                              MS_CUDA_OVER_rms_norm_backward_recompute};
