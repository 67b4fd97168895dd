/* infer_collective.c - shape rules of the ops across ranks. */
#include <inttypes.h>

#include "graph/infer/infer.h"

static int check_ranks(const ms_node *node) {
  if (node->attrs.across.ranks >= 1 && node->attrs.across.ranks <= MS_MAX_RANKS) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%s: %" PRId64 " ranks; it must be 1 to %d", ms_node_name(node), node->attrs.across.ranks,
                 MS_MAX_RANKS);
}

/* The axis that an attribute names. */
static int check_own_axis(const ms_node *node, const ms_value_info *x, int64_t asked, int *axis) {
  *axis = (int)asked;
  if (asked >= 0 && asked < x->ndim) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%s: no axis %" PRId64 " of a value with %d axes", ms_node_name(node), asked, x->ndim);
}

static int check_divides(const ms_node *node, const ms_value_info *x, int axis, int64_t divisor) {
  char text[MS_SHAPE_TEXT], near[MS_SIZES_TEXT] = "";
  if (divisor >= 1 && x->dims[axis] % divisor == 0) return MS_OK;
  if (divisor >= 1) ms_sizes_near(x->dims[axis], divisor, near);
  return MS_FAIL(MS_ESHAPE, "%s: axis %d of %s must be a multiple of %" PRId64 "%s%s", ms_node_name(node), axis,
                 ms_shape_text(x, text), divisor, near[0] ? "; " : "", near);
}

/* The axis of the value that all ranks have parts of. */
static int join_axis(const ms_node *node, const ms_value_info *x, int axis, ms_value_info *out) {
  char text[MS_SHAPE_TEXT];
  if (!__builtin_mul_overflow(x->dims[axis], node->attrs.across.ranks, &out->dims[axis])) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "%s: axis %d of %s on each of %" PRId64 " ranks is too long", ms_node_name(node), axis,
                 ms_shape_text(x, text), node->attrs.across.ranks);
}

/* Only what can be summed has a sum or a maximum over ranks. */
int ms_infer_all_reduce(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_ranks(node));
  MS_TRY(ms_check_float(node, &in[0], "x"));
  out[0] = in[0];
  return MS_OK;
}

/* A part becomes the whole of its axis. */
int ms_infer_all_gather(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  int axis;
  MS_TRY(check_ranks(node));
  MS_TRY(check_own_axis(node, &in[0], node->attrs.across.along, &axis));
  MS_TRY(check_divides(node, &in[0], axis, node->attrs.across.outer));
  out[0] = in[0];
  return join_axis(node, &in[0], axis, &out[0]);
}

/* The whole of an axis becomes a part. */
int ms_infer_split(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  int axis;
  int64_t parts;
  MS_TRY(check_ranks(node));
  MS_TRY(check_own_axis(node, &in[0], node->attrs.across.along, &axis));
  if (__builtin_mul_overflow(node->attrs.across.ranks, node->attrs.across.outer, &parts))
    parts = INT64_MAX; /* divides nothing */
  MS_TRY(check_divides(node, &in[0], axis, parts));
  out[0] = in[0];
  out[0].dims[axis] /= node->attrs.across.ranks;
  return MS_OK;
}

int ms_infer_reduce_scatter(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_float(node, &in[0], "x"));
  return ms_infer_split(node, in, out);
}

static int check_local_kind(const ms_node *node) {
  const int64_t kind = node->attrs.across.kind;
  if (kind >= MS_LOCAL_REPLICATE && kind <= MS_LOCAL_PARTIAL) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%s: there is no kind %" PRId64 " (enum ms_local_kind)", ms_node_name(node), kind);
}

/* What each rank has of a value; from_local: the value of which each has this. */
static int infer_border(const ms_node *node, const ms_value_info *in, ms_value_info *out, int enters) {
  const int64_t ranks = node->attrs.across.ranks;
  int axis;
  MS_TRY(check_ranks(node));
  MS_TRY(check_local_kind(node));
  out[0] = in[0];
  if (node->attrs.across.kind != MS_LOCAL_SHARD) return MS_OK;
  MS_TRY(check_own_axis(node, &in[0], node->attrs.across.along, &axis));
  if (!enters) return join_axis(node, &in[0], axis, &out[0]);
  MS_TRY(check_divides(node, &in[0], axis, ranks));
  out[0].dims[axis] /= ranks;
  return MS_OK;
}

int ms_infer_to_local(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  return infer_border(node, in, out, 1);
}

int ms_infer_from_local(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  return infer_border(node, in, out, 0);
}

int ms_infer_all_to_all(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  int split, concat;
  MS_TRY(check_ranks(node));
  MS_TRY(check_own_axis(node, &in[0], node->attrs.across.split_axis, &split));
  MS_TRY(check_own_axis(node, &in[0], node->attrs.across.concat_axis, &concat));
  MS_TRY(check_divides(node, &in[0], split, node->attrs.across.ranks));
  out[0] = in[0];
  out[0].dims[split] /= node->attrs.across.ranks;
  const ms_value_info parted = out[0];
  return join_axis(node, &parted, concat, &out[0]);
}
