/* infer_places.c - shape rules of ops that order the elements of an axis, move them along it, or name them by index. */
#include <inttypes.h>

#include "graph/infer/infer.h"

int ms_infer_roll(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  int axis;
  MS_TRY(ms_check_axis(node, in[0].ndim, &axis));
  out[0] = in[0];
  return MS_OK;
}

int ms_infer_cumsum(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_float(node, &in[0], "x"));
  return ms_infer_roll(node, in, out);
}

int ms_infer_topk(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  char text[MS_SHAPE_TEXT];
  const int64_t k = node->attrs.topk.k;
  int axis;
  MS_TRY(ms_check_float(node, &in[0], "x"));
  MS_TRY(ms_check_axis(node, in[0].ndim, &axis));
  const int64_t n = in[0].dims[axis];
  if (k < 1 || k > n || n > INT32_MAX)
    return MS_FAIL(MS_ESHAPE,
                   "topk: k is %" PRId64 ", and axis %d of %s has %" PRId64 " elements; it must be 1 <= k <= %" PRId64,
                   k, axis, ms_shape_text(&in[0], text), n, n < INT32_MAX ? n : INT32_MAX);
  out[0] = in[0];
  out[0].dims[axis] = k;
  out[1] = out[0];
  out[1].dtype = MS_I32;
  return MS_OK;
}

/* The index is i32 with x's shape but for the axis. */
static int check_index(const ms_node *node, const ms_value_info *x, const ms_value_info *index) {
  char text_x[MS_SHAPE_TEXT], text_index[MS_SHAPE_TEXT];
  ms_value_info other = *index;
  int axis;
  MS_TRY(ms_check_axis(node, x->ndim, &axis));
  MS_TRY(ms_check_dtype(node, index, MS_I32, "the index"));
  if (other.ndim == x->ndim) other.dims[axis] = x->dims[axis];
  if (ms_same_shape(x, &other)) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "%s: x is %s and the index is %s; they can differ only on axis %d", ms_node_name(node),
                 ms_shape_text(x, text_x), ms_shape_text(index, text_index), axis);
}

int ms_infer_gather(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_index(node, &in[0], &in[1]));
  out[0] = in[1];
  out[0].dtype = in[0].dtype;
  return MS_OK;
}

int ms_infer_scatter_add(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_float(node, &in[0], "x"));
  MS_TRY(check_index(node, &in[0], &in[1]));
  MS_TRY(ms_check_same_shape(node, &in[1], "the index", &in[2], "src"));
  MS_TRY(ms_check_same_dtype(node, &in[0], "x", &in[2], "src"));
  out[0] = in[0];
  return MS_OK;
}
