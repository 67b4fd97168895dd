/* rewrite.c - fusions of the forward graph, before autodiff: each saves passes over activations, and stored
 * activations.
 *
 * The rules run in the order of the list at the end. They only look at producers and uses of values, so each is a
 * single walk over the nodes.
 */
#include "graph/rewrite/rewrite.h"

#include <stdlib.h>

#include "base/error.h"
#include "graph/infer/infer.h"

/* The state of one pass. */
typedef struct rewriter {
  ms_graph *graph;
  ms_uses uses;
  int evaluate;
} rewriter;

/* Nodes are fused only if backward treats them alike. */
static int recomputed_alike(const ms_node *a, const ms_node *b) {
  return a->region == b->region && a->recompute == b->recompute;
}

/* The node that produces v if its op is `op`, only one input reads v, and it can be fused with `reader`. */
static ms_node *sole_maker(const rewriter *r, int v, int op, const ms_node *reader) {
  ms_node *maker = r->uses.count[v] == 1 ? ms_maker(r->graph, v, op) : NULL;
  return maker && recomputed_alike(maker, reader) ? maker : NULL;
}

static ms_node *sole_product(const rewriter *r, int v, const ms_node *reader) {
  ms_node *product = sole_maker(r, v, MS_OP_matmul, reader);
  return product ? product : sole_maker(r, v, MS_OP_matmul_f8, reader);
}

static int index_of(const rewriter *r, const ms_node *node) { return (int)(node - r->graph->nodes); }

/* silu(a) * b -> swiglu(a, b) */
static void fuse_swiglu(rewriter *r, int index) {
  ms_graph *graph = r->graph;
  ms_node *mul = &graph->nodes[index];
  if (mul->op != MS_OP_mul) return;
  for (int side = 0; side < 2; side++) {
    int activated = mul->in[side], other = mul->in[1 - side];
    const ms_value_info *a = &graph->values[activated].info, *b = &graph->values[other].info;
    ms_node *silu = sole_maker(r, activated, MS_OP_silu, mul);
    if (!silu || a->dtype != b->dtype || !ms_same_shape(a, b)) continue;
    mul->op = MS_OP_swiglu;
    mul->in[0] = silu->in[0];
    mul->in[1] = other;
    ms_remove_node(graph, index_of(r, silu));
    return;
  }
}

/* matmul(a, b) + vector -> matmul(a, b, vector), in the matmul's place, or the addition's if the vector is made between
 */
static void fuse_bias(rewriter *r, int index) {
  ms_graph *graph = r->graph;
  ms_node *add = &graph->nodes[index];
  if (add->op != MS_OP_add) return;
  for (int side = 0; side < 2; side++) {
    ms_node *matmul = sole_product(r, add->in[side], add);
    int bias = add->in[1 - side];
    if (!matmul || matmul->inputs != 2 || matmul->attrs.product.activation != MS_ACT_NONE) continue;
    const ms_value_info *product = &graph->values[add->in[side]].info, *vector = &graph->values[bias].info;
    const ms_value_info *sum = &graph->values[add->out[0]].info;
    int place = index_of(r, matmul), sum_value = add->out[0];
    if (vector->ndim != 1 || vector->dims[0] != product->dims[product->ndim - 1]) continue;
    if (sum->dtype != product->dtype) continue;
    if (vector->dtype != MS_F32 && vector->dtype != graph->values[matmul->in[0]].info.dtype) continue;
    matmul->in[matmul->inputs++] = bias;
    if (ms_made_before(graph, bias, place)) {
      ms_remove_node(graph, index);
      ms_take_output(graph, place, 0, sum_value);
    } else {
      *add = *matmul;
      ms_remove_node(graph, place);
      add->out[0] = sum_value;
    }
    return;
  }
}

/* In training only relu, whose gradient needs just the result. */
static int fused_activation(int op, int evaluate) {
  const int activation = ms_op_activation(op, MS_OP_PUBLIC);
  return evaluate || activation == MS_ACT_RELU ? activation : MS_ACT_NONE;
}

/* relu(matmul) -> matmul with activation, in the matmul's place */
static void fuse_activation(rewriter *r, int index) {
  ms_graph *graph = r->graph;
  const ms_node *node = &graph->nodes[index];
  int activation = fused_activation(node->op, r->evaluate);
  if (activation == MS_ACT_NONE) return;
  ms_node *matmul = sole_product(r, node->in[0], node);
  if (!matmul || matmul->attrs.product.activation != MS_ACT_NONE) return;
  int place = index_of(r, matmul), result = node->out[0];
  matmul->attrs.product.activation = activation;
  ms_remove_node(graph, index);
  ms_take_output(graph, place, 0, result);
}

/* norm(a + b) -> add_norm(a, b) in the norm's place; its third output is the sum, for all other readers. Therefore no
 * node before the norm can read the sum. */
