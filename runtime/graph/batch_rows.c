/* batch_rows.c - which elements of a value belong to which row of the batch, propagated from the inputs through the
 * ops.
 *
 * A value's elements are viewed as [outer, rows, inner], so reshaping changes nothing, nor does merging rows with
 * other axes (to [rows * positions, D]). Other ops move axes: the axis with the rows is found in the input, and the
 * op's row of the table gives the corresponding output axis, or reports that it ends (a sum over rows belongs to no
 * row). If rows are scattered in a way that three sizes cannot describe, the value is marked, and dropout rejects it:
 * a mask that follows the rank instead of the row would differ on another mesh.
 */
#include <stddef.h>

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

/* ---- the column `axes` of the op table: which axis of output 0 an input's axis becomes -------------------------- */

/* Aligned at the last axis. A repeated axis does not contain rows, except for a single row, where another axis is
 * used. */
int ms_axes_aligned(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)node;
  int to = out->ndim - in[input].ndim + axis;
  return to >= 0 && out->dims[to] == in[input].dims[axis] ? to : MS_AXIS_ENDS;
}

/* As the first input's. */
int ms_axes_first(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)node, (void)in, (void)out;
  return input == 0 ? axis : MS_AXIS_ENDS;
}

int ms_axes_reduced(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)out;
  int keep = node->attrs.i[1] != 0, all = node->attrs.i[2] != 0;
  int64_t reduced = node->attrs.i[0] < 0 ? node->attrs.i[0] + in[input].ndim : node->attrs.i[0];
  if (all || reduced == axis) return MS_AXIS_ENDS;
  return axis > reduced && !keep ? axis - 1 : axis;
}

int ms_axes_matmul(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  if (input == 2) return MS_AXIS_ENDS;
  int back = in[input].ndim - axis, transposed = node->attrs.i[input] != 0;
  if (back > 2) return axis;
  int kept = (back == 2) != transposed ? 2 : 1; /* the product reads it as its operand's last but one axis, or last */
  return kept == (input == 0 ? 2 : 1) ? out->ndim - kept : MS_AXIS_ENDS;
}

int ms_axes_tokens(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)node, (void)in, (void)out;
  return input == 1 ? axis : MS_AXIS_ENDS;
}

/* Follows the queries; of keys and values only the batch axis. */
int ms_axes_queries(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)node, (void)in, (void)out;
  return input == 0 || axis == 0 ? axis : MS_AXIS_ENDS;
}

int ms_axes_permuted(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)in, (void)input;
  for (int d = 0; d < out->ndim; d++)
    if (node->attrs.i[d] == axis) return d;
  return MS_AXIS_TORN;
}

/* slice, pad and concat along the rows have their own rules, below. */
int ms_axes_pieces(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)out;
  int64_t cut = node->attrs.i[0] < 0 ? node->attrs.i[0] + in[input].ndim : node->attrs.i[0];
  return cut == axis && in[input].dims[axis] != out->dims[axis] ? MS_AXIS_TORN : axis;
}

int ms_axes_ends(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)node, (void)in, (void)out, (void)input, (void)axis;
  return MS_AXIS_ENDS;
}

/* An alias keeps its bytes in place, and therefore its rows. */
int ms_axes_kept(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)node, (void)in, (void)out, (void)input;
  return axis;
}

/* ---- along the rows --------------------------------------------------------------------------------------------- */

/* The result contains some of the rows. */
static ms_batch_rows sliced(const ms_node *node, const ms_value_info *out, row_axis from, const ms_batch_rows *rows) {
  ms_batch_rows part = {product(out->dims, 0, from.axis), node->attrs.i[2] - node->attrs.i[1],
                        rows->first + node->attrs.i[1]};
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

static ms_batch_rows from_input(const ms_node *node, const ms_value_info *in, const ms_value_info *out,
                                const ms_batch_rows *rows, int input) {
  const ms_axes_fn axes = ms_op_row_of(node->op)->axes;
  row_axis from;
  int to = MS_AXIS_TORN, searched = 0;
  if (rows[input].rows < 0 || !axes) return torn;
  if (axes == ms_axes_ends) return none;
  if (axes == ms_axes_aligned && ms_numel(&in[input]) == ms_numel(out)) return rows[input];
  if (!find_axis(&in[input], &rows[input], 0, &from)) return torn;
  /* A single row can be assigned to any axis of size 1; prefer one that survives over one that ends. */
  do to = axes(node, in, out, input, from.axis), searched = from.axis + 1;
  while (to == MS_AXIS_ENDS && rows[input].rows == 1 && find_axis(&in[input], &rows[input], searched, &from));
  if (to == MS_AXIS_ENDS) return none;
  if (to >= 0) return at_axis(out, to, from, &rows[input]);
  if (node->op == MS_OP_slice) return sliced(node, out, from, &rows[input]);
  return node->op == MS_OP_concat ? repeated(node, in, out, rows, from) : torn;
}

ms_batch_rows ms_follow_rows(const ms_node *node, const ms_value_info *in, const ms_batch_rows *rows,
                             const ms_value_info *out) {
  if (ms_op_row_of(node->op)->axes == ms_axes_kept) return rows[0];
  for (int i = 0; i < node->inputs; i++) {
    if (!rows[i].rows) continue;
    ms_batch_rows found = from_input(node, in, out, rows, i);
    if (found.rows) return found;
  }
  return none;
}
