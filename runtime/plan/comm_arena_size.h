/* comm_arena_size.h - sizes of the communicated arena that would hold one more activation. */
#ifndef MS_PLAN_COMM_ARENA_SIZE_H
#define MS_PLAN_COMM_ARENA_SIZE_H

#include "plan/plan.h"

enum { MS_COMM_ARENA_ACTIVATIONS = 6, MS_COMM_ARENA_SIZES = MS_COMM_ARENA_ACTIVATIONS * MS_PHASES };

/* Sizes of the communicated arena that are worth a try, each once, at most MS_COMM_ARENA_SIZES: more than the
** `communicated` bytes that it needs, but by less than an activation (of the largest sizes) that then fits. What is
** communicated has its places, from `base` on. order: buffers by phase, those of phase p from from[1 + p] to before
** from[2 + p]. */
int ms_comm_arena_sizes(const ms_plan *plan, const int *order, const int *from, int64_t base, int64_t communicated,
                        int64_t *size, int *sizes);

#endif