static void fuse_add_norm(rewriter *r, int index) {
  ms_graph *graph = r->graph;
  ms_node *norm = &graph->nodes[index];
  int fused = norm->op == MS_OP_layer_norm ? MS_OP_add_layer_norm
              : norm->op == MS_OP_rms_norm ? MS_OP_add_rms_norm
                                           : -1;
  if (fused < 0) return;
  int sum = norm->in[0];
  ms_node *add = ms_maker(graph, sum, MS_OP_add);
  if (!add || r->uses.first[sum] != index || !recomputed_alike(add, norm)) return;
  for (int i = 0; i < 2; i++) {
    const ms_value_info *summand = &graph->values[add->in[i]].info;
    if (summand->dtype != graph->values[sum].info.dtype || !ms_same_shape(summand, &graph->values[sum].info)) return;
  }
  int place = index_of(r, add), a = add->in[0], b = add->in[1];
  for (int i = norm->inputs - 1; i > 0; i--) norm->in[i + 1] = norm->in[i];
  norm->in[0] = a;
  norm->in[1] = b;
  norm->inputs++;
  norm->op = fused;
  norm->outputs = 3;
  ms_remove_node(graph, place);
  norm->out[2] = sum;
  ms_take_output(graph, index, 2, sum);
}

/* cross_entropy(x[..., 0:n]) -> cross_entropy(x) of n classes: avoids copies of a padded vocabulary's logits and of
 * their gradient */
static void fuse_classes(rewriter *r, int index) {
  ms_node *loss = &r->graph->nodes[index];
  if (loss->op != MS_OP_cross_entropy || loss->attrs.loss.classes) return;
  ms_node *slice = sole_maker(r, loss->in[0], MS_OP_slice, loss);
  if (!slice) return;
  const int last = r->graph->values[slice->in[0]].info.ndim - 1;
  if ((slice->attrs.cut.axis != last && slice->attrs.cut.axis != -1) || slice->attrs.cut.start) return;
  loss->attrs.loss.classes = slice->attrs.cut.stop;
  loss->in[0] = slice->in[0];
  ms_remove_node(r->graph, index_of(r, slice));
}

/* One walk. Uses are counted before it and stay valid for the same rule: nodes change only into ops that the rule
 * does not match, and counts of surviving values do not change. */
static int walk(ms_graph *graph, int evaluate, void (*rule)(rewriter *, int)) {
  rewriter r = {.graph = graph, .evaluate = evaluate};
  MS_TRY(ms_uses_count(graph, &r.uses));
  for (int n = 0; n < graph->n_nodes; n++) rule(&r, n);
  ms_uses_free(&r.uses);
  ms_compact(graph);
  return MS_OK;
}

static int is_identity(const ms_node *node, int evaluate, int hints) {
  const int flags = ms_op_row_of(node->op)->flags;
  if (node->op == MS_OP_redistribute) return hints;
  if ((flags & MS_OP_DRAWS_MASK) && node->attrs.mask.p == 0) return 1;
  return evaluate && (flags & MS_OP_IDENTITY_IN_EVALUATION);
}

int ms_graph_pass_identities(ms_graph *graph, int evaluate, int hints) {
  int *stands_for = ms_calloc(graph->n_values, sizeof *stands_for);
  if (!stands_for) return MS_ENOMEM;
  for (int v = 0; v < graph->n_values; v++) stands_for[v] = v;
  for (int n = 0; n < graph->n_nodes; n++) {
    ms_node *node = &graph->nodes[n];
    for (int i = 0; i < node->inputs; i++) node->in[i] = stands_for[node->in[i]];
    if (!is_identity(node, evaluate, hints)) continue;
    stands_for[node->out[0]] = node->in[0];
    ms_remove_node(graph, n);
  }
  if (graph->loss >= 0) graph->loss = stands_for[graph->loss];
  if (graph->loss_weight >= 0) graph->loss_weight = stands_for[graph->loss_weight];
  for (int o = 0; o < graph->n_outputs; o++) graph->outputs[o].value = stands_for[graph->outputs[o].value];
  ms_compact(graph);
  free(stands_for);
  return MS_OK;
}

int ms_graph_fuse_classes(ms_graph *graph) { return walk(graph, 0, fuse_classes); }

int ms_graph_rewrite(ms_graph *graph, int evaluate) {
  MS_TRY(ms_graph_pass_identities(graph, evaluate, 1));
  MS_TRY(ms_graph_prune(graph));
  MS_TRY(walk(graph, evaluate, fuse_swiglu));
  MS_TRY(walk(graph, evaluate, fuse_bias));
  MS_TRY(walk(graph, evaluate, fuse_activation));
  MS_TRY(walk(graph, evaluate, fuse_add_norm));
  MS_TRY(ms_graph_fuse_classes(graph));
  return ms_graph_fuse_linear_loss(graph);
}
