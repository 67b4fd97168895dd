/* restart.c - gives a tensor of all parameters what training starts with: the initial values, or what follows from the
 * present parameters for averages and for local SGD. state_new.c, ema.c and outer.c know how.
 */
#include "exec/state/state.h"
#include "exec/tensors/params.h"

int ms_state_restart(ms_state *state, int what) {
  MS_HANDLE(state, STATE);
  if (what == MS_TENSOR_PARAM) return ms_state_draw(state);
  if (what == MS_TENSOR_EMA) return ms_ema_restart(state);
  if (what == MS_TENSOR_SYNCED) return ms_outer_restart(state);
  return MS_FAIL(MS_EINVAL, "ms_state_restart: what is %d; it must be %d, %d or %d (enum ms_tensor_kind)", what,
                 MS_TENSOR_PARAM, MS_TENSOR_EMA, MS_TENSOR_SYNCED);
}
