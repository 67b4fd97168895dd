/* shape.h - the two ways in which kernels view shapes.
 *
 * An op along one axis views its tensor as [outer][n][inner]. A broadcasting op views its output as runs: ranges in
 * which every input either advances with the output (stride 1) or repeats one element (stride 0).
 */
#ifndef MS_KERNELS_SHAPE_H
#define MS_KERNELS_SHAPE_H

#include "kernels/op.h"

enum { MS_MAX_BROADCAST_INPUTS = 3 };

typedef struct ms_axis_view {
  int64_t outer, n, inner;
} ms_axis_view;

/* How to reduce the axis n of a view. */
enum ms_reduction { MS_REDUCE_SUM, MS_REDUCE_LARGEST, MS_REDUCE_SMALLEST };

/* A negative axis counts from the end. */
static inline int ms_axis_of(const ms_value_info *info, int64_t axis) {
  return (int)(axis < 0 ? axis + info->ndim : axis);
}

static inline ms_axis_view ms_view_axis(const ms_value_info *info, int64_t axis) {
  int at = ms_axis_of(info, axis);
  ms_axis_view view = {1, info->ndim ? info->dims[at] : 1, 1};
  for (int d = 0; d < at; d++) view.outer *= info->dims[d];
  for (int d = at + 1; d < info->ndim; d++) view.inner *= info->dims[d];
  return view;
}

/* How many of n elements roll puts in front of the first, 0 to n - 1. */
static inline int64_t ms_rolled(int64_t n, int64_t by) { return (by % n + n) % n; }

/* The row length D and the number of rows of [..., D]; a scalar is one row of length 1. */
static inline int64_t ms_row_length(const ms_value_info *info) { return info->ndim ? info->dims[info->ndim - 1] : 1; }

static inline int64_t ms_row_count(const ms_value_info *info) {
  int64_t rows = 1;
  for (int d = 0; d < info->ndim - 1; d++) rows *= info->dims[d];
  return rows;
}

/* The output's dims, merged where all inputs advance uniformly, and each input's strides over them: 0 where the input
 * is repeated. ndim is at least 1, and the last stride is 0 or 1. */
typedef struct ms_broadcast {
  int ndim;
  int64_t dims[MS_MAX_DIMS];
  int64_t strides[MS_MAX_BROADCAST_INPUTS][MS_MAX_DIMS];
} ms_broadcast;

ms_broadcast ms_broadcast_of(const ms_value_info *out, int inputs, const ms_value_info *in);
/* Finds the run that starts at output element `element`: returns its length, at most end - element, and stores the
 * offset of each input in offsets[inputs]. */
int64_t ms_broadcast_run(const ms_broadcast *broadcast, int inputs, int64_t element, int64_t end, int64_t *offsets);

#endif
