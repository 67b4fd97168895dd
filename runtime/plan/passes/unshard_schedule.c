/* unshard_schedule.c - when a phase needs each unit's weights, and when it gathers them.
 *
 * The graph determines the order in which units are needed, so prefetching only chooses where each gather is issued:
 * unit k is issued when the unit `prefetch` places earlier in the same direction is first needed, or when the first
 * unit whose own rule names unit k is. Gathers for forward are never delayed in favour of backward, and gathers for
 * backward never start before backward, so the two peaks of memory do not add up.
 */
#include <stdlib.h>

#include "plan/lower/lower.h"

int ms_unit_is_direct(const ms_model *model, int unit) {
  const ms_unit *u = &model->unit[unit];
  for (int s = 0; s < u->segments; s++)
    if (!ms_segment_is_readable(&u->segment[s])) return 0;
  return ms_unit_shards(u) == 1;
}

/* 1 when all that kernels read of a unit is resident, or is read where it is kept. */
static int is_resident(const ms_model *model, int unit) {
  const ms_unit *u = &model->unit[unit];
  for (int s = 0; s < u->segments; s++)
    if (!ms_segment_is_resident(model, u, &u->segment[s]) &&
        (ms_unit_shards(u) > 1 || !ms_segment_is_stored(&u->segment[s])))
      return 0;
  return u->config.reshard == MS_RESHARD_RUN && !ms_unit_is_whole(model, u);
}

static void extend(int *first, int *last, int node) {
  if (*first < 0) *first = node;
  *last = node;
}

/* Decides whether units stay gathered from forward to backward; this is the only definition of MS_RESHARD_DEFAULT.
 * Backward would gather the root and the last unit before it again right after forward, so these two are kept. A
 * pipeline stage would gather again for every micro-batch, so there all units are kept. */
static void decide_keep(const ms_model *model, const ms_plan_config *config, int keep_all, ms_unit_use *use) {
  int last = -1;
  for (int u = 0; u < model->units; u++)
    if (!model->unit[u].config.root && use[u].forward_last > (last < 0 ? -1 : use[last].forward_last)) last = u;
  for (int u = 0; u < model->units; u++) {
    const ms_unit_config *unit = &model->unit[u].config;
    const int by_default = config->pipeline_stage || u == last || unit->root;
    use[u].keep = keep_all || unit->reshard_size == 1 || unit->reshard == MS_RESHARD_KEEP ||
                  (by_default && (unit->reshard == MS_RESHARD_DEFAULT || unit->reshard == MS_RESHARD_RUN));
  }
}

int ms_unit_uses(const ms_model *model, const ms_plan_config *config, const ms_graph *graph, const int *root,
                 int keep_all, ms_unit_use *use, int *boundary) {
  for (int u = 0; u < model->units; u++) use[u] = (ms_unit_use){-1, -1, -1, -1, -1, 0};
  *boundary = graph->n_nodes;
  for (int n = 0; n < graph->n_nodes; n++) {
    const ms_node *node = &graph->nodes[n];
    if (node->backward && *boundary == graph->n_nodes) *boundary = n;
    if (ms_op_row_of(node->op)->flags & MS_OP_ALIAS) continue;
    for (int i = 0; i < node->inputs; i++) {
      const ms_value *value = &graph->values[root[node->in[i]]];
      if (value->kind != MS_VALUE_PARAM) continue;
      ms_unit_use *u = &use[model->param[value->param].unit];
      if (node->backward) extend(&u->backward_first, &u->backward_last, n);
      else extend(&u->forward_first, &u->forward_last, n);
    }
  }
  for (int p = 0; p < graph->n_params; p++) {
    if (graph->param_grads[p] < 0) continue;
    int made_by = graph->values[root[graph->param_grads[p]]].node;
    ms_unit_use *u = &use[model->param[p].unit];
    if (made_by > u->gradient_last) u->gradient_last = made_by;
  }
  decide_keep(model, config, keep_all, use);
  return MS_OK;
}

typedef struct need {
  int unit, at;
} need;

static int by_need(const void *a, const void *b) {
  const need *x = a, *y = b;
  return x->at != y->at ? (x->at < y->at ? -1 : 1) : x->unit - y->unit;
}

/* 1 when `unit`, as it starts, gathers `wanted`, which is needed `distance` units later. *rank: position of `wanted`
 * among the units that it gathers. */
static int gathers_ahead(const ms_unit *unit, int backward, int wanted, int distance, int prefetch, int *rank) {
  const ms_ahead *ahead = &unit->ahead[backward];
  *rank = distance;
  if (ahead->n < 0) return distance <= (ahead->depth < 0 ? prefetch : ahead->depth);
  for (*rank = 0; *rank < ahead->n; ++*rank)
    if (ahead->unit[*rank] == wanted) return 1;
  return 0;
}

/* Where to issue unit k of an order: at the first unit that gathers it ahead, or else where it is needed itself. */
static ms_unshard find_issue(const ms_model *model, const need *order, int k, int backward, int start, int prefetch) {
  ms_unshard found = {.unit = order[k].unit, .need = order[k].at, .issue = order[k].at, .rank = -1};
  if (ms_unit_shards(&model->unit[found.unit]) == 1) return found;
  if (k < prefetch) {
    found.issue = start;
    found.rank = k;
    return found;
  }
  for (int j = 0, rank; j < k; j++) {
    if (!gathers_ahead(&model->unit[order[j].unit], backward, found.unit, k - j, prefetch, &rank)) continue;
    found.issue = order[j].at;
    found.rank = rank;
    return found;
  }
  return found;
}

static int by_issue(const void *a, const void *b) {
  const ms_unshard *x = a, *y = b;
  if (x->issue != y->issue) return x->issue < y->issue ? -1 : 1;
  return x->rank != y->rank ? x->rank - y->rank : x->need - y->need;
}

/* Appends the unshards of one direction. Units that need none (kept, direct, resident) still count as steps in the
 * order. */
static int schedule(const ms_model *model, need *order, int n, const char *gathered, int backward, int start,
                    int prefetch, ms_unshard *list) {
  qsort(order, (size_t)n, sizeof *order, by_need);
  int made = 0;
  for (int k = 0; k < n; k++)
    if (!gathered[order[k].unit] && !ms_unit_is_direct(model, order[k].unit) && !is_resident(model, order[k].unit))
      list[made++] = find_issue(model, order, k, backward, start, prefetch);
  qsort(list, (size_t)made, sizeof *list, by_issue);
  return made;
}

int ms_unshard_schedule(const ms_model *model, const ms_unit_use *use, int boundary, int prefetch, ms_unshard *list) {
  need *order = ms_calloc(model->units, sizeof *order);
  char *gathered = ms_calloc(model->units, 1);
  int made = -1;
  if (!order || !gathered) goto done;
  int n = 0;
  for (int u = 0; u < model->units; u++)
    if (use[u].forward_first >= 0) order[n++] = (need){u, use[u].forward_first};
  made = schedule(model, order, n, gathered, 0, 0, prefetch, list);
  n = 0;
  for (int u = 0; u < model->units; u++) {
    gathered[u] = use[u].keep && use[u].forward_first >= 0;
    if (use[u].backward_first >= 0) order[n++] = (need){u, use[u].backward_first};
  }
  made += schedule(model, order, n, gathered, 1, boundary, prefetch, list + made);
done:
  free(order);
  free(gathered);
  return made;
}
