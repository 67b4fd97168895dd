/* grad_experts.c - gradients of mixtures of experts. Dispatch and combine are each other's: rows that were copied for
 * several experts come back as a sum, and a sum's gradient is copied. */
#include <stddef.h>

#include "base/error.h"
#include "graph/grad/grad.h"
#include "kernels/products/matmul_f8.h"

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

/* A product of the gradient of `of`: rounded to 8 bits if its recipe rounds this one (enum ms_f8_product). */
static int emit_product(ms_graph *graph, const ms_node *of, int product, int plain, int rounded, const int *in,
                        ms_op_attrs attrs, int *out) {
  const int recipe = (int)of->attrs.product.recipe, rounds = of->op == MS_OP_grouped_matmul_f8;
  if (!rounds || !ms_f8_rounds(recipe, product)) return ms_graph_emit(graph, plain, 3, in, &attrs, out);
  attrs.product.recipe = recipe;
  attrs.product.product = product;
  return ms_graph_emit(graph, rounded, 3, in, &attrs, out);
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
    MS_TRY(emit_product(graph, &n, turned ? MS_F8_DW : MS_F8_DW_TURNED, MS_OP_grouped_matmul_backward_weight,
                        MS_OP_grouped_matmul_f8_backward_weight, in, attrs, &dx[1]));
  }
  if (!needs[0]) return MS_OK;
  const int in[3] = {dy[0], n.in[1], n.in[2]};
  const ms_op_attrs attrs = {.product = {.trans_b = !turned}};
  return emit_product(graph, &n, MS_F8_DX, MS_OP_grouped_matmul, MS_OP_grouped_matmul_f8, in, attrs, &dx[0]);
}
