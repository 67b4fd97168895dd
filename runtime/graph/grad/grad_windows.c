/* grad_windows.c - gradients of convolutions and pools: ops of their own, which take the attributes of the forward op
 * and the sizes that none of their inputs has. */
#include <stddef.h>

#include "base/error.h"
#include "graph/grad/grad.h"

/* The node's attributes, and the last two sizes of a tensor. */
static ms_op_attrs with_sizes(const ms_node *n, const ms_value_info *of) {
  ms_op_attrs attrs = n->attrs;
  attrs.windows.height = of->dims[of->ndim - 2];
  attrs.windows.width = of->dims[of->ndim - 1];
  return attrs;
}

/* The bias [O] is added to every element of its channel of dy [N,O,H,W]. */
static int bias_gradient(ms_graph *graph, int bias, int dy, int *dbias) {
  const ms_value_info shape = *ms_info_of(graph, bias);
  ms_op_attrs attrs = {.shape = {.d = {shape.dims[0], 1, 1, 1, 1, 1}, .ndim = 3}};
  int dtype, sum;
  MS_TRY(ms_grad_dtype(graph, bias, &dtype));
  attrs.out_dtype = 1 + dtype;
  MS_TRY(ms_emit_unary(graph, MS_OP_sum_to, dy, &attrs, &sum));
  return ms_emit_shaped(graph, MS_OP_reshape, sum, &shape, dbias);
}

int ms_grad_conv2d(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  if (needs[0]) {
    const ms_op_attrs attrs = with_sizes(&n, ms_info_of(graph, n.in[0]));
    MS_TRY(ms_emit_binary(graph, MS_OP_conv2d_backward_input, dy[0], n.in[1], &attrs, &dx[0]));
  }
  if (needs[1]) {
    ms_op_attrs attrs = with_sizes(&n, ms_info_of(graph, n.in[1]));
    int dtype;
    MS_TRY(ms_grad_dtype(graph, n.in[1], &dtype));
    attrs.out_dtype = 1 + dtype;
    MS_TRY(ms_emit_binary(graph, MS_OP_conv2d_backward_weight, n.in[0], dy[0], &attrs, &dx[1]));
  }
  return n.inputs == 3 && needs[2] ? bias_gradient(graph, n.in[2], dy[0], &dx[2]) : MS_OK;
}

int ms_grad_max_pool2d(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node n = graph->nodes[node];
  const ms_op_attrs attrs = with_sizes(&n, ms_info_of(graph, n.in[0]));
  return ms_emit_binary(graph, MS_OP_max_pool2d_backward, dy[0], n.out[1], &attrs, &dx[0]);
}

int ms_grad_avg_pool2d(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node n = graph->nodes[node];
  const ms_op_attrs attrs = with_sizes(&n, ms_info_of(graph, n.in[0]));
  return ms_emit_unary(graph, MS_OP_avg_pool2d_backward, dy[0], &attrs, &dx[0]);
}
