/* lower_state.c - where instructions find what this rank keeps of a unit's state: masters, gradients, moments, and what
 * is kept besides.
 */
#include "plan/lower/lower.h"
#include "plan/optimizer.h"
#include "base/least.h"
#include "base/numbers/dtype.h"
#include "plan/layout/moment_layout.h"

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
/* The part of [begin, end) whose gradients this rank holds and which it updates. */
ms_stretch ms_lower_own_part(const ms_plan *plan, int unit, int64_t begin, int64_t end) {
  int64_t first;
  int64_t n = ms_unit_slice(plan->model, &plan->model->unit[unit], plan->replicas, &first);
  return (ms_stretch){most(begin, first), ms_least(end, first + n)};
}

/* The gradients of a range that this rank holds; their buffer starts at the rank's slice. */
ms_ref ms_lower_gradients_of(const ms_plan *plan, int unit, ms_stretch own) {
  int64_t first;
  ms_unit_slice(plan->model, &plan->model->unit[unit], plan->replicas, &first);
  return ms_ref_vector(ms_state_buffer(unit, MS_SLOT_GRADIENT), 4 * (own.begin - first), MS_F32, own.end - own.begin);
}

ms_ref ms_lower_masters(const ms_plan *plan, int unit, int s, ms_stretch own) {
  const int shared = ms_plan_shares_masters(plan, unit);
  const int64_t at = ms_master_offset(plan->model, &plan->model->unit[unit], plan->replicas, shared, s, own.begin);
  return ms_ref_vector(ms_state_buffer(unit, MS_SLOT_MASTER), at, MS_F32, own.end - own.begin);
}

int ms_lower_has_copy(const ms_plan *plan, int unit, int s) {
  const ms_unit *u = &plan->model->unit[unit];
  return ms_unit_keeps_copies(u) && ms_segment_has_weights(plan->model, u, plan->replicas, s);
}

int ms_lower_copy(ms_plan *plan, int phase, int unit, int s, ms_stretch own, const char *scope) {
  if (own.end <= own.begin || !ms_lower_has_copy(plan, unit, s)) return MS_OK;
  const ms_ref in = ms_lower_masters(plan, unit, s, own);
  const ms_ref out = ms_plan_weights(plan, unit, s, own.begin, own.end - own.begin);
  const ms_op_attrs attrs = {.out_dtype = 1 + out.info.dtype};
  return ms_plan_kernel(plan, phase, MS_OP_copy_weights, &attrs, 1, &in, 1, &out, scope, 0);
}

ms_ref ms_lower_kept(const ms_plan *plan, int unit, int which, int dtype, ms_stretch own) {
  const ms_unit *u = &plan->model->unit[unit];
  int64_t first = 0;
  if (ms_unit_is_sliced(plan->model, u, plan->replicas)) ms_unit_slice(plan->model, u, plan->replicas, &first);
  return ms_ref_vector(ms_state_buffer(unit, which), ms_dtype_size(dtype) * (own.begin - first), dtype,
                       own.end - own.begin);
}

/* A moment of the elements of a parameter that this rank updates: elements, or the words of records. */
ms_ref ms_lower_moment(const ms_plan *plan, const ms_param *p, int m, ms_stretch own) {
  const ms_unit *unit = &plan->model->unit[p->unit];
  const ms_moment_form *form = ms_moment_form_of(ms_moment_dtype(p, ms_moment_dtype_of(&plan->config)));
  const ms_moment moment = ms_moment_of_plan(&plan->config, m);
  const int64_t at = ms_moment_offset(plan->model, unit, plan->replicas, moment, own.begin), n = own.end - own.begin;
  const int buffer = ms_state_buffer(p->unit, MS_SLOT_MOMENT + m);
  return ms_ref_vector(buffer, at, form->kept, ms_moment_count(form, n));
}
