/* axes.h - which axes of an op's operands belong together, so that a node can be computed in parts.
 *
 * The column `axes` of the op table gives every axis of every operand a label: "*mk,*kn,+n>*mn" is a product with a
 * bias. Axes with the same label are divided together: part i of n of each belongs to part i of the node. A label that
 * an output lacks was summed over, so the parts' outputs are joined by adding them.
 *
 *   *mk,*kn,+n>*mn 01 swap      inputs > outputs, then words about the op
 *   a to z    an axis that can be divided; A to Z: one that the kernel needs whole
 *   *         all leading axes that have no letter, aligned at the right; #: these, needed whole
 *   +         before an input: it is added, so if it lacks a divided label it counts in one part only
 *   ..        after an input: the op has any number of these
 *   _         an output whose parts are not parts of it: statistics that only the op's gradient reads
 *
 *   + 0 1     the op is linear in all inputs together; in input 0 or 1 while the others are given
 *   beta      ... unless the attribute beta is set; cast: unless it rounds
 *   pass      a partial input 0 makes a partial output, while the others are given: a sum is taken of the smaller one
 *   act       with an activation, it is linear in nothing, and what would be summed is needed whole
 *   swap      attributes trans_a and trans_b swap the last two axes of inputs 0 and 1
 *   sum mean max min   of the attributes' axis, which leaves the output; this is also how parts are joined
 *   part      the first letter's parts are contiguous and know their place: attributes parts, dim, first. They
 *             are not divided again
 *   placed1   axis 1 of input 0 can be divided although its letter says no, if the node knows which part it has:
 *             attribute part (kernels/part.h); placed: any axis can, and its part of a part, attribute inner_part
 *   along     the attribute along is an axis that is needed whole; exchange: split_axis and concat_axis are
 *   permute   the attributes permute the axes; cut: the attributes' axis is needed whole
 *   shape     the attributes have the output's shape; reshape: and the elements keep their order
 *
 * An axis of size 1 whose label is longer elsewhere is repeated: it has no label. An empty text: only the engine makes
 * the op, and nothing is known.
 */
#ifndef MS_GRAPH_AXES_H
#define MS_GRAPH_AXES_H

#include "graph/graph.h"
#include "kernels/part.h"

enum { MS_AXIS_LABELS = 16, MS_AXIS_REPEATED = -1, MS_AXES_NONE = -1, MS_AXES_ALL = -2 };

/* How an output that lacks a divided label results from those of the parts. */
enum ms_parts_join { MS_JOIN_SUM = 0, MS_JOIN_MEAN = 1, MS_JOIN_MAX = 2, MS_JOIN_MIN = 3 };

typedef struct ms_axis_label {
  char name;     /* the row's letter, or '0' to '5': a leading axis, counted from the right */
  int whole;     /* 1: the kernel needs all of it */
  int64_t parts; /* it can be divided into any number of equal parts that divides this one */
} ms_axis_label;

typedef struct ms_axes {
  int labels;
  ms_axis_label label[MS_AXIS_LABELS];
  int in[MS_MAX_INPUTS][MS_MAX_DIMS], out[MS_MAX_OUTPUTS][MS_MAX_DIMS]; /* index of a label, or MS_AXIS_REPEATED */
  int join;                                                             /* enum ms_parts_join */
  unsigned statistics;                                                  /* bit o: output o is `_` */
  unsigned added;                                                       /* bit i: input i is added */
  unsigned linear;     /* bit i: linear in input i while the others are given */
  int linear_together; /* 1: in all inputs together */
  int passes;          /* 1: a partial input 0 can stay partial while the others are given */
  int contiguous;      /* the label of which a part must know its place, or -1 */
  int placed;          /* the label that can be divided if the node knows its part, MS_AXES_ALL, or MS_AXES_NONE */
} ms_axes;

/* 1 when the op's row has axes. */
int ms_op_has_axes(int op);
/* Fails with MS_EINTERNAL when the row and the shapes contradict each other, or the row has no axes. */
int ms_axes_of(const ms_node *node, const ms_value_info *in, const ms_value_info *out, ms_axes *axes);
/* The attributes of a part, where a label is divided into n; where a part is, the caller adds. */
ms_op_attrs ms_axes_part_attrs(const ms_node *node, const ms_axes *axes, const ms_value_info *out, int label,
                               int64_t n);
/* Where the node must know its part: sets the attribute for a division of this axis of input 0, whose whole is x, in
 * `outer` blocks. part: ranks, place, dim and folded are given. */
void ms_axes_place(int op, const ms_axes *axes, const ms_value_info *x, int axis, int64_t outer, ms_part part,
                   ms_op_attrs *attrs);

#endif
