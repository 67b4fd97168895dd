/* compare.cu - comparisons, which give u8 masks, `where`, which reads one, and the gradient of maximum and minimum, all
 * with broadcasting (broadcast.h). Memory traffic: the operands that are not repeated, and the result. For integers a
 * thread computes one element. */
#include "kernels/cuda/elementwise/broadcast.h"

namespace {

/* V bytes, aligned to V. */
template <int V> struct __align__(V) bytes { unsigned char byte[V]; };

template <class T> __device__ __forceinline__ unsigned char holds(int op, T p, T q) {
  switch (op) {
    case MS_OP_less: return p < q ? 1 : 0;
    case MS_OP_less_equal: return p <= q ? 1 : 0;
    case MS_OP_equal: return p == q ? 1 : 0;
    default: return p != q ? 1 : 0;
  }
}

template <int V, class A, class B>
__global__ void __launch_bounds__(MS_BROADCAST_THREADS)
    compare(const A *a, const B *b, unsigned char *mask, ms_broadcast shape, int64_t n, int op) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * MS_BROADCAST_THREADS + threadIdx.x) * V;
  if (at >= n) return;
  int64_t from[2];
  float p[V], q[V];
  ms_locate(shape, at, n, 2, from);
  ms_vector_load_along<V>(a + from[0], ms_walks(shape, 0), p);
  ms_vector_load_along<V>(b + from[1], ms_walks(shape, 1), q);
  bytes<V> result;
#pragma unroll
  for (int l = 0; l < V; l++) result.byte[l] = holds(op, p[l], q[l]);
  *reinterpret_cast<bytes<V> *>(mask + at) = result;
}

template <class T>
__global__ void __launch_bounds__(MS_BROADCAST_THREADS)
    compare_integers(const T *a, const T *b, unsigned char *mask, ms_broadcast shape, int64_t n, int op) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * MS_BROADCAST_THREADS + threadIdx.x;
  if (at >= n) return;
  int64_t from[2];
  ms_locate(shape, at, n, 2, from);
  mask[at] = holds(op, a[from[0]], b[from[1]]);
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
  ms_vector_load_along<V>(a + from[1], ms_walks(shape, 1), p);
  ms_vector_load_along<V>(b + from[2], ms_walks(shape, 2), q);
#pragma unroll
  for (int l = 0; l < V; l++) p[l] = chosen.byte[l] ? p[l] : q[l];
  ms_vector_store<V>(y + at, p);
}

template <class T>
__global__ void __launch_bounds__(MS_BROADCAST_THREADS)
    choose_integers(const unsigned char *mask, const T *a, const T *b, T *y, ms_broadcast shape, int64_t n) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * MS_BROADCAST_THREADS + threadIdx.x;
  if (at >= n) return;
  int64_t from[3];
  ms_locate(shape, at, n, 3, from);
  y[at] = mask[from[0]] ? a[from[1]] : b[from[2]];
}

template <int V, class A, class B, class Y>
__global__ void __launch_bounds__(MS_BROADCAST_THREADS)
    share(const A *a, const B *b, const Y *dy, Y *dx, ms_broadcast shape, int64_t n) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * MS_BROADCAST_THREADS + threadIdx.x) * V;
  if (at >= n) return;
  int64_t from[3];
  float p[V], q[V], d[V];
  ms_locate(shape, at, n, 3, from);
  ms_vector_load_along<V>(a + from[0], ms_walks(shape, 0), p);
  ms_vector_load_along<V>(b + from[1], ms_walks(shape, 1), q);
  ms_vector_load_along<V>(dy + from[2], ms_walks(shape, 2), d);
#pragma unroll
  for (int l = 0; l < V; l++) d[l] = p[l] < q[l] ? 0.0f : p[l] == q[l] ? 0.5f * d[l] : d[l];
  ms_vector_store<V>(dx + at, d);
}

