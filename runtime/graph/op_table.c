/* op_table.c - the rows of kernels/ops.def, and what the public header tells about them.
**
** A row's attributes are a text ("axis:i0=-1 keepdim:i1=0"), so that the Lua layer, the dumps and the defaults below read
** the same words.
*/
#include <stdlib.h>
#include <string.h>

#include "graph/grad.h"
#include "graph/infer.h"

/* The gradient column says `none` for rows that have no gradient. */
#define ms_grad_none NULL

static const ms_op_row rows[MS_OP_COUNT] = {
#define MS_OP(name, low, high, outputs, attrs, rule, gradient, flops, kernel, flags, doc) \
  {#name, attrs, doc, low, high, outputs, flops, flags, ms_infer_##rule, ms_grad_##gradient},
#include "kernels/ops.def"
#undef MS_OP
};

const ms_op_row *ms_op_row_of(int op) { return op >= 0 && op < MS_OP_COUNT ? &rows[op] : NULL; }

int ms_op_count(void) { return MS_OP_COUNT; }

int ms_op_describe(int op, ms_op_info *info) {
  const ms_op_row *row = ms_op_row_of(op);
  if (!row || !info) return MS_FAIL(MS_EINVAL, "op %d: there are ops 0 to %d", op, MS_OP_COUNT - 1);
  *info = (ms_op_info){
      .name = row->name,
      .attrs = row->attrs,
      .doc = row->doc,
      .min_inputs = row->min_inputs,
      .max_inputs = row->max_inputs,
      .outputs = row->outputs,
      .differentiable = row->grad != NULL,
      .internal = (row->flags & MS_OP_INTERNAL) != 0,
  };
  return MS_OK;
}

int ms_op_find(const char *name) {
  if (!name) return -1;
  for (int op = 0; op < MS_OP_COUNT; op++)
    if (rows[op].name[0] == name[0] && !strcmp(rows[op].name, name)) return op;
  return -1;
}

/* Reads one "name:slot=value" at text and stores the value; returns what follows it, NULL when it is malformed. */
static const char *read_default(const char *text, ms_attrs *attrs) {
  const char *colon = strchr(text, ':');
  if (!colon || (colon[1] != 'i' && colon[1] != 'f') || colon[2] < '0' || colon[3] != '=') return NULL;
  int slot = colon[2] - '0';
  char *end;
  if (colon[1] == 'i') {
    if (slot >= (int)(sizeof attrs->i / sizeof attrs->i[0])) return NULL;
    attrs->i[slot] = strtoll(colon + 4, &end, 10);
  } else {
    if (slot >= (int)(sizeof attrs->f / sizeof attrs->f[0])) return NULL;
    attrs->f[slot] = strtod(colon + 4, &end);
  }
  if (end == colon + 4 || (*end && *end != ' ')) return NULL;
  return *end ? end + 1 : end;
}

int ms_op_row_defaults(int op, ms_attrs *attrs) {
  const ms_op_row *row = ms_op_row_of(op);
  if (!row || !attrs) return MS_FAIL(MS_EINVAL, "op %d: there are ops 0 to %d", op, MS_OP_COUNT - 1);
  *attrs = (ms_attrs){0};
  for (const char *text = row->attrs; *text;) {
    text = read_default(text, attrs);
    if (!text)
      return MS_FAIL(MS_EINTERNAL, "%s: its row has attributes that do not parse: \"%s\"", row->name, row->attrs);
  }
  return MS_OK;
}

int ms_op_defaults(const char *op, ms_attrs *attrs) {
  int id = ms_op_find(op);
  if (id < 0) return MS_FAIL(MS_ENAME, "there is no op named \"%s\"", op ? op : "");
  return ms_op_row_defaults(id, attrs);
}

int ms_op_has_out_dtype(int op) { return strstr(rows[op].attrs, "out_dtype:i7") != NULL; }
