/* ema.c - swaps the master weights with their averages, so that everything that reads parameters reads the averages;
 * and restarts the averages from the weights.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/recorder/flight_recorder.h"
#include "exec/tensors/params.h"

/* Elements per copy to and from a device: 1 MiB each way. */
enum { AT_ONCE = 1 << 18 };

typedef int move(ms_state *state, float *master, float *ema, int64_t n, float *room);

static int swap(ms_state *state, float *master, float *ema, int64_t n, float *room) {
  const int64_t bytes = n * (int64_t)sizeof *master;
  if (!room) {
    for (int64_t i = 0; i < n; i++) {
      const float kept = master[i];
      master[i] = ema[i];
      ema[i] = kept;
    }
    return MS_OK;
  }
  MS_TRY(ms_state_copy_out(state, room, master, bytes));
  MS_TRY(ms_state_copy_out(state, room + AT_ONCE, ema, bytes));
  MS_TRY(ms_state_copy_in(state, master, room + AT_ONCE, bytes));
  return ms_state_copy_in(state, ema, room, bytes);
}

static int restart(ms_state *state, float *master, float *ema, int64_t n, float *room) {
  if (!room) {
    memcpy(ema, master, (size_t)n * sizeof *master);
    return MS_OK;
  }
  MS_TRY(ms_state_copy_out(state, room, master, n * (int64_t)sizeof *master));
  return ms_state_copy_in(state, ema, room, n * (int64_t)sizeof *master);
}

/* Calls `by` for every owned element of every trainable parameter; of sliced units, for those that this rank has.
 * sliced: where replicas share one copy, only for this rank's slice. */
static int move_all(ms_state *state, move *by, int sliced) {
  const ms_model *model = state->model;
  float *room = NULL;
  int rc = MS_OK;
  if (!ms_device_has(state->device, MS_DEVICE_HOST_MEMORY) && !(room = ms_calloc(2 * AT_ONCE, sizeof *room)))
    return MS_ENOMEM;
  for (int i = 0; i < model->params; i++) {
    const ms_param *p = &model->param[i];
    ms_elements master, ema;
    if (p->config.frozen) continue;
    MS_GOTO(ms_params_find(state, i, MS_TENSOR_PARAM, &master));
    MS_GOTO(ms_params_find(state, i, MS_TENSOR_EMA, &ema));
    int64_t begin = 0, count = sliced && !master.sliced ? ms_params_slice(state, p, &begin) : master.count;
    for (int64_t at = begin; at < begin + count; at += AT_ONCE) {
      const int64_t n = begin + count - at < AT_ONCE ? begin + count - at : AT_ONCE;
      MS_GOTO(by(state, (float *)master.data + at, (float *)ema.data + at, n, room));
    }
  }
fail:
  free(room);
  return rc;
}

static int check_averages(const ms_state *state) {
  for (int u = 0; u < state->model->units; u++)
    if (state->model->unit[u].trainable_count && state->layout.unit[u].at[MS_SLOT_EMA] < 0)
      return MS_FAIL(MS_EINVAL, "the state keeps no averages of its weights: create it with ema_decay above 0");
  return MS_OK;
}

int ms_state_swap_ema(ms_state *state, int alone) {
  MS_HANDLE(state, STATE);
  MS_TRY(check_averages(state));
  MS_TRY(ms_state_settle(state));
  ms_recorder *recorder = ms_world_recorder(state->world);
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "swapping weights and averages"));
  int rc = alone ? MS_OK : ms_group_barrier(&state->process_group);
  if (!rc) {
    ms_progress_set(state, MS_AVERAGES_SWAPPED, !ms_progress_has(state, MS_AVERAGES_SWAPPED));
    rc = move_all(state, swap, 1);
    if (!rc) rc = ms_params_copy(state, 1);
  }
  if (!rc && alone) ms_progress_set(state, MS_REPLICAS_MUST_MEET, 1);
  else if (!rc) rc = ms_ema_meet_replicas(state);
  ms_recorder_leave(recorder, rc);
  return rc;
}

int ms_ema_meet_replicas(ms_state *state) {
  ms_progress_set(state, MS_REPLICAS_MUST_MEET, 0);
  if (state->layout.replicas > 1) MS_TRY(ms_group_barrier(&state->process_group));
  return ms_params_gather_slices(state);
}

int ms_ema_restart(ms_state *state) {
  MS_TRY(check_averages(state));
  MS_TRY(ms_progress_check_masters(state, "restart its averages"));
  return move_all(state, restart, 0);
}
