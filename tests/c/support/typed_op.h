/* typed_op.h - a node of a graph by the public function, with attributes as the engine has them. */
#ifndef MS_TESTS_TYPED_OP_H
#define MS_TESTS_TYPED_OP_H

#include <string.h>

#include "kernels/op.h"

/* attrs: NULL for the defaults. */
static inline int typed_op(ms_graph *graph, const char *op, int inputs, const int *in, const ms_op_attrs *attrs,
                           int *out) {
  ms_attrs given;
  if (attrs) memcpy(&given, attrs, sizeof given);
  return ms_graph_op(graph, op, inputs, in, attrs ? &given : NULL, out);
}

#endif
