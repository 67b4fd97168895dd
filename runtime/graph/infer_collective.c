/* infer_collective.c - shape rules of the ops across ranks. */
#include <inttypes.h>

#include "graph/infer.h"

static int check_ranks(const ms_node *node) {
  if (node->attrs.i[1] >= 1) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%s: %" PRId64 " ranks; it must be at least 1", ms_node_name(node), node->attrs.i[1]);
}

/* The axis that an attribute names. */
static int check_own_axis(const ms_node *node, const ms_value_info *x, int slot, int *axis) {
  const int64_t asked = node->attrs.i[slot];
  *axis = (int)asked;
  if (asked >= 0 && asked < x->ndim) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%s: there is no axis %" PRId64 " among %d", ms_node_name(node), asked, x->ndim);
}

static int check_divides(const ms_node *node, const ms_value_info *x, int axis, int64_t divisor) {
  char text[MS_SHAPE_TEXT];
  if (divisor >= 1 && x->dims[axis] % divisor == 0) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "%s: axis %d of %s must be a multiple of %" PRId64, ms_node_name(node), axis,
                 ms_shape_text(x, text), divisor);
}

/* A part becomes the whole of its axis. */
int ms_infer_all_gather(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  int axis;
  MS_TRY(check_ranks(node));
  MS_TRY(check_own_axis(node, &in[0], 2, &axis));
  MS_TRY(check_divides(node, &in[0], axis, node->attrs.i[3]));
  out[0] = in[0];
  out[0].dims[axis] *= node->attrs.i[1];
  return MS_OK;
}

/* The whole of an axis becomes a part. */
int ms_infer_split(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  int axis;
  MS_TRY(check_ranks(node));
  MS_TRY(check_own_axis(node, &in[0], 2, &axis));
  MS_TRY(check_divides(node, &in[0], axis, node->attrs.i[1] * node->attrs.i[3]));
  out[0] = in[0];
  out[0].dims[axis] /= node->attrs.i[1];
  return MS_OK;
}

int ms_infer_all_to_all(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  int split, concat;
  MS_TRY(check_ranks(node));
  MS_TRY(check_own_axis(node, &in[0], 2, &split));
  MS_TRY(check_own_axis(node, &in[0], 3, &concat));
  MS_TRY(check_divides(node, &in[0], split, node->attrs.i[1]));
  out[0] = in[0];
  out[0].dims[split] /= node->attrs.i[1];
  out[0].dims[concat] *= node->attrs.i[1];
  return MS_OK;
}
