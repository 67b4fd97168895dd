/* partition_convert.c - changes of placement: which nodes make one form of a value from another, and what that takes in
 * backward.
 *
 *   from        to          forward                         backward
 *   invariant   replicate   copy_to                         all_reduce
 *   invariant   shard       split                           all_gather
 *   replicate   invariant   unvary                          times 1 / ranks
 *   replicate   shard       split                           zeros around the part
 *   replicate   partial     once: kept on coordinate 0      the same
 *   shard       invariant   all_gather                      split
 *   shard       replicate   all_gather                      reduce_scatter
 *   shard       shard       all_to_all                      all_to_all
 *   partial     invariant   all_reduce                      copy
 *   partial     shard       reduce_scatter                  all_gather
 *
 * Other changes take two of these. A form is made once and kept for later readers. The sum of a partial value is not
 * another form of it but stands for the value from then on, so it belongs to the scope and region of the node that made
 * the summands.
 */
#include "base/error.h"
#include "graph/grad/grad.h"
#include "graph/infer/infer.h"
#include "graph/partition/partition_walk.h"

typedef struct step {
  int from, to; /* enum ms_placement_kind */
  int op, backward;
  int split, pad; /* its attributes */
} step;

static const step steps[] = {
    {MS_INVARIANT, MS_REPLICATE, MS_OP_copy_to, MS_OP_all_reduce, 0, 0},
    {MS_INVARIANT, MS_SHARD, MS_OP_split, MS_OP_all_gather, 0, 0},
    {MS_REPLICATE, MS_INVARIANT, MS_OP_unvary, -1, 0, 0},
    {MS_REPLICATE, MS_SHARD, MS_OP_split, -1, 0, 1},
    {MS_REPLICATE, MS_PARTIAL, MS_OP_once, -1, 0, 0},
    {MS_SHARD, MS_INVARIANT, MS_OP_all_gather, -1, 1, 0},
    {MS_SHARD, MS_REPLICATE, MS_OP_all_gather, MS_OP_reduce_scatter, 0, 0},
    {MS_SHARD, MS_SHARD, MS_OP_all_to_all, MS_OP_all_to_all, 0, 0},
    {MS_PARTIAL, MS_INVARIANT, MS_OP_all_reduce, -1, 0, 0},
    {MS_PARTIAL, MS_SHARD, MS_OP_reduce_scatter, MS_OP_all_gather, 0, 0},
};
enum { N_STEPS = sizeof steps / sizeof steps[0] };

/* The step from one placement to another, or NULL when it takes two. all_to_all moves whole axes. */
static const step *step_between(const ms_placed_value *x, ms_placement from, ms_placement to) {
  const int none = !x->wanted && from.kind == MS_INVARIANT && to.kind == MS_PARTIAL;
  const int from_kind = none ? MS_REPLICATE : from.kind;
  if (from.kind == MS_SHARD && to.kind == MS_SHARD && (from.outer > 1 || to.outer > 1 || from.axis == to.axis))
    return NULL;
  for (int s = 0; s < N_STEPS; s++)
    if (steps[s].from == from_kind && steps[s].to == to.kind) return &steps[s];
  return NULL;
}

static ms_op_attrs attrs_of(const ms_walk *w, const step *s, ms_placement from, ms_placement to) {
  const ms_placement shard = from.kind == MS_SHARD ? from : to;
  ms_op_attrs attrs = {.across = {.dim = w->spec->dim, .ranks = w->spec->ranks}};
  if (s->op == MS_OP_all_to_all) attrs.across.split_axis = to.axis, attrs.across.concat_axis = from.axis;
  else if (shard.kind == MS_SHARD) {
    attrs.across.along = shard.axis, attrs.across.outer = shard.outer, attrs.across.folded = shard.folded;
    attrs.across.split = s->split, attrs.across.pad = s->pad;
  }
  return attrs;
}

/* ---- nodes and the log ------------------------------------------------------------------------------------------ */

