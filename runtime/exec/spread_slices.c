/* spread_slices.c - gives every replica the parameters of sliced units (plan/replica_slices.h) that were changed slice
 * by slice.
 *
 * A plan gathers the slices after an update. Everything else that changes parameters gives every replica the whole
 * chunk, except a swap with the averages, of which a replica has only its slice, and a recovery, which can drop the
 * gathers of an update.
 */
#include <stdlib.h>

#include "base/error.h"
#include "exec/params.h"

enum { AT_ONCE = 8 << 20 }; /* elements: 32 MiB on each rank */

/* Gathers a parameter from the slices, and writes what this rank owns of it. */
static int spread(ms_state *state, int param, float *room) {
  const ms_param *p = &state->model->param[param];
  ms_elements to;
  MS_TRY(ms_params_find_writable(state, param, MS_TENSOR_PARAM, &to));
  for (int64_t begin = 0; begin < p->numel; begin += AT_ONCE) {
    const int64_t n = p->numel - begin < AT_ONCE ? p->numel - begin : AT_ONCE;
    MS_TRY(ms_state_gather_range(state, param, MS_TENSOR_PARAM, begin, n, room));
    const int64_t first = to.first > begin ? to.first : begin;
    const int64_t last = to.first + to.count < begin + n ? to.first + to.count : begin + n;
    if (last > first)
      MS_TRY(ms_params_write(state, param, &to, first - to.first, last - first, room + (first - begin)));
  }
  return MS_OK;
}

int ms_params_spread(ms_state *state) {
  int64_t most = 0;
  int rc = MS_OK;
  for (int i = 0; i < state->model->params; i++)
    if (ms_params_is_sliced(state, &state->model->param[i]) && state->model->param[i].numel > most)
      most = state->model->param[i].numel;
  if (!most) return MS_OK;
  float *room = ms_calloc(most < AT_ONCE ? most : AT_ONCE, sizeof *room);
  if (!room) return MS_ENOMEM;
  for (int i = 0; i < state->model->params && !rc; i++)
    if (ms_params_is_sliced(state, &state->model->param[i])) rc = spread(state, i, room);
  free(room);
  return rc ? rc : ms_group_barrier(&state->process_group);
}

int ms_state_make_whole(ms_state *state) {
  const unsigned epoch = 1 + ms_world_epoch(state->world);
  if (!state->in_flight.whole || state->in_flight.whole == epoch) return MS_OK;
  MS_TRY(ms_params_spread(state));
  state->in_flight.whole = epoch;
  return MS_OK;
}

int ms_state_spread(ms_state *state) {
  MS_HANDLE(state, STATE);
  return ms_params_spread(state);
}
