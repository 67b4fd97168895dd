/* axis.cu - sums, means, maxima and minima over one axis of [outer][n][inner], accumulated in f32. The order of
 * additions depends only on shapes. Memory traffic: s bytes per element of s bytes.
 *
 * Over the last axis (inner = 1) 32 or 256 threads share a row (rows.h). If there are few, long rows, each is divided
 * into parts, which a second kernel combines. Over another axis the sums run down columns (columns.h).
 */
#include "kernels/cuda/places/axis.h"

#include "kernels/cuda/reductions/columns.h"
#include "kernels/cuda/reductions/rows.h"

namespace {

struct max_join {
  static __device__ __forceinline__ float neutral() { return -INFINITY; }
  static __device__ __forceinline__ float join(float a, float b) { return ms_larger()(a, b); }
};

struct min_join {
  static __device__ __forceinline__ float neutral() { return INFINITY; }
  static __device__ __forceinline__ float join(float a, float b) { return b < a || b != b ? b : a; }
};

template <class J> struct join_of {
  __device__ __forceinline__ float operator()(float a, float b) const { return J::join(a, b); }
};

template <class T, class J> struct column_of {
  static constexpr int SUMS = 1;
  using Join = J;
  const T *x;
  int64_t rows, columns;
  template <int V>
  __device__ __forceinline__ void add(int64_t o, int64_t row, int64_t column, float (&sum)[1][V]) const {
    float value[V];
    ms_vector_load<V>(x + (o * rows + row) * columns + column, value);
#pragma unroll
    for (int l = 0; l < V; l++) sum[0][l] = J::join(sum[0][l], value[l]);
  }
};

/* partial[row][part] = the combined elements of a part of a row of x [rows][n]. A block has one or more (row, part). */
template <class T, class J>
__global__ void join_rows(const T *x, float *partial, int64_t rows, int64_t n, int64_t parts) {
  const int64_t own = ms_own_row(), at = min(own, rows * parts - 1), row = at / parts, part = at % parts;
  const int64_t begin = n * part / parts, end = n * (part + 1) / parts;
  float total = J::neutral();
  ms_for_row(x + row * n + begin, end - begin, [&](int64_t, auto &v) {
    for (float e : v) total = J::join(total, e);
  });
  total = ms_row_reduce(total, J::neutral(), join_of<J>());
  if (threadIdx.x == 0 && own < rows * parts) partial[own] = total;
}

template <class T, class J> int run_typed(const ms_kernel_call *call, ms_axis_view view, float divisor) {
  const T *x = static_cast<const T *>(call->in_data[0]);
  float *partial = static_cast<float *>(call->workspace);
  const ms_columns c = ms_axis_columns(call, view);
  if (view.inner == 1) {
    const ms_row_shape by = ms_row_shape_of(c.outer * c.parts, view.n / c.parts, 0, 1, 1, 0);
    if (by.blocks)
      MS_TRY(MS_CUDA_LAUNCH((join_rows<T, J>), by.blocks, by.block, 0, call->stream, x, partial, c.outer, view.n,
                            c.parts));
    return ms_join_to<J>(call, 0, partial, c, divisor);
  }
  const column_of<T, J> f = {x, view.n, view.inner};
  MS_TRY((ms_run_columns<ms_lanes<T>>(call, f, c, ms_cuda_aligned(x), partial)));
  return ms_join_to<J>(call, 0, partial, c, divisor);
}

} // namespace

int ms_axis_run(const ms_kernel_call *call, ms_axis_view view, ms_reduction reduction, double divisor) {
  const float by = static_cast<float>(divisor);
  switch (reduction) {
    case MS_REDUCE_LARGEST: return MS_CUDA_FLOATS(call->in[0].dtype, T, (run_typed<T, max_join>(call, view, 1.0f)));
    case MS_REDUCE_SMALLEST: return MS_CUDA_FLOATS(call->in[0].dtype, T, (run_typed<T, min_join>(call, view, 1.0f)));
    default: return MS_CUDA_FLOATS(call->in[0].dtype, T, (run_typed<T, ms_column_sum>(call, view, by)));
  }
}
