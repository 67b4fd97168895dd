/* grad.h - gradient rules: each appends the nodes that compute the gradients of a node's inputs from those of its
 * outputs.
 *
 * A rule copies its node before it emits anything, because emitting can reallocate graph->nodes. It can ignore the
 * dtype of the gradients that it returns (autodiff casts each to its value's dtype) and sharing (it can return dy
 * itself, several times). The vector-Jacobian products are the textbook ones; each rule states its formula.
 */
#ifndef MS_GRAPH_GRAD_H
#define MS_GRAPH_GRAD_H

#include "graph/graph.h"

#define MS_OP(name, low, high, outputs, members, attrs, rule, axes, gradient, ...) \
  int ms_grad_##gradient(ms_graph *graph, int node, const int *dy, const int *needs, int *dx);
#include "kernels/ops.def"
#undef MS_OP

/* Each emits one node with one output; attrs NULL uses the row's defaults. */
int ms_emit_unary(ms_graph *graph, int op, int x, const ms_op_attrs *attrs, int *out);
int ms_emit_binary(ms_graph *graph, int op, int a, int b, const ms_op_attrs *attrs, int *out);
int ms_emit_scale(ms_graph *graph, int x, double alpha, int *out);
/* Reshapes x with `op` (reshape, broadcast_to or sum_to); returns x itself if it already has that shape. */
int ms_emit_shaped(ms_graph *graph, int op, int x, const ms_value_info *shape, int *out);
int ms_emit_cast(ms_graph *graph, int x, int dtype, int *out);

/* The dtype of a value's gradient: a parameter's grad_dtype, otherwise the value's own. */
int ms_grad_dtype(const ms_graph *graph, int value, int *dtype);
/* Fails if a gradient reaches an output that exists only for the backward pass (statistics, lse). */
int ms_grad_refuse(const ms_graph *graph, int node, const int *dy, int output);

static inline const ms_value_info *ms_info_of(const ms_graph *graph, int value) { return &graph->values[value].info; }

#endif
