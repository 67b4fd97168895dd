/* partition_by_hand.c - what a recipe divides itself: between to_local and from_local the traced graph has the shapes
 * of one rank, nodes are computed as they stand, and the recipe calls the collectives.
 *
 * The pass follows no placements there, only whether values can differ between ranks, because gradients depend on it:
 *
 *   invariant   equal on all ranks, and so is its gradient: to_local of a whole value, sums, gathered parts
 *   replicate   equal, but ranks use it differently: the result of copy_to
 *   local       each rank has its own value, and its own gradient
 *
 * A node that reads a local value is local, and takes its invariant inputs as replicate: there the gradient is summed
 * over the ranks (Megatron's f), also if the recipe forgets copy_to. Sums and gathers wait for their first reader, as a
 * partial value and a shard: if ranks use what was gathered differently, backward reduces and scatters in one op.
 *
 * Values from outside, such as constants, are read whole. A divided parameter is refused, because a recipe that forgets
 * to_local expects another shape.
 */
#include "base/error.h"
#include "graph/infer/infer.h"
#include "graph/partition/partition_walk.h"

static const ms_placement invariant = {MS_INVARIANT, 0, 0, 0}, replicate = {MS_REPLICATE, 0, 0, 0},
                          partial = {MS_PARTIAL, 0, 0, 0}, own = {MS_LOCAL, 0, 0, 0};

static int is_by_hand(int op) { return (ms_op_row_of(op)->flags & MS_OP_BY_HAND) == MS_OP_BY_HAND; }

int ms_walk_crosses(const ms_walk *w, const ms_node *node) {
  return is_by_hand(node->op) && node->attrs.across.dim == w->spec->dim;
}

/* ---- errors ----------------------------------------------------------------------------------------------------- */

