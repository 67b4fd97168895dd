/* kept.c - what compiles of one graph share. The graph owns it, so that it goes when the graph goes.
*/
#include "plan/kept.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { PACKINGS = 32 };

typedef struct packing {
  ms_packing_item *item;
  int64_t *offset;
  int n;
} packing;

typedef struct kept {
  ms_graph *lowered[2][2];          /* [evaluate][fuse] */
  int values, nodes, outputs, loss; /* of the traced graph that they were made of */
  packing packing[PACKINGS];
  int next; /* the oldest */
} kept;

static void drop_graphs(kept *k) {
  for (int evaluate = 0; evaluate < 2; evaluate++)
    for (int fuse = 0; fuse < 2; fuse++) {
      ms_graph_free(k->lowered[evaluate][fuse]);
      k->lowered[evaluate][fuse] = NULL;
    }
}

static void free_kept(void *data) {
  kept *k = data;
  drop_graphs(k);
  for (int i = 0; i < PACKINGS; i++) {
    free(k->packing[i].item);
    free(k->packing[i].offset);
  }
  free(k);
}

static kept *find(const ms_graph *graph) {
  ms_graph_kept *place = graph->kept;
  if (!place->data) {
    place->data = ms_calloc(1, sizeof(kept));
    place->release = free_kept;
  }
  return place->data;
}

/* ---- graphs ----------------------------------------------------------------------------------------------------- */

static int make_training(ms_graph *graph, int fuse) {
  if (fuse) MS_TRY(ms_graph_rewrite(graph, 0));
  MS_TRY(ms_graph_differentiate(graph));
  if (fuse) MS_TRY(ms_graph_rewrite_backward(graph));
  MS_TRY(ms_graph_insert_recomputation(graph));
  return ms_graph_prune(graph);
}

static int make_evaluation(ms_graph *graph, int fuse) {
  MS_TRY(fuse ? ms_graph_rewrite(graph, 1) : ms_graph_pass_identities(graph, 1));
  return ms_graph_prune(graph);
}

static int has_grown(const kept *k, const ms_graph *g) {
  return k->values != g->n_values || k->nodes != g->n_nodes || k->outputs != g->n_outputs || k->loss != g->loss;
}

int ms_kept_graph(const ms_graph *traced, int evaluate, int fuse, const ms_graph **graph) {
  kept *k = find(traced);
  if (!k) return MS_ENOMEM;
  if (has_grown(k, traced)) {
    drop_graphs(k);
    k->values = traced->n_values;
    k->nodes = traced->n_nodes;
    k->outputs = traced->n_outputs;
    k->loss = traced->loss;
  }
  ms_graph **place = &k->lowered[evaluate != 0][fuse != 0];
  if (!*place) {
    MS_TRY(ms_graph_copy(traced, place));
    int rc = evaluate ? make_evaluation(*place, fuse) : make_training(*place, fuse);
    if (rc) {
      ms_graph_free(*place);
      *place = NULL;
      return rc;
    }
  }
  *graph = *place;
  return MS_OK;
}

/* ---- packings ---------------------------------------------------------------------------------------------------- */

static int same(const packing *p, const ms_packing_item *item, int n) {
  if (!p->item || p->n != n) return 0;
  for (int i = 0; i < n; i++) {
    const ms_packing_item *x = &p->item[i], *y = &item[i];
    if (x->bytes != y->bytes || x->first != y->first || x->last != y->last || x->ranks != y->ranks) return 0;
  }
  return 1;
}

const int64_t *ms_kept_packing(const ms_graph *graph, const ms_packing_item *item, int n) {
  const kept *k = graph->kept->data;
  for (int i = 0; k && i < PACKINGS; i++)
    if (same(&k->packing[i], item, n)) return k->packing[i].offset;
  return NULL;
}

int ms_kept_add_packing(const ms_graph *graph, const ms_packing_item *item, const int64_t *offset, int n) {
  kept *k = find(graph);
  if (!k) return MS_ENOMEM;
  ms_packing_item *items = ms_calloc(n, sizeof *items);
  int64_t *offsets = ms_calloc(n, sizeof *offsets);
  if (!items || !offsets) {
    free(items);
    free(offsets);
    return MS_ENOMEM;
  }
  memcpy(items, item, (size_t)n * sizeof *items);
  memcpy(offsets, offset, (size_t)n * sizeof *offsets);
  packing *p = &k->packing[k->next];
  k->next = (k->next + 1) % PACKINGS;
  free(p->item);
  free(p->offset);
  *p = (packing){items, offsets, n};
  return MS_OK;
}
