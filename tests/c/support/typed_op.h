/* typed_op.h - a node of a graph by the public function, with attributes as the engine has them. */
#ifndef MS_TESTS_TYPED_OP_H
#define MS_TESTS_TYPED_OP_H

#include "base/numbers/number.h"
#include "graph/graph.h"

/* attrs: NULL for the defaults. */
static inline int typed_op(ms_graph *graph, const char *op, int inputs, const int *in, const ms_op_attrs *attrs,
                           int *out) {
  char text[1024] = "";
  int n = 0, at = 0;
  const ms_attribute *a = attrs ? ms_op_attributes(ms_op_find(op), &n) : NULL;
  for (int i = 0; i < n; i++)
    at += ms_format(text + at, sizeof text - (size_t)at, " %.*s=%.17g", a[i].length, a[i].name,
                    ms_attribute_value(&a[i], attrs));
  return ms_graph_op(graph, op, inputs, in, text, out);
}

#endif
