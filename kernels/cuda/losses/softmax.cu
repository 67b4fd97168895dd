/* softmax.cu - softmax and log_softmax over the last axis of [rows][n], and their gradients. Memory traffic: 2 s bytes
 * per element of s bytes, 3 s for the gradients. Rows are held or streamed (rows.h). Results can overwrite the first
 * input. */
#include "kernels/cuda/reductions/rows.h"

namespace {

constexpr int THREADS = 1024, BACKWARD_THREADS = 512;

struct shape {
  int64_t rows, n;
  int log; /* 1: log_softmax */
};

/* The normalisation of a row: softmax multiplies e^(x - largest) by it, log_softmax subtracts it. */
__device__ __forceinline__ float norm_of(float sum, int log) { return log ? logf(sum) : 1.0f / sum; }

__device__ __forceinline__ float result_of(float x, float largest, float norm, int log) {
  return log ? (x - largest) - norm : __expf(x - largest) * norm;
}

template <class T> __global__ void __launch_bounds__(THREADS) held_forward(const T *x, T *y, shape s) {
  constexpr int V = ms_lanes<T>;
  const int64_t row = ms_own_row(), from = min(row, s.rows - 1) * s.n;
  float held[MS_ROW_VECTORS][V];
  float largest = -INFINITY, sum = 0.0f;
#pragma unroll
  for (int k = 0; k < MS_ROW_VECTORS; k++) {
    const int64_t at = static_cast<int64_t>(k * blockDim.x + threadIdx.x) * V;
    if (at < s.n) ms_vector_load<V>(x + from + at, held[k]);
    else
#pragma unroll
      for (int l = 0; l < V; l++) held[k][l] = -INFINITY;
#pragma unroll
    for (int l = 0; l < V; l++) largest = fmaxf(largest, held[k][l]);
  }
  largest = ms_row_max(largest);
#pragma unroll
  for (int k = 0; k < MS_ROW_VECTORS; k++)
    if (static_cast<int64_t>(k * blockDim.x + threadIdx.x) * V < s.n)
#pragma unroll
      for (int l = 0; l < V; l++) sum += __expf(held[k][l] - largest);
  const float norm = norm_of(ms_row_sum(sum), s.log);
#pragma unroll
  for (int k = 0; k < MS_ROW_VECTORS; k++) {
    const int64_t at = static_cast<int64_t>(k * blockDim.x + threadIdx.x) * V;
    if (at >= s.n || row >= s.rows) continue;
#pragma unroll
    for (int l = 0; l < V; l++) held[k][l] = result_of(held[k][l], largest, norm, s.log);
    ms_vector_store<V>(y + from + at, held[k]);
  }
}

template <class T> __global__ void streamed_forward(const T *x, T *y, shape s) {
  const int64_t row = ms_own_row(), from = min(row, s.rows - 1) * s.n;
  float largest = -INFINITY, sum = 0.0f;
  ms_for_row(x + from, s.n, [&](int64_t, auto &v) {
    for (float e : v) largest = fmaxf(largest, e);
  });
  largest = ms_row_max(largest);
  ms_for_row(x + from, s.n, [&](int64_t, auto &v) {
    for (float e : v) sum += __expf(e - largest);
  });
  const float norm = norm_of(ms_row_sum(sum), s.log);
  if (row < s.rows)
    ms_map_row(x + from, y + from, s.n, [&](int64_t, auto &v) {
      for (float &e : v) e = result_of(e, largest, norm, s.log);
    });
}

/* softmax: y (dy - sum y dy); log_softmax: dy - e^y sum dy */
__device__ __forceinline__ float term_of(float y, float dy, int log) { return log ? dy : y * dy; }

__device__ __forceinline__ float gradient_of(float y, float dy, float sum, int log) {
  return log ? fmaf(-__expf(y), sum, dy) : y * (dy - sum);
}

template <class T>
__global__ void __launch_bounds__(BACKWARD_THREADS) held_backward(const T *y, const T *dy, T *dx, shape s) {
  constexpr int V = ms_lanes<T>;
  const int64_t row = ms_own_row(), from = min(row, s.rows - 1) * s.n;
  float held[MS_ROW_VECTORS][V], gradient[MS_ROW_VECTORS][V], sum = 0.0f;
#pragma unroll
  for (int k = 0; k < MS_ROW_VECTORS; k++) {
    const int64_t at = static_cast<int64_t>(k * blockDim.x + threadIdx.x) * V;
    if (at >= s.n) continue;
    ms_vector_load<V>(y + from + at, held[k]);
    ms_vector_load<V>(dy + from + at, gradient[k]);
  }
#pragma unroll
  for (int k = 0; k < MS_ROW_VECTORS; k++)
    if (static_cast<int64_t>(k * blockDim.x + threadIdx.x) * V < s.n)
#pragma unroll
      for (int l = 0; l < V; l++) sum += term_of(held[k][l], gradient[k][l], s.log);
  sum = ms_row_sum(sum);
#pragma unroll
  for (int k = 0; k < MS_ROW_VECTORS; k++) {
    const int64_t at = static_cast<int64_t>(k * blockDim.x + threadIdx.x) * V;
    if (at >= s.n || row >= s.rows) continue;
#pragma unroll
    for (int l = 0; l < V; l++) held[k][l] = gradient_of(held[k][l], gradient[k][l], sum, s.log);
    ms_vector_store<V>(dx + from + at, held[k]);
  }
}

template <class T> __global__ void streamed_backward(const T *y, const T *dy, T *dx, shape s) {
  const int64_t row = ms_own_row(), from = min(row, s.rows - 1) * s.n;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < s.n; i += blockDim.x)
    sum += term_of(ms_element_load(y + from + i), ms_element_load(dy + from + i), s.log);
  sum = ms_row_sum(sum);
  if (row < s.rows)
    for (int64_t i = threadIdx.x; i < s.n; i += blockDim.x)
      ms_element_store(dx + from + i,
                       gradient_of(ms_element_load(y + from + i), ms_element_load(dy + from + i), sum, s.log));
}