static int not_by_hand(const ms_walk *w, const ms_node *node) {
  return MS_FAIL(
      MS_EINVAL,
      "%s over %s: its input is no local value of a rank: call x:to_local { %s = ... } first, which says what "
      "each rank has of it",
      ms_node_name(node), w->spec->name, w->spec->name);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

/* Ranks draw different masks for values of their own: those of their part of the last axis of one value. */
static void place_mask(const ms_walk *w, ms_placed_node *c) {
  ms_value_info whole = c->in[0];
  const ms_part part = {.ranks = (int)w->spec->ranks, .dim = w->spec->dim};
  if (!(ms_op_row_of(c->node->op)->flags & MS_OP_DRAWS_MASK) || !whole.ndim) return;
  whole.dims[whole.ndim - 1] *= w->spec->ranks;
  ms_axes_place(c->node->op, &c->axes, &whole, whole.ndim - 1, 1, part, &c->attrs);
}

int ms_walk_is_by_hand(const ms_walk *w, const ms_placed_node *c) {
  for (int i = 0; i < c->node->inputs; i++)
    if (ms_walk_input(w, c, i)->by_hand) return 1;
  return 0;
}

int ms_walk_decide_by_hand(const ms_walk *w, ms_placed_node *c) {
  int differs = 0, differ_in_use = 0;
  for (int i = 0; i < c->node->inputs; i++) {
    const ms_placed_value *x = ms_walk_input(w, c, i);
    if (x->settled && !x->by_hand) return ms_walk_not_local(w, c, i);
    differs |= x->place.kind == MS_LOCAL;
    differ_in_use |= x->place.kind == MS_REPLICATE;
  }
  for (int i = 0; i < c->node->inputs; i++) c->takes[i] = differs || differ_in_use ? replicate : invariant;
  for (int o = 0; o < c->node->outputs; o++) c->makes[o] = differs ? own : differ_in_use ? replicate : invariant;
  if (differs) place_mask(w, c);
  return MS_OK;
}

/* What all ranks together move: for reports. */
static ms_value_info whole_of(const ms_walk *w, const ms_node *node) {
  ms_value_info x = w->traced->values[node->in[0]].info;
  if (node->op == MS_OP_all_to_all) x.dims[node->attrs.across.concat_axis] *= w->spec->ranks;
  if (node->op == MS_OP_shift && !x.ndim) x.dims[x.ndim++] = 1;
  if (node->op == MS_OP_shift) x.dims[0] *= w->spec->ranks;
  return x;
}

static int record(ms_walk *w, const ms_node *node, ms_placement to) {
  static const int backward[MS_OP_COUNT] = {
      [MS_OP_reduce_scatter] = MS_OP_all_gather, [MS_OP_all_to_all] = MS_OP_all_to_all, [MS_OP_shift] = MS_OP_shift};
  const int differentiates = w->values[node->in[0]].wanted && node->op != MS_OP_all_reduce;
  return ms_walk_record(w, (ms_conversion){
                               .op = node->op,
                               .backward = differentiates ? backward[node->op] : -1,
                               .value = node->in[0],
                               .reader = (int)(node - w->traced->nodes),
                               .from = own,
                               .to = to,
                               .whole = whole_of(w, node),
                           });
}

/* The result of a sum, of a gather or of copy_to is its input until it is read; others are made at once. */
static int collect(ms_walk *w, const ms_node *node, ms_placed_value *made) {
  const int largest = node->op == MS_OP_all_reduce && node->attrs.across.max;
  int in;
  MS_TRY(ms_walk_convert(w, node->in[0], replicate, node, &in));
  made->local = in;
  if (node->op == MS_OP_all_gather) made->place = ms_shard((int)node->attrs.across.along, 1);
  else if (node->op == MS_OP_all_reduce) made->place = largest ? invariant : partial;
  else made->place = own;
  if (node->op == MS_OP_copy_to && w->values[node->in[0]].place.kind != MS_LOCAL) made->place = replicate;
  if (node->op == MS_OP_copy_to || made->place.kind == MS_SHARD || made->place.kind == MS_PARTIAL) return MS_OK;
  MS_TRY(ms_graph_set_scope(w->result->graph, node->scope));
  MS_TRY(ms_walk_emit(w, node, node->op, 1, &in, &node->attrs, &made->local));
  return record(w, node, made->place);
}

/* ---- borders ---------------------------------------------------------------------------------------------------- */

/* A value of parameters that ranks use differently stays so: its gradient is summed with theirs. */
static ms_placement whole_place(const ms_placed_value *x) {
  return x->fixed && x->place.kind == MS_REPLICATE ? replicate : invariant;
}

static int check_parameters(const ms_walk *w, const ms_node *node, ms_placement to) {
  const ms_placed_value *x = &w->values[node->in[0]];
  char has[MS_PLACEMENT_TEXT], asked[MS_PLACEMENT_TEXT];
  if (!x->settled || ms_placement_same(x->place, to)) return MS_OK;
  return MS_FAIL(MS_EINVAL,
                 "to_local over %s: its input comes from parameters that are a %s by their placement, which to_local "
                 "cannot change; it asks for %s: write the axis that the placement has",
                 w->spec->name, ms_placement_text(x->place, has), ms_placement_text(to, asked));
}

static int enter(ms_walk *w, const ms_node *node, ms_placed_value *made) {
  const ms_placed_value *x = &w->values[node->in[0]];
  const int64_t kind = node->attrs.across.kind;
  ms_placement to = whole_place(x);
  if (x->by_hand)
    return MS_FAIL(MS_EINVAL, "to_local over %s: its input comes from to_local already; end that with from_local",
                   w->spec->name);
  if (kind == MS_LOCAL_SHARD) to = ms_shard((int)node->attrs.across.along, 1);
  if (kind == MS_LOCAL_PARTIAL) to = partial;
  MS_TRY(check_parameters(w, node, to));
  MS_TRY(ms_walk_convert(w, node->in[0], to, node, &made->local));
  made->place = kind == MS_LOCAL_REPLICATE ? to : own;
  return MS_OK;
}

static int leave(ms_walk *w, const ms_node *node, ms_placed_value *made) {
  const int64_t kind = node->attrs.across.kind;
  made->place = kind == MS_LOCAL_SHARD     ? ms_shard((int)node->attrs.across.along, 1)
                : kind == MS_LOCAL_PARTIAL ? partial
                                           : whole_place(&w->values[node->in[0]]);
  made->by_hand = 0;
  return ms_walk_convert(w, node->in[0], kind == MS_LOCAL_REPLICATE ? made->place : replicate, node, &made->local);
}

int ms_walk_cross(ms_walk *w, const ms_node *node) {
  const ms_placed_value *x = &w->values[node->in[0]];
  ms_placed_value made = {.forms = -1, .wanted = x->wanted, .fixed = x->fixed, .by_hand = 1};
  if (node->op != MS_OP_to_local && !x->by_hand) return not_by_hand(w, node);
  if (node->op == MS_OP_to_local) MS_TRY(enter(w, node, &made));
  else if (node->op == MS_OP_from_local) MS_TRY(leave(w, node, &made));
  else MS_TRY(collect(w, node, &made));
  if (!made.wanted && made.place.kind == MS_REPLICATE) made.place = invariant;
  w->values[node->out[0]] = made;
  return MS_OK;
}