int ms_walk_record(ms_walk *w, ms_conversion conversion) {
  ms_graph *local = w->result->graph;
  MS_TRY(ms_grow((void **)&local->conversions, &local->conversions_capacity, local->n_conversions + 1,
                 sizeof *local->conversions));
  conversion.scope = local->nodes[local->n_nodes - 1].scope;
  conversion.dim = w->spec->dim;
  conversion.ranks = w->spec->ranks;
  local->conversions[local->n_conversions++] = conversion;
  return MS_OK;
}

static int is_reduction(int op) {
  return op == MS_OP_all_reduce || op == MS_OP_reduce_scatter || op == MS_OP_all_to_all;
}

int ms_walk_emit(ms_walk *w, const ms_node *owner, int op, int inputs, const int *in, const ms_op_attrs *attrs,
                 int *out) {
  ms_graph *local = w->result->graph;
  MS_TRY(ms_graph_emit(local, op, inputs, in, attrs, out));
  if (!owner) return MS_OK;
  ms_node *made = &local->nodes[local->n_nodes - 1];
  made->region = owner->region;
  made->recompute = owner->recompute && !is_reduction(op);
  made->regather = owner->regather;
  return MS_OK;
}

static int take_step(ms_walk *w, const step *s, int v, ms_placed_form source, ms_placement to, const ms_node *reader,
                     int *out) {
  const int maker = w->traced->values[v].node;
  const ms_node *place = source.place.kind == MS_PARTIAL && maker >= 0 ? &w->traced->nodes[maker] : reader;
  const ms_op_attrs attrs = attrs_of(w, s, source.place, to);
  MS_TRY(ms_graph_set_scope(w->result->graph, place ? place->scope : ""));
  MS_TRY(ms_walk_emit(w, place, s->op, 1, &source.local, &attrs, out));
  return ms_walk_record(w, (ms_conversion){
                               .op = s->op,
                               .backward = w->values[v].wanted ? s->backward : -1,
                               .value = v,
                               .reader = reader ? (int)(reader - w->traced->nodes) : -1,
                               .from = source.place,
                               .to = to,
                               .whole = w->traced->values[v].info,
                               .local = *out,
                           });
}

/* ---- forms ------------------------------------------------------------------------------------------------------ */

static const ms_placed_form *find_form(const ms_walk *w, const ms_placed_value *x, ms_placement place) {
  for (int f = x->forms; f >= 0; f = w->forms[f].next)
    if (ms_placement_same(w->forms[f].place, place)) return &w->forms[f];
  return NULL;
}

static int add_form(ms_walk *w, ms_placed_value *x, ms_placement place, int local) {
  MS_TRY(ms_grow((void **)&w->forms, &w->forms_capacity, w->n_forms + 1, sizeof *w->forms));
  w->forms[w->n_forms] = (ms_placed_form){place, local, x->forms};
  x->forms = w->n_forms++;
  return MS_OK;
}

/* The form to start from: one that is whole already, or what stands for the value. */
static ms_placed_form source_of(const ms_walk *w, const ms_placed_value *x, ms_placement to) {
  static const ms_placement whole[] = {{MS_REPLICATE, 0, 0, 0}, {MS_INVARIANT, 0, 0, 0}};
  for (int k = 0; k < 2; k++) {
    const ms_placed_form *form = find_form(w, x, whole[k]);
    if (form && step_between(x, whole[k], to)) return *form;
  }
  return (ms_placed_form){x->place, x->local, -1};
}

/* Makes the parameters of which v is made replicate, from the next walk on. */
static void make_replicate(ms_walk *w, int v) {
  const ms_value *value = &w->traced->values[v];
  ms_placed_value *x = &w->values[v];
  if (x->marked || !x->wanted) return;
  x->marked = 1;
  if (value->kind == MS_VALUE_PARAM && w->spec->params[value->param].kind == MS_INVARIANT &&
      !w->replicate[value->param])
    w->replicate[value->param] = 1, w->again = 1;
  if (value->node < 0) return;
  const ms_node *node = &w->traced->nodes[value->node];
  for (int i = 0; i < node->inputs; i++) make_replicate(w, node->in[i]);
}

