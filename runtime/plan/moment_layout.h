/* moment_layout.h - where the moments of a unit's trainable chunks are kept, in the order of the chunks. With a dtype
 * of whole elements they are elements; with MS_I8, those of parameters with packed_moments are records
 * (kernels/moments.h) and all others f32. Chunks, segments and the slices of replicas begin with a record.
 */
#ifndef MS_PLAN_MOMENT_LAYOUT_H
#define MS_PLAN_MOMENT_LAYOUT_H

#include "kernels/moments.h"
#include "plan/replica_slices.h"

/* In all of these, dtype is ms_plan_config.moment_dtype, and replicas the number of replicas that share one copy of the
 * state. */

/* The dtype of a parameter's moments; MS_I8: records. */
int ms_moment_dtype(const ms_param *p, int dtype);
/* Where a moment of element `local` of the chunks is: bytes from the start of what this rank keeps of it. */
int64_t ms_moment_offset(const ms_model *model, const ms_unit *unit, int replicas, int dtype, int64_t local);
/* Bytes of one moment of the unit: of all chunks, or of a slice; the same on all replicas. */
int64_t ms_moment_room(const ms_model *model, const ms_unit *unit, int replicas, int dtype);

#endif
