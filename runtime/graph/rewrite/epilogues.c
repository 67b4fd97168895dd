/* epilogues.c - fuses gelu into the matrix product before it, and its gradient into the product that computes the
 * gradient of its result, for devices whose library has such epilogues (cuBLASLt's GELU_AUX_BIAS, DGELU,
 * DGELU_BGRAD). These are the last rewrites of a training graph. They run only where fewer bytes move, and never
 * increase memory. In tensors of gelu's size:
 *
 *                                     separate                         fused
 *   gelu                              u written and read, h written    u and h written                  3 -> 2
 *   its gradient                      dh written; u, dh read, du       u read, du written               4 -> 2
 *     and an f32 bias gradient        the same                         and du read                      4 -> 3
 *   its gradient, h recomputed        and h written                    and u read, h written            5 -> 4
 *     and an f32 bias gradient        the same                         and du read                      5 -> 5
 *
 * The last case is therefore not fused. Keeping h instead of recomputing it saves 2 more, but costs four more tensors
 * of the model's width per block, where rematerialize.c keeps ten: a plan's setting (ms_plan_config.rematerialize).
 * Backward keeps u anyway. The epilogue sums a bias gradient in f32 but returns it in the product's dtype; an f32 bias
 * gradient is summed by a separate op.
 *
 * The epilogue applies gelu to u before rounding, so a recomputed h differs from forward's by one bf16 rounding.
 * Nodes of recomputed regions are not fused, because their copies must have the bits of forward. Other forms of gelu
 * than tanh, which the library does not have, are not fused, nor are products whose rows are not multiples of 8
 * elements, as it requires.
 */
#include <stddef.h>

#include "base/error.h"
#include "graph/infer/infer.h"
#include "graph/rewrite/rewrite.h"

enum { ROW_UNIT = 8 };

static const ms_value_info *info_of(const ms_graph *graph, int v) { return &graph->values[v].info; }

/* A bf16 product of two matrices; leading dimensions can be rows. */
static int suits(const ms_graph *graph, const ms_node *matmul) {
  const ms_value_info *a = info_of(graph, matmul->in[0]), *b = info_of(graph, matmul->in[1]);
  const ms_value_info *c = info_of(graph, matmul->out[0]);
  if (matmul->recompute || matmul->recomputed || matmul->attrs.product.activation != MS_ACT_NONE) return 0;
  if (a->dtype != MS_BF16 || c->dtype != MS_BF16 || b->ndim != 2 || (matmul->attrs.product.trans_a && a->ndim != 2))
    return 0;
  return ms_numel(c) > 0 && c->dims[c->ndim - 1] % ROW_UNIT == 0;
}

/* u = matmul(a, b, bias), h = gelu_tanh(u) -> u, h = matmul_gelu(a, b, bias); without u if nothing else reads it */
static void fuse_forward(ms_graph *graph, const ms_uses *uses, int index) {
  const ms_node *gelu = &graph->nodes[index];
  if (gelu->op != MS_OP_gelu_tanh || gelu->recompute || gelu->recomputed) return;
  const int u = gelu->in[0], h = gelu->out[0], backward = gelu->backward;
  ms_node *matmul = ms_maker(graph, u, MS_OP_matmul);
  if (!matmul || matmul->backward != backward || matmul->inputs != 3 || uses->first[u] != index) return;
  if (!suits(graph, matmul) || info_of(graph, matmul->in[2])->dtype != MS_BF16) return;
  const int place = (int)(matmul - graph->nodes);
  ms_remove_node(graph, index);
  if (uses->count[u] == 1) {
    matmul->attrs.product.activation = MS_ACT_GELU_TANH;
    ms_take_output(graph, place, 0, h);
    return;
  }
  matmul->op = MS_OP_matmul_gelu;
  matmul->outputs = 2;
  matmul->out[1] = h;
  ms_take_output(graph, place, 1, h);
}

/* Further outputs of a gradient of gelu besides du. */
typedef struct gelu_gradient {
  int bias, again; /* values, or -1 */
} gelu_gradient;

