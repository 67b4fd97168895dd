/* moment_layout.h - where the moments of a unit's trainable chunks are kept, in the order of the chunks. With a dtype
 * of whole elements they are elements; with MS_I8, those of parameters with packed_moments are records
 * (kernels/formats/moments.h) and all others f32. Chunks, segments and the slices of replicas begin with a record. Of
 * parameters that choose an optimizer there are the moments that this one keeps.
 */
#ifndef MS_PLAN_MOMENT_LAYOUT_H
#define MS_PLAN_MOMENT_LAYOUT_H

#include "kernels/formats/moments.h"
#include "plan/layout/state_layout.h"

/* The form of the moments of a segment's parameters. */
const ms_moment_form *ms_moment_form_for(const ms_state_layout *layout, const ms_segment *segment);
/* Where moment `index` of element `local` of the chunks is: bytes from the start of what this rank keeps of it. */
int64_t ms_moment_offset(const ms_model *model, const ms_state_layout *layout, const ms_unit *unit, int index,
                         int64_t local);
/* Bytes of one moment of the unit: of all chunks, or of a slice; the same on all replicas. */
int64_t ms_moment_bytes(const ms_model *model, const ms_state_layout *layout, const ms_unit *unit, int index);

#endif
