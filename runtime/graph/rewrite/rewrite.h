/* rewrite.h - helpers for passes over the node list.
 *
 * A pass walks the nodes in order, changes some in place and marks others as removed; ms_compact then closes the
 * gaps. The list stays in program order: a pass must place a fused node after the producers of its inputs and before
 * any reader of its outputs.
 */
#ifndef MS_GRAPH_REWRITE_H
#define MS_GRAPH_REWRITE_H

#include "graph/graph.h"

enum { MS_NODE_REMOVED = -1 }; /* in ms_node.op while a pass runs */

typedef struct ms_uses {
  /* [values] number of inputs that read a value, plus one for the loss, a named output or a parameter's gradient */
  int *count;
  int *first; /* [values] index of the first node that reads it, or n_nodes */
} ms_uses;

int ms_uses_count(const ms_graph *graph, ms_uses *uses);
void ms_uses_free(ms_uses *uses);

/* The node that produces value v if its op is `op`, otherwise NULL. */
ms_node *ms_maker(const ms_graph *graph, int v, int op);
/* 1 if v exists before node `index` runs. */
int ms_made_before(const ms_graph *graph, int v, int index);
/* Makes v output o of the node; the value that was output o has no producer afterwards. */
void ms_take_output(ms_graph *graph, int node, int o, int v);
void ms_remove_node(ms_graph *graph, int node);
void ms_compact(ms_graph *graph);

#endif
