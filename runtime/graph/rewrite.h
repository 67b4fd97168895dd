/* rewrite.h - what passes over the node list share.
**
** A pass walks the nodes in order, changes some in place and marks others removed; ms_compact then closes the gaps. Order
** stays program order, so a pass must put a fused node where all its inputs are made already and no output is read before.
*/
#ifndef MS_GRAPH_REWRITE_H
#define MS_GRAPH_REWRITE_H

#include "graph/graph.h"

enum { MS_NODE_REMOVED = -1 }; /* in ms_node.op while a pass runs */

typedef struct ms_uses {
  int *
      count; /* [values] how many inputs a value is; the loss, named outputs and parameters' gradients count as one each */
  int *first; /* [values] index of the first node that reads it, or n_nodes */
} ms_uses;

int ms_uses_count(const ms_graph *graph, ms_uses *uses);
void ms_uses_free(ms_uses *uses);

/* The node that makes value v, when its op is `op`; NULL otherwise. */
ms_node *ms_maker(const ms_graph *graph, int v, int op);
/* 1 when v exists before node `index` runs. */
int ms_made_before(const ms_graph *graph, int v, int index);
/* Makes output o of a node the maker of value v; the value that was output o has no maker any more. */
void ms_take_output(ms_graph *graph, int node, int o, int v);
void ms_remove_node(ms_graph *graph, int node);
void ms_compact(ms_graph *graph);

#endif
