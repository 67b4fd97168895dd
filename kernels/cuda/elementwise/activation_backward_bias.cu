/* activation_backward_bias.cu - dx = dy act'(a), and the bias gradient (the sum of dx over all rows, in f32) in one
 * pass (columns.h).
 *
 * a, dy, dx [rows][columns]; bias gradient [columns]. a is the activation's output for relu and its input for the
 * others. The recompute ops also write the activation's result y [rows][columns], as their last output. Memory traffic:
 * 3 s bytes per element of s bytes, 4 s with y. dx and y can overwrite a or dy.
 */
#include "kernels/cuda/elementwise/activation.h"
#include "kernels/cuda/reductions/columns.h"

namespace {

/* dx for one element, and the activation that is computed again, which share what is costly. A product is rounded
 * before it is added to the bias's gradient, as it is in memory. */
template <int ACTIVATION> struct gradient_of {
  static __device__ __forceinline__ float of(float a, float dy) {
    if constexpr (ACTIVATION == MS_ACT_RELU) return a <= 0.0f ? 0.0f : dy;
    else if constexpr (ACTIVATION == MS_ACT_GELU) return __fmul_rn(dy, ms_gelu_grad(a));
    else if constexpr (ACTIVATION == MS_ACT_GELU_TANH) return __fmul_rn(dy, ms_gelu_tanh_grad(a));
    else if constexpr (ACTIVATION == MS_ACT_SILU) return __fmul_rn(dy, ms_silu_grad(a));
    else return dy;
  }
  static __device__ __forceinline__ float activate(float x) { return ms_activate(x, ACTIVATION); }
};

template <class T, class G> struct column_of {
  static constexpr int SUMS = 1;
  using Join = ms_column_sum;
  const T *a, *dy;
  T *dx, *y; /* y NULL: not wanted */
  int64_t columns;
  template <int V> __device__ __forceinline__ void add(int64_t, int64_t row, int64_t column, float (&sum)[1][V]) const {
    float x[V], gradient[V];
    ms_vector_load<V>(a + row * columns + column, x);
    ms_vector_load<V>(dy + row * columns + column, gradient);
    if (y) {
      float result[V];
#pragma unroll
      for (int l = 0; l < V; l++) result[l] = G::activate(x[l]);
      ms_vector_store<V>(y + row * columns + column, result);
    }
#pragma unroll
    for (int l = 0; l < V; l++) {
      x[l] = G::of(x[l], gradient[l]);
      sum[0][l] += x[l];
    }
    ms_vector_store<V>(dx + row * columns + column, x);
  }
};

template <class T, class G> int run_typed(const ms_kernel_call *call) {
  const ms_columns c = ms_activation_columns(call);
  float *partial = static_cast<float *>(call->workspace);
  const bool again = call->op != MS_OP_activation_backward_bias;
  const column_of<T, G> f = {static_cast<const T *>(call->in_data[0]), static_cast<const T *>(call->in_data[1]),
                             static_cast<T *>(call->out_data[0]),
                             again ? static_cast<T *>(call->out_data[call->outputs - 1]) : nullptr, c.columns};
  const int aligned = ms_cuda_aligned(f.a) && ms_cuda_aligned(f.dy) && ms_cuda_aligned(f.dx) && ms_cuda_aligned(f.y);
  MS_TRY((ms_run_columns<ms_lanes<T>>(call, f, c, aligned, partial)));
  if (call->op == MS_OP_activation_backward_recompute) return MS_OK;
  return ms_join_to<ms_column_sum>(call, 1, partial, c, 1.0f);
}

template <class T> int run_activation(const ms_kernel_call *call) {
  switch (call->attrs.product.activation) {
    case MS_ACT_RELU: return run_typed<T, gradient_of<MS_ACT_RELU>>(call);
    case MS_ACT_GELU: return run_typed<T, gradient_of<MS_ACT_GELU>>(call);
    case MS_ACT_GELU_TANH: return run_typed<T, gradient_of<MS_ACT_GELU_TANH>>(call);
    case MS_ACT_SILU: return run_typed<T, gradient_of<MS_ACT_SILU>>(call);
    default: return run_typed<T, gradient_of<MS_ACT_NONE>>(call);
  }
}

int run(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[0].dtype, T, run_activation<T>(call)); }

} // namespace

extern const ms_kernel ms_cuda_activation_backward_bias = {ms_cuda_prepare_activation_backward_bias, run, nullptr,
                                                           MS_CUDA_OVER_activation_backward_bias};
