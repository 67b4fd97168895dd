/* elementwise.h - y = f(x) for each element of tensors of equal shape: the kernel and its launch.
 *
 * A block has 256 threads; each processes 2 vectors (vector.h), a block's width apart. All loads are issued before the
 * first store, so an SM with 2048 threads has 64 KiB in flight per input, twice what is needed to hide the memory
 * latency. Elements after the last whole vector, or all elements if a pointer is not aligned, are processed one at a
 * time. Every thread reads its elements before it writes them, so outputs can overwrite inputs of the same size.
 */
#ifndef MS_KERNELS_CUDA_ELEMENTWISE_H
#define MS_KERNELS_CUDA_ELEMENTWISE_H

#include "kernels/cuda/vector.h"

constexpr int MS_ELEMENT_THREADS = 256, MS_ELEMENT_VECTORS = 2;

template <class T, int N> struct ms_tensors { T *data[N]; };

/* Calls f(x, y) for n elements: x float [INPUTS], y float [OUTPUTS]. The first vectors * V elements are in whole
 * vectors. */
template <class X, class Y, int INPUTS, int OUTPUTS, class F>
__global__ void __launch_bounds__(MS_ELEMENT_THREADS)
    ms_elementwise(ms_tensors<const X, INPUTS> in, ms_tensors<Y, OUTPUTS> out, int64_t n, int64_t vectors, F f) {
  constexpr int V = ms_lanes<X, Y>;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * MS_ELEMENT_THREADS + threadIdx.x;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * MS_ELEMENT_THREADS * MS_ELEMENT_VECTORS + threadIdx.x;
  float x[MS_ELEMENT_VECTORS][INPUTS][V];
#pragma unroll
  for (int u = 0; u < MS_ELEMENT_VECTORS; u++)
#pragma unroll
    for (int i = 0; i < INPUTS; i++)
      if (first + u * MS_ELEMENT_THREADS < vectors)
        ms_vector_load<V>(in.data[i] + (first + u * MS_ELEMENT_THREADS) * V, x[u][i]);
#pragma unroll
  for (int u = 0; u < MS_ELEMENT_VECTORS; u++) {
    if (first + u * MS_ELEMENT_THREADS >= vectors) continue;
    float y[OUTPUTS][V];
#pragma unroll
    for (int l = 0; l < V; l++) {
      float from[INPUTS], to[OUTPUTS];
#pragma unroll
      for (int i = 0; i < INPUTS; i++) from[i] = x[u][i][l];
      f(from, to);
#pragma unroll
      for (int o = 0; o < OUTPUTS; o++) y[o][l] = to[o];
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) ms_vector_store<V>(out.data[o] + (first + u * MS_ELEMENT_THREADS) * V, y[o]);
  }
  for (int64_t i = vectors * V + thread; i < n; i += static_cast<int64_t>(gridDim.x) * MS_ELEMENT_THREADS) {
    float from[INPUTS], to[OUTPUTS];
#pragma unroll
    for (int k = 0; k < INPUTS; k++) from[k] = ms_element_load(in.data[k] + i);
    f(from, to);
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) ms_element_store(out.data[o] + i, to[o]);
  }
}

/* Launches f on the call's tensors: inputs of type X, outputs of type Y, all [n]. */
template <class X, class Y, int INPUTS, int OUTPUTS, class F> int ms_run_elementwise(const ms_kernel_call *call, F f) {
  constexpr int V = ms_lanes<X, Y>;
  const int64_t n = ms_numel(&call->out[0]);
  if (n == 0) return MS_OK;
  ms_tensors<const X, INPUTS> in;
  ms_tensors<Y, OUTPUTS> out;
  int aligned = 1;
  for (int i = 0; i < INPUTS; i++) {
    in.data[i] = static_cast<const X *>(call->in_data[i]);
    aligned &= ms_cuda_aligned(in.data[i]);
  }
  for (int o = 0; o < OUTPUTS; o++) {
    out.data[o] = static_cast<Y *>(call->out_data[o]);
    aligned &= ms_cuda_aligned(out.data[o]);
  }
  const int64_t blocks = ms_cuda_ceil(n, MS_ELEMENT_THREADS * MS_ELEMENT_VECTORS * V);
  return MS_CUDA_LAUNCH((ms_elementwise<X, Y, INPUTS, OUTPUTS, F>), static_cast<unsigned>(blocks), MS_ELEMENT_THREADS,
                        0, call->stream, in, out, n, aligned ? n / V : 0, f);
}

#endif
