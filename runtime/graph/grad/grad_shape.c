/* grad_shape.c - gradients of reductions and of ops that move elements: each is the inverse op. */
#include "base/error.h"
#include "graph/grad/grad.h"

/* Casts dy to the dtype of x before it is repeated, while it is small. */
static int in_dtype_of(ms_graph *graph, const ms_value_info *x, int dy, int *out) {
  *out = dy;
  return ms_info_of(graph, dy)->dtype == x->dtype ? MS_OK : ms_emit_cast(graph, dy, x->dtype, out);
}

/* dx of sum and mean: dy repeated over the reduced axes, times alpha. */
static int spread(ms_graph *graph, int node, int dy, double alpha, int *dx) {
  const ms_node n = graph->nodes[node];
  ms_value_info x = *ms_info_of(graph, n.in[0]), reduced = x;
  for (int d = 0; d < x.ndim; d++)
    if (n.attrs.reduce.all || d == n.attrs.reduce.axis) reduced.dims[d] = 1;
  if (alpha != 1) MS_TRY(ms_emit_scale(graph, dy, alpha, &dy));
  MS_TRY(in_dtype_of(graph, &x, dy, &dy));
  MS_TRY(ms_emit_shaped(graph, MS_OP_reshape, dy, &reduced, &dy));
  return ms_emit_shaped(graph, MS_OP_broadcast_to, dy, &x, dx);
}

int ms_grad_sum(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  return spread(graph, node, dy[0], 1, &dx[0]);
}

int ms_grad_mean(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node *n = &graph->nodes[node];
  double share = (double)ms_numel(ms_info_of(graph, n->out[0])) / (double)ms_numel(ms_info_of(graph, n->in[0]));
  return spread(graph, node, dy[0], share, &dx[0]);
}

int ms_grad_max(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node n = graph->nodes[node];
  int in[3] = {n.in[0], n.out[0], dy[0]};
  return ms_graph_emit(graph, MS_OP_max_backward, 3, in, &n.attrs, &dx[0]);
}

int ms_grad_redistribute(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)graph, (void)node, (void)needs;
  dx[0] = dy[0];
  return MS_OK;
}

int ms_grad_reshape(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  ms_value_info x = *ms_info_of(graph, graph->nodes[node].in[0]);
  return ms_emit_shaped(graph, MS_OP_reshape, dy[0], &x, &dx[0]);
}

int ms_grad_transpose(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node n = graph->nodes[node];
  ms_op_attrs inverse = {.permutation = {.p = {0, 1, 2, 3, 4, 5}}};
  for (int d = 0; d < ms_info_of(graph, dy[0])->ndim; d++) inverse.permutation.p[n.attrs.permutation.p[d]] = d;
  return ms_emit_unary(graph, MS_OP_transpose, dy[0], &inverse, &dx[0]);
}

int ms_grad_slice(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node n = graph->nodes[node];
  int64_t axis = n.attrs.cut.axis, size = ms_info_of(graph, n.in[0])->dims[axis];
  ms_op_attrs attrs = {.cut = {.axis = axis, .before = n.attrs.cut.start, .after = size - n.attrs.cut.stop}};
  return ms_emit_unary(graph, MS_OP_pad, dy[0], &attrs, &dx[0]);
}

static int slice_of(ms_graph *graph, int x, int64_t axis, int64_t start, int64_t length, int *out) {
  ms_op_attrs attrs = {.cut = {.axis = axis, .start = start, .stop = start + length}};
  return ms_emit_unary(graph, MS_OP_slice, x, &attrs, out);
}

int ms_grad_pad(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node n = graph->nodes[node];
  int64_t axis = n.attrs.cut.axis;
  return slice_of(graph, dy[0], axis, n.attrs.cut.before, ms_info_of(graph, n.in[0])->dims[axis], &dx[0]);
}

int ms_grad_concat(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  int64_t axis = n.attrs.cut.axis, start = 0;
  for (int i = 0; i < n.inputs; i++) {
    int64_t length = ms_info_of(graph, n.in[i])->dims[axis];
    if (needs[i]) MS_TRY(slice_of(graph, dy[0], axis, start, length, &dx[i]));
    start += length;
  }
  return MS_OK;
}

int ms_grad_broadcast_to(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  ms_value_info x = *ms_info_of(graph, graph->nodes[node].in[0]);
  return ms_emit_shaped(graph, MS_OP_sum_to, dy[0], &x, &dx[0]);
}

int ms_grad_sum_to(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  ms_value_info x = *ms_info_of(graph, graph->nodes[node].in[0]);
  MS_TRY(in_dtype_of(graph, &x, dy[0], &dx[0]));
  return ms_emit_shaped(graph, MS_OP_broadcast_to, dx[0], &x, &dx[0]);
}
