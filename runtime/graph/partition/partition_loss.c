/* partition_loss.c - the loss of logits that the ranks divide.
 *
 * Where they divide the classes (loss parallelism), no rank needs the others' logits: for each row a rank gives the log
 * of its sum of exponentials and the target's logit, if it has it. These two numbers are gathered, and each rank makes
 * the whole loss of them. Backward moves nothing: with the log of the whole sum a rank computes the gradient of its own
 * logits.
 *
 * Where they divide the rows, as along a sequence, each has the mean over its own targets that count. Weighed by their
 * share of all targets, these are the summands of the loss: ranks can have different numbers of them, or none.
 */
#include "graph/infer/infer.h"
#include "graph/partition/partition_walk.h"

static const ms_placement invariant = {MS_INVARIANT, 0, 0, 0}, partial = {MS_PARTIAL, 0, 0, 0};

int ms_walk_divides_loss(const ms_walk *w, ms_placed_node *c) {
  const ms_placement logits = ms_walk_input(w, c, 0)->place;
  if (c->node->op != MS_OP_cross_entropy || logits.kind != MS_SHARD) return 0;
  c->takes[0] = logits;
  if (logits.axis < c->in[0].ndim - 1) {
    c->divided = c->weighs = 1;
    c->takes[1] = logits;
    c->makes[0] = partial;
    c->makes[2] = invariant; /* once the counts are summed */
    return 1;
  }
  if (logits.outer > 1) return 0;
  c->joins = 1;
  c->takes[1] = invariant;
  for (int o = 0; o < c->node->outputs; o++) c->makes[o] = invariant;
  c->attrs.loss.parts = w->spec->ranks;
  c->attrs.loss.dim = w->spec->dim;
  return 1;
}

static int emit(ms_walk *w, const ms_node *loss, int op, int inputs, const int *in, const ms_op_attrs *attrs,
                int *out) {
  MS_TRY(ms_walk_emit(w, loss, op, inputs, in, attrs, out));
  w->result->graph->nodes[w->result->graph->n_nodes - 1].regather = MS_REGATHER_NEVER; /* two numbers a row */
  return MS_OK;
}

int ms_walk_gather_loss(ms_walk *w, const ms_placed_node *c, int *in) {
  const ms_op_attrs alike = {.across = {.dim = w->spec->dim, .ranks = w->spec->ranks, .outer = 1, .split = 1}};
  int own;
  MS_TRY(emit(w, c->node, MS_OP_cross_entropy_part, 2, in, &c->attrs, &own));
  MS_TRY(emit(w, c->node, MS_OP_all_gather, 1, &own, &alike, &in[2]));
  return ms_walk_record(w, (ms_conversion){
                               .op = MS_OP_all_gather,
                               .backward = -1,
                               .value = c->node->out[1],
                               .reader = (int)(c->node - w->traced->nodes),
                               .from = ms_shard(0, 1),
                               .whole = w->result->graph->values[in[2]].info,
                           });
}

int ms_walk_weigh_loss(ms_walk *w, const ms_placed_node *c) {
  const int loss = c->node->out[0], count = c->node->out[2];
  const ms_op_attrs over = {.across = {.dim = w->spec->dim, .ranks = w->spec->ranks}}, none = {0};
  int all;
  MS_TRY(emit(w, c->node, MS_OP_all_reduce, 1, &count, &over, &all));
  MS_TRY(ms_walk_record(w, (ms_conversion){
                               .op = MS_OP_all_reduce,
                               .backward = -1,
                               .value = count,
                               .reader = (int)(c->node - w->traced->nodes),
                               .from = partial,
                               .to = invariant,
                               .whole = c->out[2],
                           }));
  const int in[3] = {loss, count, all};
  w->values[count].local = all;
  return emit(w, c->node, MS_OP_weigh, 3, in, &none, &w->values[loss].local);
}
