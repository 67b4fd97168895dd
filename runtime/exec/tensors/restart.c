/* restart.c - gives a tensor of all parameters what training starts with: the initial values, or what follows from the
 * present parameters for averages and for local SGD. ema.c and outer.c know how.
 */
#include "comm/recorder/flight_recorder.h"
#include "exec/state/state.h"
#include "exec/tensors/params.h"
#include "exec/tensors/stored.h"

int ms_state_draw(ms_state *state) {
  MS_TRY(ms_progress_check_masters(state, "draw initial values"));
  MS_TRY(ms_state_settle(state));
  ms_recorder *recorder = ms_world_recorder(state->world);
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "drawing the parameters"));
  int rc = ms_params_init(state);
  if (!rc) rc = ms_stored_finish(state, 0, state->model->params);
  if (!rc) rc = ms_outer_restart(state);
  ms_recorder_leave(recorder, rc);
  return rc;
}

int ms_state_restart(ms_state *state, int what) {
  MS_HANDLE(state, STATE);
  if (what == MS_TENSOR_PARAM) return ms_state_draw(state);
  if (what == MS_TENSOR_EMA) return ms_ema_restart(state);
  if (what == MS_TENSOR_SYNCED) return ms_outer_restart(state);
  return MS_FAIL(MS_EINVAL, "ms_state_restart: what is %d; it must be %d, %d or %d (enum ms_tensor_kind)", what,
                 MS_TENSOR_PARAM, MS_TENSOR_EMA, MS_TENSOR_SYNCED);
}
