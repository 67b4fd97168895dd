/* conv2d.h - into how many parts CUDA divides the sums of a convolution's gradient; f32 [parts][elements of w] in the
 * workspace, if there are several. It depends only on shapes, as in partial_sums.h. */
#ifndef MS_KERNELS_CUDA_PLAN_CONV2D_H
#define MS_KERNELS_CUDA_PLAN_CONV2D_H

#include "kernels/window.h"

enum { MS_CONV_TILE = 64 }; /* rows and columns of results that a block computes */

/* The number of parts of the gradient of w. */
int64_t ms_conv_sum_parts(const ms_conv *conv);
/* The same of any call: 1 if it is none of that gradient. */
int64_t ms_conv_parts_of(const ms_kernel_call *call);

#endif
