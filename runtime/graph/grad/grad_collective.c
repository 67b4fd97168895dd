/* grad_collective.c - gradients of the ops across ranks. Each runs on every rank, with what the rank has of the
 * gradient: of a value that is equal everywhere and used alike, all of it; of one that ranks use differently, a
 * summand; of a part, its part; of a summand, the gradient of the sum. */
#include "base/error.h"
#include "graph/grad/grad.h"

/* The op with the node's attributes, but for what only the node's own op has. */
static int emit_across(ms_graph *graph, int op, int node, int dy, int *dx) {
  ms_op_attrs attrs = graph->nodes[node].attrs;
  attrs.across.split = attrs.across.pad = 0;
  return ms_emit_unary(graph, op, dy, &attrs, dx);
}

/* The sum has the same gradient on every rank, which is that of each summand. */
int ms_grad_all_reduce(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  if (graph->nodes[node].attrs.across.max)
    return ms_graph_in_scope(graph, MS_FAIL(MS_EUNSUPPORTED, "all_reduce: the maximum over ranks has no gradient"));
  dx[0] = dy[0];
  return MS_OK;
}

int ms_grad_copy_to(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_op_attrs attrs = {
      .across = {.dim = graph->nodes[node].attrs.across.dim, .ranks = graph->nodes[node].attrs.across.ranks}};
  return ms_emit_unary(graph, MS_OP_all_reduce, dy[0], &attrs, &dx[0]);
}

int ms_grad_all_gather(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const int op = graph->nodes[node].attrs.across.split ? MS_OP_split : MS_OP_reduce_scatter;
  return emit_across(graph, op, node, dy[0], &dx[0]);
}

int ms_grad_reduce_scatter(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  return emit_across(graph, MS_OP_all_gather, node, dy[0], &dx[0]);
}

int ms_grad_split(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const int op = graph->nodes[node].attrs.across.pad ? MS_OP_unsplit : MS_OP_all_gather;
  return emit_across(graph, op, node, dy[0], &dx[0]);
}

/* Each rank's x went to the rank `by` places behind it, from which the gradient comes back. */
int ms_grad_shift(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  ms_op_attrs back = graph->nodes[node].attrs;
  back.across.by = -(back.across.by % back.across.ranks);
  return ms_emit_unary(graph, MS_OP_shift, dy[0], &back, &dx[0]);
}

int ms_grad_unvary(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  return ms_emit_scale(graph, dy[0], 1 / (double)graph->nodes[node].attrs.across.ranks, &dx[0]);
}

int ms_grad_once(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  return emit_across(graph, MS_OP_once, node, dy[0], &dx[0]);
}

int ms_grad_all_to_all(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  ms_op_attrs back = graph->nodes[node].attrs;
  back.across.split_axis = graph->nodes[node].attrs.across.concat_axis;
  back.across.concat_axis = graph->nodes[node].attrs.across.split_axis;
  return ms_emit_unary(graph, MS_OP_all_to_all, dy[0], &back, &dx[0]);
}
