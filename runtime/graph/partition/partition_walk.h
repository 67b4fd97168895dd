/* partition_walk.h - one walk of the pass of partition.h: what is known of the traced graph's values, and the steps of
 * a node. partition.c walks and makes local nodes, partition_rules.c decides how a node is divided, partition_error.c
 * says why it cannot be, partition_convert.c changes placements, partition_by_hand.c follows what a recipe divides
 * itself.
 */
#ifndef MS_GRAPH_PARTITION_WALK_H
#define MS_GRAPH_PARTITION_WALK_H

#include "graph/axes.h"
#include "graph/partition/partition.h"

/* A value of the traced graph. */
typedef struct ms_placed_value {
  ms_placement place;    /* of what stands for it now */
  int local;             /* its value in the local graph */
  int forms;             /* the latest of its other forms, or -1 */
  unsigned char wanted;  /* 1: it has a gradient. Without one, replicate is invariant, and written so */
  unsigned char fixed;   /* 1: it depends on no input: made of parameters and constants */
  unsigned char settled; /* 1: divided by the placements of parameters alone, and never converted for a node */
  unsigned char spread;  /* 1: divided where a sum ends, not by a placement: whole where the division cannot go on */
  unsigned char marked;  /* 1: its parameters were made replicate */
  unsigned char hidden;  /* 1: statistics of a divided node, which only the node's gradient reads */
  unsigned char uncut;   /* 1: a weight without a placement, whose products in 8 bits read it as it is (float8.c) */
  unsigned char by_hand; /* 1: between to_local and from_local: its shape in the traced graph is a rank's */
} ms_placed_value;

/* The same value, converted. */
typedef struct ms_placed_form {
  ms_placement place;
  int local, next;
} ms_placed_form;

typedef struct ms_walk {
  const ms_graph *traced;
  const ms_partition_spec *spec;
  ms_partition *result;
  ms_placed_value *values; /* [values of the traced graph] */
  ms_placed_form *forms;
  int n_forms, forms_capacity;
  unsigned char
      *replicate; /* [n_params] 1: trainable, without a placement, and met by a divided value; kept by walks */
  int again;      /* 1: this walk has found another such parameter, so its result does not hold */
} ms_walk;

/* A node of the traced graph and how it is divided. */
typedef struct ms_placed_node {
  const ms_node *node;
  ms_value_info in[MS_MAX_INPUTS], out[MS_MAX_OUTPUTS]; /* in the traced graph */
  ms_axes axes;                                         /* without labels where the row has no axes */
  ms_placement takes[MS_MAX_INPUTS], makes[MS_MAX_OUTPUTS];
  ms_op_attrs attrs; /* of the local node */
  int divided;       /* 1: each rank computes a part */
  int settled;       /* 1: by parameters alone */
  int spread;        /* 1: as divided inputs are, or none is: see ms_placed_value */
  unsigned repeats;  /* bit i: input i has fewer indices on its divided axis than there are ranks */
  int averages;      /* 1: the local output is to be divided by the number of ranks */
  int joins;         /* 1: a loss of divided classes, which a rank makes of what all parts of them add */
  int weighs;        /* 1: a loss of divided rows, which is the mean over a rank's targets */
} ms_placed_node;

static inline ms_placed_value *ms_walk_input(const ms_walk *w, const ms_placed_node *c, int i) {
  return &w->values[c->node->in[i]];
}

/* Decides takes, makes and the rest. */
int ms_walk_decide(const ms_walk *w, ms_placed_node *c);
/* The value of the local graph that is v with this placement; appends the nodes that make it. reader: the node of the
 * traced graph that reads it, or NULL for the loss and outputs. */
int ms_walk_convert(ms_walk *w, int v, ms_placement to, const ms_node *reader, int *local);
/* The same, repeated on one axis until it has an index for each rank, and divided there. Ranks that share an index each
 * have it: the heads of keys, if there are fewer than ranks. */
int ms_walk_repeat(ms_walk *w, int v, int axis, const ms_node *reader, int *local);

/* 1 when the node is one of those with which recipes divide by hand, along this dimension. */
int ms_walk_crosses(const ms_walk *w, const ms_node *node);
/* Such a node. */
int ms_walk_cross(ms_walk *w, const ms_node *node);
/* 1 when the node reads a value that is divided by hand. It is computed as it stands. */
int ms_walk_is_by_hand(const ms_walk *w, const ms_placed_node *c);
/* Decides takes, makes and the rest of such a node. */
int ms_walk_decide_by_hand(const ms_walk *w, ms_placed_node *c);
/* Appends a node to the local graph, of the region of `owner`, a node of the traced graph or NULL; *out is its result.
 * The results of reductions are kept for backward, since all ranks would have to reduce again. */
int ms_walk_emit(ms_walk *w, const ms_node *owner, int op, int inputs, const int *in, const ms_op_attrs *attrs,
                 int *out);
/* Adds a row to the list of conversions, in the scope of the latest node. */
int ms_walk_record(ms_walk *w, ms_conversion conversion);

/* 1 when the node is a loss of divided logits; then it decides takes, makes and the rest. */
int ms_walk_divides_loss(const ms_walk *w, ms_placed_node *c);
/* in[0] logits and in[1] targets are given, in the local graph; makes in[2], the two numbers a row that each rank adds
 * to such a loss, gathered. */
int ms_walk_gather_loss(ms_walk *w, const ms_placed_node *c, int *in);
/* Makes the mean over a rank's targets a summand of the loss. */
int ms_walk_weigh_loss(ms_walk *w, const ms_placed_node *c);

/* ---- errors: each returns its status ---------------------------------------------------------------------------- */

/* Axis `axis` of a value of this shape cannot be divided in outer x ranks equal parts; what: "parameter w". */
int ms_walk_uneven(const ms_walk *w, const char *what, const ms_value_info *x, int axis, int64_t outer);
/* Input i of the node is divided along an axis that the node cannot divide evenly among its inputs. */
int ms_walk_uneven_input(const ms_walk *w, const ms_placed_node *c, int i);
/* ... that the node needs whole, and cannot be gathered, since it is made of parameters. */
int ms_walk_needs_whole(const ms_walk *w, const ms_placed_node *c, int i);
/* Inputs i and j, made of divided parameters, divide the node differently. */
int ms_walk_disagree(const ms_walk *w, const ms_placed_node *c, int i, int j);
/* No axis of a reshape's result is divided as its input is. */
int ms_walk_cuts(const ms_walk *w, const ms_placed_node *c);
/* The input of reader, or the loss or an output if that is NULL, differs between ranks. */
int ms_walk_not_whole(const ms_walk *w, const ms_node *reader);
/* Input i of a node that is computed by hand is made of divided parameters, and does not come from to_local. */
int ms_walk_not_local(const ms_walk *w, const ms_placed_node *c, int i);
/* reader, an op or an output, reads statistics. */
int ms_walk_hidden(const ms_walk *w, const char *reader, int v);

#endif
