/* partition_error.c - why a graph cannot be divided: the op and its shapes, the axis, the dimension, and what would
 * fit. partition.c puts the scope in front. */
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "graph/infer/infer.h"
#include "graph/partition/partition_walk.h"

enum { WHAT_TEXT = 256 };

static char *dimension_text(const ms_walk *w, int64_t outer, char *text) {
  return ms_dimension_text(w->spec->name, w->spec->ranks, outer, text);
}

/* "input 2, parameter layers.0.w [8,4]" */
static char *input_text(const ms_walk *w, const ms_placed_node *c, int i, char *text) {
  char shape[MS_SHAPE_TEXT];
  const ms_graph *traced = w->traced;
  const ms_value *x = &traced->values[c->node->in[i]];
  ms_param_info info = {.name = ""};
  ms_shape_text(&c->in[i], shape);
  if (x->kind == MS_VALUE_PARAM && !traced->lookup(traced->model, x->param, &info))
    snprintf(text, WHAT_TEXT, "input %d, parameter %.96s %s,", i + 1, info.name, shape);
  else snprintf(text, WHAT_TEXT, "input %d %s", i + 1, shape);
  return text;
}

int ms_walk_uneven(const ms_walk *w, const char *what, const ms_value_info *x, int axis, int64_t outer) {
  return ms_placement_uneven(what, x, axis, outer, w->spec->name, w->spec->ranks);
}

int ms_walk_uneven_input(const ms_walk *w, const ms_placed_node *c, int i) {
  const ms_placement p = ms_walk_input(w, c, i)->place;
  const int64_t divisor = p.outer * w->spec->ranks;
  char asks[WHAT_TEXT], other[WHAT_TEXT], dimension[MS_SIZES_TEXT], sizes[MS_SIZES_TEXT];
  const int label = c->axes.in[i][p.axis];
  for (int k = 0; k < c->node->inputs; k++)
    for (int d = 0; d < c->in[k].ndim; d++)
      if (c->axes.in[k][d] == label && c->in[k].dims[d] % divisor)
        return MS_FAIL(MS_ESHAPE,
                       "%s: %s is divided along axis %d over %s, so axis %d of %s must be too: its size must be a "
                       "multiple of %" PRId64 "; %s",
                       ms_node_name(c->node), input_text(w, c, i, asks), p.axis, dimension_text(w, p.outer, dimension),
                       d, input_text(w, c, k, other), divisor, ms_sizes_near(c->in[k].dims[d], divisor, sizes));
  return MS_FAIL(MS_EINTERNAL, "%s: axis %d of its %s is not uneven", ms_node_name(c->node), p.axis,
                 input_text(w, c, i, asks));
}

int ms_walk_needs_whole(const ms_walk *w, const ms_placed_node *c, int i) {
  char input[WHAT_TEXT], dimension[MS_SIZES_TEXT];
  const int twice = ms_op_row_of(c->node->op)->flags & MS_OP_COLLECTIVE;
  return MS_FAIL(MS_EUNSUPPORTED,
                 "%s: %s is divided along axis %d over %s, but %s; divide another axis of the parameter, or none",
                 twice ? "parameters" : ms_node_name(c->node), input_text(w, c, i, input),
                 ms_walk_input(w, c, i)->place.axis, dimension_text(w, 1, dimension),
                 twice ? "another dimension of the mesh divides what it meets there, and with it the same axis"
                       : "the op needs that axis whole");
}

int ms_walk_not_whole(const ms_walk *w, const ms_node *reader) {
  const char *name = w->spec->name;
  return MS_FAIL(MS_EINVAL,
                 "%s: its input differs between the ranks of %s: all_reduce or all_gather it, or say with "
                 "x:from_local { %s = ... } that it is a part (ms.Shard(axis)) or a summand (\"partial\")",
                 reader ? ms_node_name(reader) : "the loss or an output", name, name);
}

int ms_walk_not_local(const ms_walk *w, const ms_placed_node *c, int i) {
  char input[WHAT_TEXT], place[MS_PLACEMENT_TEXT];
  const ms_placement p = ms_walk_input(w, c, i)->place;
  return MS_FAIL(MS_EINVAL,
                 "%s: %s is a %s over %s, but other inputs are local values of a rank: use its local part, too, with "
                 "x:to_local { %s = ms.Shard(%d) }",
                 ms_node_name(c->node), input_text(w, c, i, input), ms_placement_text(p, place), w->spec->name,
                 w->spec->name, p.axis);
}

int ms_walk_disagree(const ms_walk *w, const ms_placed_node *c, int i, int j) {
  char one[WHAT_TEXT], other[WHAT_TEXT], dimension[MS_SIZES_TEXT], place_i[MS_PLACEMENT_TEXT],
      place_j[MS_PLACEMENT_TEXT];
  return MS_FAIL(MS_EUNSUPPORTED,
                 "%s: over %s, %s is a %s and %s a %s; parameters stay where they are, so they must divide the op's "
                 "work alike",
                 ms_node_name(c->node), dimension_text(w, 1, dimension), input_text(w, c, i, one),
                 ms_placement_text(ms_walk_input(w, c, i)->place, place_i), input_text(w, c, j, other),
                 ms_placement_text(ms_walk_input(w, c, j)->place, place_j));
}

/* 1 when the division can land on the axis after so many indices, `after`: whole blocks begin there. Folded ones come
 * in pairs, which stay together. */
static int passes(ms_placement p, int64_t blocks, int64_t after) {
  return after <= blocks && !(p.folded && blocks % after == 0 && blocks / after % 2);
}

/* Names the axis of the result within which the division's blocks end, and the size that it would need. */
int ms_walk_cuts(const ms_walk *w, const ms_placed_node *c) {
  char in[MS_SHAPE_TEXT], out[MS_SHAPE_TEXT], dimension[MS_SIZES_TEXT], sizes[MS_SIZES_TEXT];
  const ms_placement p = ms_walk_input(w, c, 0)->place;
  const ms_value_info *y = &c->out[0];
  int64_t blocks = p.outer, before = 1;
  int axis = 0;
  for (int d = 0; d < p.axis; d++) blocks *= c->in[0].dims[d];
  while (axis < y->ndim - 1 && passes(p, blocks, before * y->dims[axis])) before *= y->dims[axis++];
  ms_shape_text(&c->in[0], in), ms_shape_text(y, out), dimension_text(w, p.outer, dimension);
  if (blocks % before)
    return MS_FAIL(MS_ESHAPE,
                   "reshape: %s to %s: axis %d is divided over %s, and axis %d of the result would mix what is before "
                   "that axis with it; fold or unfold axis %d alone",
                   in, out, p.axis, dimension, axis, p.axis);
  const int64_t divisor = blocks / before * w->spec->ranks;
  return MS_FAIL(
      MS_ESHAPE,
      "reshape: %s to %s: axis %d is divided over %s, so the size of axis %d of the result must be a multiple "
      "of %" PRId64 "; %s",
      in, out, p.axis, dimension, axis, divisor, ms_sizes_near(y->dims[axis], divisor, sizes));
}

int ms_walk_hidden(const ms_walk *w, const char *reader, int v) {
  const ms_node *maker = &w->traced->nodes[w->traced->values[v].node];
  char dimension[MS_SIZES_TEXT];
  return MS_FAIL(MS_EUNSUPPORTED, "%s: it reads statistics of a %s that is divided over %s; only gradients can", reader,
                 ms_node_name(maker), dimension_text(w, 1, dimension));
}
