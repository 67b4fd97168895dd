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

#include "base/error.h"
#include "graph/rewrite/backward_copies.h"

int ms_graph_set_regather(ms_graph *graph, int when) {
  MS_HANDLE(graph, GRAPH);
  if (when < MS_REGATHER_DEFAULT || when > MS_REGATHER_NEVER)
    return MS_FAIL(MS_EINVAL, "ms_graph_set_regather: %d is none of enum ms_regather", when);
  graph->regather = when;
  return MS_OK;
}

typedef struct regatherer {
  ms_graph *graph;
  ms_backward_copies copies;
  const unsigned char *by_default; /* [MS_DIMS] */
  unsigned char *again;            /* [nodes] 1: a gather, or a reshape of its result, that backward can repeat */
} regatherer;

static int is_repeated_gather(const regatherer *r, const ms_node *node) {
  if (node->op != MS_OP_all_gather || node->attrs.across.ranks < 2 || node->recompute) return 0;
  if (node->regather != MS_REGATHER_DEFAULT) return node->regather == MS_REGATHER_ALWAYS;
  return r->by_default[node->attrs.across.dim];
}

/* Returns whether backward reads anything that can be repeated. */
static int mark(regatherer *r) {
  const ms_graph *graph = r->graph;
  int any = 0;
  for (int n = 0; n < r->copies.first_backward; n++) {
    const ms_node *node = &graph->nodes[n];
    const int maker = node->inputs ? graph->values[node->in[0]].node : -1;
    const int reshapes = ms_op_row_of(node->op)->flags & MS_OP_ALIAS && maker >= 0 && r->again[maker];
    r->again[n] = is_repeated_gather(r, node) || reshapes;
  }
  for (int n = r->copies.first_backward; n < graph->n_nodes; n++)
    for (int i = 0; i < graph->nodes[n].inputs; i++) {
      const int maker = graph->values[graph->nodes[n].in[i]].node;
      any |= maker >= 0 && maker < r->copies.first_backward && r->again[maker];
    }
  return any;
}

static void note_conversion(ms_graph *graph, int local) {
  for (int c = 0; c < graph->n_conversions; c++)
    if (graph->conversions[c].local == local) graph->conversions[c].regathered = 1;
}

/* Appends the nodes that make v again; v's maker is marked. */
static int repeat(regatherer *r, int v) {
  ms_node node = r->graph->nodes[r->graph->values[v].node];
  if (r->copies.copy_of[v] >= 0) return MS_OK;
  if (node.op == MS_OP_all_gather) {
    note_conversion(r->graph, v);
  } else {
    MS_TRY(repeat(r, node.in[0]));
    ms_backward_copies_redirect(&r->copies, &node);
  }
  return ms_backward_copies_add(&r->copies, node);
}

static int take_backward(regatherer *r, ms_node node) {
  for (int i = 0; i < node.inputs; i++) {
    const int maker = r->graph->values[node.in[i]].node;
    if (maker >= 0 && maker < r->copies.first_backward && r->again[maker]) MS_TRY(repeat(r, node.in[i]));
  }
  ms_backward_copies_take(&r->copies, node);
  return MS_OK;
}

static int rebuild(regatherer *r) {
  MS_TRY(ms_backward_copies_begin(&r->copies));
  for (int n = r->copies.first_backward; n < r->graph->n_nodes; n++) MS_TRY(take_backward(r, r->graph->nodes[n]));
  ms_backward_copies_end(&r->copies);
  return MS_OK;
}

int ms_graph_regather(ms_graph *graph, const unsigned char *by_default) {
  regatherer r = {.graph = graph, .by_default = by_default};
  int rc;
  MS_GOTO(ms_backward_copies_open(graph, &r.copies));
  r.again = ms_calloc(graph->n_nodes, 1);
  rc = MS_ENOMEM;
  if (!r.again) goto fail;
  rc = mark(&r) ? rebuild(&r) : MS_OK;
fail:
  free(r.again);
  ms_backward_copies_close(&r.copies);
  return rc;
}
