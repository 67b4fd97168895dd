/* norm.cu - layer_norm (Ba et al. 2016) and rms_norm (Zhang & Sennrich 2019) over the last axis of a, or of the sum a +
 * b, which is then an output too. Rows are held or streamed (rows.h). A sum is rounded to its dtype before it is
 * normalised, so the fused op has the same bits as add followed by the norm. Results can overwrite a and b.
 *
 * Memory traffic: 2 s bytes per element of s bytes, or 4 s for a sum. Gain and bias stay in cache, and are never
 * written by the op, so their loads may pass the stores of results; the statistics for backward are 4 or 8 bytes per
 * row. All loads of a held row are issued before its first store.
 */
#include "kernels/cuda/reductions/norm.h"
#include "kernels/cuda/reductions/rows.h"

namespace {

constexpr int THREADS = 1024;

/* a, b, y, sum [rows][n]; gain, bias [n]; stats f32 [rows][2] = mean, rstd, or [rows] = rstd for rms_norm. */
template <class T, class G> struct arguments {
  const T *a, *b; /* b NULL: the norm of a */
  const G *gain, *bias;
  T *y, *sum;
  float *stats;
  int64_t rows, n;
  float eps;
  int centred; /* 1: layer_norm */
};

template <class T, class G>
__device__ __forceinline__ void store_stats(const arguments<T, G> &a, int64_t row, float mean, float rstd) {
  if (threadIdx.x != 0 || row >= a.rows) return;
  if (a.centred) a.stats[2 * row] = mean;
  a.stats[a.centred ? 2 * row + 1 : row] = rstd;
}

/* The thread's vectors of a row in x, zeros after its end. A sum is stored as well, after all loads. */
template <class T, class G, int V>
__device__ __forceinline__ void load_held(const arguments<T, G> &a, int64_t row, float (&x)[MS_ROW_VECTORS][V]) {
  const int64_t from = min(row, a.rows - 1) * a.n;
  uint4 of_a[MS_ROW_VECTORS] = {}, of_b[MS_ROW_VECTORS];
#pragma unroll
  for (int k = 0; k < MS_ROW_VECTORS; k++) {
    const int64_t at = static_cast<int64_t>(k * blockDim.x + threadIdx.x) * V;
    if (at >= a.n) continue;
    of_a[k] = ms_packed_load(a.a + from + at);
    if (a.b) of_b[k] = ms_packed_load(a.b + from + at);
  }
#pragma unroll
  for (int k = 0; k < MS_ROW_VECTORS; k++) {
    const int64_t at = static_cast<int64_t>(k * blockDim.x + threadIdx.x) * V;
    ms_unpack(a.a, of_a[k], x[k]);
    if (!a.b || at >= a.n) continue;
    float b[V];
    ms_unpack(a.b, of_b[k], b);
#pragma unroll
    for (int l = 0; l < V; l++) x[k][l] = ms_rounded<T>(x[k][l] + b[l]);
    if (row < a.rows) ms_vector_store<V>(a.sum + from + at, x[k]);
  }
}

template <class T, class G> __global__ void __launch_bounds__(THREADS) held(arguments<T, G> a) {
  constexpr int V = ms_lanes<T>;
  const int64_t row = ms_own_row(), from = min(row, a.rows - 1) * a.n;
  float x[MS_ROW_VECTORS][V], mean = 0.0f, squares = 0.0f;
  load_held(a, row, x);
  if (a.centred) {
#pragma unroll
    for (int k = 0; k < MS_ROW_VECTORS; k++)
#pragma unroll
      for (int l = 0; l < V; l++) mean += x[k][l];
    mean = ms_row_sum(mean) / static_cast<float>(a.n);
  }
#pragma unroll
  for (int k = 0; k < MS_ROW_VECTORS; k++)
    if (static_cast<int64_t>(k * blockDim.x + threadIdx.x) * V < a.n)
#pragma unroll
      for (int l = 0; l < V; l++) squares = ms_norm_add_square(squares, x[k][l], mean);
  const float rstd = ms_norm_rstd(ms_row_sum(squares), a.n, a.eps);
#pragma unroll
  for (int k = 0; k < MS_ROW_VECTORS; k++) {
    const int64_t at = static_cast<int64_t>(k * blockDim.x + threadIdx.x) * V;
    if (at >= a.n || row >= a.rows) continue;
    float gain[V], bias[V] = {};
    ms_vector_load_constant<V>(a.gain + at, gain);
    if (a.centred) ms_vector_load_constant<V>(a.bias + at, bias);
#pragma unroll
    for (int l = 0; l < V; l++)
      x[k][l] = ms_norm_result(ms_norm_scaled(x[k][l], mean, rstd), gain[l], bias[l], a.centred);
    ms_vector_store<V>(a.y + from + at, x[k]);
  }
  store_stats(a, row, mean, rstd);
}

template <class T, class G> __device__ __forceinline__ float summand(const arguments<T, G> &a, int64_t at) {
  const float x = ms_element_load(a.a + at);
  return a.b ? ms_rounded<T>(x + ms_element_load(a.b + at)) : x;
}

template <class T, class G> __global__ void streamed(arguments<T, G> a) {
  const int64_t row = ms_own_row(), from = min(row, a.rows - 1) * a.n;
  float mean = 0.0f, squares = 0.0f;
  if (a.centred) {
    for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x) mean += summand(a, from + i);
    mean = ms_row_sum(mean) / static_cast<float>(a.n);
  }
  for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x)
    squares = ms_norm_add_square(squares, summand(a, from + i), mean);
  const float rstd = ms_norm_rstd(ms_row_sum(squares), a.n, a.eps);
  for (int64_t i = threadIdx.x; i < a.n && row < a.rows; i += blockDim.x) {
    const float x = summand(a, from + i);
    if (a.b) ms_element_store(a.sum + from + i, x);
    const float bias = a.centred ? ms_element_load(a.bias + i) : 0.0f;
    const float y = ms_norm_result(ms_norm_scaled(x, mean, rstd), ms_element_load(a.gain + i), bias, a.centred);
    ms_element_store(a.y + from + i, y);
  }
  store_stats(a, row, mean, rstd);
}

