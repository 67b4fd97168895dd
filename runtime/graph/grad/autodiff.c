/* autodiff.c - reverse mode over the node list: processes nodes from last to first, and turns the gradients of each
 * node's outputs into those of its inputs by the rule of its row. Several gradients of one value are added.
 *
 * Only paths from a trainable parameter to the loss are followed. A gradient is converted to the dtype that its value
 * requires (for a parameter: grad_dtype) before anything is added to it: by changing the output dtype of the node
 * that produces it (out_dtype), so that a bf16 matmul writes its weight gradient directly in f32, or otherwise by a
 * cast.
 */
#include <stdlib.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "graph/grad/grad.h"
#include "graph/infer/infer.h"

typedef struct tape {
  ms_graph *graph;
  unsigned char *wanted; /* [forward values] 1: depends on a trainable parameter */
  int *gradient;         /* [forward values] gradient so far, or -1 */
  int first_node;        /* the first backward node */
  /* For all values; both arrays grow as backward nodes are created: */
  int *reads; /* number of backward nodes' inputs that read it */
  int *held;  /* number of gradients that are this value: pending, or being passed to contribute */
  int reads_capacity, held_capacity;
  int counted_nodes, counted_values;
} tape;

/* Counts the reads of nodes created since the last call. */
static int count_new_nodes(tape *t) {
  ms_graph *graph = t->graph;
  MS_TRY(ms_grow((void **)&t->reads, &t->reads_capacity, graph->n_values, sizeof *t->reads));
  MS_TRY(ms_grow((void **)&t->held, &t->held_capacity, graph->n_values, sizeof *t->held));
  for (; t->counted_values < graph->n_values; t->counted_values++)
    t->reads[t->counted_values] = t->held[t->counted_values] = 0;
  for (; t->counted_nodes < graph->n_nodes; t->counted_nodes++) {
    ms_node *node = &graph->nodes[t->counted_nodes];
    node->backward = 1;
    for (int i = 0; i < node->inputs; i++) t->reads[node->in[i]]++;
  }
  return MS_OK;
}

/* The value that owns v's bytes, found through reshapes as long as nothing but the next reshape reads them. -1 if
 * anything else reads or holds v's bytes, or if the backward pass did not produce them. */
static int exclusive_root(const tape *t, int v) {
  const ms_graph *graph = t->graph;
  for (int readers = 0;; readers = 1) {
    const ms_value *value = &graph->values[v];
    if (value->node < t->first_node || t->reads[v] != readers || (readers && t->held[v])) return -1;
    const ms_node *node = &graph->nodes[value->node];
    if (!(ms_op_row_of(node->op)->flags & MS_OP_ALIAS)) return v;
    v = node->in[0];
  }
}

/* Changes the output dtype of the node that produces v; *done reports whether that was possible. */
static void retype(tape *t, int v, int dtype, int *done) {
  ms_graph *graph = t->graph;
  int root = exclusive_root(t, v);
  *done = 0;
  if (root < 0) return;
  ms_node *maker = &graph->nodes[graph->values[root].node];
  if (maker->outputs != 1 || !ms_op_has(maker->op, "out_dtype")) return;
  maker->attrs.out_dtype = 1 + dtype;
  for (; v != root; v = graph->nodes[graph->values[v].node].in[0]) graph->values[v].info.dtype = dtype;
  graph->values[root].info.dtype = dtype;
  *done = 1;
}

/* Adds one more gradient of a value and releases the caller's hold on it. */
static int contribute(tape *t, int value, int gradient) {
  ms_graph *graph = t->graph;
  int dtype, done = 0, sum;
  if (!ms_same_shape(ms_info_of(graph, value), ms_info_of(graph, gradient)))
    return MS_FAIL(MS_EINTERNAL, "the gradient of value %d has a different shape than the value", value);
  MS_TRY(ms_grad_dtype(graph, value, &dtype));
  if (!ms_is_float(dtype))
    return ms_graph_in_scope(graph, MS_FAIL(MS_EUNSUPPORTED,
                                            "the loss depends on a trainable parameter through a tensor of dtype %s, "
                                            "which has no gradient: detach what is cast to it",
                                            ms_dtype_name(dtype)));
  t->held[gradient]--;
  if (ms_info_of(graph, gradient)->dtype != dtype) {
    if (t->held[gradient] == 0) retype(t, gradient, dtype, &done);
    if (!done) MS_TRY(ms_emit_cast(graph, gradient, dtype, &gradient));
  }
  MS_TRY(count_new_nodes(t));
  int earlier = t->gradient[value];
  if (earlier >= 0) {
    t->held[earlier]--;
    MS_TRY(ms_emit_binary(graph, MS_OP_add, earlier, gradient, NULL, &sum));
    MS_TRY(count_new_nodes(t));
    gradient = sum;
  }
  t->gradient[value] = gradient;
  t->held[gradient]++;
  return MS_OK;
}

