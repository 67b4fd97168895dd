/* window.h - the windows of convolutions and pools along the two last axes of their tensors.
 *
 * Output i of an axis sees the inputs i stride - pad + tap dilation, for the taps 0 to size - 1; those outside of the
 * axis are padding. Gradients have the attributes of their forward op, and where they make a tensor whose last two axes
 * follow from none of their inputs, the sizes of these: f0 and f1, since all whole slots are taken.
 */
#ifndef MS_KERNELS_WINDOW_H
#define MS_KERNELS_WINDOW_H

#include "kernels/op.h"

#ifdef __CUDACC__
  #define MS_WINDOW_FUNCTION static inline __host__ __device__
#else
  #define MS_WINDOW_FUNCTION static inline
#endif

enum { MS_MAX_WINDOW = INT32_MAX }; /* of sizes, strides, padding and dilation */

typedef struct ms_window {
  int64_t in, out, size, stride, pad, dilation;
} ms_window;

/* The outputs that fit; less than 1: none does. */
MS_WINDOW_FUNCTION int64_t ms_window_outputs(const ms_window *w) {
  const int64_t last = w->in + 2 * w->pad - w->dilation * (w->size - 1) - 1;
  return last < 0 ? 0 : last / w->stride + 1;
}

/* The outputs [first, end) that see an input of the axis by this tap. */
MS_WINDOW_FUNCTION void ms_window_outputs_of(const ms_window *w, int64_t tap, int64_t *first, int64_t *end) {
  const int64_t shift = w->pad - tap * w->dilation; /* output i sees input i stride - shift */
  *first = shift > 0 ? (shift + w->stride - 1) / w->stride : 0;
  *end = w->in + shift > 0 ? (w->in + shift - 1) / w->stride + 1 : 0;
  if (*end > w->out) *end = w->out;
  if (*first > *end) *first = *end;
}

/* The taps [first, end) with which output i sees inputs; of windows without dilation. */
MS_WINDOW_FUNCTION void ms_window_taps(const ms_window *w, int64_t i, int64_t *first, int64_t *end) {
  const int64_t from = i * w->stride - w->pad;
  *first = from < 0 ? -from : 0;
  *end = w->in - from < w->size ? w->in - from : w->size;
}

/* The outputs [first, end) that see input i; of windows without dilation. */
MS_WINDOW_FUNCTION void ms_window_seen_by(const ms_window *w, int64_t i, int64_t *first, int64_t *end) {
  const int64_t before = i + w->pad - (w->size - 1);
  *first = before > 0 ? (before + w->stride - 1) / w->stride : 0;
  *end = (i + w->pad) / w->stride + 1;
  if (*end > w->out) *end = w->out;
}

/* x [images][groups][channels][down.in][across.in], w [groups][features][channels][down.size][across.size],
 * y [images][groups][features][down.out][across.out]. */
typedef struct ms_conv {
  int64_t images, groups, channels, features;
  ms_window down, across;
} ms_conv;

/* The windows that conv2d's attributes describe; sizes of tensors are 0. */
void ms_conv_windows(const ms_op_attrs *attrs, ms_window *down, ms_window *across);
/* conv2d or one of its gradients, with shapes that the rules allow. */
ms_conv ms_conv_of(const ms_kernel_call *call);

/* The sizes of the product that the call is, a group at a time: groups, m, n, k (kernels/cuda/windows/conv2d.cu). */
void ms_conv_product(const ms_kernel_call *call, int64_t *size);

/* Pools of planes [down.in][across.in]. */
typedef struct ms_pool {
  int64_t planes;
  ms_window down, across;
} ms_pool;

void ms_pool_windows(const ms_op_attrs *attrs, ms_window *down, ms_window *across);
/* A pool or its gradient; backward: its input has the windows' results. */
ms_pool ms_pool_of(const ms_kernel_call *call, int backward);

/* How many elements a mean of the window of output (i, j) divides by. */
MS_WINDOW_FUNCTION int64_t ms_pool_divisor(const ms_pool *p, int64_t i, int64_t j, int count_padding) {
  int64_t top, bottom, left, right;
  ms_window_taps(&p->down, i, &top, &bottom);
  ms_window_taps(&p->across, j, &left, &right);
  return count_padding ? p->down.size * p->across.size : (bottom - top) * (right - left);
}

#endif
