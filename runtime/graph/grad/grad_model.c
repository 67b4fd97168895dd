/* grad_model.c - gradients of the ops a transformer is made of: matmul, embedding, rope, attention, cross entropy. */
#include <inttypes.h>
#include <stddef.h>

#include "base/error.h"
#include "graph/grad/grad.h"
#include "kernels/products/matmul_f8.h"

/* A product of the gradient of `of`: rounded to 8 bits if its recipe rounds this one (enum ms_f8_product). */
static int emit_product(ms_graph *graph, const ms_node *of, int product, int a, int trans_a, int b, int trans_b,
                        int *out) {
  ms_op_attrs attrs = {.product = {.trans_a = trans_a, .trans_b = trans_b}};
  if (of->op != MS_OP_matmul_f8 || !ms_f8_rounds((int)of->attrs.product.recipe, product))
    return ms_emit_binary(graph, MS_OP_matmul, a, b, &attrs, out);
  attrs.product.recipe = of->attrs.product.recipe;
  attrs.product.product = product;
  return ms_emit_binary(graph, MS_OP_matmul_f8, a, b, &attrs, out);
}

/* Swaps the last two axes. */
static int emit_swapped(ms_graph *graph, int x, int *out) {
  int ndim = ms_info_of(graph, x)->ndim;
  ms_op_attrs attrs = {.permutation = {.p = {0, 1, 2, 3, 4, 5}}};
  attrs.permutation.p[ndim - 2] = ndim - 1;
  attrs.permutation.p[ndim - 1] = ndim - 2;
  return ms_emit_unary(graph, MS_OP_transpose, x, &attrs, out);
}

/* Merges all axes but the last into one. */
static int emit_folded(ms_graph *graph, int x, int *out) {
  const ms_value_info *info = ms_info_of(graph, x);
  ms_value_info folded = {.ndim = 2, .dims = {1, info->dims[info->ndim - 1]}};
  for (int d = 0; d < info->ndim - 1; d++) folded.dims[0] *= info->dims[d];
  return ms_emit_shaped(graph, MS_OP_reshape, x, &folded, out);
}

/* The gradient of the activation's input. Only relu's can be computed from its result. */
static int before_activation(ms_graph *graph, const ms_node *n, int dy, int *dz) {
  *dz = dy;
  if (n->attrs.product.activation == MS_ACT_NONE) return MS_OK;
  if (n->attrs.product.activation != MS_ACT_RELU)
    return ms_graph_in_scope(graph, MS_FAIL(MS_EUNSUPPORTED,
                                            "matmul: activation %" PRId64 " cannot be differentiated here; "
                                            "apply it as a separate op",
                                            n->attrs.product.activation));
  return ms_emit_binary(graph, MS_OP_relu_backward, n->out[0], dy, NULL, dz);
}

/* db, the gradient of b in C = A B, where A is a or its transpose and B is b or its transpose:
 * B = b: db = A' dC; B = b': db = dC' A. */
static int right_gradient(ms_graph *graph, const ms_node *of, int a, int trans_a, int trans_b, int dc, int *db) {
  if (trans_b) return emit_product(graph, of, MS_F8_DW, dc, 1, a, trans_a, db);
  return emit_product(graph, of, MS_F8_DW_TURNED, a, !trans_a, dc, 0, db);
}

/* da, of which only the first form has rounded operands: A = a: da = dC B'; A = a': da = B dC'. */
static int left_gradient(ms_graph *graph, const ms_node *of, int b, int trans_a, int trans_b, int dc, int *da) {
  if (trans_a) return emit_product(graph, of, MS_F8_DX, b, trans_b, dc, 1, da);
  return emit_product(graph, of, MS_F8_DX, dc, 0, b, !trans_b, da);
}

/* Bias and weight first: their common input (saved by forward) is then free when da is computed. The weight's gradient
 * sums over all rows, so these become one axis; da has the axes of a, so that what reads it next finds the product. */
