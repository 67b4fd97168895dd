/* vector.h - loads and stores elements of f32 and bf16 tensors as floats in registers, up to 16 bytes at a time.
 *
 * A kernel processes V elements at a time, V = ms_lanes of the widest type it accesses: 16 bytes of that type, or 8
 * bytes of bf16 next to 16 of f32. A warp thus reads and writes whole cache lines. Pointers must be aligned to the
 * access; the elements at the ends of a tensor are processed one at a time by the same code with V = 1.
 */
#ifndef MS_KERNELS_CUDA_VECTOR_H
#define MS_KERNELS_CUDA_VECTOR_H

#include "kernels/cuda/launch.h"

template <class A, class B = A>
constexpr int ms_lanes = MS_CUDA_VECTOR_BYTES / (sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));

static __device__ __forceinline__ float ms_low_bf16(unsigned pair) { return __uint_as_float(pair << 16); }
static __device__ __forceinline__ float ms_high_bf16(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

/* 16 bytes of elements in their own layout, which take half the registers of bf16 as floats. */
template <class T> __device__ __forceinline__ uint4 ms_packed_load(const T *at) {
  return *reinterpret_cast<const uint4 *>(at);
}

static __device__ __forceinline__ void ms_unpack(const float *, uint4 words, float (&x)[4]) {
  x[0] = __uint_as_float(words.x), x[1] = __uint_as_float(words.y), x[2] = __uint_as_float(words.z),
  x[3] = __uint_as_float(words.w);
}

static __device__ __forceinline__ void ms_unpack(const ms_b16 *, uint4 words, float (&x)[8]) {
  x[0] = ms_low_bf16(words.x), x[1] = ms_high_bf16(words.x), x[2] = ms_low_bf16(words.y), x[3] = ms_high_bf16(words.y);
  x[4] = ms_low_bf16(words.z), x[5] = ms_high_bf16(words.z), x[6] = ms_low_bf16(words.w), x[7] = ms_high_bf16(words.w);
}

/* A word in memory. CONSTANT: nothing writes it while the kernel runs, so its load may pass stores. */
template <bool CONSTANT, class W> __device__ __forceinline__ W ms_word(const void *at) {
  if constexpr (CONSTANT) return __ldg(static_cast<const W *>(at));
  else return *static_cast<const W *>(at);
}

template <int V, bool CONSTANT = false> __device__ __forceinline__ void ms_vector_load(const float *at, float (&x)[V]) {
  static_assert(V == 1 || V % 4 == 0, "one element, or 16 bytes");
  if constexpr (V == 1) x[0] = ms_word<CONSTANT, float>(at);
  else
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      const float4 four = ms_word<CONSTANT, float4>(at + i);
      x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
}

template <int V, bool CONSTANT = false>
__device__ __forceinline__ void ms_vector_load(const ms_b16 *at, float (&x)[V]) {
  static_assert(V == 1 || V == 4 || V == 8, "one element, 8 or 16 bytes");
  if constexpr (V == 1) x[0] = ms_low_bf16(ms_word<CONSTANT, unsigned short>(at));
  else if constexpr (V == 4) {
    const uint2 pairs = ms_word<CONSTANT, uint2>(at);
    x[0] = ms_low_bf16(pairs.x), x[1] = ms_high_bf16(pairs.x), x[2] = ms_low_bf16(pairs.y),
    x[3] = ms_high_bf16(pairs.y);
  } else ms_unpack(at, ms_word<CONSTANT, uint4>(at), x);
}

template <int V, class T> __device__ __forceinline__ void ms_vector_load_constant(const T *at, float (&x)[V]) {
  ms_vector_load<V, true>(at, x);
}

/* Stores are to global memory; ms_shared_vector_store is for the block's own. */
template <int V> __device__ __forceinline__ void ms_vector_store(float *at, const float (&x)[V]) {
  if constexpr (V == 1) *at = x[0];
  else
#pragma unroll
    for (int i = 0; i < V; i += 4)
      ms_store_global(at + i, make_uint4(__float_as_uint(x[i]), __float_as_uint(x[i + 1]), __float_as_uint(x[i + 2]),
                                         __float_as_uint(x[i + 3])));
}

template <int V> __device__ __forceinline__ void ms_vector_store(ms_b16 *at, const float (&x)[V]) {
  if constexpr (V == 1) at->bits = static_cast<unsigned short>(ms_pack_bf16(x[0], 0.0f));
  else if constexpr (V == 4) ms_store_global(at, make_uint2(ms_pack_bf16(x[0], x[1]), ms_pack_bf16(x[2], x[3])));
  else
    ms_store_global(at, make_uint4(ms_pack_bf16(x[0], x[1]), ms_pack_bf16(x[2], x[3]), ms_pack_bf16(x[4], x[5]),
                                   ms_pack_bf16(x[6], x[7])));
}

template <int V> __device__ __forceinline__ void ms_shared_vector_store(float *at, const float (&x)[V]) {
  static_assert(V % 4 == 0, "16 bytes");
#pragma unroll
  for (int i = 0; i < V; i += 4) *reinterpret_cast<float4 *>(at + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
}

template <class T> __device__ __forceinline__ float ms_element_load(const T *at) {
  float x[1];
  ms_vector_load<1>(at, x);
  return x[0];
}

template <class T> __device__ __forceinline__ void ms_element_store(T *at, float value) {
  const float x[1] = {value};
  ms_vector_store<1>(at, x);
}

/* x rounded to T, as after a store and a load. */
template <class T> __device__ __forceinline__ float ms_rounded(float x) {
  if constexpr (sizeof(T) == 2) return ms_low_bf16(ms_pack_bf16(x, 0.0f));
  return x;
}

#endif
