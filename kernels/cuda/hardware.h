/* hardware.h - small functions for instructions without a CUDA C++ equivalent, in a form that only nvcc can compile.
 * The emulation of the tests has its own versions with the same results. */
#ifndef MS_KERNELS_CUDA_HARDWARE_H
#define MS_KERNELS_CUDA_HARDWARE_H

#include <cuda_runtime.h>

#ifdef EMULATED_CUDA
  #include <cuda_bf16.h>
  #include <emulated_tensor.h>

/* Rounds two numbers to bf16, to nearest even; `low` is in the low half. */
inline unsigned ms_pack_bf16(float low, float high) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(low)) |
         static_cast<unsigned>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
}

/* Stores 8 or 16 bytes, to which `to` is aligned, to global memory. Loads before it stay before it, later ones after.
 */
inline void ms_store_global(void *to, uint2 words) { *static_cast<uint2 *>(to) = words; }
inline void ms_store_global(void *to, uint4 words) { *static_cast<uint4 *>(to) = words; }

/* 2^x, within 2 units in the last place; results below 2^-126 are 0. */
inline float ms_exp2(float x) { return std::exp2(x); }

/* A shared-memory address in bytes. */
typedef uintptr_t ms_shared;
inline ms_shared ms_shared_at(const void *at) { return reinterpret_cast<uintptr_t>(at); }

/* Starts an asynchronous copy of BYTES (4 or 16, aligned) to shared memory; writes zeros if `there` is false. */
template <int BYTES> inline void ms_copy_async(ms_shared to, const void *global, bool there) {
  emulated::copy_later(reinterpret_cast<void *>(to), global, BYTES, there);
}
/* Makes a group of the thread's copies since the last commit. */
inline void ms_commit_copies() { emulated::commit_copies(); }
/* Waits until at most LEFT of the thread's groups are in flight; other threads see the copies after a barrier. */
template <int LEFT> inline void ms_wait_copies() { emulated::wait_copies(LEFT); }

/* Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lanes 8 i to 8 i + 7 provide the addresses of the
 * rows of matrix i, 16 bytes each. A lane receives two elements of each matrix: row lane / 4, columns 2 (lane % 4) and
 * the next. */
inline void ms_load_matrices(unsigned (&matrices)[4], ms_shared row) {
  emulated::load_matrices(matrices, reinterpret_cast<const void *>(row), false);
}
/* The same for the transposed matrices. */
inline void ms_load_transposed(unsigned (&matrices)[4], ms_shared row) {
  emulated::load_matrices(matrices, reinterpret_cast<const void *>(row), true);
}

/* c [16][8] += a [16][16] b [16][8] by a warp, bf16 operands and f32 sums. With g = lane / 4 and t = lane % 4, a lane
 * holds the pairs of a at (g, 2 t), (g + 8, 2 t), (g, 2 t + 8) and (g + 8, 2 t + 8), those of b in column g at rows 2 t
 * and 2 t + 8, and those of c at (g, 2 t) and (g + 8, 2 t) (PTX ISA 9.0, 9.7.14.5.8). */
inline void ms_multiply_tiles(float (&c)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high) {
  emulated::multiply_tiles(c, a, b_low, b_high);
}

/* The bits of a number rounded to TF32: 10 bits of mantissa, ties away from zero. */
inline unsigned ms_round_tf32(float x) { return emulated::round_tf32(x); }

/* c [16][8] += a [16][8] b [8][8] by a warp, TF32 operands and f32 sums. A lane holds the elements of a at (g, t), (g +
 * 8, t), (g, t + 4) and (g + 8, t + 4), those of b in column g at rows t and t + 4, and those of c as above (PTX ISA
 * 9.0, 9.7.14.5.7). Bits beyond TF32's are dropped. */
inline void ms_multiply_tf32(float (&c)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high) {
  emulated::multiply_tf32(c, a, b_low, b_high);
}

#else

static __device__ __forceinline__ unsigned ms_pack_bf16(float low, float high) {
  unsigned packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/* In assembly, because nvcc splits the store of a vector into its elements where it can. */
static __device__ __forceinline__ void ms_store_global(void *to, uint2 words) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(words.x), "r"(words.y)
               : "memory");
}
static __device__ __forceinline__ void ms_store_global(void *to, uint4 words) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

static __device__ __forceinline__ float ms_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

typedef unsigned ms_shared;
static __device__ __forceinline__ ms_shared ms_shared_at(const void *at) {
  return static_cast<ms_shared>(__cvta_generic_to_shared(at));
}

template <int BYTES> __device__ __forceinline__ void ms_copy_async(ms_shared to, const void *global, bool there) {
  static_assert(BYTES == 4 || BYTES == 16, "a number, or 16 bytes");
  const unsigned bytes = there ? BYTES : 0;
  const size_t from = __cvta_generic_to_global(global);
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void ms_commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void ms_wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

static __device__ __forceinline__ void ms_load_matrices(unsigned (&matrices)[4], ms_shared row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row)
               : "memory");
}
static __device__ __forceinline__ void ms_load_transposed(unsigned (&matrices)[4], ms_shared row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row)
               : "memory");
}

/* volatile, because a warp-wide instruction must not move into code that only part of the warp runs. */
static __device__ __forceinline__ void ms_multiply_tiles(float (&c)[4], const unsigned (&a)[4], unsigned b_low,
                                                         unsigned b_high) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
}

static __device__ __forceinline__ unsigned ms_round_tf32(float x) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
  return rounded;
}

static __device__ __forceinline__ void ms_multiply_tf32(float (&c)[4], const unsigned (&a)[4], unsigned b_low,
                                                        unsigned b_high) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
}

#endif

/* The block's dynamic shared memory as an array of `type`, aligned to 256 bytes. */
#ifdef EMULATED_CUDA
  #define MS_CUDA_DYNAMIC_SHARED(type, name) type *const name = static_cast<type *>(emulated::dynamic_shared())
#else
  #define MS_CUDA_DYNAMIC_SHARED(type, name)                            \
    extern __shared__ __align__(256) unsigned char ms_dynamic_shared[]; \
    type *const name = reinterpret_cast<type *>(ms_dynamic_shared)
#endif

#endif
