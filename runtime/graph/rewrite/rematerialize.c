/* rematerialize.c - results that need not be kept, because the kernel of their gradient can produce them again.
 *
 * Backward reads the result of a gelu, silu, swiglu or normalisation only for the gradients of the weights that
 * multiplied it. The inputs for recomputing it, the op's own input and a few numbers per row, are kept for the op's
 * gradient anyway, and that gradient's kernel computes all but the last step of the result. The gradient node
 * therefore returns it as one more output, with the bits of forward, and its readers run after the gradient node
 * instead of before: by then the input is no longer needed, and the result reuses its bytes. A block of GPT-2 thus
 * keeps 10 tensors of its width instead of 16.
 */
#include <stdlib.h>

#include "base/error.h"
#include "graph/graph.h"
#include "graph/rewrite/rewrite.h"

typedef struct rematerializer {
  ms_graph *graph;
  int first_backward;
  int *activated;      /* the forward gelu, gelu_tanh, silu or swiglu with this value as first input, or -1 */
  int *first, *last;   /* a range of nodes that includes all backward nodes that read it */
  unsigned char *held; /* 1: something other than backward can read its bytes */
  int *late;           /* the gradient node before which its producer cannot run, or -1 */
  ms_node *waiting;    /* [nodes] */
} rematerializer;

/* The activation that an op computes or differentiates, if the gradient reads the input; relu's reads the result. */
static int activation_of(int op, int maker) {
  const int activation = ms_op_activation(op, maker);
  return activation == MS_ACT_RELU ? MS_ACT_NONE : activation;
}

static int is_summed_norm(int op) { return op == MS_OP_add_layer_norm || op == MS_OP_add_rms_norm; }

static int is_norm(int op) { return op == MS_OP_layer_norm || op == MS_OP_rms_norm || is_summed_norm(op); }

static void note_readers(rematerializer *r, int n) {
  const ms_node *node = &r->graph->nodes[n];
  for (int i = 0; i < node->inputs; i++) {
    int v = node->in[i];
    if (n < r->first[v]) r->first[v] = n;
    if (n > r->last[v]) r->last[v] = n;
  }
}

static void note_all(rematerializer *r, int values) {
  const ms_graph *graph = r->graph;
  for (int v = 0; v < values; v++) {
    r->activated[v] = r->last[v] = r->late[v] = -1;
    r->first[v] = graph->n_nodes;
  }
  if (graph->loss >= 0) r->held[graph->loss] = 1;
  if (graph->loss_weight >= 0) r->held[graph->loss_weight] = 1;
  for (int o = 0; o < graph->n_outputs; o++) r->held[graph->outputs[o].value] = 1;
  while (r->first_backward < graph->n_nodes && !graph->nodes[r->first_backward].backward) r->first_backward++;
  for (int n = 0; n < graph->n_nodes; n++) {
    const ms_node *node = &graph->nodes[n];
    if (n >= r->first_backward) note_readers(r, n);
    else if (ms_op_row_of(node->op)->flags & MS_OP_ALIAS) r->held[node->in[0]] = 1;
    else if (node->op == MS_OP_swiglu || activation_of(node->op, MS_OP_PUBLIC) != MS_ACT_NONE)
      r->activated[node->in[0]] = n;
  }
}

/* The forward node that a node differentiates, if its result can be recomputed; otherwise NULL. */
static const ms_node *forward_of(const rematerializer *r, const ms_node *gradient) {
  const ms_graph *graph = r->graph;
  int maker = r->activated[gradient->in[0]], activation = activation_of(gradient->op, MS_OP_INTERNAL);
  if (gradient->op == MS_OP_activation_backward_bias) activation = (int)gradient->attrs.product.activation;
  if (activation != MS_ACT_NONE)
    return maker >= 0 && activation_of(graph->nodes[maker].op, MS_OP_PUBLIC) == activation ? &graph->nodes[maker]
                                                                                           : NULL;
  if (gradient->op == MS_OP_swiglu_backward) {
    const ms_node *node = maker >= 0 ? &graph->nodes[maker] : NULL;
    return node && node->op == MS_OP_swiglu && node->in[1] == gradient->in[1] ? node : NULL;
  }
  if (gradient->op != MS_OP_layer_norm_backward && gradient->op != MS_OP_rms_norm_backward) return NULL;
  maker = graph->values[gradient->in[2]].node;
  if (maker < 0 || !is_norm(graph->nodes[maker].op)) return NULL;
  const ms_node *norm = &graph->nodes[maker];
  return gradient->in[0] == (is_summed_norm(norm->op) ? norm->out[2] : norm->in[0]) ? norm : NULL;
}