/* Where a change that takes two steps goes first. */
static ms_placement between(ms_placement to) {
  return (ms_placement){to.kind == MS_PARTIAL ? MS_REPLICATE : MS_INVARIANT, 0, 0, 0};
}

int ms_walk_convert(ms_walk *w, int v, ms_placement to, const ms_node *reader, int *local) {
  ms_placed_value *x = &w->values[v];
  if (x->place.kind == MS_LOCAL) {
    *local = x->local;
    return to.kind == MS_REPLICATE ? MS_OK : ms_walk_not_whole(w, reader);
  }
  if (!x->wanted && to.kind == MS_REPLICATE) to.kind = MS_INVARIANT;
  const ms_placed_form *form = find_form(w, x, to);
  *local = form ? form->local : x->local;
  if (form || ms_placement_same(x->place, to)) return MS_OK;
  if (x->fixed && x->place.kind == MS_INVARIANT) make_replicate(w, v);
  ms_placed_form source = source_of(w, x, to);
  const step *s = step_between(x, source.place, to);
  if (!s) {
    MS_TRY(ms_walk_convert(w, v, between(to), reader, local));
    source = source_of(w, x, to);
    s = step_between(x, source.place, to);
    if (!s) return MS_FAIL(MS_EINTERNAL, "no change of placement from %d to %d", source.place.kind, to.kind);
  }
  MS_TRY(take_step(w, s, v, source, to, reader, local));
  if (source.place.kind != MS_PARTIAL) return add_form(w, x, to, *local);
  x->place = to;
  x->spread = to.kind == MS_SHARD;
  x->local = *local;
  return MS_OK;
}

/* ---- repetition ------------------------------------------------------------------------------------------------- */

/* Appends a node of the reader that shapes x; returns its value in *out. */
static int shape(ms_walk *w, int op, int x, const ms_value_info *to, const ms_node *reader, int *out) {
  ms_graph *local = w->result->graph;
  MS_TRY(ms_emit_shaped(local, op, x, to, out));
  ms_node *made = &local->nodes[local->n_nodes - 1];
  if (*out != x) made->region = reader->region, made->recompute = reader->recompute;
  return MS_OK;
}

int ms_walk_repeat(ms_walk *w, int v, int axis, const ms_node *reader, int *local) {
  const ms_value_info x = w->traced->values[v].info;
  const int64_t times = w->spec->ranks / x.dims[axis];
  const ms_placement replicate = {MS_REPLICATE, 0, 0, 0}, shard = ms_shard(axis, 1);
  ms_value_info apart = x, joined = x;
  if (x.ndim == MS_MAX_DIMS)
    return MS_FAIL(MS_EUNSUPPORTED, "%s: %d dimensions leave none to repeat indices on", ms_node_name(reader), x.ndim);
  for (int d = apart.ndim++; d > axis; d--) apart.dims[d + 1] = x.dims[d];
  MS_TRY(ms_walk_convert(w, v, replicate, reader, local));
  MS_TRY(ms_graph_set_scope(w->result->graph, reader->scope));
  apart.dims[axis + 1] = 1;
  MS_TRY(shape(w, MS_OP_reshape, *local, &apart, reader, local));
  apart.dims[axis + 1] = times;
  MS_TRY(shape(w, MS_OP_broadcast_to, *local, &apart, reader, local));
  joined.dims[axis] *= times;
  MS_TRY(shape(w, MS_OP_reshape, *local, &joined, reader, local));
  const step *s = step_between(&w->values[v], replicate, shard);
  return take_step(w, s, v, (ms_placed_form){replicate, *local, -1}, shard, reader, local);
}