int ms_grad_matmul(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  ms_value_info a_info = *ms_info_of(graph, n.in[0]);
  int a = n.in[0], b = n.in[1], trans_a = n.attrs.product.trans_a != 0, trans_b = n.attrs.product.trans_b != 0, dz;
  int shared = ms_info_of(graph, b)->ndim == 2 && a_info.ndim > 2; /* one b for all leading dimensions of a */
  int swap_back = shared && trans_a;
  MS_TRY(before_activation(graph, &n, dy[0], &dz));
  if (n.inputs == 3 && needs[2]) {
    ms_value_info bias = *ms_info_of(graph, n.in[2]);
    MS_TRY(ms_emit_shaped(graph, MS_OP_sum_to, dz, &bias, &dx[2]));
  }
  if (ms_info_of(graph, dz)->dtype != a_info.dtype) MS_TRY(ms_emit_cast(graph, dz, a_info.dtype, &dz));
  if (needs[1] && shared) {
    int folded;
    if (trans_a) MS_TRY(emit_swapped(graph, a, &a));
    MS_TRY(emit_folded(graph, a, &a));
    MS_TRY(emit_folded(graph, dz, &folded));
    MS_TRY(right_gradient(graph, &n, a, 0, trans_b, folded, &dx[1]));
  } else if (needs[1]) {
    MS_TRY(right_gradient(graph, &n, a, trans_a, trans_b, dz, &dx[1]));
  }
  if (!needs[0]) return MS_OK;
  MS_TRY(left_gradient(graph, &n, b, trans_a && !shared, trans_b, dz, &dx[0]));
  return swap_back ? emit_swapped(graph, dx[0], &dx[0]) : MS_OK;
}

/* dw[v] = sum of dy over the positions of token v */
int ms_grad_embedding(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node n = graph->nodes[node];
  ms_op_attrs attrs = {.table = n.attrs.table};
  attrs.table.rows = ms_info_of(graph, n.in[0])->dims[0];
  return ms_emit_binary(graph, MS_OP_embedding_backward, n.in[1], dy[0], &attrs, &dx[0]);
}

/* The transpose of a rotation is the inverse rotation, with the same factors. */
int ms_grad_rope(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  ms_op_attrs attrs = n.attrs;
  attrs.rope.inverse = !attrs.rope.inverse;
  if (n.inputs == 1) return ms_emit_unary(graph, MS_OP_rope, dy[0], &attrs, &dx[0]);
  if (needs[1]) return MS_FAIL(MS_EUNSUPPORTED, "rope: turns have no gradient; detach them");
  return ms_emit_binary(graph, MS_OP_rope, dy[0], n.in[1], &attrs, &dx[0]);
}

int ms_grad_attention(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node n = graph->nodes[node];
  int in[6] = {n.in[0], n.in[1], n.in[2], n.out[0], n.out[1], dy[0]};
  MS_TRY(ms_grad_refuse(graph, node, dy, 1));
  return ms_graph_emit(graph, MS_OP_attention_backward, 6, in, &n.attrs, dx);
}

int ms_grad_document_attention(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node n = graph->nodes[node];
  int in[7] = {n.in[0], n.in[1], n.in[2], n.out[0], n.out[1], dy[0], n.in[3]};
  MS_TRY(ms_grad_refuse(graph, node, dy, 1));
  return ms_graph_emit(graph, MS_OP_document_attention_backward, 7, in, &n.attrs, dx);
}

