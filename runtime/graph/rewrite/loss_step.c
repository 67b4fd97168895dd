/* loss_step.c - a loss and its gradient become one node, which reads the logits once.
 *
 * This is so where the gradient of the loss is known before the loss (as in Liger Kernel, Hsu et al. 2024): a loss that
 * the recipe returns as it is has its weight as gradient, which depends only on the number of targets. That is counted
 * before, by count_targets. Then cross_entropy_step makes the gradient of a row of logits while the row is in shared
 * memory or cache, and linear_cross_entropy_step makes loss and gradients of a chunk while its logits exist. The node
 * is at the place of the gradient's.
 *
 * Ranks that divide the classes need each other's sums for a gradient, so there the two remain: one collective for all
 * rows costs less than one for each chunk.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "graph/grad/grad.h"
#include "graph/rewrite/rewrite.h"

/* Inputs of the gradient's node after the targets: log-sums, count, gradient of the loss, and a linear layer's bias. */
enum { LSE = 1, COUNT, DLOSS };

typedef struct step {
  ms_graph *graph;
  int part, loss, backward; /* nodes; part -1: the loss reads whole logits */
  unsigned char *depends;   /* [values] 1: on the loss */
} step;

/* The op of such a gradient together with its loss; -1: there is none. */
static int step_of(int backward) {
  if (backward == MS_OP_cross_entropy_backward) return MS_OP_cross_entropy_step;
  if (backward == MS_OP_linear_cross_entropy_backward) return MS_OP_linear_cross_entropy_step;
  return backward == MS_OP_linear_cross_entropy_backward_bias ? MS_OP_linear_cross_entropy_step_bias : -1;
}

/* After the logits, or after x and w. */
static int targets_at(const ms_node *backward) { return backward->op == MS_OP_cross_entropy_backward ? 1 : 2; }
static int input_of(const ms_node *backward, int which) { return backward->in[targets_at(backward) + which]; }

static int reads_loss(const step *s, const ms_node *node) {
  for (int i = 0; i < node->inputs; i++)
    if (s->depends[node->in[i]]) return 1;
  return 0;
}

/* Follows the loss up to its gradient; returns whether that depends on it. */
static int mark_dependents(step *s) {
  const ms_graph *graph = s->graph;
  s->depends[graph->nodes[s->loss].out[0]] = 1;
  for (int n = s->loss + 1; n < s->backward; n++)
    if (reads_loss(s, &graph->nodes[n]))
      for (int o = 0; o < graph->nodes[n].outputs; o++) s->depends[graph->nodes[n].out[o]] = 1;
  return s->depends[input_of(&graph->nodes[s->backward], DLOSS)];
}

/* Appends the node that makes the loss's count. */
static int count_targets(const step *s) {
  ms_graph *graph = s->graph;
  const ms_node loss = graph->nodes[s->loss];
  const int targets = input_of(&graph->nodes[s->backward], 0);
  const ms_op_attrs attrs = {.loss = {.ignore_index = loss.attrs.loss.ignore_index}};
  int count;
  graph->scope = loss.scope;
  MS_TRY(ms_graph_emit(graph, MS_OP_count_targets, 1, &targets, &attrs, &count));
  ms_take_output(graph, graph->n_nodes - 1, 0, loss.out[2]);
  return MS_OK;
}

/* The node of both: the gradient's, without the log-sums. The loss is its output after all gradients, before a linear
 * layer's latest logits. */
static ms_node step_node(const step *s) {
  ms_graph *graph = s->graph;
  ms_node node = graph->nodes[s->backward];
  const int lse = targets_at(&node) + LSE, loss_at = s->part < 0 ? 1 : node.outputs - 1;
  node.op = step_of(node.op);
  node.inputs--;
  for (int i = lse; i < node.inputs; i++) node.in[i] = node.in[i + 1];
  for (int o = node.outputs; o > loss_at; o--) {
    node.out[o] = node.out[o - 1];
    graph->values[node.out[o]].output = o;
  }
  node.out[loss_at] = graph->nodes[s->loss].out[0];
  graph->values[node.out[loss_at]].output = loss_at;
  node.outputs++;
  if (s->part >= 0) node.scope = graph->nodes[s->part].scope; /* the linear layer's */
  return node;
}

/* Targets are counted where the loss was, and what reads the loss comes after the step. */
static int reorder(const step *s) {
  ms_graph *graph = s->graph;
  const int counts = graph->n_nodes - 1;
  ms_node *ordered = ms_calloc(graph->n_nodes, sizeof *ordered);
  if (!ordered) return MS_ENOMEM;
  ms_value *lse = &graph->values[graph->nodes[s->loss].out[1]];
  lse->node = lse->output = -1;
  int n = 0;
  for (int i = 0; i < counts; i++) {
    if (i == s->loss) ordered[n++] = graph->nodes[counts];
    const int waits = i > s->loss && i < s->backward && reads_loss(s, &graph->nodes[i]);
    if (i == s->backward) ordered[n++] = step_node(s);
    else if (i != s->part && i != s->loss && !waits) ordered[n++] = graph->nodes[i];
    for (int w = s->loss + 1; i == s->backward && w < i; w++)
      if (reads_loss(s, &graph->nodes[w])) ordered[n++] = graph->nodes[w];
  }
  memcpy(graph->nodes, ordered, (size_t)n * sizeof *ordered);
  graph->n_nodes = n;
  free(ordered);
  ms_compact(graph); /* sets the values' nodes */
  return MS_OK;
}

/* The loss of a gradient, if the two can be one node. */
static const ms_node *loss_of(const ms_graph *graph, const ms_node *backward) {
  if (step_of(backward->op) < 0 || backward->attrs.loss.parts > 1) return NULL;
  const int whole = backward->op == MS_OP_cross_entropy_backward;
  const ms_node *loss =
      ms_maker(graph, input_of(backward, LSE), whole ? MS_OP_cross_entropy : MS_OP_linear_cross_entropy_join);
  return loss && !loss->recompute ? loss : NULL;
}

/* *made: 1 if the node at `backward` and its loss have become one, so that another node can be in its place. */
static int make_step(ms_graph *graph, int backward, int *made) {
  const ms_node *loss = loss_of(graph, &graph->nodes[backward]);
  *made = 0;
  if (!loss) return MS_OK;
  step s = {.graph = graph, .part = -1, .loss = (int)(loss - graph->nodes), .backward = backward};
  if (loss->op == MS_OP_linear_cross_entropy_join) s.part = graph->values[loss->in[3]].node;
  s.depends = ms_calloc(graph->n_values, 1);
  if (!s.depends) return MS_ENOMEM;
  int rc = MS_OK;
  if (!mark_dependents(&s)) {
    rc = count_targets(&s);
    if (!rc) rc = reorder(&s);
    *made = !rc;
  }
  free(s.depends);
  return rc;
}

int ms_graph_fuse_loss_steps(ms_graph *graph) {
  const char *scope = graph->scope;
  int rc = MS_OK, made;
  for (int n = 0; n < graph->n_nodes && !rc; n += !made) rc = make_step(graph, n, &made);
  graph->scope = scope;
  return rc;
}
