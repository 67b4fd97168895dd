/* infer.c - the checks that shape rules share, and the text form of shapes in messages. */
#include "graph/infer/infer.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/numbers/dtype.h"

char *ms_shape_text(const ms_value_info *info, char *text) {
  int used = snprintf(text, MS_SHAPE_TEXT, "[");
  for (int d = 0; d < info->ndim; d++)
    used += snprintf(text + used, (size_t)(MS_SHAPE_TEXT - used), d ? ",%" PRId64 : "%" PRId64, info->dims[d]);
  snprintf(text + used, (size_t)(MS_SHAPE_TEXT - used), "]");
  return text;
}

int ms_same_shape(const ms_value_info *a, const ms_value_info *b) {
  if (a->ndim != b->ndim) return 0;
  for (int d = 0; d < a->ndim; d++)
    if (a->dims[d] != b->dims[d]) return 0;
  return 1;
}

int64_t ms_rows(const ms_value_info *x) {
  int64_t rows = 1;
  for (int d = 0; d < x->ndim - 1; d++) rows *= x->dims[d];
  return rows;
}

int ms_check_float(const ms_node *node, const ms_value_info *x, const char *what) {
  char floats[MS_DTYPE_LIST];
  if (ms_is_float(x->dtype)) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "%s: %s is %s; it must be %s: cast it first", ms_node_name(node), what,
                 ms_dtype_name(x->dtype), ms_dtype_list(MS_DTYPE_FLOAT, floats));
}

int ms_check_dtype(const ms_node *node, const ms_value_info *x, int dtype, const char *what) {
  if (x->dtype == dtype) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "%s: %s is %s; it must be %s", ms_node_name(node), what, ms_dtype_name(x->dtype),
                 ms_dtype_name(dtype));
}

int ms_check_ndim(const ms_node *node, const ms_value_info *x, int ndim, const char *what, const char *form) {
  char text[MS_SHAPE_TEXT];
  if (x->ndim == ndim) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "%s: %s is %s; it must be %s", ms_node_name(node), what, ms_shape_text(x, text), form);
}

int ms_check_same_shape(const ms_node *node, const ms_value_info *a, const char *what_a, const ms_value_info *b,
                        const char *what_b) {
  char text_a[MS_SHAPE_TEXT], text_b[MS_SHAPE_TEXT];
  if (ms_same_shape(a, b)) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "%s: %s is %s and %s is %s; their shapes must be equal", ms_node_name(node), what_a,
                 ms_shape_text(a, text_a), what_b, ms_shape_text(b, text_b));
}

int ms_check_same_dtype(const ms_node *node, const ms_value_info *a, const char *what_a, const ms_value_info *b,
                        const char *what_b) {
  if (a->dtype == b->dtype) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "%s: %s is %s and %s is %s; cast one to the other's dtype", ms_node_name(node), what_a,
                 ms_dtype_name(a->dtype), what_b, ms_dtype_name(b->dtype));
}

int ms_check_channels(const ms_node *node, const ms_value_info *x, const ms_value_info *v, const char *what) {
  char text_v[MS_SHAPE_TEXT], text_x[MS_SHAPE_TEXT];
  int64_t last = x->ndim ? x->dims[x->ndim - 1] : 0;
  if (v->ndim != 1 || v->dims[0] != last)
    return MS_FAIL(MS_ESHAPE, "%s: %s is %s; with x of shape %s it must be [%" PRId64 "]", ms_node_name(node), what,
                   ms_shape_text(v, text_v), ms_shape_text(x, text_x), last);
  if (v->dtype != MS_F32 && v->dtype != x->dtype)
    return MS_FAIL(MS_EDTYPE, "%s: %s is %s; with x of dtype %s it must be f32%s%s", ms_node_name(node), what,
                   ms_dtype_name(v->dtype), ms_dtype_name(x->dtype), x->dtype == MS_F32 ? "" : " or ",
                   x->dtype == MS_F32 ? "" : ms_dtype_name(x->dtype));
  return MS_OK;
}

int ms_check_axis(const ms_node *node, int ndim, int *axis) {
  const int64_t asked = ms_node_axis(node);
  if (asked < -ndim || asked >= ndim)
    return MS_FAIL(MS_EINVAL, "%s: there is no axis %" PRId64 " among %d; it must be from %d to %d", ms_node_name(node),
                   asked, ndim, -ndim, ndim - 1);
  *axis = (int)(asked < 0 ? asked + ndim : asked);
  return MS_OK;
}

int ms_asked_dtype(const ms_node *node, int otherwise, int uses, int *dtype) {
  char allowed[MS_DTYPE_LIST];
  const int64_t asked = node->attrs.out_dtype;
  *dtype = asked >= 1 && asked <= MS_DTYPES ? (int)asked - 1 : otherwise;
  if (asked == 0 || (asked == 1 + *dtype && ms_dtype_may(*dtype, uses))) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "%s: out_dtype %" PRId64 "; it must be 0 (keep), or 1 + the number of %s",
                 ms_node_name(node), asked, ms_dtype_list(uses, allowed));
}

int ms_asked_shape(const ms_node *node, int64_t smallest, ms_value_info *shape) {
  int64_t ndim = node->attrs.shape.ndim;
  if (ndim < 0 || ndim > MS_MAX_DIMS)
    return MS_FAIL(MS_ESHAPE, "%s: a shape of %" PRId64 " dimensions; it can have 0 to %d", ms_node_name(node), ndim,
                   MS_MAX_DIMS);
  shape->ndim = (int)ndim;
  for (int d = 0; d < shape->ndim; d++) {
    shape->dims[d] = node->attrs.shape.d[d];
    if (shape->dims[d] < smallest)
      return MS_FAIL(MS_ESHAPE, "%s: size %" PRId64 " of dimension %d; it must be at least %" PRId64,
                     ms_node_name(node), shape->dims[d], d, smallest);
  }
  return MS_OK;
}
