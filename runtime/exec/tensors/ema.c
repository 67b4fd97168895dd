/* ema.c - swaps the master weights with their averages, so that everything that reads parameters reads the averages. */
#include <stdlib.h>

#include "base/error.h"
#include "comm/recorder/flight_recorder.h"
#include "exec/tensors/params.h"

/* Elements per copy to and from a device: 1 MiB each way. */
enum { AT_ONCE = 1 << 18 };

static int swap(ms_state *state, float *master, float *ema, int64_t n, float *room) {
  const int64_t bytes = n * (int64_t)sizeof *master;
  if (!room) {
    for (int64_t i = 0; i < n; i++) {
      const float weight = master[i];
      master[i] = ema[i];
      ema[i] = weight;
    }
    return MS_OK;
  }
  MS_TRY(ms_state_copy_out(state, room, master, bytes));
  MS_TRY(ms_state_copy_out(state, room + AT_ONCE, ema, bytes));
  MS_TRY(ms_state_copy_in(state, master, room + AT_ONCE, bytes));
  return ms_state_copy_in(state, ema, room, bytes);
}

/* Every owned element of every trainable parameter; of sliced units, those that this rank has; where replicas share one
 * copy, those of its slice. */
static int swap_all(ms_state *state) {
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
    int64_t begin = 0, count = !master.sliced ? ms_params_slice(state, p, &begin) : master.count;
    for (int64_t at = begin; at < begin + count; at += AT_ONCE) {
      const int64_t n = begin + count - at < AT_ONCE ? begin + count - at : AT_ONCE;
      MS_GOTO(swap(state, (float *)master.data + at, (float *)ema.data + at, n, room));
    }
  }
fail:
  free(room);
  return rc;
}

int ms_state_swap_ema(ms_state *state, int alone) {
  MS_HANDLE(state, STATE);
  MS_TRY(ms_ema_check(state));
  MS_TRY(ms_state_settle(state));
  ms_recorder *recorder = ms_world_recorder(state->world);
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "swapping weights and averages"));
  int rc = alone ? MS_OK : ms_group_barrier(&state->process_group);
  if (!rc) {
    ms_progress_set(state, MS_AVERAGES_SWAPPED, !ms_progress_has(state, MS_AVERAGES_SWAPPED));
    rc = swap_all(state);
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
