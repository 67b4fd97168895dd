/* table.h - the kernel of each op on CUDA (table.cu). */
#ifndef MS_KERNELS_CUDA_TABLE_H
#define MS_KERNELS_CUDA_TABLE_H

#include "kernels/op.h"

/* The device's kernel of an op; NULL if there is none. */
MS_API const ms_kernel *ms_cuda_kernel(int op);

#endif
