/* table.h - which kernel computes which op on CUDA (table.cu). */
#ifndef MS_KERNELS_CUDA_TABLE_H
#define MS_KERNELS_CUDA_TABLE_H

#include "kernels/op.h"

/* Every kernel of the device: NULL where it has none. */
MS_API const ms_kernel *ms_cuda_kernel(int op);

#endif
