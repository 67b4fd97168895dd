/* kept.h - what a traced graph keeps from one compile for the next: its rewritten and differentiated copies, and places
** found for buffers. A plan that differs in a rule finds most of it again; nothing kept changes what a plan is.
*/
#ifndef MS_PLAN_KEPT_H
#define MS_PLAN_KEPT_H

#include "graph/graph.h"

/* Buffers that want places in one arena, in the order in which they were made. */
typedef struct ms_packing_item {
  int64_t bytes;
  int first, last; /* of its use: numbers that only their order matters of */
  int ranks;       /* as in ms_buffer */
} ms_packing_item;
/* Offsets [n], or NULL when places for such buffers were not found before. Valid until the next ms_kept_add_packing. */
const int64_t *ms_kept_packing(const ms_graph *graph, const ms_packing_item *item, int n);
/* Keeps copies. The oldest of many are dropped. */
int ms_kept_add_packing(const ms_graph *graph, const ms_packing_item *item, const int64_t *offset, int n);

/* The copy of the traced graph that phases are lowered from: with its backward pass, or (evaluate) without. Made at the
** first call and after the graph has grown; owned by the traced graph. */
int ms_kept_graph(const ms_graph *traced, int evaluate, int fuse, const ms_graph **graph);

#endif
