/* comm_arena_size.h - sizes of the communicated arena that would hold one more activation. */
#ifndef MS_PLAN_COMM_ARENA_SIZE_H
#define MS_PLAN_COMM_ARENA_SIZE_H

#include "plan/plan.h"

enum { MS_COMM_ARENA_SIZES = 6 };

/* The bytes of an activation, and the least size of the arena that in a phase holds one of that size beside what is
** communicated while it lives; 0 in a phase without one. */
typedef struct ms_comm_arena_size {
  int64_t bytes, needed[MS_PHASES];
} ms_comm_arena_size;
/* Of the largest sizes of activations, the largest first: at most MS_COMM_ARENA_SIZES. What is communicated has its places, from
** `base` on. order: buffers by phase, those of phase p from from[1 + p] to before from[2 + p]. */
int ms_comm_arena_sizes(const ms_plan *plan, const int *order, const int *from, int64_t base, ms_comm_arena_size *room,
                        int *rooms);

#endif
