/* partial_sums.h - into how many parts CUDA kernels divide their sums. Each part's sums go to the workspace, and a
 * second launch adds them in order. The division depends only on shapes, so a plan has the same size wherever it is
 * compiled, and the sums the same bits in every run. */
#ifndef MS_KERNELS_CUDA_PLAN_PARTIAL_SUMS_H
#define MS_KERNELS_CUDA_PLAN_PARTIAL_SUMS_H

#include "kernels/shape.h"

/* A warp covers 32 vectors of columns. */
enum { MS_COLUMN_LANES = 32 };

/* [outer][rows][columns], of which the rows are summed in `parts`; blocks cover the columns in `strips`. The workspace
 * is f32 [sums][outer][parts][columns]. */
typedef struct ms_columns {
  int64_t outer, rows, columns;
  int64_t parts, strips;
} ms_columns;

/* The bias gradient of activation_backward_bias. */
ms_columns ms_activation_columns(const ms_kernel_call *call);

/* The sums of the norms' gradients of [rows][n], which are two: of the gain and of the bias. Held: a part per block
 * that strides over the rows. */
ms_columns ms_norm_held_columns(int64_t rows, int64_t n);
ms_columns ms_norm_streamed_columns(int64_t rows, int64_t n);

/* sum, mean, max and min of input 0 over the axis n of a view: down columns, or, of the last axis, along rows, which
 * are then matrices of one column. */
ms_columns ms_axis_columns(const ms_kernel_call *call, ms_axis_view view);
ms_axis_view ms_reduce_view(const ms_kernel_call *call);

/* sum_to: the output broadcast to x, with strides of 0 on summed axes. Returns 1 and sets the view if the merged axes
 * are at most [kept][summed][kept]. */
ms_broadcast ms_sum_to_runs(const ms_kernel_call *call);
int ms_sum_to_is_axis(const ms_broadcast *runs, ms_axis_view *view);

/* adafactor_sums: the columns of the whole parameter, of which a rank has rows in its part. */
ms_columns ms_adafactor_columns(const ms_kernel_call *call);

/* sum_squares of input 0, and adafactor_norm: each part has one f64 in the workspace. */
int64_t ms_square_parts(const ms_kernel_call *call);

#endif
