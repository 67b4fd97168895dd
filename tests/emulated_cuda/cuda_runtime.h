/* cuda_runtime.h - CUDA's extensions of C++ for kernels that g++ compiles: qualifiers, built-in variables, warp
 * operations, atomics and intrinsics. emulated_block.h describes how kernels run. Intrinsics that a GPU approximates
 * return the exact function here. */
#ifndef EMULATED_CUDA_RUNTIME_H
#define EMULATED_CUDA_RUNTIME_H

#include <cmath>
#include <cstring>

#include "cuda_runtime_api.h"
#include "emulated_block.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
/* Each host thread runs one block at a time. */
#define __shared__ static thread_local

#define threadIdx (::emulated::here.thread)
#define blockIdx (::emulated::here.block)
#define blockDim (::emulated::here.block_dim)
#define gridDim (::emulated::here.grid_dim)
#define warpSize 32

namespace emulated {

template <class To, class From> inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bytes");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <class T> inline T shuffle(unsigned mask, T value, int source, Site site) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves up to 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = collective(Collective::shuffle, mask, bits, site, source);
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* The lane itself if the other lane is outside its segment of `width` lanes. */
inline int within(int other, int width) { return other / width == lane() / width && other >= 0 ? other : lane(); }

/* Launches a kernel with the arguments converted to its parameter types, as the toolkit does. */
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(const char *name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                          cudaStream_t stream, Arguments... arguments) {
  return launch(name, reinterpret_cast<const void *>(kernel), grid, block, shared, stream,
                [=] { kernel(static_cast<Parameters>(arguments)...); });
}

} // namespace emulated

/* ---- barriers and warp operations: functions that also receive the line of the caller ---------------------------- */

#define EMULATED_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(EMULATED_SITE) { emulated::barrier({file, line}); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATED_SITE) {
  emulated::collective(emulated::Collective::synchronize, mask, 0, {file, line});
}

template <class T> inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATED_SITE) {
  return emulated::shuffle(mask, value, emulated::lane() / width * width + source % width, {file, line});
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, EMULATED_SITE) {
  return emulated::shuffle(mask, value, emulated::within(emulated::lane() ^ bits, width), {file, line});
}
template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATED_SITE) {
  return emulated::shuffle(mask, value, emulated::within(emulated::lane() + static_cast<int>(by), width), {file, line});
}
template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATED_SITE) {
  return emulated::shuffle(mask, value, emulated::within(emulated::lane() - static_cast<int>(by), width), {file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATED_SITE) {
  return static_cast<unsigned>(emulated::collective(emulated::Collective::ballot, mask, predicate != 0, {file, line}));
}
inline int __any_sync(unsigned mask, int predicate, EMULATED_SITE) {
  return static_cast<int>(emulated::collective(emulated::Collective::any, mask, predicate != 0, {file, line}));
}
inline int __all_sync(unsigned mask, int predicate, EMULATED_SITE) {
  return static_cast<int>(emulated::collective(emulated::Collective::all, mask, predicate != 0, {file, line}));
}
template <class T> inline unsigned __match_any_sync(unsigned mask, T value, EMULATED_SITE) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  return static_cast<unsigned>(emulated::collective(emulated::Collective::match, mask, bits, {file, line}));
}

/* ---- atomics: return the old value ------------------------------------------------------------------------------- */

template <class T> inline T atomicCAS(T *at, T expected, T desired) {
  __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}
template <class T> inline T atomicExch(T *at, T value) { return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST); }

namespace emulated {
template <class T, class F> inline T update(T *at, F next) {
  T old = *at, wanted;
  do wanted = next(old);
  while (!__atomic_compare_exchange(at, &old, &wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  return old;
}
} // namespace emulated

template <class T> inline T atomicAdd(T *at, T value) {
  return emulated::update(at, [value](T old) { return static_cast<T>(old + value); });
}
template <class T> inline T atomicMax(T *at, T value) {
  return emulated::update(at, [value](T old) { return old < value ? value : old; });
}
template <class T> inline T atomicMin(T *at, T value) {
  return emulated::update(at, [value](T old) { return value < old ? value : old; });
}

/* ---- intrinsics -------------------------------------------------------------------------------------------------- */

template <class T> inline T max(T a, T b) { return a < b ? b : a; }
template <class T> inline T min(T a, T b) { return b < a ? b : a; }

template <class T> inline T __ldg(const T *at) { return *at; }
template <class T> inline T __ldcs(const T *at) { return *at; }
template <class T> inline void __stcs(T *at, T value) { *at = value; }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }

inline float __uint_as_float(unsigned x) { return emulated::bits_as<float>(x); }
inline unsigned __float_as_uint(float x) { return emulated::bits_as<unsigned>(x); }
inline float __int_as_float(int x) { return emulated::bits_as<float>(x); }
inline int __float_as_int(float x) { return emulated::bits_as<int>(x); }

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
/* A product that no compiler joins with the sum that it goes into. */
inline float __fmul_rn(float a, float b) {
  float product = a * b;
#if defined(__x86_64__)
  asm("" : "+x"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#else
  asm("" : "+m"(product));
#endif
  return product;
}

inline uint2 make_uint2(unsigned x, unsigned y) { return uint2{x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return uint4{x, y, z, w}; }
inline float2 make_float2(float x, float y) { return float2{x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }

#endif
