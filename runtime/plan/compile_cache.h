/* compile_cache.h - results that a traced graph keeps from one compilation for the next: its rewritten and
 * differentiated copies, and packings of buffers. A plan that differs in one rule reuses most of them, and a graph of
 * another model takes them over if it is alike (ms_graph_take_compiled). The cache never changes a plan, only the time
 * to compile it.
 */
#ifndef MS_PLAN_COMPILE_CACHE_H
#define MS_PLAN_COMPILE_CACHE_H

#include "graph/graph.h"

/* One of the buffers that are packed together (pack.h). */
typedef struct ms_packing_item {
  int64_t bytes;
  int first, last; /* positions of its first and last use; only their order matters */
  int ranks;       /* as in ms_buffer */
  int arena;       /* index among the arenas packed together; -1: not placed yet */
  int64_t offset;
} ms_packing_item;
/* Returns the same items [n] with their places, or NULL when these items were not packed before. The pointer is
 * valid until the next ms_cache_packing. */
const ms_packing_item *ms_cached_packing(const ms_graph *graph, const ms_packing_item *item, int n,
                                         const int64_t *room);
/* Stores copies of the items before and after packing. The cache drops its oldest entries. */
int ms_cache_packing(const ms_graph *graph, const ms_packing_item *before, const ms_packing_item *after, int n,
                     const int64_t *room);

/* What may be fused: nothing, the patterns that every device has kernels for, or also epilogues of matrix products. */
enum ms_fusing { MS_FUSE_NOTHING, MS_FUSE_OPS, MS_FUSE_EPILOGUES, MS_FUSINGS };
/* What backward makes again by default instead of keeping it: results that kernels of gradients compute, and what is
 * gathered along each dimension. */
typedef struct ms_made_again {
  unsigned char results, gathered[MS_DIMS];
} ms_made_again;
/* Returns the graph that phases are lowered from, with its backward pass or (evaluate) without it, if it is cached
 * and the traced graph has not grown since; the traced graph owns it. NULL: the caller must build it. */
ms_graph *ms_cached_graph(const ms_graph *traced, int evaluate, enum ms_fusing fusing, const ms_made_again *again);
/* Stores a newly built graph in the place of one that makes other things again, and takes ownership of it, except after
 * an error. */
int ms_cache_graph(const ms_graph *traced, int evaluate, enum ms_fusing fusing, const ms_made_again *again,
                   ms_graph *graph);

#endif
