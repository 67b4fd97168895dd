/* pack.h - places for buffers that live at different times. */
#ifndef MS_PLAN_PACK_H
#define MS_PLAN_PACK_H

#include "plan/compile_cache.h"

enum { MS_PACK_ARENAS = 3 };

/* Gives an arena (0 to arenas - 1) and an offset in it to every item that has none. Items of one arena that live at
** once, or differ in ranks, share no byte. In an arena before the last, what is placed ends within room[arena], so it
** takes only bytes that are there for others at other times. The last arena's room says what is enough: other orders
** are tried while items end above it there, and what needs least is taken. room: [MS_PACK_ARENAS]. */
int ms_pack(ms_packing_item *item, int n, int arenas, const int64_t *room);

#endif
