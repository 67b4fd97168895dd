/* graph.c - creation, copying and release of a graph, and its table of names.
 *
 * Scopes and names are interned: nodes of one module share one text, so comparing pointers compares names.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text/hash.h"
#include "graph/graph.h"

static void destroy_graph(void *object) {
  ms_graph *graph = object;
  if (graph->cache && graph->cache->data) graph->cache->release(graph->cache->data);
  free(graph->cache);
  for (int i = 0; i < graph->interned_capacity; i++) free(graph->interned[i]);
  free(graph->interned);
  free(graph->values);
  free(graph->nodes);
  free(graph->outputs);
  free(graph->conversions);
  free(graph->param_values);
  free(graph->param_grads);
}

int64_t ms_graph_bytes(const ms_graph *graph) {
  int64_t bytes = (int64_t)sizeof *graph + graph->values_capacity * (int64_t)sizeof *graph->values +
                  graph->nodes_capacity * (int64_t)sizeof *graph->nodes +
                  graph->outputs_capacity * (int64_t)sizeof *graph->outputs +
                  graph->conversions_capacity * (int64_t)sizeof *graph->conversions +
                  graph->interned_capacity * (int64_t)sizeof *graph->interned +
                  graph->n_params * (int64_t)(sizeof *graph->param_values + sizeof *graph->param_grads);
  for (int i = 0; i < graph->interned_capacity; i++)
    if (graph->interned[i]) bytes += (int64_t)strlen(graph->interned[i]) + 1;
  return bytes + (graph->cache->data ? graph->cache->bytes(graph->cache->data) : 0);
}

int ms_graph_create(const void *model, ms_param_lookup lookup, int n_params, ms_graph **graph) {
  int rc = MS_OK;
  ms_graph *g = ms_handle_new(MS_HANDLE_GRAPH, sizeof *g, destroy_graph);
  if (!g) return MS_ENOMEM;
  g->model = model;
  g->lookup = lookup;
  g->n_params = n_params;
  g->loss = g->loss_weight = -1;
  g->scope = "";
  g->param_values = ms_calloc(n_params, sizeof *g->param_values);
  g->param_grads = ms_calloc(n_params, sizeof *g->param_grads);
  g->cache = ms_calloc(1, sizeof *g->cache);
  if (!g->param_values || !g->param_grads || !g->cache) {
    rc = MS_ENOMEM;
    goto fail;
  }
  for (int p = 0; p < n_params; p++) g->param_values[p] = g->param_grads[p] = -1;
  *graph = g;
  return MS_OK;
fail:
  ms_free(g);
  return rc;
}

/* The slot that contains text, or the empty slot for it. capacity is a power of two, and the table is never full. */
static char **find_slot(char **slots, int capacity, const char *text) {
  uint64_t mask = (uint64_t)capacity - 1;
  uint64_t i = ms_hash_string(MS_HASH_INIT, text) & mask;
  while (slots[i] && strcmp(slots[i], text)) i = (i + 1) & mask;
  return &slots[i];
}

static int widen_table(ms_graph *graph) {
  int capacity = graph->interned_capacity ? 2 * graph->interned_capacity : 64;
  char **slots = ms_calloc(capacity, sizeof *slots);
  if (!slots) return MS_ENOMEM;
  for (int i = 0; i < graph->interned_capacity; i++)
    if (graph->interned[i]) *find_slot(slots, capacity, graph->interned[i]) = graph->interned[i];
  free(graph->interned);
  graph->interned = slots;
  graph->interned_capacity = capacity;
  return MS_OK;
}

const char *ms_graph_intern(ms_graph *graph, const char *text) {
  if (!text[0]) return "";
  if (2 * (graph->n_interned + 1) > graph->interned_capacity && widen_table(graph)) return NULL;
  char **slot = find_slot(graph->interned, graph->interned_capacity, text);
  if (!*slot) {
    *slot = ms_strdup(text);
    if (*slot) graph->n_interned++;
  }
  return *slot;
}

/* Copies a text of the old graph into the new one; keeps an earlier rc, so that a loop can continue after a failure. */
static const char *adopt(ms_graph *graph, const char *text, int *rc) {
  const char *own = ms_graph_intern(graph, text);
  if (!own) *rc = MS_ENOMEM;
  return own;
}

static int copy_array(const void *from, int n, int64_t size, void **to, int *capacity) {
  MS_TRY(ms_grow(to, capacity, n ? n : 1, size));
  void *start;
  memcpy(&start, to, sizeof start);
  if (n > 0) memcpy(start, from, (size_t)(n * size));
  return MS_OK;
}

int ms_graph_copy(const ms_graph *graph, ms_graph **copy) {
  ms_graph *g = NULL;
  int rc = ms_graph_create(graph->model, graph->lookup, graph->n_params, &g);
  if (rc) return rc;
  MS_GOTO(copy_array(graph->values, graph->n_values, sizeof *g->values, (void **)&g->values, &g->values_capacity));
  MS_GOTO(copy_array(graph->nodes, graph->n_nodes, sizeof *g->nodes, (void **)&g->nodes, &g->nodes_capacity));
  MS_GOTO(copy_array(graph->outputs, graph->n_outputs, sizeof *g->outputs, (void **)&g->outputs, &g->outputs_capacity));
  MS_GOTO(copy_array(graph->conversions, graph->n_conversions, sizeof *g->conversions, (void **)&g->conversions,
                     &g->conversions_capacity));
  g->n_conversions = graph->n_conversions;
  g->n_values = graph->n_values;
  g->n_nodes = graph->n_nodes;
  g->n_outputs = graph->n_outputs;
  g->loss = graph->loss;
  g->loss_weight = graph->loss_weight;
  for (int v = 0; v < g->n_values; v++) g->values[v].name = adopt(g, g->values[v].name, &rc);
  for (int n = 0; n < g->n_nodes; n++) g->nodes[n].scope = adopt(g, g->nodes[n].scope, &rc);
  for (int o = 0; o < g->n_outputs; o++) g->outputs[o].name = adopt(g, g->outputs[o].name, &rc);
  for (int k = 0; k < g->n_conversions; k++) g->conversions[k].scope = adopt(g, g->conversions[k].scope, &rc);
  g->scope = adopt(g, graph->scope, &rc);
  if (rc) goto fail;
  for (int p = 0; p < g->n_params; p++) {
    g->param_values[p] = graph->param_values[p];
    g->param_grads[p] = graph->param_grads[p];
  }
  *copy = g;
  return MS_OK;
fail:
  ms_free(g);
  return rc;
}