static int apply_rule(tape *t, int index, const int *dy) {
  ms_graph *graph = t->graph;
  const ms_node node = graph->nodes[index];
  const ms_op_row *row = ms_op_row_of(node.op);
  int needs[MS_MAX_INPUTS], dx[MS_MAX_INPUTS];
  if (!row->grad)
    return ms_graph_in_scope(graph, MS_FAIL(MS_EUNSUPPORTED,
                                            "%s: the op has no gradient, but the loss depends on a trainable "
                                            "parameter through it",
                                            row->name));
  for (int i = 0; i < node.inputs; i++) {
    needs[i] = t->wanted[node.in[i]];
    dx[i] = -1;
  }
  MS_TRY(row->grad(graph, index, dy, needs, dx));
  MS_TRY(count_new_nodes(t));
  for (int o = 0; o < node.outputs; o++)
    if (dy[o] >= 0) t->held[dy[o]]--;
  for (int i = 0; i < node.inputs; i++)
    if (needs[i] && dx[i] >= 0) t->held[dx[i]]++;
  for (int i = 0; i < node.inputs; i++)
    if (needs[i] && dx[i] >= 0) MS_TRY(contribute(t, node.in[i], dx[i]));
  return MS_OK;
}

static int differentiate_node(tape *t, int index) {
  ms_graph *graph = t->graph;
  const ms_node *node = &graph->nodes[index];
  int dy[MS_MAX_OUTPUTS], reached = 0;
  for (int o = 0; o < node->outputs; o++) {
    dy[o] = t->gradient[node->out[o]];
    reached |= dy[o] >= 0;
  }
  if (!reached) return MS_OK;
  graph->scope = node->scope;
  return apply_rule(t, index, dy);
}

/* Marks the values that depend on a trainable parameter through differentiable ops. */
static int mark_wanted(tape *t) {
  const ms_graph *graph = t->graph;
  ms_param_info info;
  for (int p = 0; p < graph->n_params; p++) {
    if (graph->param_values[p] < 0) continue;
    MS_TRY(graph->lookup(graph->model, p, &info));
    t->wanted[graph->param_values[p]] = !info.frozen;
  }
  for (int n = 0; n < graph->n_nodes; n++) {
    const ms_node *node = &graph->nodes[n];
    int any = 0;
    for (int i = 0; i < node->inputs; i++) any |= t->wanted[node->in[i]];
    if (ms_op_row_of(node->op)->flags & MS_OP_STOPS_GRADIENT) any = 0;
    for (int o = 0; o < node->outputs; o++)
      t->wanted[node->out[o]] = any && ms_dtype_row_of(ms_info_of(graph, node->out[o])->dtype)->info.is_float;
  }
  return MS_OK;
}

/* Fills param_grads. A gradient shared with anything else is copied, because its storage will be
 * the reduced segment. */
static int settle_param_gradients(tape *t) {
  ms_graph *graph = t->graph;
  int dtype;
  for (int p = 0; p < graph->n_params; p++) {
    int value = graph->param_values[p], gradient = value < 0 ? -1 : t->gradient[value];
    if (gradient < 0 || !t->wanted[value]) continue;
    if (t->held[gradient] > 1 || exclusive_root(t, gradient) < 0) {
      t->held[gradient]--;
      MS_TRY(ms_grad_dtype(graph, value, &dtype));
      MS_TRY(ms_emit_cast(graph, gradient, dtype, &gradient));
      MS_TRY(count_new_nodes(t));
      t->held[gradient]++;
    }
    graph->param_grads[p] = gradient;
  }
  return MS_OK;
}

static int run_backward(tape *t) {
  ms_graph *graph = t->graph;
  ms_op_attrs one = {.out_dtype = 1 + MS_F32, .shape = {.d = {1, 1, 1, 1, 1, 1}, .value = 1}};
  int seed;
  MS_TRY(mark_wanted(t));
  if (!t->wanted[graph->loss]) return MS_OK;
  if (graph->loss_weight >= 0)
    seed = graph->loss_weight; /* sums of gradients are later divided by the sum of the weights */
  else MS_TRY(ms_graph_emit(graph, MS_OP_fill, 0, NULL, &one, &seed));
  MS_TRY(count_new_nodes(t));
  t->held[seed]++;
  MS_TRY(contribute(t, graph->loss, seed));
  for (int n = t->first_node - 1; n >= 0; n--) MS_TRY(differentiate_node(t, n));
  return settle_param_gradients(t);
}

int ms_graph_differentiate(ms_graph *graph) {
  if (graph->loss < 0)
    return MS_FAIL(MS_EINVAL, "the graph has no loss to differentiate; set it with ms_graph_set_loss");
  for (int n = 0; n < graph->n_nodes; n++)
    if (graph->nodes[n].backward) return MS_FAIL(MS_EINVAL, "the graph has already been differentiated");
  int rc = MS_OK, forward_values = graph->n_values;
  const char *scope = graph->scope;
  graph->region = 0;
  tape t = {.graph = graph, .first_node = graph->n_nodes, .counted_nodes = graph->n_nodes};
  t.wanted = ms_calloc(forward_values, sizeof *t.wanted);
  t.gradient = ms_calloc(forward_values, sizeof *t.gradient);
  if (!t.wanted || !t.gradient) {
    rc = MS_ENOMEM;
    goto fail;
  }
  for (int v = 0; v < forward_values; v++) t.gradient[v] = -1;
  rc = run_backward(&t);
fail:
  graph->scope = scope;
  free(t.wanted);
  free(t.gradient);
  free(t.reads);
  free(t.held);
  return rc;
}
