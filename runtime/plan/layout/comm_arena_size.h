/* comm_arena_size.h - sizes of the communication arena that leave room for one more activation. */
#ifndef MS_PLAN_COMM_ARENA_SIZE_H
#define MS_PLAN_COMM_ARENA_SIZE_H

#include "plan/plan.h"

enum { MS_COMM_ARENA_ACTIVATIONS = 6, MS_COMM_ARENA_SIZES = MS_COMM_ARENA_ACTIVATIONS * MS_PHASES };

/* Lists the sizes of the communication arena that are worth trying, without duplicates, at most MS_COMM_ARENA_SIZES.
 * Each is larger than the `communicated` bytes it needs, but by less than the size of an activation (one of the
 * largest) that then fits. The communication buffers are already placed, from offset `base` on. order: buffers
 * sorted by phase; those of phase p are order[from[1 + p]] to order[from[2 + p] - 1]. */
int ms_comm_arena_sizes(const ms_plan *plan, const int *order, const int *from, int64_t base, int64_t communicated,
                        int64_t *size, int *sizes);

#endif
