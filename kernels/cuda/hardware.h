/* hardware.h - what only nvcc can compile: instructions that CUDA C++ has no word for, each a small function. The emulation
** of the tests has its own version of the same meaning.
*/
#ifndef MS_KERNELS_CUDA_HARDWARE_H
#define MS_KERNELS_CUDA_HARDWARE_H

#include <cuda_runtime.h>

#ifdef EMULATED_CUDA
  #include <cuda_bf16.h>

/* Two numbers rounded to bf16, to nearest even: `low` in the low half. */
inline unsigned ms_pack_bf16(float low, float high) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(low)) |
         static_cast<unsigned>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
}

#else

static __device__ __forceinline__ unsigned ms_pack_bf16(float low, float high) {
  unsigned packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

#endif

/* The block's dynamic shared memory as an array of `type`, aligned to 16 bytes. */
#ifdef EMULATED_CUDA
  #define MS_CUDA_DYNAMIC_SHARED(type, name) type *const name = static_cast<type *>(emulated::dynamic_shared())
#else
  #define MS_CUDA_DYNAMIC_SHARED(type, name)                           \
    extern __shared__ __align__(16) unsigned char ms_dynamic_shared[]; \
    type *const name = reinterpret_cast<type *>(ms_dynamic_shared)
#endif

#endif
