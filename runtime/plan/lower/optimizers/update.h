/* update.h - programs of updates (plan/optimizer.h) as instructions: the kernel of a step for one item, and the order
 * of kernels and exchanges by what a program has. One with kernels alone updates parameter by parameter (lower_step.c);
 * with sums, all its parameters go through each step together (lower_sums.c); with owners, matrices travel in buckets
 * (lower_owners.c).
 */
#ifndef MS_PLAN_UPDATE_H
#define MS_PLAN_UPDATE_H

#include "plan/lower/lower.h"
#include "plan/optimizer.h"

/* A parameter, and what this rank updates of it: {0, 0} if that is nothing. */
ms_update_item ms_update_item_of(const ms_plan *plan, int param);
/* The kernel of a step, for the elements `own` of an item. vector: [MS_VECTORS] those of its program. */
int ms_lower_update_kernel(ms_plan *plan, int phase, const ms_optimizer *by, const ms_update_step *step,
                           const ms_update_item *item, ms_stretch own, const ms_ref *vector);
/* The kernels of a program that has no other steps, in order; nothing where this rank updates nothing. */
int ms_lower_update_item(ms_plan *plan, int phase, const ms_optimizer *by, const ms_update_item *item,
                         const ms_ref *vector);

/* QK-clip: scales those of a unit's parameters that it has, after their updates. */
int ms_lower_clip_logits(ms_plan *plan, int unit);
/* Updates the parameters whose program has sums over the mesh. */
int ms_lower_summed_updates(ms_plan *plan);
/* Updates those whose program has owners, of which there are some. While their first exchange is under way, and their
 * last one, the halves 0 and 1 of something else are lowered. */
typedef int ms_meanwhile(ms_plan *plan, int half);
int ms_lower_owned_updates(ms_plan *plan, ms_meanwhile *meanwhile);

#endif