template <class T, class G> int run_typed(const ms_kernel_call *call) {
  const int summed = call->op == MS_OP_add_layer_norm || call->op == MS_OP_add_rms_norm;
  const int centred = call->op == MS_OP_layer_norm || call->op == MS_OP_add_layer_norm;
  const arguments<T, G> a = {static_cast<const T *>(call->in_data[0]),
                             summed ? static_cast<const T *>(call->in_data[1]) : nullptr,
                             static_cast<const G *>(call->in_data[1 + summed]),
                             centred ? static_cast<const G *>(call->in_data[2 + summed]) : nullptr,
                             static_cast<T *>(call->out_data[0]),
                             summed ? static_cast<T *>(call->out_data[2]) : nullptr,
                             static_cast<float *>(call->out_data[1]),
                             ms_row_count(&call->in[0]),
                             ms_row_length(&call->in[0]),
                             static_cast<float>(call->attrs.norm.eps),
                             centred};
  if (a.rows * a.n == 0) return MS_OK;
  const int aligned = ms_cuda_aligned(a.a) && ms_cuda_aligned(a.b) && ms_cuda_aligned(a.gain) &&
                      ms_cuda_aligned(a.bias) && ms_cuda_aligned(a.y) && ms_cuda_aligned(a.sum);
  const ms_row_shape by = ms_row_shape_of(a.rows, a.n, aligned, ms_lanes<T>, MS_ROW_VECTORS, THREADS);
  if (by.held) return MS_CUDA_LAUNCH((held<T, G>), by.blocks, by.block, 0, call->stream, a);
  return MS_CUDA_LAUNCH((streamed<T, G>), by.blocks, by.block, 0, call->stream, a);
}

int run(const ms_kernel_call *call) {
  const int summed = call->op == MS_OP_add_layer_norm || call->op == MS_OP_add_rms_norm;
  return MS_CUDA_FLOATS(call->in[0].dtype, T, MS_CUDA_FLOATS(call->in[1 + summed].dtype, G, run_typed<T, G>(call)));
}

} // namespace

extern const ms_kernel ms_cuda_layer_norm = {nullptr, run, nullptr, MS_CUDA_OVER_layer_norm};
extern const ms_kernel ms_cuda_rms_norm = {nullptr, run, nullptr, MS_CUDA_OVER_rms_norm};
extern const ms_kernel ms_cuda_add_layer_norm = {nullptr, run, nullptr, MS_CUDA_OVER_add_layer_norm};
extern const ms_kernel ms_cuda_add_rms_norm = {nullptr, run, nullptr, MS_CUDA_OVER_add_rms_norm};
