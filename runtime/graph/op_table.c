/* op_table.c - the rows of kernels/ops.def and their report through the public header.
 *
 * Claims of a row are asserted at compile time where possible. attributes.c reads the column of attributes.
 */
#include <string.h>

#include "base/numbers/dtype.h"
#include "graph/grad/grad.h"
#include "graph/infer/infer.h"

/* Entries of rows without a gradient. */
#define ms_grad_none NULL

static const ms_op_row rows[MS_OP_COUNT] = {
#define MS_OP(name, low, high, outputs, members, attrs, rule, axes, gradient, flops, work, kernel, flags, doc) \
  {#name, attrs, doc, low, high, outputs, flops, flags, ms_infer_##rule, axes, ms_grad_##gradient, ms_work_##work},
#include "kernels/ops.def"
#undef MS_OP
};

#define HAS_ONE(flags, group) (((flags) & (group)) && !(((flags) & (group)) & (((flags) & (group)) - 1)))
#define IMPLIES(a, b) (!(a) || (b))

#define MS_OP(name, low, high, outputs, members, attrs, rule, axes, gradient, flops, work, kernel, flags, doc)       \
  _Static_assert(HAS_ONE(flags, MS_OP_MAKERS), #name ": flags: PUBLIC or INTERNAL");                                 \
  _Static_assert(HAS_ONE(flags, MS_OP_WORK), #name ": flags: COMPUTES, MOVES or ALIAS");                             \
  _Static_assert(HAS_ONE(flags, MS_OP_OUTPUTS), #name ": flags: WRITES, INOUT or ADDS");                             \
  _Static_assert(HAS_ONE(flags, MS_OP_RANKS), #name ": flags: ALIKE, RANK_LOCAL or REPLICA_LOCAL");                  \
  _Static_assert(IMPLIES((flags)&MS_OP_PUBLIC, (flags)&MS_OP_WRITES && (flags)&MS_OP_ALIKE),                         \
                 #name ": a recipe's op writes fresh outputs, and every rank runs it");                              \
  _Static_assert(IMPLIES((flags)&MS_OP_ALIAS, (flops) == 0 && (low) == 1 && (high) == 1 && (outputs) == 1),          \
                 #name ": an alias has one input, one output and no work");                                          \
  _Static_assert(IMPLIES((flags)&MS_OP_ADDS_LAST_INPUT, (high) == (low) + 1), #name ": its last input is optional"); \
  _Static_assert((low) <= (high) && (high) <= MS_MAX_INPUTS && (outputs) >= 1 && (outputs) <= MS_MAX_OUTPUTS,        \
                 #name ": more inputs or outputs than a node has");
#include "kernels/ops.def"
#undef MS_OP

const ms_op_row *ms_op_row_of(int op) { return op >= 0 && op < MS_OP_COUNT ? &rows[op] : NULL; }

int ms_op_count(void) { return MS_OP_COUNT; }

int ms_op_find(const char *name) {
  MS_GIVEN_OR(-1, name);
  if (!name) return -1;
  for (int op = 0; op < MS_OP_COUNT; op++)
    if (rows[op].name[0] == name[0] && !strcmp(rows[op].name, name)) return op;
  return -1;
}

int ms_op_check_dtype(int op, int dtype, const char *kind, int number) {
  char floats[MS_DTYPE_LIST];
  const ms_op_row *row = ms_op_row_of(op);
  if (ms_dtype_may(dtype, MS_DTYPE_LOOPS) || ((row->flags & MS_OP_ANY_DTYPE) && ms_dtype_size(dtype))) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "%s: %s %d is %s, for which the op has no kernel: make it %s", row->name, kind, number,
                 ms_dtype_name(dtype), ms_dtype_list(MS_DTYPE_FLOAT, floats));
}

int ms_op_reads_outputs(int op, const ms_op_attrs *attrs) {
  return (rows[op].flags & MS_OP_INOUT) || ((rows[op].flags & MS_OP_ADDS) && attrs->add);
}

int ms_op_activation(int op, int maker) {
  const ms_op_row *row = ms_op_row_of(op);
  return row && (row->flags & maker) ? (row->flags & MS_OP_ACTIVATIONS) >> MS_OP_ACTIVATION_SHIFT : MS_ACT_NONE;
}
