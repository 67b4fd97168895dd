/* compile_cache.h - what a traced graph keeps from one compile for the next: its rewritten and differentiated copies,
** and places found for buffers. A plan that differs in a rule finds most of it again; nothing kept changes what a plan
** is.
*/
#ifndef MS_PLAN_COMPILE_CACHE_H
#define MS_PLAN_COMPILE_CACHE_H

#include "graph/graph.h"

/* A buffer among those that are packed together (pack.h). */
typedef struct ms_packing_item {
  int64_t bytes;
  int first, last; /* of its use: numbers that only their order matters of */
  int ranks;       /* as in ms_buffer */
  int arena;       /* which of those that are packed together; -1: it wants a place */
  int64_t offset;
} ms_packing_item;
/* The same items [n] with places, or NULL when such items were not packed before. Valid until the next
** ms_cache_packing. */
const ms_packing_item *ms_cached_packing(const ms_graph *graph, const ms_packing_item *item, int n,
                                         const int64_t *room);
/* Keeps copies of items before and after packing. The oldest of many are dropped. */
int ms_cache_packing(const ms_graph *graph, const ms_packing_item *before, const ms_packing_item *after, int n,
                     const int64_t *room);

/* What is fused: nothing, what every device's kernels take, or also what epilogues of matrix products take. */
enum ms_fusing { MS_FUSE_NOTHING, MS_FUSE_OPS, MS_FUSE_EPILOGUES, MS_FUSINGS };
/* The graph that phases are lowered from, with its backward pass or (evaluate) without, if it was made before and the
** traced graph has not grown since; owned by the traced graph. NULL: it is to be made. */
ms_graph *ms_cached_graph(const ms_graph *traced, int evaluate, enum ms_fusing fusing);
/* Keeps a graph that was just made, and owns it from then on; not after an error. */
int ms_cache_graph(const ms_graph *traced, int evaluate, enum ms_fusing fusing, ms_graph *graph);

#endif
