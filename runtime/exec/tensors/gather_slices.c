/* gather_slices.c - ends the writing of a state's tensors, and gives every replica the parameters of sliced units
 * (plan/layout/replica_slices.h) that were changed slice by slice.
 *
 * A plan gathers the slices after an update. Everything else that changes parameters gives every replica the whole
 * chunk, except a swap with the averages, of which a replica has only its slice, and a recovery, which can drop the
 * gathers of an update.
 */
#include <stdlib.h>

#include "base/error.h"
#include "exec/tensors/params.h"
#include "exec/tensors/record_table.h"
#include "shard/divided.h"

enum { AT_ONCE = 8 << 20 }; /* elements: 32 MiB on each rank */

/* Gathers a parameter from the slices, and writes what this rank owns of it. */
static int spread(ms_state *state, int param, float *room) {
  const int64_t whole = ms_param_whole_numel(state->model, &state->model->param[param]);
  ms_elements to;
  MS_TRY(ms_params_find_writable(state, param, MS_TENSOR_PARAM, &to));
  for (int64_t begin = 0; begin < whole; begin += AT_ONCE) {
    const int64_t n = whole - begin < AT_ONCE ? whole - begin : AT_ONCE;
    MS_TRY(ms_state_gather(state, param, MS_TENSOR_PARAM, begin, n, room));
    MS_TRY(ms_params_take(state, param, &to, begin, begin + n, room));
  }
  return MS_OK;
}

int ms_params_gather_slices(ms_state *state) {
  const ms_model *model = state->model;
  int64_t most = 0;
  int rc = MS_OK;
  for (int i = 0; i < model->params; i++) {
    const int64_t whole = ms_param_whole_numel(model, &model->param[i]);
    if (ms_params_is_sliced(state, &model->param[i]) && whole > most) most = whole;
  }
  if (!most) return MS_OK;
  float *room = ms_calloc(most < AT_ONCE ? most : AT_ONCE, sizeof *room);
  if (!room) return MS_ENOMEM;
  for (int i = 0; i < model->params && !rc; i++)
    if (ms_params_is_sliced(state, &model->param[i])) rc = spread(state, i, room);
  free(room);
  return rc ? rc : ms_group_barrier(&state->process_group);
}

int ms_state_make_whole(ms_state *state) {
  const unsigned epoch = 1 + ms_world_epoch(state->world);
  if (!state->in_flight.whole || state->in_flight.whole == epoch) return MS_OK;
  MS_TRY(ms_params_gather_slices(state));
  state->in_flight.whole = epoch;
  return MS_OK;
}

int ms_state_finish_writes(ms_state *state) {
  MS_HANDLE(state, STATE);
  MS_TRY(ms_state_settle(state));
  ms_resident_forget(state);
  MS_TRY(ms_state_clear(state, MS_SLOT_RESIDUALS)); /* of gradients of other weights */
  MS_TRY(ms_records_finish(state));
  return ms_params_gather_slices(state);
}
