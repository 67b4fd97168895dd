/* infer_windows.c - shape rules of ops with windows over the last two axes, and of their gradients: convolutions and
 * pools. */
#include <inttypes.h>
#include <stdio.h>

#include "graph/infer/infer.h"
#include "kernels/window.h"

/* An attribute from `least` on. */
static int check_number(const ms_node *node, const char *name, int64_t value, int64_t least) {
  if (value >= least && value <= MS_MAX_WINDOW) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%s: %s is %" PRId64 "; it must be %" PRId64 " to %d", ms_node_name(node), name, value,
                 least, (int)MS_MAX_WINDOW);
}

static int check_window(const ms_node *node, const ms_window *w, const char *along) {
  char stride[16], pad[16], dilation[16];
  snprintf(stride, sizeof stride, "stride_%s", along);
  snprintf(pad, sizeof pad, "pad_%s", along);
  snprintf(dilation, sizeof dilation, "dilation_%s", along);
  MS_TRY(check_number(node, stride, w->stride, 1));
  MS_TRY(check_number(node, pad, w->pad, 0));
  return check_number(node, dilation, w->dilation, 1);
}

/* The number of outputs along an axis, which must not be 0; axis: "height" or "width". */
static int count_outputs(const ms_node *node, const ms_window *w, const char *axis, int64_t *outputs) {
  *outputs = ms_window_outputs(w);
  if (w->size > 0 && *outputs > 0) return MS_OK;
  return MS_FAIL(MS_ESHAPE,
                 "%s: a window of %s %" PRId64 " (with dilation %" PRId64 ") does not fit %" PRId64
                 " elements with %" PRId64 " of padding on both sides",
                 ms_node_name(node), axis, w->dilation * (w->size - 1) + 1, w->dilation, w->in, w->pad);
}

/* The last two axes of what the windows return; down and across have all else. */
static int results_of(const ms_node *node, ms_window *down, ms_window *across, const int64_t *in, const int64_t *size,
                      int64_t *out) {
  down->in = in[0], across->in = in[1];
  down->size = size[0], across->size = size[1];
  MS_TRY(check_window(node, down, "h"));
  MS_TRY(check_window(node, across, "w"));
  MS_TRY(check_number(node, "the height of a window", down->size, 1));
  MS_TRY(check_number(node, "the width of a window", across->size, 1));
  MS_TRY(count_outputs(node, down, "height", &out[0]));
  return count_outputs(node, across, "width", &out[1]);
}

/* The sizes that the attributes ask for. */
static int asked_sizes(const ms_node *node, int64_t *sizes) {
  sizes[0] = node->attrs.windows.height;
  sizes[1] = node->attrs.windows.width;
  for (int k = 0; k < 2; k++)
    if (sizes[k] < 1 || sizes[k] > MS_MAX_WINDOW)
      return MS_FAIL(MS_ESHAPE, "%s: %s is %" PRId64 "; it must be 1 to %d", ms_node_name(node), k ? "width" : "height",
                     sizes[k], (int)MS_MAX_WINDOW);
  return MS_OK;
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

static int check_groups(const ms_node *node, const ms_value_info *w, int64_t channels) {
  char text[MS_SHAPE_TEXT];
  const int64_t groups = node->attrs.windows.groups;
  MS_TRY(check_number(node, "groups", groups, 1));
  if (channels % groups || w->dims[0] % groups || w->dims[1] != channels / groups)
    return MS_FAIL(MS_ESHAPE,
                   "%s: w is %s; for %" PRId64 " channels in %" PRId64 " group%s it must be [O,%" PRId64
                   ",KH,KW], and both numbers of channels multiples of %" PRId64,
                   ms_node_name(node), ms_shape_text(w, text), channels, groups, groups == 1 ? "" : "s",
                   channels / groups, groups);
  return MS_OK;
}

/* The shape of conv2d's result. */
static int convolve(const ms_node *node, const ms_value_info *x, const ms_value_info *w, ms_value_info *y) {
  ms_window down, across;
  MS_TRY(check_groups(node, w, x->dims[1]));
  ms_conv_windows(&node->attrs, &down, &across);
  *y = *x;
  y->dims[1] = w->dims[0];
  return results_of(node, &down, &across, &x->dims[2], &w->dims[2], &y->dims[2]);
}

static int check_image(const ms_node *node, const ms_value_info *x, const char *what, const char *form) {
  MS_TRY(ms_check_float(node, x, what));
  return ms_check_ndim(node, x, 4, what, form);
}

int ms_infer_conv2d(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  char text[MS_SHAPE_TEXT];
  MS_TRY(check_image(node, &in[0], "x", "[N,C,H,W]"));
  MS_TRY(check_image(node, &in[1], "w", "[O,C/groups,KH,KW]"));
  MS_TRY(ms_check_same_dtype(node, &in[0], "x", &in[1], "w"));
  MS_TRY(convolve(node, &in[0], &in[1], &out[0]));
  if (node->inputs < 3) return MS_OK;
  if (in[2].ndim != 1 || in[2].dims[0] != in[1].dims[0])
    return MS_FAIL(MS_ESHAPE, "conv2d: the bias is %s; it must be [%" PRId64 "], a number for each result of w",
                   ms_shape_text(&in[2], text), in[1].dims[0]);
  return ms_check_same_dtype(node, &in[0], "x", &in[2], "the bias");
}

/* Checks that dy has the shape of the result of x and w. */
static int check_result(const ms_node *node, const ms_value_info *x, const ms_value_info *w, const ms_value_info *dy) {
  ms_value_info y;
  MS_TRY(convolve(node, x, w, &y));
  return ms_check_same_shape(node, &y, "the result of x and w", dy, "dy");
}

int ms_infer_conv2d_backward_input(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_image(node, &in[0], "dy", "[N,O,H,W]"));
  MS_TRY(check_image(node, &in[1], "w", "[O,C/groups,KH,KW]"));
  MS_TRY(ms_check_same_dtype(node, &in[0], "dy", &in[1], "w"));
  MS_TRY(check_number(node, "groups", node->attrs.windows.groups, 1));
  out[0] = in[0];
  out[0].dims[1] = in[1].dims[1] * node->attrs.windows.groups;
  MS_TRY(asked_sizes(node, &out[0].dims[2]));
  return check_result(node, &out[0], &in[1], &in[0]);
}

