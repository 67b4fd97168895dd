/* compare.cu - less and equal, which make u8 masks, and where, which uses one, with broadcasting: bytes of the operands that
** are not repeated and of the result. Shape: broadcast.h.
*/
#include "kernels/cuda/broadcast.h"

namespace {

/* V bytes, aligned to V. */
template <int V> struct __align__(V) bytes { unsigned char byte[V]; };

template <int V, class A, class B>
__global__ void __launch_bounds__(MS_BROADCAST_THREADS)
    compare(const A *a, const B *b, unsigned char *mask, ms_broadcast shape, int64_t n, int equal) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * MS_BROADCAST_THREADS + threadIdx.x) * V;
  if (at >= n) return;
  int64_t from[2];
  float p[V], q[V];
  ms_locate(shape, at, n, 2, from);
  ms_load_along<V>(a + from[0], ms_walks(shape, 0), p);
  ms_load_along<V>(b + from[1], ms_walks(shape, 1), q);
  bytes<V> result;
#pragma unroll
  for (int l = 0; l < V; l++) result.byte[l] = (equal ? p[l] == q[l] : p[l] < q[l]) ? 1 : 0;
  *reinterpret_cast<bytes<V> *>(mask + at) = result;
}

template <int V, class A, class B, class Y>
__global__ void __launch_bounds__(MS_BROADCAST_THREADS)
    choose(const unsigned char *mask, const A *a, const B *b, Y *y, ms_broadcast shape, int64_t n) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * MS_BROADCAST_THREADS + threadIdx.x) * V;
  if (at >= n) return;
  int64_t from[3];
  float p[V], q[V];
  bytes<V> chosen;
  ms_locate(shape, at, n, 3, from);
  if (ms_walks(shape, 0)) chosen = *reinterpret_cast<const bytes<V> *>(mask + from[0]);
  else
#pragma unroll
    for (int l = 0; l < V; l++) chosen.byte[l] = mask[from[0]];
  ms_load_along<V>(a + from[1], ms_walks(shape, 1), p);
  ms_load_along<V>(b + from[2], ms_walks(shape, 2), q);
#pragma unroll
  for (int l = 0; l < V; l++) p[l] = chosen.byte[l] ? p[l] : q[l];
  ms_store<V>(y + at, p);
}

template <class A, class B> int run_compare_typed(const ms_kernel_call *call) {
  constexpr int V = ms_lanes<A, B>;
  const ms_broadcast shape = ms_broadcast_of(&call->out[0], 2, call->in);
  const int64_t n = ms_numel(&call->out[0]);
  const A *a = static_cast<const A *>(call->in_data[0]);
  const B *b = static_cast<const B *>(call->in_data[1]);
  unsigned char *mask = static_cast<unsigned char *>(call->out_data[0]);
  const int equal = call->op == MS_OP_equal;
  if (n == 0) return MS_OK;
  if (ms_broadcast_vectors(call, shape, V))
    return MS_CUDA_LAUNCH((compare<V, A, B>), ms_broadcast_blocks(n, V), MS_BROADCAST_THREADS, 0, call->stream, a, b,
                          mask, shape, n, equal);
  return MS_CUDA_LAUNCH((compare<1, A, B>), ms_broadcast_blocks(n, 1), MS_BROADCAST_THREADS, 0, call->stream, a, b,
                        mask, shape, n, equal);
}

template <class A, class B, class Y> int run_where_typed(const ms_kernel_call *call) {
  constexpr int V = ms_lanes<A, B>;
  const ms_broadcast shape = ms_broadcast_of(&call->out[0], 3, call->in);
  const int64_t n = ms_numel(&call->out[0]);
  const unsigned char *mask = static_cast<const unsigned char *>(call->in_data[0]);
  const A *a = static_cast<const A *>(call->in_data[1]);
  const B *b = static_cast<const B *>(call->in_data[2]);
  Y *y = static_cast<Y *>(call->out_data[0]);
  if (n == 0) return MS_OK;
  if (ms_broadcast_vectors(call, shape, V))
    return MS_CUDA_LAUNCH((choose<V, A, B, Y>), ms_broadcast_blocks(n, V), MS_BROADCAST_THREADS, 0, call->stream, mask,
                          a, b, y, shape, n);
  return MS_CUDA_LAUNCH((choose<1, A, B, Y>), ms_broadcast_blocks(n, 1), MS_BROADCAST_THREADS, 0, call->stream, mask, a,
                        b, y, shape, n);
}

int run_compare(const ms_kernel_call *call) {
  return MS_CUDA_FLOATS(call->in[0].dtype, A, MS_CUDA_FLOATS(call->in[1].dtype, B, run_compare_typed<A, B>(call)));
}

int run_where(const ms_kernel_call *call) {
  if (call->in[1].dtype == MS_BF16 && call->in[2].dtype == MS_BF16)
    return run_where_typed<ms_b16, ms_b16, ms_b16>(call);
  if (call->in[1].dtype == MS_BF16) return run_where_typed<ms_b16, float, float>(call);
  if (call->in[2].dtype == MS_BF16) return run_where_typed<float, ms_b16, float>(call);
  return run_where_typed<float, float, float>(call);
}

} // namespace

extern const ms_kernel ms_cuda_compare = {nullptr, run_compare, nullptr, 0};
extern const ms_kernel ms_cuda_where = {nullptr, run_where, nullptr, 0};
