/* partition_rules.c - how a node is divided, decided from how its inputs lie: the rules of partition.h. */
#include "base/numbers/dtype.h"
#include "base/error.h"
#include "graph/infer/infer.h"
#include "graph/partition/partition_walk.h"

static const ms_placement invariant = {MS_INVARIANT, 0, 0, 0}, replicate = {MS_REPLICATE, 0, 0, 0},
                          partial = {MS_PARTIAL, 0, 0, 0};

/* A label of the node's axes that is divided, in `outer` blocks, because input `input` is. */
typedef struct division {
  int label; /* -1: none */
  int64_t outer;
  int folded, input;
} division;

enum fit { FITS, NEEDED_WHOLE, UNEVEN };

static double bytes_of(const ms_value_info *x) { return (double)ms_numel(x) * ms_dtype_size(x->dtype); }

static int is_shard(const ms_walk *w, const ms_placed_node *c, int i) {
  return ms_walk_input(w, c, i)->place.kind == MS_SHARD;
}

static int is_partial(const ms_walk *w, const ms_placed_node *c, int i) {
  return ms_walk_input(w, c, i)->place.kind == MS_PARTIAL;
}

/* ---- labels ----------------------------------------------------------------------------------------------------- */

static int axis_with(const int *labels, int ndim, int label) {
  for (int d = 0; d < ndim; d++)
    if (labels[d] == label) return d;
  return -1;
}

/* 1 when the node sums over the label. */
static int is_lost(const ms_placed_node *c, int label) { return axis_with(c->axes.out[0], c->out[0].ndim, label) < 0; }

/* 1 when the ranks divide every axis with the label, or its size divides the ranks, so that each can have one index. */
static int fits_repeated(const ms_walk *w, const ms_placed_node *c, int label) {
  for (int i = 0; i < c->node->inputs; i++) {
    const int axis = axis_with(c->axes.in[i], c->in[i].ndim, label);
    if (axis >= 0 && c->in[i].dims[axis] % w->spec->ranks && w->spec->ranks % c->in[i].dims[axis]) return 0;
  }
  return 1;
}

static enum fit fit_of(const ms_walk *w, const ms_placed_node *c, int label, int64_t outer) {
  if (!c->axes.labels || label < 0 || (c->axes.label[label].whole && label != c->axes.placed)) return NEEDED_WHOLE;
  const int adds = c->axes.join == MS_JOIN_SUM || c->axes.join == MS_JOIN_MEAN;
  if (is_lost(c, label) && !adds) return NEEDED_WHOLE;
  if (label == c->axes.contiguous && outer > 1) return NEEDED_WHOLE;
  if (c->axes.label[label].parts % (outer * w->spec->ranks) == 0) return FITS;
  return outer == 1 && fits_repeated(w, c, label) ? FITS : UNEVEN;
}

/* The division that a divided input asks for. */
static division asked_by(const ms_walk *w, const ms_placed_node *c, int i) {
  const ms_placement p = ms_walk_input(w, c, i)->place;
  return (division){c->axes.labels ? c->axes.in[i][p.axis] : -1, p.outer, p.folded, i};
}

/* ---- rules 1, 2 and 4: a label ---------------------------------------------------------------------------------- */

static int ask_parameters(const ms_walk *w, const ms_placed_node *c, division *found) {
  for (int i = 0; i < c->node->inputs; i++) {
    if (!ms_walk_input(w, c, i)->settled) continue;
    const division asked = asked_by(w, c, i);
    const enum fit fit = fit_of(w, c, asked.label, asked.outer);
    if (fit == NEEDED_WHOLE) return ms_walk_needs_whole(w, c, i);
    if (fit == UNEVEN) return ms_walk_uneven_input(w, c, i);
    if (found->label < 0) *found = asked;
    if (found->label != asked.label || found->outer != asked.outer || found->folded != asked.folded)
      return ms_walk_disagree(w, c, found->input, i);
  }
  return MS_OK;
}

static int ask_largest(const ms_walk *w, const ms_placed_node *c, division *found) {
  double most = 0;
  enum fit best = FITS;
  for (int i = 0; i < c->node->inputs; i++) {
    if (!is_shard(w, c, i)) continue;
    const division asked = asked_by(w, c, i);
    const enum fit fit = fit_of(w, c, asked.label, asked.outer);
    if (fit == NEEDED_WHOLE || bytes_of(&c->in[i]) <= most) continue;
    if (fit == UNEVEN && ms_walk_input(w, c, i)->spread) continue;
    *found = asked, best = fit, most = bytes_of(&c->in[i]);
  }
  return best == UNEVEN ? ms_walk_uneven_input(w, c, found->input) : MS_OK;
}

/* 1 when the node reads a parameter that asks for sequence parallelism. */
static int reads_splitting(const ms_walk *w, const ms_placed_node *c) {
  for (int i = 0; i < c->node->inputs; i++) {
    const ms_value *x = &w->traced->values[c->node->in[i]];
    if (x->kind == MS_VALUE_PARAM && w->spec->splits && w->spec->splits[x->param]) return 1;
  }
  return 0;
}

