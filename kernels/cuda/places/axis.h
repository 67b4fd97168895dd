/* axis.h - sum, mean, max and min over the middle axis of [outer][n][inner] (axis.cu); shared by reduce.cu and
 * sum_to.cu. */
#ifndef MS_KERNELS_CUDA_AXIS_H
#define MS_KERNELS_CUDA_AXIS_H

#include "kernels/cuda/launch.h"

/* Output 0 [outer][inner] = reduction over n of input 0; sums are divided by divisor. A NaN in the input gives NaN. */
int ms_axis_run(const ms_kernel_call *call, ms_axis_view view, ms_reduction reduction, double divisor);

#endif
