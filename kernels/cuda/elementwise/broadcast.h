/* broadcast.h - locates the operands of a broadcasting kernel: the device side of ms_broadcast (kernels/shape.h).
 *
 * A thread computes a vector of V adjacent output elements. V > 1 only if rows of the last axis consist of whole
 * vectors, so that each operand is either a vector too or one repeated number. Finding an operand's offset costs one
 * division per axis except the outermost, in 32 bits if the output has fewer than 2^32 elements. Tensors of equal shape
 * have a single merged axis.
 */
#ifndef MS_KERNELS_CUDA_BROADCAST_H
#define MS_KERNELS_CUDA_BROADCAST_H

#include "kernels/cuda/vector.h"

constexpr int MS_BROADCAST_THREADS = 256;

template <class I>
__device__ __forceinline__ void ms_locate_as(const ms_broadcast &shape, I element, int inputs, int64_t *offsets) {
  for (int d = shape.ndim - 1; d >= 0; d--) {
    const I dim = static_cast<I>(shape.dims[d]), rest = d ? element / dim : 0, at = d ? element - rest * dim : element;
#pragma unroll
    for (int i = 0; i < MS_MAX_BROADCAST_INPUTS; i++)
      if (i < inputs) offsets[i] += static_cast<int64_t>(at) * shape.strides[i][d];
    element = rest;
  }
}

/* Offsets of the operands, [inputs], for one output element. */
__device__ __forceinline__ void ms_locate(const ms_broadcast &shape, int64_t element, int64_t n, int inputs,
                                          int64_t *offsets) {
  for (int i = 0; i < inputs; i++) offsets[i] = 0;
  if (n < INT64_C(4294967296)) ms_locate_as(shape, static_cast<uint32_t>(element), inputs, offsets);
  else ms_locate_as(shape, element, inputs, offsets);
}

/* Loads V elements from `at`, or one element V times if the operand is repeated. */
template <int V, class T> __device__ __forceinline__ void ms_vector_load_along(const T *at, bool walks, float (&x)[V]) {
  if (walks) return ms_vector_load<V>(at, x);
  const float one = ms_element_load(at);
#pragma unroll
  for (int l = 0; l < V; l++) x[l] = one;
}

__device__ __forceinline__ bool ms_walks(const ms_broadcast &shape, int input) {
  return shape.strides[input][shape.ndim - 1] == 1;
}

/* 1 if the kernel can use vectors: every row consists of whole vectors and all pointers are aligned. */
static inline int ms_broadcast_vectors(const ms_kernel_call *call, const ms_broadcast &shape, int lanes) {
  int aligned = shape.dims[shape.ndim - 1] % lanes == 0 && ms_cuda_aligned(call->out_data[0]);
  for (int i = 0; i < call->inputs; i++) aligned &= ms_cuda_aligned(call->in_data[i]);
  return aligned;
}

static inline unsigned ms_broadcast_blocks(int64_t n, int lanes) {
  return static_cast<unsigned>(ms_cuda_ceil(n, static_cast<int64_t>(lanes) * MS_BROADCAST_THREADS));
}

#endif