/* The axis along which sequence parallelism divides the largest partial input, where the node keeps that axis. */
static void ask_sequence(const ms_walk *w, const ms_placed_node *c, division *found) {
  const int splits = reads_splitting(w, c);
  int largest = -1;
  for (int i = 0; i < c->node->inputs; i++)
    if ((splits || is_partial(w, c, i)) && !ms_walk_input(w, c, i)->fixed)
      if (largest < 0 || bytes_of(&c->in[i]) > bytes_of(&c->in[largest])) largest = i;
  if (largest < 0) return;
  for (int d = 0; d < c->in[largest].ndim - 1 && found->label < 0; d++) {
    const division asked = {c->axes.labels ? c->axes.in[largest][d] : -1, 1, 0, largest};
    if (fit_of(w, c, asked.label, 1) == FITS && c->in[largest].dims[d] % w->spec->ranks == 0 &&
        !is_lost(c, asked.label))
      *found = asked;
  }
}

/* 1 when each rank would take a part of a weight that its products read as it is. */
static int cuts_weight(const ms_walk *w, const ms_placed_node *c, const division *by) {
  for (int i = 0; by->label >= 0 && i < c->node->inputs; i++)
    if (ms_walk_input(w, c, i)->uncut && axis_with(c->axes.in[i], c->in[i].ndim, by->label) >= 0) return 1;
  return 0;
}

static ms_placement shard_of(const division *by, int axis) {
  return (ms_placement){MS_SHARD, axis, by->outer, by->folded};
}

/* Every input that has the label is divided along it; one that is added to a sum over it counts once. */
static void divide(const ms_walk *w, ms_placed_node *c, const division *by) {
  const ms_axes *axes = &c->axes;
  c->divided = 1;
  c->settled = ms_walk_input(w, c, by->input)->settled;
  c->spread = 1;
  for (int i = 0; i < c->node->inputs; i++) {
    const int axis = axis_with(axes->in[i], c->in[i].ndim, by->label);
    const int counts_once = axes->added >> i & 1 && is_lost(c, by->label);
    c->takes[i] = axis >= 0 ? shard_of(by, axis) : counts_once ? partial : replicate;
    c->settled &= ms_walk_input(w, c, i)->fixed;
    c->spread &= !is_shard(w, c, i) || ms_walk_input(w, c, i)->spread;
    if (axis >= 0 && c->in[i].dims[axis] % w->spec->ranks) c->repeats |= 1u << i;
  }
  for (int o = 0; o < c->node->outputs; o++) {
    const int axis = axis_with(axes->out[o], c->out[o].ndim, by->label), is_statistics = axes->statistics >> o & 1;
    c->makes[o] = axis >= 0 && !is_statistics ? shard_of(by, axis) : partial;
  }
  c->averages = is_lost(c, by->label) && axes->join == MS_JOIN_MEAN;
  c->attrs = ms_axes_part_attrs(c->node, axes, &c->out[0], by->label, w->spec->ranks);
  if (by->label == axes->contiguous) c->attrs.table.dim = w->spec->dim;
  const int axis = axis_with(axes->in[0], c->in[0].ndim, by->label);
  const ms_part part = {.ranks = (int)w->spec->ranks, .dim = w->spec->dim, .folded = by->folded};
  if (axis >= 0) ms_axes_place(c->node->op, axes, &c->in[0], axis, by->outer, part, &c->attrs);
}

/* ---- rule 5 ------------------------------------------------------------------------------------------------------ */

static void place_all(ms_placed_node *c, ms_placement takes, ms_placement makes) {
  for (int i = 0; i < c->node->inputs; i++) c->takes[i] = takes;
  for (int o = 0; o < c->node->outputs; o++) c->makes[o] = makes;
}

/* What is made of parameters alone is replicate if one of them is. Elsewhere the other inputs are invariant. */
static void compute_whole(const ms_walk *w, ms_placed_node *c) {
  int fixed = 1, any = 0;
  for (int i = 0; i < c->node->inputs; i++) {
    const ms_placed_value *x = ms_walk_input(w, c, i);
    fixed &= x->fixed;
    any |= x->place.kind == MS_REPLICATE;
  }
  if (fixed && any) place_all(c, replicate, replicate);
  else place_all(c, invariant, invariant);
}

/* ---- ops that move the divided axis itself ---------------------------------------------------------------------- */

static int64_t product(const int64_t *dims, int from, int to) {
  int64_t n = 1;
  for (int d = from; d < to; d++) n *= dims[d];
  return n;
}

/* Finds the run of axes around `axis` of x, and the run [*first_y, *end_y) of axes of y, that hold the same elements.
 */
static int find_run(const ms_value_info *x, const ms_value_info *y, int axis, int *first_y, int *end_y) {
  for (int a = 0, b = 0;;) {
    const int first_a = a;
    *first_y = b;
    int64_t left = x->dims[a++], right = b < y->ndim ? y->dims[b++] : 1;
    while (left != right) {
      if (left < right) left *= x->dims[a++];
      else right *= y->dims[b++];
    }
    *end_y = b;
    if (axis < a) return first_a;
  }
}

