/* batch_rows.c - which elements of a value belong to which row of the batch, propagated from the inputs through the
 * ops.
 *
 * A value's elements are viewed as [outer, rows, inner], so reshaping changes nothing, nor does merging rows with
 * other axes (to [rows * positions, D]). Other ops move axes: the axis with the rows is found in the input, and the
 * axis of the output that has its label (axes.h), if one has: a sum over rows belongs to no row. If rows are scattered
 * in a way that three sizes cannot describe, the value is marked, and dropout rejects it: a mask that follows the rank
 * instead of the row would differ on another mesh.
 */
#include <stddef.h>
#include <string.h>

#include "graph/axes.h"
#include "graph/batch_rows.h"

static const ms_batch_rows none = {0}, torn = {.rows = -1};

/* An axis that contains the rows: its indices are [outer, rows, inner]. */
typedef struct row_axis {
  int axis;
  int64_t outer, inner;
} row_axis;

static int64_t product(const int64_t *dims, int begin, int end) {
  int64_t n = 1;
  for (int d = begin; d < end; d++) n *= dims[d];
  return n;
}

/* Finds the first axis from `axis` on that contains all rows; returns 0 if there is none. */
static int find_axis(const ms_value_info *x, const ms_batch_rows *rows, int axis, row_axis *found) {
  const int64_t all_inner = ms_numel(x) / (rows->outer * rows->rows);
  for (; axis < x->ndim; axis++) {
    int64_t before = product(x->dims, 0, axis), after = product(x->dims, axis + 1, x->ndim);
    if (rows->outer % before || all_inner % after) continue;
    *found = (row_axis){axis, rows->outer / before, all_inner / after};
    if (found->outer * rows->rows * found->inner == x->dims[axis]) return 1;
  }
  return 0;
}

/* The rows of an output whose axis `to` corresponds to the input's row axis. */
static ms_batch_rows at_axis(const ms_value_info *out, int to, row_axis from, const ms_batch_rows *rows) {
  return (ms_batch_rows){product(out->dims, 0, to) * from.outer, rows->rows, rows->first};
}

/* ---- axes ------------------------------------------------------------------------------------------------------- */

/* In place of an axis of output 0. ENDS: the axis does not appear there (it was reduced or contracted). TORN: its
 * indices appear, but no longer along one axis. */
enum { ENDS = -1, TORN = -2 };

/* The axis of output 0 that an axis of an input becomes. */
static int follow_axis(const ms_axes *axes, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  const int label = axes->in[input][axis];
  int to = 0;
  while (to < out->ndim && axes->out[0][to] != label) to++;
  if (label < 0 || to == out->ndim) return ENDS;
  return in[input].dims[axis] == out->dims[to] ? to : TORN; /* a piece of the axis, or several */
}

/* 1 when output 0 has the input's elements in the same order. */
static int keeps_elements(const ms_axes *axes, const ms_value_info *in, const ms_value_info *out, int input) {
  const int more = out->ndim - in[input].ndim;
  if (ms_numel(&in[input]) != ms_numel(out)) return 0;
  for (int d = 0; d < out->ndim; d++)
    if (out->dims[d] > 1 && (d < more || axes->in[input][d - more] != axes->out[0][d])) return 0;
  return 1;
}

/* ---- along the rows --------------------------------------------------------------------------------------------- */

/* The result contains some of the rows. */
static ms_batch_rows sliced(const ms_node *node, const ms_value_info *out, row_axis from, const ms_batch_rows *rows) {
  ms_batch_rows part = {product(out->dims, 0, from.axis), node->attrs.cut.stop - node->attrs.cut.start,
                        rows->first + node->attrs.cut.start};
  return from.outer == 1 && from.inner == 1 ? part : torn;
}

/* The same rows repeated: [times, outer] becomes outer. */
static ms_batch_rows repeated(const ms_node *node, const ms_value_info *in, const ms_value_info *out,
                              const ms_batch_rows *rows, row_axis from) {
  for (int i = 1; i < node->inputs; i++)
    if (in[i].dims[from.axis] != in[0].dims[from.axis] || rows[i].rows != rows[0].rows ||
        rows[i].outer != rows[0].outer || rows[i].first != rows[0].first)
      return torn;
  from.outer *= node->inputs;
  return at_axis(out, from.axis, from, &rows[0]);
}

/* 1 when the node moves or mixes elements along an axis of an input, although sizes and labels stay: cumsum, roll, ...
 */
static int mixes_along(const ms_node *node, const ms_axes *axes, int input, int axis) {
  const int label = axes->in[input][axis];
  if (node->op == MS_OP_slice || node->op == MS_OP_concat || label < 0) return 0;
  return axes->label[label].whole && strstr(ms_op_row_of(node->op)->axes, " cut");
}

/* 1 when an axis that the node needs whole ends with it: that is no sum, so its indices go elsewhere, as those of rows
 * that are sorted by expert do. */
static int is_reordered(const ms_axes *axes, int input, int axis) {
  const int label = axes->in[input][axis];
  return label >= 0 && axes->label[label].whole;
}

static ms_batch_rows from_input(const ms_node *node, const ms_value_info *in, const ms_value_info *out,
                                const ms_batch_rows *rows, int input) {
  ms_axes axes;
  row_axis from;
  int to = TORN, searched = 0;
  if (rows[input].rows < 0 || !ms_op_has_axes(node->op) || ms_axes_of(node, in, out, &axes)) return torn;
  if (out->ndim == 0) return none;
  if (find_axis(&in[input], &rows[input], 0, &from) && in[input].dims[from.axis] > 1 &&
      mixes_along(node, &axes, input, from.axis))
    return torn;
  if (keeps_elements(&axes, in, out, input)) return rows[input];
  if (!find_axis(&in[input], &rows[input], 0, &from)) return torn;
  /* A single row can be assigned to any axis of size 1; prefer one that survives over one that ends. */
  do to = follow_axis(&axes, in, out, input, from.axis), searched = from.axis + 1;
  while (to == ENDS && rows[input].rows == 1 && find_axis(&in[input], &rows[input], searched, &from));
  if (to == ENDS) return is_reordered(&axes, input, from.axis) ? torn : none;
  if (to >= 0) return at_axis(out, to, from, &rows[input]);
  if (node->op == MS_OP_slice) return sliced(node, out, from, &rows[input]);
  return node->op == MS_OP_concat ? repeated(node, in, out, rows, from) : torn;
}

ms_batch_rows ms_follow_rows(const ms_node *node, const ms_value_info *in, const ms_batch_rows *rows,
                             const ms_value_info *out) {
  if (ms_op_row_of(node->op)->flags & MS_OP_ALIAS) return rows[0];
  if (node->op == MS_OP_expert_combine && node->inputs == 4 && rows[3].rows) /* a token's rows come back to it */
    return from_input(node, in, out, rows, 3);
  for (int i = 0; i < node->inputs; i++) {
    if (!rows[i].rows) continue;
    ms_batch_rows found = from_input(node, in, out, rows, i);
    if (found.rows) return found;
  }
  return none;
}
