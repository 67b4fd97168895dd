/* grad_elementwise.c - gradients of elementwise ops. The gradient of a broadcast input is summed back to its shape. */
#include <stddef.h>

#include "base/error.h"
#include "graph/grad/grad.h"

/* dx[i] = gradient summed to the shape of the node's input i. */
static int sum_back(ms_graph *graph, int gradient, int input, int *dx) {
  ms_value_info shape = *ms_info_of(graph, input);
  return ms_emit_shaped(graph, MS_OP_sum_to, gradient, &shape, dx);
}

/* da = dy, db = dy */
int ms_grad_add(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  for (int i = 0; i < 2; i++)
    if (needs[i]) MS_TRY(sum_back(graph, dy[0], n.in[i], &dx[i]));
  return MS_OK;
}

/* da = dy, db = -dy */
int ms_grad_sub(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  if (needs[0]) MS_TRY(sum_back(graph, dy[0], n.in[0], &dx[0]));
  if (!needs[1]) return MS_OK;
  MS_TRY(sum_back(graph, dy[0], n.in[1], &dx[1]));
  return ms_emit_scale(graph, dx[1], -1, &dx[1]);
}

/* da = dy b, db = dy a */
int ms_grad_mul(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  for (int i = 0; i < 2; i++) {
    int product;
    if (!needs[i]) continue;
    MS_TRY(ms_emit_binary(graph, MS_OP_mul, dy[0], n.in[1 - i], NULL, &product));
    MS_TRY(sum_back(graph, product, n.in[i], &dx[i]));
  }
  return MS_OK;
}

/* da = dy / b, db = -dy y / b */
int ms_grad_div(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  int quotient;
  MS_TRY(ms_emit_binary(graph, MS_OP_div, dy[0], n.in[1], NULL, &quotient));
  if (needs[0]) MS_TRY(sum_back(graph, quotient, n.in[0], &dx[0]));
  if (!needs[1]) return MS_OK;
  MS_TRY(ms_emit_binary(graph, MS_OP_mul, quotient, n.out[0], NULL, &dx[1]));
  MS_TRY(sum_back(graph, dx[1], n.in[1], &dx[1]));
  return ms_emit_scale(graph, dx[1], -1, &dx[1]);
}

/* da = dy b a^(b-1), db = dy a^b ln a */
int ms_grad_pow(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  static const int backward[] = {MS_OP_pow_backward_base, MS_OP_pow_backward_exponent};
  const ms_node n = graph->nodes[node];
  const int in[3] = {n.in[0], n.in[1], dy[0]};
  for (int i = 0; i < 2; i++) {
    if (!needs[i]) continue;
    MS_TRY(ms_graph_emit(graph, backward[i], 3, in, NULL, &dx[i]));
    MS_TRY(sum_back(graph, dx[i], n.in[i], &dx[i]));
  }
  return MS_OK;
}

/* The share of dy that goes to input `i`: all of it where the input was selected, half where both are equal.
 * `larger`: the larger input is selected. */
static int share_of_taken(ms_graph *graph, int node, int i, int larger, int dy, int *dx) {
  const ms_node n = graph->nodes[node];
  int above = larger ? i : 1 - i, in[3] = {n.in[above], n.in[1 - above], dy};
  MS_TRY(ms_graph_emit(graph, MS_OP_maximum_backward, 3, in, NULL, dx));
  return sum_back(graph, *dx, n.in[i], dx);
}

int ms_grad_maximum(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  for (int i = 0; i < 2; i++)
    if (needs[i]) MS_TRY(share_of_taken(graph, node, i, 1, dy[0], &dx[i]));
  return MS_OK;
}

int ms_grad_minimum(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  for (int i = 0; i < 2; i++)
    if (needs[i]) MS_TRY(share_of_taken(graph, node, i, 0, dy[0], &dx[i]));
  return MS_OK;
}

