/* binary.cu - a + b, a - b, a b, a / b, maximum and minimum, with broadcasting (broadcast.h). Memory traffic: the
 * operands that are not repeated, and the result. The result can overwrite a or b if that has the output's size,
 * because each element is read before it is written. */
#include "kernels/cuda/elementwise/broadcast.h"

namespace {

template <int V, class A, class B, class Y>
__global__ void __launch_bounds__(MS_BROADCAST_THREADS)
    binary(const A *a, const B *b, Y *y, ms_broadcast shape, int64_t n, int op) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * MS_BROADCAST_THREADS + threadIdx.x) * V;
  if (at >= n) return;
  int64_t from[2];
  float p[V], q[V];
  ms_locate(shape, at, n, 2, from);
  ms_vector_load_along<V>(a + from[0], ms_walks(shape, 0), p);
  ms_vector_load_along<V>(b + from[1], ms_walks(shape, 1), q);
#pragma unroll
  for (int l = 0; l < V; l++) {
    if (op == MS_OP_add) p[l] = p[l] + q[l];
    else if (op == MS_OP_sub) p[l] = p[l] - q[l];
    else if (op == MS_OP_mul) p[l] = p[l] * q[l];
    else if (op == MS_OP_div) p[l] = p[l] / q[l];
    else if (op == MS_OP_maximum) p[l] = q[l] > p[l] || q[l] != q[l] ? q[l] : p[l];
    else p[l] = q[l] < p[l] || q[l] != q[l] ? q[l] : p[l];
  }
  ms_vector_store<V>(y + at, p);
}

template <class A, class B, class Y> int run_typed(const ms_kernel_call *call) {
  constexpr int V = ms_lanes<A, B>;
  const ms_broadcast shape = ms_broadcast_of(&call->out[0], 2, call->in);
  const int64_t n = ms_numel(&call->out[0]);
  const A *a = static_cast<const A *>(call->in_data[0]);
  const B *b = static_cast<const B *>(call->in_data[1]);
  Y *y = static_cast<Y *>(call->out_data[0]);
  if (n == 0) return MS_OK;
  if (ms_broadcast_vectors(call, shape, V))
    return MS_CUDA_LAUNCH((binary<V, A, B, Y>), ms_broadcast_blocks(n, V), MS_BROADCAST_THREADS, 0, call->stream, a, b,
                          y, shape, n, call->op);
  return MS_CUDA_LAUNCH((binary<1, A, B, Y>), ms_broadcast_blocks(n, 1), MS_BROADCAST_THREADS, 0, call->stream, a, b, y,
                        shape, n, call->op);
}

int run(const ms_kernel_call *call) {
  if (call->in[0].dtype == MS_BF16 && call->in[1].dtype == MS_BF16) return run_typed<ms_b16, ms_b16, ms_b16>(call);
  if (call->in[0].dtype == MS_BF16) return run_typed<ms_b16, float, float>(call);
  if (call->in[1].dtype == MS_BF16) return run_typed<float, ms_b16, float>(call);
  return run_typed<float, float, float>(call);
}

} // namespace

extern const ms_kernel ms_cuda_binary = {ms_cuda_prepare_binary, run, nullptr, MS_CUDA_OVER_binary};