static int read_gradient(const ms_node *node, gelu_gradient *g) {
  *g = (gelu_gradient){-1, -1};
  if (node->op == MS_OP_gelu_tanh_backward) return 1;
  if (node->attrs.product.activation != MS_ACT_GELU_TANH) return 0;
  switch (node->op) {
    case MS_OP_activation_backward_recompute: g->again = node->out[1]; return 1;
    case MS_OP_activation_backward_bias: g->bias = node->out[1]; return 1;
    case MS_OP_activation_backward_bias_recompute:
      g->bias = node->out[1];
      g->again = node->out[2];
      return 1;
    default: return 0;
  }
}

/* Moves a node to just before another; the nodes between them move up. */
static void move_before(ms_graph *graph, int from, int to) {
  const ms_node moved = graph->nodes[from];
  for (int n = from; n < to - 1; n++) graph->nodes[n] = graph->nodes[n + 1];
  graph->nodes[to - 1] = moved;
  for (int n = from; n < to; n++) {
    const ms_node *node = &graph->nodes[n];
    for (int o = 0; node->op != MS_NODE_REMOVED && o < node->outputs; o++) graph->values[node->out[o]].node = n;
  }
}

/* Work left to the gradient's node: a sum that the epilogue does not compute, or gelu's result. 0: none. */
static int becomes_rest(ms_graph *graph, ms_node *node, const gelu_gradient *g, int summed) {
  const int u = node->in[0], du = node->out[0];
  if (g->again >= 0) {
    node->op = MS_OP_gelu_tanh;
    node->in[0] = u;
    node->out[0] = g->again;
    node->attrs = (ms_op_attrs){0};
  } else if (summed) {
    const ms_value_info *bias = info_of(graph, g->bias);
    node->op = MS_OP_sum_to;
    node->in[0] = du;
    node->out[0] = g->bias;
    node->attrs = (ms_op_attrs){.out_dtype = 1 + bias->dtype, .shape = {.d = {bias->dims[0]}, .ndim = 1}};
  } else {
    return 0;
  }
  node->inputs = node->outputs = 1;
  graph->values[node->out[0]].output = 0;
  return 1;
}

/* dh = matmul(a, b), du = gelu's gradient of u and dh -> du = matmul_gelu_backward(a, b, u), and the remaining work */
static void fuse_backward(ms_graph *graph, const ms_uses *uses, int index) {
  ms_node *node = &graph->nodes[index];
  gelu_gradient g;
  if (node->op == MS_NODE_REMOVED || !read_gradient(node, &g)) return;
  const int u = node->in[0], dh = node->in[1], du = node->out[0];
  const ms_node *matmul = uses->count[dh] == 1 ? ms_maker(graph, dh, MS_OP_matmul) : NULL;
  if (!matmul || matmul->inputs != 2 || !suits(graph, matmul) || !ms_same_shape(info_of(graph, u), info_of(graph, dh)))
    return;
  const int summed = g.bias >= 0 && info_of(graph, g.bias)->dtype != MS_BF16, place = index - 1;
  if (summed && g.again >= 0) return;
  move_before(graph, (int)(matmul - graph->nodes), index);
  ms_node *product = &graph->nodes[place];
  const int with_bias = g.bias >= 0 && !summed;
  product->op = with_bias ? MS_OP_matmul_gelu_backward_bias : MS_OP_matmul_gelu_backward;
  product->in[product->inputs++] = u;
  product->outputs = 1 + with_bias;
  if (with_bias) product->out[1] = g.bias;
  if (!becomes_rest(graph, node, &g, summed)) ms_remove_node(graph, index);
  ms_take_output(graph, place, 0, du);
  if (with_bias) ms_take_output(graph, place, 1, g.bias);
}

static int walk(ms_graph *graph, void (*rule)(ms_graph *, const ms_uses *, int)) {
  ms_uses uses;
  MS_TRY(ms_uses_count(graph, &uses));
  for (int n = 0; n < graph->n_nodes; n++) rule(graph, &uses, n);
  ms_uses_free(&uses);
  ms_compact(graph);
  return MS_OK;
}

int ms_graph_fuse_epilogues(ms_graph *graph) {
  MS_TRY(walk(graph, fuse_forward));
  return walk(graph, fuse_backward);
}
