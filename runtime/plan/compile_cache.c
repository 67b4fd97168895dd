/* compile_cache.c - results that compilations of one graph share. The graph owns the cache and frees it, unless another
 * graph has taken it over. */
#include "plan/compile_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/layout/pack.h"
#include "shard/model.h"

enum { PACKINGS = 32 };

typedef struct packing {
  ms_packing_item *before, *after;
  int64_t room[MS_PACK_ARENAS];
  int n;
} packing;

typedef struct cache {
  ms_graph *lowered[2][MS_FUSINGS]; /* [evaluate][fusing] */
  ms_made_again again[2][MS_FUSINGS];
  int values, nodes, outputs, loss, loss_weight; /* of the traced graph that the lowered graphs were made from */
  packing packing[PACKINGS];
  int next; /* index of the oldest */
} cache;

static void drop_graphs(cache *c) {
  for (int evaluate = 0; evaluate < 2; evaluate++)
    for (int fusing = 0; fusing < MS_FUSINGS; fusing++) {
      ms_free(c->lowered[evaluate][fusing]);
      c->lowered[evaluate][fusing] = NULL;
    }
}

static void free_cache(void *data) {
  cache *c = data;
  drop_graphs(c);
  for (int i = 0; i < PACKINGS; i++) {
    free(c->packing[i].before);
    free(c->packing[i].after);
  }
  free(c);
}

static int64_t bytes_of(const void *data) {
  const cache *c = data;
  int64_t bytes = sizeof *c;
  for (int evaluate = 0; evaluate < 2; evaluate++)
    for (int fusing = 0; fusing < MS_FUSINGS; fusing++)
      if (c->lowered[evaluate][fusing]) bytes += ms_graph_bytes(c->lowered[evaluate][fusing]);
  for (int i = 0; i < PACKINGS; i++) bytes += c->packing[i].n * (int64_t)(2 * sizeof *c->packing[i].before);
  return bytes;
}

static cache *find(const ms_graph *graph) {
  ms_graph_cache *place = graph->cache;
  if (!place->data) {
    place->data = ms_calloc(1, sizeof(cache));
    place->release = free_cache;
    place->bytes = bytes_of;
  }
  return place->data;
}

/* ---- graphs ----------------------------------------------------------------------------------------------------- */

static int has_grown(const cache *c, const ms_graph *g) {
  return c->values != g->n_values || c->nodes != g->n_nodes || c->outputs != g->n_outputs || c->loss != g->loss ||
         c->loss_weight != g->loss_weight;
}

ms_graph *ms_cached_graph(const ms_graph *traced, int evaluate, enum ms_fusing fusing, const ms_made_again *again) {
  cache *c = traced->cache->data;
  if (c && has_grown(c, traced)) drop_graphs(c);
  const int alike = c && !memcmp(&c->again[evaluate != 0][fusing], again, sizeof *again);
  return alike ? c->lowered[evaluate != 0][fusing] : NULL;
}

int ms_cache_graph(const ms_graph *traced, int evaluate, enum ms_fusing fusing, const ms_made_again *again,
                   ms_graph *graph) {
  cache *c = find(traced);
  if (!c) return MS_ENOMEM;
  c->values = traced->n_values;
  c->nodes = traced->n_nodes;
  c->outputs = traced->n_outputs;
  c->loss = traced->loss;
  c->loss_weight = traced->loss_weight;
  ms_free(c->lowered[evaluate != 0][fusing]);
  c->lowered[evaluate != 0][fusing] = graph;
  c->again[evaluate != 0][fusing] = *again;
  return MS_OK;
}

/* ---- another graph takes the cache ------------------------------------------------------------------------------ */

/* What ms_plan_divide and ms_plan_sum_divided read of a model. */
static int are_divided_alike(const ms_model *a, const ms_model *b) {
  static const int dims[] = {MS_DIM_TENSOR, MS_DIM_CONTEXT};
  for (int i = 0; i < 2; i++)
    if (a->dim[dims[i]].size != b->dim[dims[i]].size || strcmp(a->dim[dims[i]].name, b->dim[dims[i]].name)) return 0;
  if (a->sequence_parallel != b->sequence_parallel) return 0;
  for (int p = 0; p < a->params; p++) {
    const ms_param *x = &a->param[p], *y = &b->param[p];
    if (x->unit != y->unit || x->config.tensor_axis != y->config.tensor_axis ||
        x->config.tensor_splits != y->config.tensor_splits)
      return 0;
  }
  return 1;
}

int ms_graph_take_compiled(ms_graph *graph, ms_graph *earlier, int *taken) {
  MS_HANDLE(graph, GRAPH);
  MS_HANDLE(earlier, GRAPH);
  MS_GIVEN(taken);
  *taken = 0;
  const ms_model *model = graph->model, *other = earlier->model;
  if (!model->sharded || !other->sharded)
    return MS_FAIL(MS_EINVAL, "call ms_model_shard before ms_graph_take_compiled, for both models");
  cache *c = earlier->cache->data;
  if (graph == earlier || graph->cache->data || !c || has_grown(c, earlier)) return MS_OK;
  if (!ms_graph_is_alike(graph, earlier) || !are_divided_alike(model, other)) return MS_OK;
  ms_graph_cache *from = earlier->cache;
  *graph->cache = *from;
  *from = (ms_graph_cache){0};
  for (int evaluate = 0; evaluate < 2; evaluate++)
    for (int fusing = 0; fusing < MS_FUSINGS; fusing++) {
      ms_graph *lowered = c->lowered[evaluate][fusing];
      if (!lowered) continue;
      lowered->model = graph->model;
      lowered->lookup = graph->lookup;
    }
  *taken = 1;
  return MS_OK;
}

/* ---- packings --------------------------------------------------------------------------------------------------- */

static int same(const packing *p, const ms_packing_item *item, int n, const int64_t *room) {
  if (!p->before || p->n != n || memcmp(p->room, room, sizeof p->room)) return 0;
  for (int i = 0; i < n; i++) {
    const ms_packing_item *x = &p->before[i], *y = &item[i];
    if (x->bytes != y->bytes || x->first != y->first || x->last != y->last || x->ranks != y->ranks ||
        x->arena != y->arena || (x->arena >= 0 && x->offset != y->offset))
      return 0;
  }
  return 1;
}

const ms_packing_item *ms_cached_packing(const ms_graph *graph, const ms_packing_item *item, int n,
                                         const int64_t *room) {
  const cache *c = graph->cache->data;
  for (int i = 0; c && i < PACKINGS; i++)
    if (same(&c->packing[i], item, n, room)) return c->packing[i].after;
  return NULL;
}

int ms_cache_packing(const ms_graph *graph, const ms_packing_item *before, const ms_packing_item *after, int n,
                     const int64_t *room) {
  cache *c = find(graph);
  if (!c) return MS_ENOMEM;
  packing made = {.before = ms_calloc(n, sizeof *before), .after = ms_calloc(n, sizeof *after), .n = n};
  if (!made.before || !made.after) {
    free(made.before);
    free(made.after);
    return MS_ENOMEM;
  }
  memcpy(made.before, before, (size_t)n * sizeof *before);
  memcpy(made.after, after, (size_t)n * sizeof *after);
  memcpy(made.room, room, sizeof made.room);
  packing *p = &c->packing[c->next];
  c->next = (c->next + 1) % PACKINGS;
  free(p->before);
  free(p->after);
  *p = made;
  return MS_OK;
}
