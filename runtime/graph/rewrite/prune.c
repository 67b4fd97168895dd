/* prune.c - removal of nodes, and the use counts that rewrites rely on. */
#include <stdlib.h>

#include "base/error.h"
#include "graph/rewrite/rewrite.h"

int ms_uses_count(const ms_graph *graph, ms_uses *uses) {
  uses->count = ms_calloc(graph->n_values, sizeof *uses->count);
  uses->first = ms_calloc(graph->n_values, sizeof *uses->first);
  if (!uses->count || !uses->first) {
    ms_uses_free(uses);
    return MS_ENOMEM;
  }
  for (int v = 0; v < graph->n_values; v++) uses->first[v] = graph->n_nodes;
  for (int n = graph->n_nodes - 1; n >= 0; n--) {
    const ms_node *node = &graph->nodes[n];
    for (int i = 0; i < node->inputs; i++) {
      uses->count[node->in[i]]++;
      uses->first[node->in[i]] = n;
    }
  }
  if (graph->loss >= 0) uses->count[graph->loss]++;
  if (graph->loss_weight >= 0) uses->count[graph->loss_weight]++;
  for (int o = 0; o < graph->n_outputs; o++) uses->count[graph->outputs[o].value]++;
  for (int p = 0; p < graph->n_params; p++)
    if (graph->param_grads[p] >= 0) uses->count[graph->param_grads[p]]++;
  return MS_OK;
}

void ms_uses_free(ms_uses *uses) {
  free(uses->count);
  free(uses->first);
  uses->count = uses->first = NULL;
}

ms_node *ms_maker(const ms_graph *graph, int v, int op) {
  int node = graph->values[v].node;
  return node >= 0 && graph->nodes[node].op == op ? &graph->nodes[node] : NULL;
}

int ms_made_before(const ms_graph *graph, int v, int index) { return graph->values[v].node < index; }

void ms_take_output(ms_graph *graph, int node, int o, int v) {
  ms_node *n = &graph->nodes[node];
  if (n->out[o] != v) graph->values[n->out[o]].node = graph->values[n->out[o]].output = -1;
  n->out[o] = v;
  graph->values[v].node = node;
  graph->values[v].output = o;
}

void ms_remove_node(ms_graph *graph, int node) {
  ms_node *n = &graph->nodes[node];
  for (int o = 0; o < n->outputs; o++) {
    ms_value *value = &graph->values[n->out[o]];
    if (value->node == node) value->node = value->output = -1;
  }
  n->op = MS_NODE_REMOVED;
}

void ms_compact(ms_graph *graph) {
  int kept = 0;
  for (int n = 0; n < graph->n_nodes; n++) {
    if (graph->nodes[n].op == MS_NODE_REMOVED) continue;
    if (kept != n) graph->nodes[kept] = graph->nodes[n];
    const ms_node *node = &graph->nodes[kept];
    for (int o = 0; o < node->outputs; o++) graph->values[node->out[o]].node = kept;
    kept++;
  }
  graph->n_nodes = kept;
}

int ms_graph_prune(ms_graph *graph) {
  unsigned char *live = ms_calloc(graph->n_values, 1);
  if (!live) return MS_ENOMEM;
  if (graph->loss >= 0) live[graph->loss] = 1;
  if (graph->loss_weight >= 0) live[graph->loss_weight] = 1;
  for (int o = 0; o < graph->n_outputs; o++) live[graph->outputs[o].value] = 1;
  for (int p = 0; p < graph->n_params; p++)
    if (graph->param_grads[p] >= 0) live[graph->param_grads[p]] = 1;
  for (int n = graph->n_nodes - 1; n >= 0; n--) {
    const ms_node *node = &graph->nodes[n];
    int needed = 0;
    for (int o = 0; o < node->outputs; o++) needed |= live[node->out[o]];
    if (!needed) ms_remove_node(graph, n);
    else
      for (int i = 0; i < node->inputs; i++) live[node->in[i]] = 1;
  }
  ms_compact(graph);
  free(live);
  return MS_OK;
}