/* The gradient of attention with o and lse of the sinks in place of its own; sinks have a sum of their own. */
int ms_grad_attention_sink(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  const int documents = n.op == MS_OP_document_attention_sink;
  const int in[7] = {n.in[0], n.in[1], n.in[2], n.out[0], n.out[1], dy[0], documents ? n.in[6] : -1};
  const int of_sinks[4] = {n.out[0], n.out[1], dy[0], n.in[5]};
  MS_TRY(ms_grad_refuse(graph, node, dy, 1));
  if (needs[5]) MS_TRY(ms_graph_emit(graph, MS_OP_attention_sink_backward, 4, of_sinks, NULL, &dx[5]));
  if (!needs[0] && !needs[1] && !needs[2]) return MS_OK;
  return documents ? ms_graph_emit(graph, MS_OP_document_attention_backward, 7, in, &n.attrs, dx)
                   : ms_graph_emit(graph, MS_OP_attention_backward, 6, in, &n.attrs, dx);
}

/* A state that is given before the first position is one that another text left: nothing trains it. */
int ms_grad_gated_delta_rule(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node n = graph->nodes[node];
  const int documents = n.op == MS_OP_document_gated_delta_rule;
  const int in[7] = {n.in[0], n.in[1], n.in[2], n.in[3], n.in[4], dy[0], documents ? n.in[5] : -1};
  MS_TRY(ms_grad_refuse(graph, node, dy, 1));
  if (!documents && n.inputs == 6)
    return ms_graph_in_scope(graph, MS_FAIL(MS_EUNSUPPORTED,
                                            "gated_delta_rule: with a state before the first position it has no "
                                            "gradient: leave the state out, or detach y"));
  return ms_graph_emit(graph, documents ? MS_OP_document_gated_delta_rule_backward : MS_OP_gated_delta_rule_backward,
                       6 + documents, in, &n.attrs, dx);
}

/* The count of targets depends on no float, so its gradient is not propagated. */
int ms_grad_cross_entropy(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node n = graph->nodes[node];
  int in[5] = {n.in[0], n.in[1], n.out[1], n.out[2], dy[0]};
  MS_TRY(ms_grad_refuse(graph, node, dy, 1));
  if (dy[0] < 0) return MS_OK;
  return ms_graph_emit(graph, MS_OP_cross_entropy_backward, 5, in, &n.attrs, &dx[0]);
}

/* What was counted has no gradient. */
int ms_grad_weigh(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  (void)needs;
  const ms_node n = graph->nodes[node];
  const int in[3] = {dy[0], n.in[1], n.in[2]};
  return ms_graph_emit(graph, MS_OP_weigh, 3, in, &n.attrs, &dx[0]);
}

/* As if the logits were read here: what the parts add, the second use of them, has no gradient of its own. */
int ms_grad_cross_entropy_join(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  return ms_grad_cross_entropy(graph, node, dy, needs, dx);
}

/* As of cross_entropy_join, and through the product that makes the logits. A trainable bias of a frozen weight has the
 * gradient of both: its sums need the gradients of logits, which only that kernel makes. */
int ms_grad_linear_cross_entropy_join(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  const int biased = n.inputs == 5, db = biased && needs[4], b = biased ? n.in[4] : -1;
  const int in[7] = {n.in[0], n.in[1], n.in[2], n.out[1], n.out[2], dy[0], b};
  ms_op_attrs attrs = n.attrs;
  int dtype, out[MS_MAX_OUTPUTS], op = MS_OP_linear_cross_entropy_backward_x;
  MS_TRY(ms_grad_refuse(graph, node, dy, 1));
  if (dy[0] < 0) return MS_OK;
  if (needs[1] || db) {
    op = db ? MS_OP_linear_cross_entropy_backward_bias : MS_OP_linear_cross_entropy_backward;
    MS_TRY(ms_grad_dtype(graph, n.in[1], &dtype));
    attrs.out_dtype = 1 + dtype;
  }
  if (db) {
    MS_TRY(ms_grad_dtype(graph, b, &dtype));
    attrs.loss.bias_dtype = 1 + dtype;
  }
  MS_TRY(ms_graph_emit(graph, op, 6 + biased, in, &attrs, out));
  dx[0] = out[0];
  if (needs[1]) dx[1] = out[1];
  if (db) dx[4] = out[2];
  return MS_OK;
}
