/* reduce.h - sums and maxima over the middle of [outer, n, inner]: what reduce.c and sum_to.c share. */
#ifndef MS_KERNELS_CPU_REDUCE_H
#define MS_KERNELS_CPU_REDUCE_H

#include "kernels/shape.h"

/* Workspace bytes of ms_reduce_run on a view. */
int64_t ms_reduce_workspace(const ms_kernel_call *call, ms_axis_view view);
/* out[o, i] = reduction over n of in[o, n, i], an enum ms_reduction; a sum is divided by divisor, which is 1 for others.
** Sums are f32; a NaN gives NaN in all of them. */
int ms_reduce_run(const ms_kernel_call *call, ms_axis_view view, int reduction, double divisor);

#endif
