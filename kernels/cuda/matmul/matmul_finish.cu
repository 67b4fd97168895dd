/* matmul_finish.cu - c = act(x + bias) after a matrix product whose library could not compute it. c, x [batch][m][n];
 * bias [n]. Memory traffic per element: s bytes read and s written if x is c itself, 6 bytes if an f32 x is rounded to
 * bf16. Each thread computes up to 16 bytes of a row. */
#include "kernels/cuda/elementwise/activation.h"
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/cuda/matmul/matmul.h"
}

namespace {

constexpr int THREADS = 256;

struct task {
  int64_t columns, vectors;
  const void *bias;
  int bias_dtype, activation;
};

__device__ __forceinline__ float bias_at(const task &t, int64_t column) {
  if (t.bias_dtype < 0) return 0.0f;
  if (t.bias_dtype == MS_BF16) return ms_element_load(static_cast<const ms_b16 *>(t.bias) + column);
  return static_cast<const float *>(t.bias)[column];
}

template <int V, class X, class Y> __global__ void __launch_bounds__(THREADS) finish(const X *x, Y *c, task t) {
  const int64_t vector = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (vector >= t.vectors) return;
  const int64_t column = vector * V % t.columns;
  float y[V];
  ms_vector_load<V>(x + vector * V, y);
#pragma unroll
  for (int l = 0; l < V; l++) y[l] = ms_activate(y[l] + bias_at(t, column + l), t.activation);
  ms_vector_store<V>(c + vector * V, y);
}

template <int V, class X, class Y> int launch(const ms_kernel_call *call, const X *x, Y *c, task t, int64_t elements) {
  t.vectors = elements / V;
  return MS_CUDA_LAUNCH((finish<V, X, Y>), static_cast<unsigned>(ms_cuda_ceil(t.vectors, THREADS)), THREADS, 0,
                        call->stream, x, c, t);
}

template <class X, class Y>
int run_typed(const ms_kernel_call *call, const X *x, Y *c, const task &t, int64_t elements) {
  constexpr int V = ms_lanes<X, Y>;
  if (t.columns % V == 0 && ms_cuda_aligned(x) && ms_cuda_aligned(c)) return launch<V>(call, x, c, t, elements);
  return launch<1>(call, x, c, t, elements);
}

} // namespace

int ms_matmul_finish_run(const ms_kernel_call *call, const ms_product *p, const float *x) {
  const task t = {p->n, 0, call->in_data[2], p->bias_dtype, p->activation};
  const int64_t elements = p->batch * p->m * p->n;
  void *c = call->out_data[0];
  if (x) return run_typed(call, x, static_cast<ms_b16 *>(c), t, elements);
  return MS_CUDA_FLOATS(p->c_dtype, Y, run_typed(call, static_cast<const Y *>(c), static_cast<Y *>(c), t, elements));
}
