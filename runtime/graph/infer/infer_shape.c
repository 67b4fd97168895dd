/* infer_shape.c - shape rules of reductions and of ops that move elements. */
#include <inttypes.h>
#include <stdio.h>

#include "graph/infer/infer.h"

static int reduced_shape(const ms_node *node, const ms_value_info *x, ms_value_info *out) {
  int keep = node->attrs.reduce.keepdim != 0, all = node->attrs.reduce.all != 0, axis = -1;
  if (!all) MS_TRY(ms_check_axis(node, x->ndim, &axis));
  out->ndim = 0;
  for (int d = 0; d < x->ndim; d++) {
    int reduced = all || d == axis;
    if (!reduced || keep) out->dims[out->ndim++] = reduced ? 1 : x->dims[d];
  }
  return MS_OK;
}

int ms_infer_reduce(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_float(node, &in[0], "x"));
  MS_TRY(reduced_shape(node, &in[0], &out[0]));
  out[0].dtype = in[0].dtype;
  return ms_op_has(node->op, "out_dtype") ? ms_asked_dtype(node, in[0].dtype, MS_DTYPE_FLOAT, &out[0].dtype) : MS_OK;
}

int ms_infer_redistribute(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  const int64_t axis = node->attrs.across.along;
  if (axis < -1 || axis >= in[0].ndim)
    return MS_FAIL(MS_EINVAL, "redistribute: no axis %" PRId64 " of a value with %d axes", axis, in[0].ndim);
  out[0] = in[0];
  return MS_OK;
}

int ms_infer_reshape(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  char text_x[MS_SHAPE_TEXT], text_y[MS_SHAPE_TEXT];
  int64_t elements = ms_numel(&in[0]), known = 1;
  int open = -1;
  MS_TRY(ms_asked_shape(node, -1, &out[0]));
  for (int d = 0; d < out[0].ndim; d++) {
    int64_t size = out[0].dims[d];
    if (size == 0 || (size < 0 && open >= 0))
      return MS_FAIL(MS_ESHAPE, "reshape: to %s; sizes must be at least 1, or -1 for one of them",
                     ms_shape_text(&out[0], text_y));
    if (size < 0) open = d;
    else if (__builtin_mul_overflow(known, size, &known)) known = INT64_MAX; /* fits nothing */
  }
  int fits = open < 0 ? known == elements : elements % known == 0;
  if (!fits)
    return MS_FAIL(MS_ESHAPE, "reshape: %s has %" PRId64 " elements and does not fit %s", ms_shape_text(&in[0], text_x),
                   elements, ms_shape_text(&out[0], text_y));
  if (open >= 0) out[0].dims[open] = elements / known;
  out[0].dtype = in[0].dtype;
  return MS_OK;
}

int ms_infer_transpose(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  int seen[MS_MAX_DIMS] = {0}, ndim = in[0].ndim;
  out[0] = in[0];
  for (int d = 0; d < ndim; d++) {
    int64_t p = node->attrs.permutation.p[d];
    if (p < 0 || p >= ndim || seen[p])
      return MS_FAIL(MS_EINVAL,
                     "transpose: axis %" PRId64 " at position %d; each axis from 0 to %d must occur exactly once", p, d,
                     ndim - 1);
    seen[p] = 1;
    out[0].dims[d] = in[0].dims[p];
  }
  return MS_OK;
}

int ms_infer_slice(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  char text[MS_SHAPE_TEXT];
  int axis;
  int64_t start = node->attrs.cut.start, stop = node->attrs.cut.stop;
  MS_TRY(ms_check_axis(node, in[0].ndim, &axis));
  if (start < 0 || start >= stop || stop > in[0].dims[axis])
    return MS_FAIL(MS_ESHAPE,
                   "slice: [%" PRId64 ", %" PRId64 ") on axis %d of %s; it must be 0 <= start < stop <= %" PRId64,
                   start, stop, axis, ms_shape_text(&in[0], text), in[0].dims[axis]);
  out[0] = in[0];
  out[0].dims[axis] = stop - start;
  return MS_OK;
}

int ms_infer_pad(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  int axis;
  int64_t before = node->attrs.cut.before, after = node->attrs.cut.after;
  MS_TRY(ms_check_axis(node, in[0].ndim, &axis));
  if (before < 0 || after < 0 || before > INT32_MAX || after > INT32_MAX)
    return MS_FAIL(MS_EINVAL, "pad: %" PRId64 " before and %" PRId64 " after; they must not be negative, nor above %d",
                   before, after, INT32_MAX);
  out[0] = in[0];
  out[0].dims[axis] += before + after;
  return MS_OK;
}

int ms_infer_concat(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  char text_a[MS_SHAPE_TEXT], text_b[MS_SHAPE_TEXT], what[24];
  int axis;
  MS_TRY(ms_check_axis(node, in[0].ndim, &axis));
  out[0] = in[0];
  for (int i = 1; i < node->inputs; i++) {
    ms_value_info other = in[i];
    snprintf(what, sizeof what, "input %d", i + 1);
    MS_TRY(ms_check_same_dtype(node, &in[0], "input 1", &in[i], what));
    if (other.ndim == in[0].ndim) other.dims[axis] = in[0].dims[axis];
    if (!ms_same_shape(&in[0], &other))
      return MS_FAIL(MS_ESHAPE, "concat: input 1 is %s and %s is %s; they can differ only on axis %d",
                     ms_shape_text(&in[0], text_a), what, ms_shape_text(&in[i], text_b), axis);
    out[0].dims[axis] += in[i].dims[axis];
  }
  return MS_OK;
}

/* 1 when `small` broadcasts to `big` as it is. */
static int broadcasts_to(const ms_value_info *small, const ms_value_info *big) {
  if (small->ndim > big->ndim) return 0;
  for (int d = 0; d < small->ndim; d++) {
    int64_t size = small->dims[d];
    if (size != 1 && size != big->dims[big->ndim - small->ndim + d]) return 0;
  }
  return 1;
}

int ms_infer_broadcast_to(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  char text_x[MS_SHAPE_TEXT], text_y[MS_SHAPE_TEXT];
  MS_TRY(ms_check_float(node, &in[0], "x"));
  MS_TRY(ms_asked_shape(node, 1, &out[0]));
  if (!broadcasts_to(&in[0], &out[0]))
    return MS_FAIL(MS_ESHAPE,
                   "broadcast_to: %s cannot be repeated to %s; from the last dimension on, sizes must be equal or 1",
                   ms_shape_text(&in[0], text_x), ms_shape_text(&out[0], text_y));
  out[0].dtype = in[0].dtype;
  return MS_OK;
}

int ms_infer_sum_to(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  char text_x[MS_SHAPE_TEXT], text_y[MS_SHAPE_TEXT];
  MS_TRY(ms_check_float(node, &in[0], "x"));
  MS_TRY(ms_asked_shape(node, 1, &out[0]));
  if (!broadcasts_to(&out[0], &in[0]))
    return MS_FAIL(MS_ESHAPE, "sum_to: %s cannot be summed to %s, which does not broadcast to it",
                   ms_shape_text(&in[0], text_x), ms_shape_text(&out[0], text_y));
  return ms_asked_dtype(node, in[0].dtype, MS_DTYPE_FLOAT, &out[0].dtype);
}

int ms_infer_fill(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  (void)in;
  MS_TRY(ms_asked_shape(node, 0, &out[0]));
  return ms_asked_dtype(node, MS_F32, 0, &out[0].dtype);
}
