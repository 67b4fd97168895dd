/* regather.c - gathered activations that backward gathers again instead of keeping, as resharding after forward does
 * with weights.
 *
 * With sequence or context parallelism each rank has a part of an activation and gathers the whole for one node. Kept
 * for backward, the whole would take n times the memory of the part. A copy of the gather, placed before the first
 * backward node that reads its result, frees forward's result at the end of forward. Then only the part is kept, or
 * not even that, if the gradient of the op that made the part computes it again (rematerialize.c, which therefore runs
 * later).
 *
 * The gather's result may be read through reshapes, which are copied with it. Gathers that a recompute region repeats
 * anyway are left to it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "graph/graph.h"

int ms_graph_set_regather(ms_graph *graph, int when) {
  MS_HANDLE(graph, GRAPH);
  if (when < MS_REGATHER_DEFAULT || when > MS_REGATHER_NEVER)
    return MS_FAIL(MS_EINVAL, "ms_graph_set_regather: %d is none of enum ms_regather", when);
  graph->regather = when;
  return MS_OK;
}

typedef struct regatherer {
  ms_graph *graph;
  const unsigned char *by_default; /* [MS_DIMS] */
  int first_backward;
  unsigned char *again; /* [nodes] 1: a gather, or a reshape of its result, that backward can repeat */
  int *copy_of;         /* [values] the copy's value that backward reads instead, or -1 */
  ms_node *out;         /* the new node list, once something is repeated */
  int n_out;
} regatherer;

static int is_repeated_gather(const regatherer *r, const ms_node *node) {
  if (node->op != MS_OP_all_gather || node->attrs.i[1] < 2 || node->recompute) return 0;
  if (node->regather != MS_REGATHER_DEFAULT) return node->regather == MS_REGATHER_ALWAYS;
  return r->by_default[node->attrs.i[0]];
}

/* Returns whether backward reads anything that can be repeated. */
static int mark(regatherer *r) {
  const ms_graph *graph = r->graph;
  int any = 0;
  for (int n = 0; n < r->first_backward; n++) {
    const ms_node *node = &graph->nodes[n];
    const int maker = node->inputs ? graph->values[node->in[0]].node : -1;
    const int reshapes = ms_op_row_of(node->op)->flags & MS_OP_ALIAS && maker >= 0 && r->again[maker];
    r->again[n] = is_repeated_gather(r, node) || reshapes;
  }
  for (int n = r->first_backward; n < graph->n_nodes; n++)
    for (int i = 0; i < graph->nodes[n].inputs; i++) {
      const int maker = graph->values[graph->nodes[n].in[i]].node;
      any |= maker >= 0 && maker < r->first_backward && r->again[maker];
    }
  return any;
}

static void note_conversion(ms_graph *graph, int local) {
  for (int c = 0; c < graph->n_conversions; c++)
    if (graph->conversions[c].local == local) graph->conversions[c].regathered = 1;
}

/* Appends the nodes that make v again; v's maker is marked. They count as computed for backward. */
static int repeat(regatherer *r, int v) {
  ms_graph *graph = r->graph;
  if (r->copy_of[v] >= 0) return MS_OK;
  const ms_node original = graph->nodes[graph->values[v].node];
  if (original.op != MS_OP_all_gather) MS_TRY(repeat(r, original.in[0]));
  else note_conversion(graph, v);
  MS_TRY(ms_grow((void **)&graph->values, &graph->values_capacity, graph->n_values + 1, sizeof *graph->values));
  ms_node *node = &r->out[r->n_out];
  ms_value value = graph->values[v];
  *node = original;
  node->backward = node->recomputed = 1;
  if (original.op != MS_OP_all_gather) node->in[0] = r->copy_of[original.in[0]];
  value.node = r->n_out++;
  graph->values[graph->n_values] = value;
  node->out[0] = r->copy_of[v] = graph->n_values++;
  return MS_OK;
}

static int take_backward(regatherer *r, const ms_node *original) {
  ms_graph *graph = r->graph;
  ms_node node = *original;
  for (int i = 0; i < node.inputs; i++) {
    const int maker = graph->values[node.in[i]].node;
    if (maker < 0 || maker >= r->first_backward || !r->again[maker]) continue;
    MS_TRY(repeat(r, node.in[i]));
    node.in[i] = r->copy_of[node.in[i]];
  }
  for (int o = 0; o < node.outputs; o++) graph->values[node.out[o]].node = r->n_out;
  r->out[r->n_out++] = node;
  return MS_OK;
}

static int rebuild(regatherer *r) {
  ms_graph *graph = r->graph;
  const int capacity = graph->n_nodes + r->first_backward;
  r->out = ms_calloc(capacity, sizeof *r->out);
  if (!r->out) return MS_ENOMEM;
  memcpy(r->out, graph->nodes, (size_t)r->first_backward * sizeof *r->out);
  r->n_out = r->first_backward;
  for (int n = r->first_backward; n < graph->n_nodes; n++) MS_TRY(take_backward(r, &graph->nodes[n]));
  free(graph->nodes);
  graph->nodes = r->out;
  graph->n_nodes = r->n_out;
  graph->nodes_capacity = capacity;
  r->out = NULL;
  return MS_OK;
}

int ms_graph_regather(ms_graph *graph, const unsigned char *by_default) {
  regatherer r = {.graph = graph, .by_default = by_default};
  int rc = MS_ENOMEM;
  const int values = graph->n_values;
  while (r.first_backward < graph->n_nodes && !graph->nodes[r.first_backward].backward) r.first_backward++;
  r.again = ms_calloc(graph->n_nodes, 1);
  r.copy_of = ms_calloc(values, sizeof *r.copy_of);
  if (!r.again || !r.copy_of) goto fail;
  for (int v = 0; v < values; v++) r.copy_of[v] = -1;
  rc = mark(&r) ? rebuild(&r) : MS_OK;
fail:
  free(r.again);
  free(r.copy_of);
  free(r.out);
  return rc;
}
