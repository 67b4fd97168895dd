/* recompute.c - activations that backward recomputes instead of keeping (activation checkpointing, Chen et al. 2016,
 * "Training deep nets with sublinear memory cost").
 *
 * The trace divides forward into regions, one per call of a module selected by a rule; ms_graph_set_recompute marks
 * where one begins. A region's values are kept for backward only if they leave the region. All other values that
 * backward reads are recomputed by copies of their nodes, placed before the first backward node that needs one of them.
 * The peak therefore contains the inside of one region at a time, and gathering, keeping and freeing follow from
 * lifetimes as for any other node. Copies draw the same dropout masks, which depend only on attributes.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "graph/rewrite/backward_copies.h"

/* ---- what the trace says ---------------------------------------------------------------------------------------- */

static int choose_op(ms_graph *graph, const char *name, size_t length) {
  for (int op = 0; op < MS_OP_COUNT; op++) {
    const char *known = ms_op_row_of(op)->name;
    if (strlen(known) != length || strncmp(known, name, length)) continue;
    graph->recompute_op[op] = 1;
    return MS_OK;
  }
  return ms_graph_in_scope(graph, MS_FAIL(MS_ENAME, "recompute: there is no op named \"%.*s\"", (int)length, name));
}

int ms_graph_set_recompute(ms_graph *graph, int region, const char *ops) {
  MS_HANDLE(graph, GRAPH);
  if (region < 0) return MS_FAIL(MS_EINVAL, "ms_graph_set_recompute: region is %d; regions are 0 or more", region);
  graph->region = region;
  memset(graph->recompute_op, !ops, sizeof graph->recompute_op);
  for (const char *word = ops; word && *word;) {
    size_t length = strcspn(word, " ");
    MS_TRY(choose_op(graph, word, length));
    word += length;
    word += strspn(word, " ");
  }
  return MS_OK;
}

/* ---- after autodiff --------------------------------------------------------------------------------------------- */

typedef struct recomputer {
  ms_graph *graph;
  ms_backward_copies copies;
  unsigned char *kept;   /* [values before the pass] 1: it is kept, whichever node produces it */
  unsigned char *needed; /* [nodes] 1: a copy of it runs in backward */
} recomputer;

/* The node that produces v if it can be copied, otherwise -1. */
static int copyable_maker(const recomputer *r, int v) {
  int maker = r->graph->values[v].node;
  if (maker < 0 || maker >= r->copies.first_backward || r->kept[v]) return -1;
  return r->graph->nodes[maker].recompute ? maker : -1;
}

/* Keeps values read from outside the recipe, and values that cross from one region to other forward nodes. */
static void mark_kept(recomputer *r) {
  const ms_graph *graph = r->graph;
  if (graph->loss >= 0) r->kept[graph->loss] = 1;
  if (graph->loss_weight >= 0) r->kept[graph->loss_weight] = 1;
  for (int o = 0; o < graph->n_outputs; o++) r->kept[graph->outputs[o].value] = 1;
  for (int n = 0; n < r->copies.first_backward; n++) {
    const ms_node *node = &graph->nodes[n];
    for (int i = 0; i < node->inputs; i++) {
      int maker = graph->values[node->in[i]].node;
      if (maker >= 0 && graph->nodes[maker].region != node->region) r->kept[node->in[i]] = 1;
    }
  }
}

static void need_inputs(recomputer *r, const ms_node *node) {
  for (int i = 0; i < node->inputs; i++) {
    int maker = copyable_maker(r, node->in[i]);
    if (maker >= 0) r->needed[maker] = 1;
  }
}

/* Marks the values that backward reads, and those within the region from which they are computed. */
static int mark_needed(recomputer *r) {
  int any = 0;
  for (int n = r->copies.first_backward; n < r->graph->n_nodes; n++) need_inputs(r, &r->graph->nodes[n]);
  for (int n = r->copies.first_backward - 1; n >= 0; n--) {
    if (!r->needed[n]) continue;
    need_inputs(r, &r->graph->nodes[n]);
    any = 1;
  }
  return any;
}

static int copy_node(recomputer *r, ms_node node) {
  ms_backward_copies_redirect(&r->copies, &node);
  return ms_backward_copies_add(&r->copies, node);
}

/* Emits all copies of one region, in forward order. */
static int copy_region(recomputer *r, int region) {
  for (int n = 0; n < r->copies.first_backward; n++) {
    if (!r->needed[n] || r->graph->nodes[n].region != region) continue;
    MS_TRY(copy_node(r, r->graph->nodes[n]));
    r->needed[n] = 0;
  }
  return MS_OK;
}

/* Emits a backward node, preceded by the regions that it reads from. */
static int take_backward(recomputer *r, const ms_node *original) {
  for (int i = 0; i < original->inputs; i++) {
    int maker = copyable_maker(r, original->in[i]);
    if (maker >= 0 && r->copies.copy_of[original->in[i]] < 0) MS_TRY(copy_region(r, r->graph->nodes[maker].region));
  }
  ms_backward_copies_take(&r->copies, *original);
  return MS_OK;
}

static int rebuild(recomputer *r) {
  MS_TRY(ms_backward_copies_begin(&r->copies));
  for (int n = r->copies.first_backward; n < r->graph->n_nodes; n++) MS_TRY(take_backward(r, &r->graph->nodes[n]));
  ms_backward_copies_end(&r->copies);
  return MS_OK;
}

int ms_graph_insert_recomputation(ms_graph *graph) {
  recomputer r = {.graph = graph};
  int rc;
  MS_GOTO(ms_backward_copies_open(graph, &r.copies));
  r.kept = ms_calloc(graph->n_values, 1);
  r.needed = ms_calloc(graph->n_nodes, 1);
  rc = MS_ENOMEM;
  if (!r.kept || !r.needed) goto fail;
  mark_kept(&r);
  rc = mark_needed(&r) ? rebuild(&r) : MS_OK;
fail:
  free(r.kept);
  free(r.needed);
  ms_backward_copies_close(&r.copies);
  return rc;
}
