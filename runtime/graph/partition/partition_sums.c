/* partition_sums.c - gradients of which each rank of a dimension has a summand. Parameters of one group, such as the
 * gains and biases of a layer, are summed together: their gradients are joined to one vector and cut again. A large
 * gradient is summed by itself, since joining it would cost more than it saves.
 *
 * The sum of a group follows the node that completes its last gradient, so it does not wait for the rest of backward.
 */
#include <stdlib.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "base/error.h"
#include "graph/partition/partition.h"

enum { LARGEST_JOINED = 64 << 10 }; /* bytes of a gradient */

typedef struct summing {
  ms_graph *graph;
  ms_op_attrs across;
  int traced; /* nodes before the pass */
  int *after; /* [nodes] of a new one: the old one that it follows */
  int capacity;
} summing;

static int emit(summing *s, int op, int inputs, const int *in, const ms_op_attrs *attrs, int after, int *out) {
  MS_TRY(ms_graph_emit(s->graph, op, inputs, in, attrs, out));
  MS_TRY(ms_grow((void **)&s->after, &s->capacity, s->graph->n_nodes, sizeof *s->after));
  s->after[s->graph->n_nodes - 1] = after;
  s->graph->nodes[s->graph->n_nodes - 1].backward = 1;
  return MS_OK;
}

static int reshape(summing *s, int x, const ms_value_info *to, int after, int *out) {
  ms_op_attrs attrs = {.shape = {.d = {1, 1, 1, 1, 1, 1}, .ndim = to->ndim}};
  for (int d = 0; d < to->ndim; d++) attrs.shape.d[d] = to->dims[d];
  return emit(s, MS_OP_reshape, 1, &x, &attrs, after, out);
}

/* Sums the gradients of these parameters, at most MS_MAX_INPUTS, as one vector. */
static int sum_joined(summing *s, int n, const int *param) {
  ms_graph *g = s->graph;
  const ms_op_attrs first_axis = {0};
  int flat[MS_MAX_INPUTS], joined, after = 0;
  int64_t start = 0;
  for (int i = 0; i < n; i++) {
    const int node = g->values[g->param_grads[param[i]]].node;
    if (node > after) after = node;
  }
  MS_TRY(ms_graph_set_scope(g, g->nodes[after].scope));
  for (int i = 0; i < n; i++) {
    const ms_value_info *x = &g->values[g->param_grads[param[i]]].info;
    const ms_value_info line = {.dtype = x->dtype, .ndim = 1, .dims = {ms_numel(x)}};
    MS_TRY(reshape(s, g->param_grads[param[i]], &line, after, &flat[i]));
  }
  MS_TRY(emit(s, MS_OP_concat, n, flat, &first_axis, after, &joined));
  MS_TRY(emit(s, MS_OP_all_reduce, 1, &joined, &s->across, after, &joined));
  for (int i = 0; i < n; i++) {
    const ms_value_info shape = g->values[g->param_grads[param[i]]].info;
    const ms_op_attrs own = {.cut = {.axis = 0, .start = start, .stop = start + ms_numel(&shape)}};
    MS_TRY(emit(s, MS_OP_slice, 1, &joined, &own, after, &flat[i]));
    MS_TRY(reshape(s, flat[i], &shape, after, &g->param_grads[param[i]]));
    start += ms_numel(&shape);
  }
  return MS_OK;
}

static int sum_alone(summing *s, int param) {
  ms_graph *g = s->graph;
  const int after = g->values[g->param_grads[param]].node;
  MS_TRY(ms_graph_set_scope(g, g->nodes[after].scope));
  return emit(s, MS_OP_all_reduce, 1, &g->param_grads[param], &s->across, after, &g->param_grads[param]);
}

static int is_joined_with(const summing *s, const int *group, int a, int b) {
  const ms_graph *g = s->graph;
  if (group[a] != group[b] || g->param_grads[b] < 0) return 0;
  const ms_value_info *x = &g->values[g->param_grads[a]].info, *y = &g->values[g->param_grads[b]].info;
  return x->dtype == y->dtype && ms_numel(y) * ms_dtype_size(y->dtype) <= LARGEST_JOINED;
}

/* summed: [params] scratch. */
static int sum_all(summing *s, const int *group, char *summed) {
  const int n = s->graph->n_params;
  for (int p = 0; p < n; p++) {
    int list[MS_MAX_INPUTS], listed = 0;
    if (group[p] < 0 || s->graph->param_grads[p] < 0 || summed[p]) continue;
    for (int q = p; q < n && listed < MS_MAX_INPUTS && is_joined_with(s, group, p, p); q++)
      if (!summed[q] && is_joined_with(s, group, p, q)) summed[list[listed++] = q] = 1;
    summed[p] = 1;
    if (listed > 1) MS_TRY(sum_joined(s, listed, list));
    else MS_TRY(sum_alone(s, p));
  }
  return MS_OK;
}

/* Moves the new nodes to where their inputs are complete. next: [nodes] the new nodes that follow the same old one, in
 * order, from first[old] on. */
static void put_in_order(const summing *s, ms_node *ordered, int *first, int *next) {
  ms_graph *g = s->graph;
  int n = 0;
  for (int old = 0; old < s->traced; old++) first[old] = -1;
  for (int i = g->n_nodes - 1; i >= s->traced; i--) {
    next[i] = first[s->after[i]];
    first[s->after[i]] = i;
  }
  for (int old = 0; old < s->traced; old++) {
    ordered[n++] = g->nodes[old];
    for (int i = first[old]; i >= 0; i = next[i]) ordered[n++] = g->nodes[i];
  }
  memcpy(g->nodes, ordered, (size_t)n * sizeof *ordered);
  for (int i = 0; i < n; i++)
    for (int o = 0; o < g->nodes[i].outputs; o++) g->values[g->nodes[i].out[o]].node = i;
}

static int order(const summing *s) {
  ms_node *ordered = ms_calloc(s->graph->n_nodes, sizeof *ordered);
  int *first = ms_calloc(s->graph->n_nodes, sizeof *first), *next = ms_calloc(s->graph->n_nodes, sizeof *next);
  const int rc = ordered && first && next ? MS_OK : MS_ENOMEM;
  if (!rc) put_in_order(s, ordered, first, next);
  free(ordered);
  free(first);
  free(next);
  return rc;
}

int ms_partition_sum_gradients(ms_graph *graph, int dim, int64_t ranks, const int *group) {
  summing s = {.graph = graph, .across = {.across = {.dim = dim, .ranks = ranks}}, .traced = graph->n_nodes};
  char *summed = ms_calloc(graph->n_params, 1);
  int rc = summed ? sum_all(&s, group, summed) : MS_ENOMEM;
  if (!rc && graph->n_nodes > s.traced) rc = order(&s);
  free(summed);
  free(s.after);
  return rc;
}
