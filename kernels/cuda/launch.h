/* launch.h - launches a kernel, with nvcc's syntax or the emulation's, and returns its status. Every file of
 * kernels/cuda includes it first. A launch only enqueues; a failure inside the kernel appears when the host next
 * synchronises. */
#ifndef MS_KERNELS_CUDA_LAUNCH_H
#define MS_KERNELS_CUDA_LAUNCH_H

#include <cuda_runtime.h>

extern "C" {
#include "base/numbers/dtype.h"
#include "base/error.h"
#include "kernels/cuda/plan/plan.h"
#include "kernels/cuda/plan/sizes.h"
#include "kernels/cuda/table.h"
#include "kernels/op.h"
#include "kernels/products/product.h"
#include "kernels/shape.h"
}

#include "kernels/cuda/hardware.h"

/* Turns a CUDA status into ours. Clears the runtime's last error, because libraries check it after their own launches
 * and would report our error as theirs. */
static inline int ms_cuda_status(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return MS_OK;
  static_cast<void>(cudaGetLastError());
  return MS_FAIL(error == cudaErrorMemoryAllocation ? MS_ENOMEM : MS_EDEVICE, "cuda: %s: %s (%s)", what,
                 cudaGetErrorString(error), cudaGetErrorName(error));
}

#ifdef EMULATED_CUDA
using emulated::launch_kernel;
#else
/* nvcc's launch without chevrons, by the toolkit's launch function. */
template <class... Parameters, class... Arguments>
static cudaError_t launch_kernel(const char *, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                                 cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}
#endif

/* Launches a kernel and evaluates to an int status. Put a kernel with template arguments in parentheses:
 * MS_CUDA_LAUNCH((scale<float, 4>), ...). */
#define MS_CUDA_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                          \
  ms_cuda_status(launch_kernel(#kernel, kernel, grid, block, static_cast<size_t>(shared_bytes), \
                               static_cast<cudaStream_t>(stream), __VA_ARGS__),                 \
                 "kernel " #kernel)

/* The same for a kernel that needs more dynamic shared memory than the 48 KiB that every launch may have. */
#define MS_CUDA_LAUNCH_SHARED(kernel, grid, block, shared_bytes, stream, ...)               \
  [&] {                                                                                     \
    MS_TRY(ms_cuda_status(cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),      \
                                               cudaFuncAttributeMaxDynamicSharedMemorySize, \
                                               static_cast<int>(shared_bytes)),             \
                          "shared memory of " #kernel));                                    \
    return MS_CUDA_LAUNCH(kernel, grid, block, shared_bytes, stream, __VA_ARGS__);          \
  }()

/* An element of a bf16 tensor. */
struct ms_b16 {
  unsigned short bits;
};

template <class T> struct ms_element;
template <> struct ms_element<float> { static constexpr int dtype = MS_F32; };
template <> struct ms_element<ms_b16> { static constexpr int dtype = MS_BF16; };

/* Evaluates an expression with T as the element type of a float tensor. */
#define MS_CUDA_FLOATS(dtype, T, ...) \
  ((dtype) == MS_BF16 ? [&] { using T = ms_b16; return __VA_ARGS__; }() : [&] { using T = float; return __VA_ARGS__; }())

/* Records a fault found by a kernel, unless one is already recorded. */
static __device__ __forceinline__ void ms_note_fault(ms_fault *fault, int op, int64_t value, int64_t limit,
                                                     int64_t least = 0) {
  if (!fault || atomicCAS(&fault->set, 0, 1) != 0) return;
  fault->op = op;
  fault->value = value;
  fault->least = least;
  fault->limit = limit;
}

/* 1 if 16-byte loads from the pointer are allowed; NULL counts as aligned. */
static inline int ms_cuda_aligned(const void *data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

#endif
