/* backward_copies.c - copies of forward nodes in backward (backward_copies.h). */
#include "graph/rewrite/backward_copies.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

int ms_backward_copies_open(ms_graph *graph, ms_backward_copies *c) {
  *c = (ms_backward_copies){.graph = graph};
  while (c->first_backward < graph->n_nodes && !graph->nodes[c->first_backward].backward) c->first_backward++;
  c->copy_of = ms_calloc(graph->n_values, sizeof *c->copy_of);
  if (!c->copy_of) return MS_ENOMEM;
  for (int v = 0; v < graph->n_values; v++) c->copy_of[v] = -1;
  return MS_OK;
}

int ms_backward_copies_begin(ms_backward_copies *c) {
  c->capacity = c->graph->n_nodes + c->first_backward;
  c->out = ms_calloc(c->capacity, sizeof *c->out);
  if (!c->out) return MS_ENOMEM;
  memcpy(c->out, c->graph->nodes, (size_t)c->first_backward * sizeof *c->out);
  c->n_out = c->first_backward;
  return MS_OK;
}

void ms_backward_copies_redirect(const ms_backward_copies *c, ms_node *node) {
  for (int i = 0; i < node->inputs; i++)
    if (c->copy_of[node->in[i]] >= 0) node->in[i] = c->copy_of[node->in[i]];
}

int ms_backward_copies_add(ms_backward_copies *c, ms_node node) {
  ms_graph *graph = c->graph;
  node.backward = node.recomputed = 1;
  for (int o = 0; o < node.outputs; o++) {
    const int v = node.out[o];
    MS_TRY(ms_grow((void **)&graph->values, &graph->values_capacity, graph->n_values + 1, sizeof *graph->values));
    ms_value value = graph->values[v];
    value.node = c->n_out;
    graph->values[graph->n_values] = value;
    node.out[o] = c->copy_of[v] = graph->n_values++;
  }
  c->out[c->n_out++] = node;
  return MS_OK;
}

void ms_backward_copies_take(ms_backward_copies *c, ms_node node) {
  ms_backward_copies_redirect(c, &node);
  for (int o = 0; o < node.outputs; o++) c->graph->values[node.out[o]].node = c->n_out;
  c->out[c->n_out++] = node;
}

void ms_backward_copies_end(ms_backward_copies *c) {
  ms_graph *graph = c->graph;
  free(graph->nodes);
  graph->nodes = c->out;
  graph->n_nodes = c->n_out;
  graph->nodes_capacity = c->capacity;
  c->out = NULL;
}

void ms_backward_copies_close(ms_backward_copies *c) {
  free(c->copy_of);
  free(c->out);
}
