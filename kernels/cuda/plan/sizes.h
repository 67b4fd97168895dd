/* sizes.h - how CUDA kernels round sizes, and how many elements they read at a time: plain C, for the kernels and for
 * plans. */
#ifndef MS_KERNELS_CUDA_PLAN_SIZES_H
#define MS_KERNELS_CUDA_PLAN_SIZES_H

#include "base/numbers/dtype.h"

#ifdef __CUDACC__
  #define MS_CUDA_SIZE_FUNCTION static inline __host__ __device__
#else
  #define MS_CUDA_SIZE_FUNCTION static inline
#endif

/* Bytes that a thread reads at a time, and the alignment of the arrays in a workspace. */
enum { MS_CUDA_VECTOR_BYTES = 16, MS_CUDA_ALIGNMENT = 256 };

MS_CUDA_SIZE_FUNCTION int64_t ms_cuda_ceil(int64_t n, int64_t by) { return (n + by - 1) / by; }

/* Rounds bytes up so that the next array in a workspace is aligned. */
static inline int64_t ms_cuda_align(int64_t bytes) {
  return ms_cuda_ceil(bytes, MS_CUDA_ALIGNMENT) * MS_CUDA_ALIGNMENT;
}

/* Elements of a vector. */
static inline int ms_cuda_lanes(int dtype) { return (int)(MS_CUDA_VECTOR_BYTES / ms_dtype_size(dtype)); }

#endif
