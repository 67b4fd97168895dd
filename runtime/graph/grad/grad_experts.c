/* grad_experts.c - gradients of mixtures of experts. Dispatch and combine are each other's: rows that were copied for
 * several experts come back as a sum, and a sum's gradient is copied. */
#include <stddef.h>

#include "base/error.h"
#include "graph/grad/grad.h"

/* dx by the other op; dweights[t,k] = rows[t] sorted[places[t,k]]. */
static int both_gradients(ms_graph *graph, const ms_node *n, int other, int dy, int rows, int sorted, const int *needs,
                          int *dx) {
  int in[4] = {dy, n->in[1], n->in[2], n->inputs == 4 ? n->in[3] : -1};
  const int products[3] = {rows, sorted, n->in[2]};
  const ms_op_attrs none = {0};
  if (needs[0]) MS_TRY(ms_graph_emit(graph, other, n->inputs, in, &none, &dx[0]));
  if (n->inputs < 4 || !needs[3]) return MS_OK;
  return ms_graph_emit(graph, MS_OP_expert_weights_backward, 3, products, &none, &dx[3]);
}

int ms_grad_expert_dispatch(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  return both_gradients(graph, &n, MS_OP_expert_combine, dy[0], n.in[0], dy[0], needs, dx);
}

int ms_grad_expert_combine(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  return both_gradients(graph, &n, MS_OP_expert_dispatch, dy[0], dy[0], n.in[0], needs, dx);
}

/* In each group dw = x' dy, or for w' dy' x; dx = dy w', or dy w. The weight's first, as of a matmul. */
int ms_grad_grouped_matmul(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  const int turned = n.attrs.product.trans_b != 0;
  if (needs[1]) {
    const int in[3] = {turned ? dy[0] : n.in[0], turned ? n.in[0] : dy[0], n.in[2]};
    ms_op_attrs attrs = {0};
    int dtype;
    MS_TRY(ms_grad_dtype(graph, n.in[1], &dtype));
    attrs.out_dtype = 1 + dtype;
    MS_TRY(ms_graph_emit(graph, MS_OP_grouped_matmul_backward_weight, 3, in, &attrs, &dx[1]));
  }
  if (!needs[0]) return MS_OK;
  const int in[3] = {dy[0], n.in[1], n.in[2]};
  const ms_op_attrs attrs = {.product = {.trans_b = !turned}};
  return ms_graph_emit(graph, MS_OP_grouped_matmul, 3, in, &attrs, &dx[0]);
}
