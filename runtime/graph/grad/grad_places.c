/* grad_places.c - gradients of ops that order the elements of an axis, move them along it, or name them by index. */
#include <stddef.h>

#include "base/error.h"
#include "graph/grad/grad.h"

/* The elements go back by as many places. */
int ms_grad_roll(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  ms_op_attrs attrs = graph->nodes[node].attrs;
  attrs.cut.by = -attrs.cut.by;
  return ms_emit_unary(graph, MS_OP_roll, dy[0], &attrs, &dx[0]);
}

/* Every element is in the sums of those after it. */
int ms_grad_cumsum(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  ms_op_attrs attrs = graph->nodes[node].attrs;
  attrs.cumsum.reverse = !attrs.cumsum.reverse;
  return ms_emit_unary(graph, MS_OP_cumsum, dy[0], &attrs, &dx[0]);
}

/* dx = dy, added up where the index says; 0 elsewhere. */
static int scatter_back(ms_graph *graph, const ms_node *n, int index, int dy, int *dx) {
  const ms_value_info x = *ms_info_of(graph, n->in[0]);
  const ms_op_attrs along = {.cut = {.axis = n->attrs.cut.axis}};
  ms_op_attrs zeros = {.out_dtype = 1 + ms_info_of(graph, dy)->dtype,
                       .shape = {.d = {1, 1, 1, 1, 1, 1}, .ndim = x.ndim}};
  int in[3] = {0, index, dy};
  for (int d = 0; d < x.ndim; d++) zeros.shape.d[d] = x.dims[d];
  MS_TRY(ms_graph_emit(graph, MS_OP_fill, 0, NULL, &zeros, &in[0]));
  return ms_graph_emit(graph, MS_OP_scatter_add, 3, in, &along, dx);
}

int ms_grad_topk(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node n = graph->nodes[node];
  return scatter_back(graph, &n, n.out[1], dy[0], &dx[0]);
}

int ms_grad_gather(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  return needs[0] ? scatter_back(graph, &n, n.in[1], dy[0], &dx[0]) : MS_OK;
}

/* dx = dy, dsrc = dy at the places that src was added to. */
int ms_grad_scatter_add(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  if (needs[0]) dx[0] = dy[0];
  return needs[2] ? ms_emit_binary(graph, MS_OP_gather, dy[0], n.in[1], &n.attrs, &dx[2]) : MS_OK;
}