template <class A, class B> int run_compare_typed(const ms_kernel_call *call) {
  constexpr int V = ms_lanes<A, B>;
  const ms_broadcast shape = ms_broadcast_of(&call->out[0], 2, call->in);
  const int64_t n = ms_numel(&call->out[0]);
  const A *a = static_cast<const A *>(call->in_data[0]);
  const B *b = static_cast<const B *>(call->in_data[1]);
  unsigned char *mask = static_cast<unsigned char *>(call->out_data[0]);
  if (n == 0) return MS_OK;
  if (ms_broadcast_vectors(call, shape, V))
    return MS_CUDA_LAUNCH((compare<V, A, B>), ms_broadcast_blocks(n, V), MS_BROADCAST_THREADS, 0, call->stream, a, b,
                          mask, shape, n, call->op);
  return MS_CUDA_LAUNCH((compare<1, A, B>), ms_broadcast_blocks(n, 1), MS_BROADCAST_THREADS, 0, call->stream, a, b,
                        mask, shape, n, call->op);
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

template <class T> int run_compare_integers(const ms_kernel_call *call) {
  const ms_broadcast shape = ms_broadcast_of(&call->out[0], 2, call->in);
  const int64_t n = ms_numel(&call->out[0]);
  if (n == 0) return MS_OK;
  return MS_CUDA_LAUNCH(compare_integers<T>, ms_broadcast_blocks(n, 1), MS_BROADCAST_THREADS, 0, call->stream,
                        static_cast<const T *>(call->in_data[0]), static_cast<const T *>(call->in_data[1]),
                        static_cast<unsigned char *>(call->out_data[0]), shape, n, call->op);
}

template <class T> int run_where_integers(const ms_kernel_call *call) {
  const ms_broadcast shape = ms_broadcast_of(&call->out[0], 3, call->in);
  const int64_t n = ms_numel(&call->out[0]);
  if (n == 0) return MS_OK;
  return MS_CUDA_LAUNCH(choose_integers<T>, ms_broadcast_blocks(n, 1), MS_BROADCAST_THREADS, 0, call->stream,
                        static_cast<const unsigned char *>(call->in_data[0]), static_cast<const T *>(call->in_data[1]),
                        static_cast<const T *>(call->in_data[2]), static_cast<T *>(call->out_data[0]), shape, n);
}

template <class A, class B, class Y> int run_share_typed(const ms_kernel_call *call) {
  constexpr int V = ms_lanes<A, B>;
  const ms_broadcast shape = ms_broadcast_of(&call->out[0], 3, call->in);
  const int64_t n = ms_numel(&call->out[0]);
  const A *a = static_cast<const A *>(call->in_data[0]);
  const B *b = static_cast<const B *>(call->in_data[1]);
  const Y *dy = static_cast<const Y *>(call->in_data[2]);
  Y *dx = static_cast<Y *>(call->out_data[0]);
  if (n == 0) return MS_OK;
  if (ms_broadcast_vectors(call, shape, V))
    return MS_CUDA_LAUNCH((share<V, A, B, Y>), ms_broadcast_blocks(n, V), MS_BROADCAST_THREADS, 0, call->stream, a, b,
                          dy, dx, shape, n);
  return MS_CUDA_LAUNCH((share<1, A, B, Y>), ms_broadcast_blocks(n, 1), MS_BROADCAST_THREADS, 0, call->stream, a, b, dy,
                        dx, shape, n);
}

int run_compare(const ms_kernel_call *call) {
  if (call->in[0].dtype == MS_I32) return run_compare_integers<int32_t>(call);
  if (call->in[0].dtype == MS_U8) return run_compare_integers<unsigned char>(call);
  return MS_CUDA_FLOATS(call->in[0].dtype, A, MS_CUDA_FLOATS(call->in[1].dtype, B, run_compare_typed<A, B>(call)));
}

int run_where(const ms_kernel_call *call) {
  if (call->in[1].dtype == MS_I32) return run_where_integers<int32_t>(call);
  if (call->in[1].dtype == MS_U8) return run_where_integers<unsigned char>(call);
  if (call->in[1].dtype == MS_BF16 && call->in[2].dtype == MS_BF16)
    return run_where_typed<ms_b16, ms_b16, ms_b16>(call);
  if (call->in[1].dtype == MS_BF16) return run_where_typed<ms_b16, float, float>(call);
  if (call->in[2].dtype == MS_BF16) return run_where_typed<float, ms_b16, float>(call);
  return run_where_typed<float, float, float>(call);
}

int run_share(const ms_kernel_call *call) {
  if (call->in[0].dtype == MS_BF16 && call->in[1].dtype == MS_BF16)
    return run_share_typed<ms_b16, ms_b16, ms_b16>(call);
  if (call->in[0].dtype == MS_BF16) return run_share_typed<ms_b16, float, float>(call);
  if (call->in[1].dtype == MS_BF16) return run_share_typed<float, ms_b16, float>(call);
  return run_share_typed<float, float, float>(call);
}

} // namespace

extern const ms_kernel ms_cuda_compare = {nullptr, run_compare, nullptr, MS_CUDA_OVER_compare};
extern const ms_kernel ms_cuda_where = {nullptr, run_where, nullptr, MS_CUDA_OVER_where};
extern const ms_kernel ms_cuda_maximum_backward = {ms_cuda_prepare_maximum_backward, run_share, nullptr,
                                                   MS_CUDA_OVER_maximum_backward};
