/* cross_entropy.h - cross_entropy_part and cross_entropy_backward in one kernel, for rows that fit shared memory. */
#ifndef MS_KERNELS_CUDA_CROSS_ENTROPY_H
#define MS_KERNELS_CUDA_CROSS_ENTROPY_H

#include "kernels/op.h"

/* Whether rows of this many logits fit. */
int ms_cuda_cross_entropy_fits(int dtype, int64_t classes);

/* call: one of cross_entropy_backward, whose lse is not read; out_data[1]: what cross_entropy_part adds, [rows][2]. */
int ms_cuda_cross_entropy_both(const ms_kernel_call *call);

#endif
