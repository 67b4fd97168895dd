/* restart.c - tensors that get what training starts with: parameters their initial values; averages, and what local
 * SGD keeps, the present weights or zeros; and copies of masters what these are.
 *
 * Units with a fragment keep the weights of the last sync next to their local ones: the point from which the replicas
 * of a model take their local steps (DiLoCo).
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/min.h"
#include "comm/recorder/flight_recorder.h"
#include "exec/tensors/params.h"
#include "exec/tensors/stored.h"
#include "exec/tensors/tensor_table.h"

/* Elements per copy: 1 MiB. */
enum { AT_ONCE = 1 << 18 };

/* Elements [begin, begin + count) of what was found. from NULL: they become zeros. */
static int fill(ms_state *state, const ms_elements *from, const ms_elements *to, int64_t begin, int64_t count,
                float *room) {
  if (!from) memset(room, 0, (size_t)ms_min(AT_ONCE, count) * sizeof *room);
  for (int64_t n, at = begin; at < begin + count; at += n) {
    n = ms_min(AT_ONCE, begin + count - at);
    if (from) MS_TRY(ms_params_copy_out(state, from, at, n, room));
    MS_TRY(ms_params_copy_in(state, to, at, n, room));
  }
  return MS_OK;
}

/* Calls `by` for every parameter, with room for AT_ONCE elements. */
typedef int fill_param(ms_state *state, int param, int with, float *room);

static int fill_params(ms_state *state, fill_param *by, int with) {
  float *room = ms_calloc(AT_ONCE, sizeof *room);
  int rc = room ? MS_OK : MS_ENOMEM;
  for (int i = 0; i < state->model->params && !rc; i++) rc = by(state, i, with, room);
  free(room);
  return rc;
}

/* ---- copies of masters ------------------------------------------------------------------------------------------- */

static int copy_param(ms_state *state, int param, int sliced, float *room) {
  const ms_param *p = &state->model->param[param];
  ms_elements master, copy;
  if (!ms_params_has_copy(state, p)) return MS_OK;
  MS_TRY(ms_params_find(state, param, MS_TENSOR_PARAM, &master));
  ms_params_find_weights(state, p, &copy);
  int64_t begin = 0, count = sliced ? ms_params_slice(state, p, &begin) : p->owned;
  return fill(state, &master, &copy, begin, count, room);
}

int ms_params_copy(ms_state *state, int sliced) {
  int copies = 0;
  for (int i = 0; i < state->model->params; i++) copies |= ms_params_has_copy(state, &state->model->param[i]);
  if (copies) MS_TRY(fill_params(state, copy_param, sliced));
  if (!sliced) ms_progress_set(state, MS_COPIES_BEHIND, 0);
  return MS_OK;
}

/* ---- slots that are cleared -------------------------------------------------------------------------------------- */

int ms_state_clear(ms_state *state, int slot) {
  const int64_t most = AT_ONCE * (int64_t)sizeof(float);
  int rc = MS_OK;
  void *zeros = NULL;
  for (int u = 0; u < state->model->units; u++) {
    const int64_t at = state->layout.unit[u].at[slot], bytes = state->layout.unit[u].bytes[slot];
    if (at < 0) continue;
    if (!zeros && !(zeros = ms_calloc(most, 1))) return MS_ENOMEM;
    char *start = ms_state_block(state, ms_state_arena(state->model, &state->layout, u, slot)) + at;
    for (int64_t done = 0; done < bytes; done += most)
      MS_GOTO(ms_state_copy_in(state, start + done, zeros, ms_min(most, bytes - done)));
  }
fail:
  free(zeros);
  return rc;
}

/* ---- what training starts with ----------------------------------------------------------------------------------- */

/* The tensors of a parameter that start again with a kind. */
static int restart_param(ms_state *state, int param, int with, float *room) {
  const ms_param *p = &state->model->param[param];
  ms_elements master, to;
  for (int what = 0; what < MS_TENSOR_KINDS; what++) {
    const ms_tensor_row *row = &ms_tensor_rows[what];
    if (row->starts == MS_STARTS_NOT || row->starts_with != with || !ms_slot_has(&state->layout, row->slot, p))
      continue;
    MS_TRY(ms_params_find(state, param, MS_TENSOR_PARAM, &master));
    MS_TRY(ms_params_find(state, param, what, &to));
    MS_TRY(fill(state, row->starts == MS_STARTS_AS_WEIGHTS ? &master : NULL, &to, 0, to.count, room));
  }
  return MS_OK;
}

int ms_ema_check(const ms_state *state) {
  for (int u = 0; u < state->model->units; u++)
    if (state->model->unit[u].trainable_count && state->layout.unit[u].at[MS_SLOT_EMA] < 0)
      return MS_FAIL(MS_EINVAL, "the state keeps no averages of its weights: create it with ema_decay above 0");
  return MS_OK;
}

static int restart_averages(ms_state *state) {
  MS_TRY(ms_ema_check(state));
  MS_TRY(ms_progress_check_masters(state, "restart its averages"));
  return fill_params(state, restart_param, MS_TENSOR_EMA);
}

static int restart_local_steps(ms_state *state) {
  MS_TRY(ms_progress_check_masters(state, "restart local SGD"));
  if (!ms_model_local_units(state->model)) return MS_OK;
  MS_TRY(fill_params(state, restart_param, MS_TENSOR_SYNCED));
  ms_progress_set(state, MS_SYNC_FAILED, 0);
  return MS_OK;
}

int ms_state_draw(ms_state *state) {
  MS_TRY(ms_progress_check_masters(state, "draw initial values"));
  MS_TRY(ms_state_settle(state));
  ms_recorder *recorder = ms_world_recorder(state->world);
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "drawing the parameters"));
  int rc = ms_params_init(state);
  if (!rc) rc = ms_stored_finish(state, 0, state->model->params);
  if (!rc) rc = restart_local_steps(state);
  ms_recorder_leave(recorder, rc);
  return rc;
}

int ms_state_restart(ms_state *state, int what) {
  MS_HANDLE(state, STATE);
  if (what == MS_TENSOR_PARAM) return ms_state_draw(state);
  if (what == MS_TENSOR_EMA) return restart_averages(state);
  if (what == MS_TENSOR_SYNCED) return restart_local_steps(state);
  return MS_FAIL(MS_EINVAL, "ms_state_restart: what is %d; it must be %d, %d or %d (enum ms_tensor_kind)", what,
                 MS_TENSOR_PARAM, MS_TENSOR_EMA, MS_TENSOR_SYNCED);
}