/* da = c ? dy : 0, db = c ? 0 : dy */
int ms_grad_where(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  int zero;
  ms_op_attrs scalar_zero = {.out_dtype = 1 + ms_info_of(graph, dy[0])->dtype, .shape = {.d = {1, 1, 1, 1, 1, 1}}};
  MS_TRY(ms_graph_emit(graph, MS_OP_fill, 0, NULL, &scalar_zero, &zero));
  for (int i = 1; i < 3; i++) {
    int chosen[3] = {n.in[0], i == 1 ? dy[0] : zero, i == 1 ? zero : dy[0]};
    if (!needs[i]) continue;
    MS_TRY(ms_graph_emit(graph, MS_OP_where, 3, chosen, NULL, &dx[i]));
    MS_TRY(sum_back(graph, dx[i], n.in[i], &dx[i]));
  }
  return MS_OK;
}

int ms_grad_scale(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  return ms_emit_scale(graph, dy[0], graph->nodes[node].attrs.scale.alpha, &dx[0]);
}

/* dx = dy y */
int ms_grad_exp(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  return ms_emit_binary(graph, MS_OP_mul, dy[0], graph->nodes[node].out[0], NULL, &dx[0]);
}

/* dx = dy / x */
int ms_grad_log(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  return ms_emit_binary(graph, MS_OP_div, dy[0], graph->nodes[node].in[0], NULL, &dx[0]);
}

/* dx = dy / (2 y) */
int ms_grad_sqrt(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  MS_TRY(ms_emit_binary(graph, MS_OP_div, dy[0], graph->nodes[node].out[0], NULL, &dx[0]));
  return ms_emit_scale(graph, dx[0], 0.5, &dx[0]);
}

/* dx = -dy y / (2 x) */
int ms_grad_rsqrt(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node n = graph->nodes[node];
  MS_TRY(ms_emit_binary(graph, MS_OP_mul, dy[0], n.out[0], NULL, &dx[0]));
  MS_TRY(ms_emit_binary(graph, MS_OP_div, dx[0], n.in[0], NULL, &dx[0]));
  return ms_emit_scale(graph, dx[0], -0.5, &dx[0]);
}

/* dx = dy / (1 + e^-x) */
int ms_grad_softplus(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  int slope;
  MS_TRY(ms_emit_unary(graph, MS_OP_sigmoid, graph->nodes[node].in[0], NULL, &slope));
  return ms_emit_binary(graph, MS_OP_mul, dy[0], slope, NULL, &dx[0]);
}

/* The rows *_backward have the formulas; from_output: they read y, otherwise x. */
static int backward_of(ms_graph *graph, int node, int op, int from_output, int dy, int *dx) {
  const ms_node n = graph->nodes[node];
  return ms_emit_binary(graph, op, from_output ? n.out[0] : n.in[0], dy, &n.attrs, dx);
}

#define BACKWARD(name, from_output)                                                         \
  int ms_grad_##name(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) { \
    (void)needs;                                                                            \
    return backward_of(graph, node, MS_OP_##name##_backward, from_output, dy[0], &dx[0]);   \
  }
BACKWARD(tanh, 1)
BACKWARD(sigmoid, 1)
BACKWARD(relu, 1)
BACKWARD(abs, 0)
BACKWARD(clamp, 0)
BACKWARD(gelu, 0)
BACKWARD(gelu_tanh, 0)
BACKWARD(silu, 0)
BACKWARD(softmax, 1)
BACKWARD(log_softmax, 1)
#undef BACKWARD

int ms_grad_swiglu(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node *n = &graph->nodes[node];
  int in[3] = {n->in[0], n->in[1], dy[0]};
  return ms_graph_emit(graph, MS_OP_swiglu_backward, 3, in, NULL, dx);
}

/* Drops the same elements and scales the others by the same 1 / (1 - p). */
int ms_grad_dropout(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  ms_op_attrs attrs = graph->nodes[node].attrs;
  return ms_emit_unary(graph, MS_OP_dropout, dy[0], &attrs, &dx[0]);
}

/* dx = dy; autodiff casts it to x's dtype. */
int ms_grad_cast(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)graph, (void)node, (void)needs;
  dx[0] = dy[0];
  return MS_OK;
}
