/* lower_state.c - where instructions find what this rank keeps of a unit's state: masters, gradients, moments, and what
 * is kept besides.
 */
#include "plan/lower/lower.h"
#include "base/min.h"
#include "plan/layout/state_layout.h"

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
/* The part of [begin, end) whose gradients this rank holds and which it updates. */
ms_stretch ms_lower_own_part(const ms_plan *plan, int unit, int64_t begin, int64_t end) {
  int64_t first;
  int64_t n = ms_unit_slice(plan->model, &plan->model->unit[unit], plan->layout->replicas, &first);
  return (ms_stretch){most(begin, first), ms_min(end, first + n)};
}

/* Elements of a segment that this rank updates, in a slot: as they are, or the words of their records. */
ms_ref ms_lower_slot(const ms_plan *plan, int slot, int unit, int s, ms_stretch own) {
  const ms_slot_form form = ms_slot_form_of(plan->model, plan->layout, slot, unit, s);
  const int64_t at = ms_slots[slot].at(plan->model, plan->layout, unit, s, own.begin);
  const int64_t records = (own.end - own.begin + form.block - 1) / form.block;
  return ms_ref_vector(ms_state_buffer(unit, slot), at, form.dtype, records * form.words);
}

int ms_lower_has_copy(const ms_plan *plan, int unit, int s) {
  const ms_unit *u = &plan->model->unit[unit];
  return ms_unit_keeps_copies(u) && ms_segment_has_weights(plan->model, u, plan->layout->replicas, s);
}

int ms_lower_copy(ms_plan *plan, int phase, int unit, int s, ms_stretch own, const char *scope) {
  if (own.end <= own.begin || !ms_lower_has_copy(plan, unit, s)) return MS_OK;
  const ms_ref in = ms_lower_slot(plan, MS_SLOT_MASTER, unit, s, own);
  const ms_ref out = ms_plan_weights(plan, unit, s, own.begin, own.end - own.begin);
  const ms_op_attrs attrs = {.out_dtype = 1 + out.info.dtype};
  return ms_plan_kernel(plan, phase, MS_OP_copy_weights, &attrs, 1, &in, 1, &out, scope, 0);
}
