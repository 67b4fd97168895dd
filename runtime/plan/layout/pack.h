/* pack.h - offsets for buffers with different lifetimes. */
#ifndef MS_PLAN_PACK_H
#define MS_PLAN_PACK_H

#include "plan/compile_cache.h"

enum { MS_PACK_ARENAS = 3 };

/* Assigns an arena (0 to arenas - 1) and an offset to every item that has none. Items in one arena never share bytes
 * if their lifetimes overlap or their `ranks` differ. In every arena but the last, new items end within room[arena],
 * so they only use bytes that other items need at other times. room of the last arena is the size that is good
 * enough: while items end above it, other orders are tried, and the smallest result wins. room: [MS_PACK_ARENAS]. */
int ms_pack(ms_packing_item *item, int n, int arenas, const int64_t *room);

#endif