static int reads_late(const rematerializer *r, const ms_node *node, int result, int gradient) {
  for (int i = 0; i < node->inputs; i++)
    if (node->in[i] == result || r->late[node->in[i]] == gradient) return 1;
  return 0;
}

/* Marks the readers of the result before the gradient node, and their dependents; 0 if the gradient itself is one. */
static int can_wait(rematerializer *r, int result, int gradient) {
  const ms_node *nodes = r->graph->nodes;
  for (int n = r->first[result]; n < gradient; n++) {
    if (!reads_late(r, &nodes[n], result, gradient)) continue;
    for (int o = 0; o < nodes[n].outputs; o++) r->late[nodes[n].out[o]] = gradient;
  }
  return !reads_late(r, &nodes[gradient], result, gradient);
}

/* Moves the marked nodes after the gradient node, in order; returns the gradient node's new position. */
static int move_behind(rematerializer *r, int result, int gradient) {
  ms_graph *graph = r->graph;
  int begin = r->first[result], kept = begin, moved = 0;
  for (int n = begin; n <= gradient; n++) {
    if (n < gradient && reads_late(r, &graph->nodes[n], result, gradient)) r->waiting[moved++] = graph->nodes[n];
    else graph->nodes[kept++] = graph->nodes[n];
  }
  for (int i = 0; i < moved; i++) graph->nodes[kept + i] = r->waiting[i];
  for (int n = begin; n <= gradient; n++) {
    const ms_node *node = &graph->nodes[n];
    for (int o = 0; o < node->outputs; o++) graph->values[node->out[o]].node = n;
    note_readers(r, n);
  }
  return kept - 1;
}

/* Makes a gradient node also return the forward node's result; *again is the new value. */
static int give_result(ms_graph *graph, int index, const ms_node *forward, int *again) {
  MS_TRY(ms_grow((void **)&graph->values, &graph->values_capacity, graph->n_values + 1, sizeof *graph->values));
  ms_node *node = &graph->nodes[index];
  int activation = activation_of(node->op, MS_OP_INTERNAL);
  if (activation != MS_ACT_NONE) {
    node->op = MS_OP_activation_backward_recompute;
    node->attrs = (ms_op_attrs){.product = {.activation = activation}};
  } else if (node->op == MS_OP_activation_backward_bias) {
    node->op = MS_OP_activation_backward_bias_recompute;
  } else if (node->op == MS_OP_swiglu_backward) {
    node->op = MS_OP_swiglu_backward_recompute;
  } else if (node->op == MS_OP_rms_norm_backward) {
    node->op = MS_OP_rms_norm_backward_recompute;
  } else {
    node->op = MS_OP_layer_norm_backward_recompute;
    if (node->inputs == 5) node->in[5] = node->in[4];
    node->in[4] = forward->in[forward->inputs - 1];
    node->inputs++;
  }
  *again = graph->n_values++;
  graph->values[*again] = graph->values[forward->out[0]];
  graph->values[*again].node = index;
  graph->values[*again].output = node->outputs;
  node->out[node->outputs++] = *again;
  return MS_OK;
}

static int rematerialize(rematerializer *r, int index) {
  ms_graph *graph = r->graph;
  const ms_node *forward = forward_of(r, &graph->nodes[index]);
  if (!forward) return MS_OK;
  int result = forward->out[0], again;
  if (r->held[result] || r->last[result] < 0 || !can_wait(r, result, index)) return MS_OK;
  if (r->first[result] < index) index = move_behind(r, result, index);
  MS_TRY(give_result(graph, index, forward, &again));
  for (int n = index + 1; n <= r->last[result]; n++)
    for (int i = 0; i < graph->nodes[n].inputs; i++)
      if (graph->nodes[n].in[i] == result) graph->nodes[n].in[i] = again;
  return MS_OK;
}

int ms_graph_rematerialize(ms_graph *graph) {
  rematerializer r = {.graph = graph};
  int rc = MS_ENOMEM, nodes = graph->n_nodes, values = graph->n_values + nodes; /* a node adds at most one value */
  r.activated = ms_calloc(values, sizeof *r.activated);
  r.first = ms_calloc(values, sizeof *r.first);
  r.last = ms_calloc(values, sizeof *r.last);
  r.held = ms_calloc(values, 1);
  r.late = ms_calloc(values, sizeof *r.late);
  r.waiting = ms_calloc(nodes, sizeof *r.waiting);
  if (!r.activated || !r.first || !r.last || !r.held || !r.late || !r.waiting) goto fail;
  note_all(&r, values);
  rc = MS_OK;
  for (int n = r.first_backward; n < nodes && !rc; n++) rc = rematerialize(&r, n);
fail:
  free(r.activated);
  free(r.first);
  free(r.last);
  free(r.held);
  free(r.late);
  free(r.waiting);
  return rc;
}
