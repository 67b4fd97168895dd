/* weights.c - where a rank keeps weights besides their masters: the chunks of a sliced unit, and copies in bf16
 * (ms_unit_keeps_copies).
 */
#include "exec/tensors/params.h"
#include "plan/layout/replica_slices.h"

void ms_params_find_weights(const ms_state *state, const ms_param *p, ms_elements *at) {
  const ms_unit *unit = &state->model->unit[p->unit];
  *at = (ms_elements){.dtype = MS_F32, .param = (int)(p - state->model->param), .first = p->first, .count = p->owned};
  const int replicas = state->layout.replicas;
  if (!ms_segment_has_weights(state->model, unit, replicas, p->segment)) return;
  const int64_t offset = ms_weights_offset(state->model, unit, replicas, p->segment, p->local, &at->dtype);
  at->data = ms_state_block(state, ms_state_arena(state->model, &state->layout, p->unit, MS_SLOT_WEIGHTS)) +
             state->layout.unit[p->unit].at[MS_SLOT_WEIGHTS] + offset;
}

int ms_params_has_copy(const ms_state *state, const ms_param *p) {
  const ms_unit *unit = &state->model->unit[p->unit];
  return !ms_unit_is_sliced(state->model, unit, state->layout.replicas) &&
         ms_segment_has_weights(state->model, unit, state->layout.replicas, p->segment);
}
