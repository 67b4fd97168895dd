/* grad.h - gradient rules: from the gradients of a node's outputs to those of its inputs, as nodes appended to the graph.
**
** A rule copies the node it is given before it emits anything: emitting may move graph->nodes. It need not care for dtypes of
** what it returns (autodiff brings each gradient to its value's dtype) nor for sharing (it may return dy itself, several times).
** The vector-Jacobian products are the textbook ones; each rule states its formula.
*/
#ifndef MS_GRAPH_GRAD_H
#define MS_GRAPH_GRAD_H

#include "graph/graph.h"

#define MS_OP(name, low, high, outputs, attrs, rule, axes, gradient, ...) \
  int ms_grad_##gradient(ms_graph *graph, int node, const int *dy, const int *needs, int *dx);
#include "kernels/ops.def"
#undef MS_OP

/* Emit one node of one output; attrs NULL: the row's defaults. */
int ms_emit_unary(ms_graph *graph, int op, int x, const ms_attrs *attrs, int *out);
int ms_emit_binary(ms_graph *graph, int op, int a, int b, const ms_attrs *attrs, int *out);
int ms_emit_scale(ms_graph *graph, int x, double alpha, int *out);
/* x in another shape by reshape, broadcast_to or sum_to; x itself when it has that shape already. */
int ms_emit_shaped(ms_graph *graph, int op, int x, const ms_value_info *shape, int *out);
int ms_emit_cast(ms_graph *graph, int x, int dtype, int *out);

/* The dtype in which the gradient of a value is wanted: a parameter's grad_dtype, else the value's own. */
int ms_grad_dtype(const ms_graph *graph, int value, int *dtype);
/* Fails when a gradient reaches an output that only saves something for the gradient (statistics, lse). */
int ms_grad_refuse(const ms_graph *graph, int node, const int *dy, int output);

static inline const ms_value_info *ms_info_of(const ms_graph *graph, int value) { return &graph->values[value].info; }

#endif
