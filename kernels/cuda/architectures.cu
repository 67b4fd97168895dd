/* architectures.cu - the architectures that nvcc compiles every file for. Only nvcc knows them. */
#include "kernels/cuda/architectures.h"

#include <cuda_runtime.h>

extern const int ms_cuda_architectures[] = {__CUDA_ARCH_LIST__, 0};
