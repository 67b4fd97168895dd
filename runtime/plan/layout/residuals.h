/* residuals.h - where a rank keeps what it rounded off of its gradients (ms_unit_config.error_feedback): in f32, zero
 * at first, in one buffer of the state per unit (MS_SLOT_RESIDUALS):
 *
 *   over shard       an element for each of the unit's reduce buffer, which it quantises whole
 *   over replicate   an element for each of its trainable chunks, then for each of the pieces that it sums
 *   between nodes    an element for each of the pieces that it passes on to the shards of other nodes
 *   in any case      the divisor of the step that left them, for each segment
 *
 * Each part exists if the mesh has the dimension and sums over it are in few bits.
 */
#ifndef MS_PLAN_RESIDUALS_H
#define MS_PLAN_RESIDUALS_H

#include "plan/plan.h"

/* Bytes of a unit's residuals; 0: it keeps none. inner_shards: as of the state's layout. */
int64_t ms_residuals_bytes(const ms_model *model, int unit, int inner_shards);
/* Where those of a segment begin, in bytes: of its gradients of all shards, of its chunk, of its piece of a sum, and of
 * the pieces that it passes on. */
int64_t ms_residuals_of_shards(const ms_segment *seg);
int64_t ms_residuals_of_chunk(const ms_model *model, int unit, const ms_segment *seg);
int64_t ms_residuals_of_sum(const ms_model *model, int unit, const ms_segment *seg);
int64_t ms_residuals_of_passed(const ms_model *model, int unit, const ms_segment *seg, int inner_shards);
/* Where the divisor is of the step that left a segment's residuals. */
int64_t ms_residuals_of_divisor(const ms_plan *plan, int unit, const ms_segment *seg);
/* *added: 1 when this plan adds a segment's residuals to its gradients, and keeps new ones. A segment without gradients
 * leaves its residuals alone: the optimizer skips its parameters, so what was sent would be lost. MS_EUNSUPPORTED names
 * a parameter without a gradient in a segment that has others. */
int ms_residuals_are_added(const ms_plan *plan, int unit, const ms_segment *seg, int *added);

#endif
