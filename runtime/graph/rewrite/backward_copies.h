/* backward_copies.h - copies of forward nodes that run in backward, so that what they make need not be kept: for the
 * passes of recompute.c and regather.c, which decide what is copied and where.
 *
 *   open, begin, for each backward node: { add copies before it, take it }, end, close
 */
#ifndef MS_GRAPH_BACKWARD_COPIES_H
#define MS_GRAPH_BACKWARD_COPIES_H

#include "graph/graph.h"

typedef struct ms_backward_copies {
  ms_graph *graph;
  int first_backward; /* node, or the number of nodes */
  int *copy_of;       /* [values before the pass] the copy's value that backward reads instead, or -1 */
  ms_node *out;       /* the new node list, from begin to end */
  int n_out, capacity;
} ms_backward_copies;

/* The caller closes it after an error, too. */
int ms_backward_copies_open(ms_graph *graph, ms_backward_copies *c);
/* Starts a new node list with all forward nodes. */
int ms_backward_copies_begin(ms_backward_copies *c);
/* Replaces inputs by their copies, where there are any. */
void ms_backward_copies_redirect(const ms_backward_copies *c, ms_node *node);
/* Appends a forward node as one of backward, with outputs of its own. It counts as computed for backward. */
int ms_backward_copies_add(ms_backward_copies *c, ms_node node);
/* Appends a backward node, which reads copies. */
void ms_backward_copies_take(ms_backward_copies *c, ms_node node);
/* Gives the graph the new node list. */
void ms_backward_copies_end(ms_backward_copies *c);
void ms_backward_copies_close(ms_backward_copies *c);

#endif
