/* rewrite_backward.c - fusions of the backward graph, after autodiff. A bias gradient is summed while the
 * activation's gradient is computed; a residual gradient is added in the normalisation's kernel, and the other
 * gradient of a tied table in the embedding's; and the gradient of slices that partition a tensor, a sum of
 * zero-padded pieces, is assembled in one pass. */
#include <stdlib.h>

#include "base/error.h"
#include "graph/infer/infer.h"
#include "graph/rewrite/rewrite.h"

/* sum_to [N] of an activation's gradient [...,N] -> activation_backward_bias, in the activation gradient's place */
static void fuse_bias_gradient(ms_graph *graph, int index) {
  const ms_node *sum = &graph->nodes[index];
  if (sum->op != MS_OP_sum_to) return;
  int total = sum->out[0], maker = graph->values[sum->in[0]].node;
  if (maker < 0) return;
  ms_node *backward = &graph->nodes[maker];
  int activation = ms_op_activation(backward->op, MS_OP_INTERNAL);
  const ms_value_info *dx = &graph->values[sum->in[0]].info, *vector = &graph->values[total].info;
  if (activation == MS_ACT_NONE || vector->ndim != 1 || dx->ndim < 2 || vector->dims[0] != dx->dims[dx->ndim - 1])
    return;
  backward->op = MS_OP_activation_backward_bias;
  backward->attrs = (ms_op_attrs){.out_dtype = 1 + vector->dtype, .product = {.activation = activation}};
  backward->outputs = 2;
  ms_remove_node(graph, index);
  backward->out[1] = total;
  ms_take_output(graph, maker, 1, total);
}

/* Kernels that can add another gradient, as one more input, to their first output. */
static int takes_another(const ms_node *node) {
  const ms_op_row *row = ms_op_row_of(node->op);
  return row && (row->flags & MS_OP_ADDS_LAST_INPUT) && node->inputs == row->min_inputs;
}

/* Such a kernel's gradient + another one computed earlier -> its last input */
static void fuse_other_gradient(ms_graph *graph, const ms_uses *uses, int index) {
  const ms_node *add = &graph->nodes[index];
  if (add->op != MS_OP_add) return;
  for (int side = 0; side < 2; side++) {
    int dx = add->in[side], other = add->in[1 - side], total = add->out[0], maker = graph->values[dx].node;
    if (maker < 0 || graph->values[dx].output != 0 || uses->count[dx] != 1) continue;
    ms_node *node = &graph->nodes[maker];
    const ms_value_info *info = &graph->values[dx].info;
    if (!takes_another(node)) continue;
    if (graph->values[other].info.dtype != info->dtype || !ms_same_shape(&graph->values[other].info, info)) continue;
    if (!ms_made_before(graph, other, maker)) continue;
    node->in[node->inputs++] = other;
    ms_remove_node(graph, index);
    ms_take_output(graph, maker, 0, total);
    return;
  }
}

/* The pads summed by a chain of additions; -1 if it sums anything else, or if a part of it is also used elsewhere. */
static int pads_of_sum(const ms_graph *graph, const ms_uses *uses, int index, int *pads, int *adds) {
  int n = 0;
  for (int add = index;;) {
    const ms_node *node = &graph->nodes[add];
    adds[n] = add;
    for (int side = 1; side >= 0; side--) {
      int v = node->in[side], maker = graph->values[v].node;
      if (maker < 0 || uses->count[v] != 1 || n == MS_MAX_INPUTS) return -1;
      if (graph->nodes[maker].op == MS_OP_pad) pads[n++] = maker;
      else if (side == 0 && graph->nodes[maker].op == MS_OP_add) add = maker;
      else return -1;
      if (side == 0 && graph->nodes[maker].op == MS_OP_pad) return n;
    }
  }
}

static int64_t pad_start(const ms_graph *graph, int pad) { return graph->nodes[pad].attrs.cut.before; }

/* Sorts pads by the start of their piece; 1 if the pieces tile the axis without gap or overlap. */
static int pads_tile(const ms_graph *graph, const ms_value_info *sum, int *pads, int n) {
  int64_t axis = graph->nodes[pads[0]].attrs.cut.axis, end = 0;
  for (int i = 1; i < n; i++)
    for (int j = i; j > 0 && pad_start(graph, pads[j - 1]) > pad_start(graph, pads[j]); j--) {
      int swapped = pads[j];
      pads[j] = pads[j - 1];
      pads[j - 1] = swapped;
    }
  for (int i = 0; i < n; i++) {
    const ms_node *pad = &graph->nodes[pads[i]];
    const ms_value_info *padded = &graph->values[pad->out[0]].info;
    if (pad->attrs.cut.axis != axis || pad->attrs.cut.before != end) return 0;
    if (padded->dtype != sum->dtype || !ms_same_shape(padded, sum)) return 0;
    end += graph->values[pad->in[0]].info.dims[axis];
  }
  return end == sum->dims[axis];
}

/* pad + pad + ... whose pieces tile an axis -> concat, in the last addition's place */
static void fuse_pads(ms_graph *graph, const ms_uses *uses, int index) {
  int pads[MS_MAX_INPUTS], adds[MS_MAX_INPUTS + 1], pieces[MS_MAX_INPUTS];
  ms_node *add = &graph->nodes[index];
  if (add->op != MS_OP_add) return;
  int n = pads_of_sum(graph, uses, index, pads, adds);
  if (n < 2 || !pads_tile(graph, &graph->values[add->out[0]].info, pads, n)) return;
  int64_t axis = graph->nodes[pads[0]].attrs.cut.axis;
  for (int i = 0; i < n; i++) {
    pieces[i] = graph->nodes[pads[i]].in[0];
    ms_remove_node(graph, pads[i]);
  }
  for (int i = 1; i < n - 1; i++) ms_remove_node(graph, adds[i]);
  add->op = MS_OP_concat;
  add->attrs = (ms_op_attrs){.cut = {.axis = axis}};
  add->inputs = n;
  for (int i = 0; i < n; i++) add->in[i] = pieces[i];
}

int ms_graph_rewrite_backward(ms_graph *graph) {
  ms_uses uses;
  MS_TRY(ms_graph_prune(graph));
  MS_TRY(ms_uses_count(graph, &uses));
  /* From last to first, so that a chain of additions is found at its end, before any shorter part of it. */
  for (int n = graph->n_nodes - 1; n >= 0; n--) fuse_pads(graph, &uses, n);
  for (int n = 0; n < graph->n_nodes; n++) {
    fuse_bias_gradient(graph, n);
    fuse_other_gradient(graph, &uses, n);
  }
  ms_uses_free(&uses);
  ms_compact(graph);
  MS_TRY(ms_graph_fuse_product_sums(graph));
  return ms_graph_fuse_loss_steps(graph);
}
