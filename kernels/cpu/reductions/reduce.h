/* reduce.h - sums and maxima over the middle axis of [outer][n][inner]; shared by reduce.c and sum_to.c. */
#ifndef MS_KERNELS_CPU_REDUCE_H
#define MS_KERNELS_CPU_REDUCE_H

#include "kernels/shape.h"

/* Size of the workspace of ms_reduce_run in bytes. */
int64_t ms_reduce_workspace(const ms_kernel_call *call, ms_axis_view view);
/* out[o][i] = reduction over n of in[o][n][i]. Sums are f32 and are divided by divisor, which must be 1 for other
 * reductions. A NaN in the input gives NaN. */
int ms_reduce_run(const ms_kernel_call *call, ms_axis_view view, int reduction, double divisor);

#endif
