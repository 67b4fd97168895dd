/* updates.c - how many updates a parameter has had, read and set by the host: kernels count and read it where the state lies. */
#include <math.h>

#include "base/error.h"
#include "base/handle.h"
#include "exec/state.h"

/* Exact in f32 up to here. */
static const double MOST = 1 << 24;

static int check(const ms_state *state, int param) {
  if (param >= 0 && param < state->model->params) return MS_OK;
  return MS_FAIL(MS_EINVAL, "parameter %d does not exist: the model has %d", param, state->model->params);
}

static char *place_of(const ms_state *state, int param) {
  return ms_state_block(state, MS_ARENA_STATE) + state->layout.updates + param * (int64_t)sizeof(float);
}

int ms_state_updates(const ms_state *state, int param, double *updates) {
  float value;
  MS_HANDLE(state, STATE);
  MS_TRY(check(state, param));
  MS_TRY(ms_state_copy_out(state, &value, place_of(state, param), sizeof value));
  *updates = (double)value;
  return MS_OK;
}

int ms_state_set_updates(ms_state *state, int param, double updates) {
  MS_HANDLE(state, STATE);
  MS_TRY(check(state, param));
  if (!(updates >= 0 && updates <= MOST && updates == floor(updates)))
    return MS_FAIL(MS_EINVAL, "parameter '%s': it cannot have had %g updates: give a whole number from 0 to %.0f",
                   state->model->param[param].name, updates, MOST);
  const float value = (float)updates;
  return ms_state_copy_in(state, place_of(state, param), &value, sizeof value);
}
