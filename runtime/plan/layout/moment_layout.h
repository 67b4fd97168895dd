/* moment_layout.h - where the moments of a unit's trainable chunks are kept, in the order of the chunks. With a dtype
 * of whole elements they are elements; with MS_I8, those of parameters with packed_moments are records
 * (kernels/formats/moments.h) and all others f32. Chunks, segments and the slices of replicas begin with a record.
 * Parameters with Muon keep only the first moment, in f32 whatever the dtype, and are left out of the second one.
 */
#ifndef MS_PLAN_MOMENT_LAYOUT_H
#define MS_PLAN_MOMENT_LAYOUT_H

#include "kernels/formats/moments.h"
#include "plan/layout/replica_slices.h"
#include "plan/layout/state_layout.h"

/* One of the moments that a state keeps. */
typedef struct ms_moment {
  int dtype; /* ms_moment_dtype_of */
  int kept;  /* how many the plan's optimizer keeps: ms_moments_kept */
  int index; /* of this one: 0, 1 */
} ms_moment;

/* The moments of a state. */
static inline ms_moment ms_moment_of(const ms_state_layout *layout, int index) {
  return (ms_moment){layout->moment_dtype, layout->moments, index};
}

/* The dtype in which the plan's optimizer keeps its moments: its setting `moments`, or f32. */
int ms_moment_dtype_of(const ms_plan_config *config);

/* In all of these, replicas is the number of replicas that share one copy of the state. */

/* The dtype of a parameter's moments, where others have this one; MS_I8: records. */
int ms_moment_dtype(const ms_param *p, int dtype);
/* 1 when a state keeps this moment of a parameter. */
int ms_moment_is_kept(const ms_param *p, ms_moment moment);
/* Where a moment of element `local` of the chunks is: bytes from the start of what this rank keeps of it. */
int64_t ms_moment_offset(const ms_model *model, const ms_unit *unit, int replicas, ms_moment moment, int64_t local);
/* Bytes of one moment of the unit: of all chunks, or of a slice; the same on all replicas. */
int64_t ms_moment_room(const ms_model *model, const ms_unit *unit, int replicas, ms_moment moment);

#endif