shape shape_of(const ms_kernel_call *call) {
  const int log = call->op == MS_OP_log_softmax || call->op == MS_OP_log_softmax_backward;
  return {ms_row_count(&call->in[0]), ms_row_length(&call->in[0]), log};
}

template <class T> int forward(const ms_kernel_call *call) {
  const shape s = shape_of(call);
  const T *x = static_cast<const T *>(call->in_data[0]);
  T *y = static_cast<T *>(call->out_data[0]);
  if (s.rows * s.n == 0) return MS_OK;
  const ms_row_shape by =
      ms_row_shape_of(s.rows, s.n, ms_cuda_aligned(x) && ms_cuda_aligned(y), ms_lanes<T>, MS_ROW_VECTORS, THREADS);
  if (by.held) return MS_CUDA_LAUNCH(held_forward<T>, by.blocks, by.block, 0, call->stream, x, y, s);
  return MS_CUDA_LAUNCH(streamed_forward<T>, by.blocks, by.block, 0, call->stream, x, y, s);
}

template <class T> int backward(const ms_kernel_call *call) {
  const shape s = shape_of(call);
  const T *y = static_cast<const T *>(call->in_data[0]), *dy = static_cast<const T *>(call->in_data[1]);
  T *dx = static_cast<T *>(call->out_data[0]);
  if (s.rows * s.n == 0) return MS_OK;
  const int aligned = ms_cuda_aligned(y) && ms_cuda_aligned(dy) && ms_cuda_aligned(dx);
  const ms_row_shape by = ms_row_shape_of(s.rows, s.n, aligned, ms_lanes<T>, MS_ROW_VECTORS, BACKWARD_THREADS);
  if (by.held) return MS_CUDA_LAUNCH(held_backward<T>, by.blocks, by.block, 0, call->stream, y, dy, dx, s);
  return MS_CUDA_LAUNCH(streamed_backward<T>, by.blocks, by.block, 0, call->stream, y, dy, dx, s);
}

int run_forward(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[0].dtype, T, forward<T>(call)); }
int run_backward(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[0].dtype, T, backward<T>(call)); }

} // namespace

extern const ms_kernel ms_cuda_softmax = {nullptr, run_forward, nullptr, MS_CUDA_OVER_softmax};
extern const ms_kernel ms_cuda_softmax_backward = {nullptr, run_backward, nullptr, MS_CUDA_OVER_softmax_backward};