int ms_infer_conv2d_backward_weight(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_image(node, &in[0], "x", "[N,C,H,W]"));
  MS_TRY(check_image(node, &in[1], "dy", "[N,O,H,W]"));
  MS_TRY(ms_check_same_dtype(node, &in[0], "x", &in[1], "dy"));
  MS_TRY(check_number(node, "groups", node->attrs.windows.groups, 1));
  out[0] = in[0];
  out[0].dims[0] = in[1].dims[1];
  out[0].dims[1] = in[0].dims[1] / node->attrs.windows.groups;
  MS_TRY(asked_sizes(node, &out[0].dims[2]));
  MS_TRY(ms_asked_dtype(node, in[0].dtype, MS_DTYPE_FLOAT, &out[0].dtype));
  return check_result(node, &in[0], &out[0], &in[1]);
}

/* ---- pools ------------------------------------------------------------------------------------------------------- */

/* The result of pooling planes of these sizes: y is [...,H,W], of which the last two are set. */
static int pool(const ms_node *node, const int64_t *sizes, ms_value_info *y) {
  ms_window down, across;
  ms_pool_windows(&node->attrs, &down, &across);
  const int64_t size[2] = {down.size, across.size};
  MS_TRY(results_of(node, &down, &across, sizes, size, &y->dims[y->ndim - 2]));
  if (2 * down.pad <= down.size && 2 * across.pad <= across.size) return MS_OK;
  return MS_FAIL(MS_EINVAL,
                 "%s: padding of %" PRId64 " and %" PRId64 "; it can be at most half of the window, %" PRId64
                 " and %" PRId64,
                 ms_node_name(node), down.pad, across.pad, down.size / 2, across.size / 2);
}

static int check_planes(const ms_node *node, const ms_value_info *x, const char *what) {
  MS_TRY(ms_check_float(node, x, what));
  if (x->ndim >= 2) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "%s: %s has %d axes; it must be [...,H,W]", ms_node_name(node), what, x->ndim);
}

int ms_infer_avg_pool2d(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_planes(node, &in[0], "x"));
  out[0] = in[0];
  return pool(node, &in[0].dims[in[0].ndim - 2], &out[0]);
}

int ms_infer_max_pool2d(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  char text[MS_SHAPE_TEXT];
  MS_TRY(ms_infer_avg_pool2d(node, in, out));
  out[1] = out[0];
  out[1].dtype = MS_I32;
  const int64_t *sizes = &in[0].dims[in[0].ndim - 2];
  if (sizes[0] <= INT32_MAX / sizes[1]) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "max_pool2d: planes of %s have more elements than i32 can count",
                 ms_shape_text(&in[0], text));
}

int ms_infer_avg_pool2d_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_value_info y = in[0];
  MS_TRY(check_planes(node, &in[0], "dy"));
  out[0] = in[0];
  MS_TRY(asked_sizes(node, &out[0].dims[in[0].ndim - 2]));
  MS_TRY(pool(node, &out[0].dims[in[0].ndim - 2], &y));
  return ms_check_same_shape(node, &y, "the result of x", &in[0], "dy");
}

int ms_infer_max_pool2d_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_dtype(node, &in[1], MS_I32, "the indices"));
  MS_TRY(ms_check_same_shape(node, &in[0], "dy", &in[1], "the indices"));
  return ms_infer_avg_pool2d_backward(node, in, out);
}