/* The blocks of the divided axis are blocks of the run of axes that it belongs to. The division lands on the axis of
 * the result in which all those blocks, and their parts, are whole: one that begins at as many blocks or fewer. */
static int divide_reshape(const ms_walk *w, ms_placed_node *c) {
  const ms_placed_value *x = ms_walk_input(w, c, 0);
  const ms_value_info *in = &c->in[0], *out = &c->out[0];
  int first, end;
  const int first_x = find_run(in, out, x->place.axis, &first, &end);
  const int64_t blocks = product(in->dims, first_x, x->place.axis) * x->place.outer;
  for (int d = first; d < end; d++) {
    const int64_t before = product(out->dims, first, d);
    if (blocks % before || out->dims[d] % (blocks / before * w->spec->ranks)) continue;
    if (x->place.folded && blocks / before % 2) continue;
    c->divided = 1;
    c->settled = x->settled;
    c->spread = x->spread;
    c->takes[0] = x->place;
    c->makes[0] = (ms_placement){MS_SHARD, d, blocks / before, x->place.folded};
    c->attrs.shape.d[d] /= w->spec->ranks;
    return MS_OK;
  }
  if (!x->spread) return ms_walk_cuts(w, c);
  compute_whole(w, c);
  return MS_OK;
}

/* A slice of whole blocks of the divided axis is divided as they are: q, k and v, cut from one product. */
static int slices_blocks(const ms_walk *w, ms_placed_node *c) {
  const ms_placed_value *x = ms_walk_input(w, c, 0);
  const int axis = x->place.axis;
  const int64_t block = c->in[0].dims[axis] / x->place.outer, start = c->attrs.cut.start, stop = c->attrs.cut.stop;
  if (c->attrs.cut.axis != axis || start % block || stop % block || x->place.folded) return 0;
  c->divided = 1;
  c->settled = x->settled;
  c->spread = x->spread;
  c->takes[0] = x->place;
  c->makes[0] = ms_shard(axis, (stop - start) / block);
  c->attrs.cut.start /= w->spec->ranks;
  c->attrs.cut.stop /= w->spec->ranks;
  return 1;
}

/* ---- rule 3 ----------------------------------------------------------------------------------------------------- */

/* 1 when summing the result costs no more than summing the inputs, and what is added to them can count once. */
static int passes_partial(const ms_walk *w, const ms_placed_node *c) {
  double bytes = 0;
  for (int i = 0; i < c->node->inputs; i++) {
    if (is_partial(w, c, i)) bytes += bytes_of(&c->in[i]);
    else if (!ms_walk_input(w, c, i)->fixed) return 0;
  }
  const int linear = c->axes.linear_together || (c->node->inputs == 1 && c->axes.linear & 1);
  return bytes > 0 && linear && bytes_of(&c->out[0]) <= bytes;
}

/* 1 when input 0 alone is partial, the node is linear in it, and its result is no larger. The others are then used by
 * every rank with a summand of its own. */
static int passes_first(const ms_walk *w, const ms_placed_node *c) {
  if (!c->axes.passes || !(c->axes.linear & 1) || !is_partial(w, c, 0)) return 0;
  for (int i = 1; i < c->node->inputs; i++)
    if (is_partial(w, c, i)) return 0;
  return bytes_of(&c->out[0]) <= bytes_of(&c->in[0]);
}

int ms_walk_decide(const ms_walk *w, ms_placed_node *c) {
  division by = {-1, 1, 0, 0};
  c->attrs = c->node->attrs;
  for (int i = 0; i < c->node->inputs; i++)
    if (ms_walk_input(w, c, i)->hidden) return ms_walk_hidden(w, ms_node_name(c->node), c->node->in[i]);
  if (ms_walk_is_by_hand(w, c)) return ms_walk_decide_by_hand(w, c);
  if (c->node->op == MS_OP_reshape && is_shard(w, c, 0)) return divide_reshape(w, c);
  if (c->node->op == MS_OP_slice && is_shard(w, c, 0) && slices_blocks(w, c)) return MS_OK;
  if (ms_walk_divides_loss(w, c)) return MS_OK;
  MS_TRY(ask_parameters(w, c, &by));
  if (by.label < 0) MS_TRY(ask_largest(w, c, &by));
  if (cuts_weight(w, c, &by)) by.label = -1;
  if (by.label < 0 && passes_partial(w, c)) {
    place_all(c, partial, partial);
    return MS_OK;
  }
  if (by.label < 0 && passes_first(w, c)) {
    place_all(c, replicate, partial);
    c->takes[0] = partial;
    return MS_OK;
  }
  if (by.label < 0 && w->spec->sequence_parallel) ask_sequence(w, c, &by);
  if (by.label >= 0) divide(w, c, &by);
  else compute_whole(w, c);
  return MS_OK;
}
