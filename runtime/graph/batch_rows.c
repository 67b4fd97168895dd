/* batch_rows.c - which elements of a value belong to which row of the batch, followed from the inputs through the ops.
**
** A value's elements are [outer, rows, inner]: so reshaping changes nothing, and merging rows with other axes (to
** [rows * positions, D]) does not either. Other ops move axes: the axis that holds the rows is found in the input, and each
** op says which axis of its output it becomes, or that it ends there (a sum over rows belongs to none). Where rows are torn
** apart in a way that three sizes cannot describe, the value says so, and dropout refuses it: a mask that follows the rank
** instead of the row would not be the same on another mesh.
*/
#include <stddef.h>

#include "graph/batch_rows.h"
#include "graph/infer.h"

enum { GONE = -1, TORN = -2 }; /* in place of an axis: no row is left; they are not where three sizes can tell */

static const ms_batch_rows none = {0}, torn = {.rows = -1};

/* An axis that holds rows: its indices are [outer, rows, inner]. */
typedef struct row_axis {
  int axis;
  int64_t outer, inner;
} row_axis;

static int64_t product(const int64_t *dims, int begin, int end) {
  int64_t n = 1;
  for (int d = begin; d < end; d++) n *= dims[d];
  return n;
}

/* The first axis from `axis` on that holds all rows; 0 when there is none. */
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

/* Of an output whose axis `to` is what the row axis was. */
static ms_batch_rows at_axis(const ms_value_info *out, int to, row_axis from, const ms_batch_rows *rows) {
  return (ms_batch_rows){product(out->dims, 0, to) * from.outer, rows->rows, rows->first};
}

/* ---- which axis of the output an input's axis becomes ---------------------------------------------------------------- */

typedef int (*axis_rule)(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis);

/* Aligned at the last axis. One that is repeated is none of rows (but where there is a single one: then another axis is it). */
static int aligned(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)node;
  int to = out->ndim - in[input].ndim + axis;
  return to >= 0 && out->dims[to] == in[input].dims[axis] ? to : GONE;
}

/* As the first input's. */
static int of_first(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)node, (void)in, (void)out;
  return input == 0 ? axis : GONE;
}

static int of_reduced(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)out;
  int keep = node->attrs.i[1] != 0, all = node->attrs.i[2] != 0;
  int64_t reduced = node->attrs.i[0] < 0 ? node->attrs.i[0] + in[input].ndim : node->attrs.i[0];
  if (all || reduced == axis) return GONE;
  return axis > reduced && !keep ? axis - 1 : axis;
}

static int of_matmul(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  if (input == 2) return GONE;
  int back = in[input].ndim - axis, transposed = node->attrs.i[input] != 0;
  if (back > 2) return axis;
  int kept = (back == 2) != transposed ? 2 : 1; /* the product reads it as its operand's last but one axis, or last */
  return kept == (input == 0 ? 2 : 1) ? out->ndim - kept : GONE;
}

static int of_tokens(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)node, (void)in, (void)out;
  return input == 1 ? axis : GONE;
}

/* Queries; of keys and values the batch. */
static int of_attention(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)node, (void)in, (void)out;
  return input == 0 || axis == 0 ? axis : GONE;
}

static int of_transposed(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)in, (void)input;
  for (int d = 0; d < out->ndim; d++)
    if (node->attrs.i[d] == axis) return d;
  return TORN;
}

/* Along the rows slices, pads and pieces have rules of their own: see below. */
static int of_pieces(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)out;
  int64_t cut = node->attrs.i[0] < 0 ? node->attrs.i[0] + in[input].ndim : node->attrs.i[0];
  return cut == axis && in[input].dims[axis] != out->dims[axis] ? TORN : axis;
}

static int ends(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis) {
  (void)node, (void)in, (void)out, (void)input, (void)axis;
  return GONE;
}

static const struct {
  ms_infer_fn shape; /* ops of one shape rule move axes alike */
  axis_rule rule;
} rules[] = {
    {ms_infer_same, aligned},
    {ms_infer_same2, aligned},
    {ms_infer_broadcast, aligned},
    {ms_infer_compare, aligned},
    {ms_infer_where, aligned},
    {ms_infer_cast, aligned},
    {ms_infer_broadcast_to, aligned},
    {ms_infer_sum_to, aligned},
    {ms_infer_reduce, of_reduced},
    {ms_infer_matmul, of_matmul},
    {ms_infer_layer_norm, of_first},
    {ms_infer_rms_norm, of_first},
    {ms_infer_rope, of_first},
    {ms_infer_embedding, of_tokens},
    {ms_infer_attention, of_attention},
    {ms_infer_document_attention, of_attention},
    {ms_infer_transpose, of_transposed},
    {ms_infer_slice, of_pieces},
    {ms_infer_pad, of_pieces},
    {ms_infer_concat, of_pieces},
    {ms_infer_cross_entropy, ends},
};

static axis_rule rule_of(const ms_node *node) {
  ms_infer_fn shape = ms_op_row_of(node->op)->infer;
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
    if (rules[i].shape == shape) return rules[i].rule;
  return NULL;
}

/* ---- along the rows ----------------------------------------------------------------------------------------------- */

/* Some of the rows. */
static ms_batch_rows sliced(const ms_node *node, const ms_value_info *out, row_axis from, const ms_batch_rows *rows) {
  ms_batch_rows part = {product(out->dims, 0, from.axis), node->attrs.i[2] - node->attrs.i[1],
                        rows->first + node->attrs.i[1]};
  return from.outer == 1 && from.inner == 1 ? part : torn;
}

/* The same rows several times over: [times, outer] is outer. */
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
  const axis_rule rule = rule_of(node);
  row_axis from;
  int to = TORN, searched = 0;
  if (rows[input].rows < 0 || !rule) return torn;
  if (rule == ends) return none;
  if (rule == aligned && ms_numel(&in[input]) == ms_numel(out)) return rows[input];
  if (!find_axis(&in[input], &rows[input], 0, &from)) return torn;
  /* A single row may lie along any axis of size 1: one that stays is as good, and better than one that ends. */
  do to = rule(node, in, out, input, from.axis), searched = from.axis + 1;
  while (to == GONE && rows[input].rows == 1 && find_axis(&in[input], &rows[input], searched, &from));
  if (to == GONE) return none;
  if (to >= 0) return at_axis(out, to, from, &rows[input]);
  if (node->op == MS_OP_slice) return sliced(node, out, from, &rows[input]);
  return node->op == MS_OP_concat ? repeated(node, in, out, rows, from) : torn;
}

ms_batch_rows ms_follow_rows(const ms_node *node, const ms_value_info *in, const ms_batch_rows *rows,
                             const ms_value_info *out) {
  if (node->op == MS_OP_reshape) return rows[0];
  for (int i = 0; i < node->inputs; i++) {
    if (!rows[i].rows) continue;
    ms_batch_rows found = from_input(node, in, out, rows, i);
    if (found.rows) return found;
  }
  return none;
}
