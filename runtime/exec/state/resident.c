/* resident.c - when the weights that stay gathered are gathered again. */
#include "exec/state/resident.h"

#include "base/error.h"
#include "exec/state/state.h"

void ms_resident_forget(ms_state *state) { state->resident = (ms_resident){0}; }

void ms_resident_note(ms_state *state, int param) {
  /* Whatever the rules are now: under earlier ones it may have been gathered, and later ones may find it there. */
  if (state->resident.layout && state->model->param[param].config.frozen) state->resident.written = 1 + param;
}

int ms_resident_check(const ms_state *state, const ms_plan *plan) {
  if (!state->resident.written || !plan->phase[MS_PHASE_GATHER].present) return MS_OK;
  return MS_FAIL(MS_EINVAL,
                 "parameter '%s' was written, but its gathered weights stay as they were (reshard = run): call "
                 "ms_state_finish_writes on all ranks",
                 state->model->param[state->resident.written - 1].name);
}

int ms_resident_is_due(const ms_state *state, const ms_plan *plan, int phase) {
  const int reads = phase == MS_PHASE_FIRST || phase == MS_PHASE_EVALUATE;
  return reads && plan->phase[MS_PHASE_GATHER].present && state->resident.layout != ms_plan_resident_layout(plan);
}

void ms_resident_gathered(ms_state *state, const ms_plan *plan) {
  state->resident.layout = ms_plan_resident_layout(plan);
}
