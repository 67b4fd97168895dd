/* outer.c - local SGD (DiLoCo): the point from which the replicas of a model take their local steps.
 *
 * Units with a fragment keep the weights of the last sync next to their local ones. Where a program overwrites weights
 * on all replicas, both change, so that the next outer step does not undo the change.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "exec/tensors/tensor_table.h"

/* Elements per copy: 1 MiB. */
enum { AT_ONCE = 1 << 18 };

/* Fills a parameter's owned elements of a kind with its weights or, for other kinds than SYNCED, with zeros. */
static int restart(ms_state *state, int param, int what, float *room) {
  const ms_param *p = &state->model->param[param];
  ms_elements master, kept;
  if (!ms_slot_has(&state->layout, ms_tensor_rows[what].slot, p)) return MS_OK;
  MS_TRY(ms_params_find(state, param, MS_TENSOR_PARAM, &master));
  MS_TRY(ms_params_find(state, param, what, &kept));
  for (int64_t at = 0; at < p->owned; at += AT_ONCE) {
    const int64_t n = p->owned - at < AT_ONCE ? p->owned - at : AT_ONCE;
    if (what == MS_TENSOR_SYNCED) MS_TRY(ms_params_copy_out(state, &master, at, n, room));
    else memset(room, 0, (size_t)n * sizeof *room);
    MS_TRY(ms_params_copy_in(state, &kept, at, n, room));
  }
  return MS_OK;
}

int ms_outer_take(ms_state *state, int param, int64_t first, int64_t count, const float *values) {
  const ms_param *p = &state->model->param[param];
  ms_elements synced;
  if (!ms_slot_has(&state->layout, MS_SLOT_SYNCED, p) || ms_progress_has(state, MS_AVERAGES_SWAPPED)) return MS_OK;
  MS_TRY(ms_params_find(state, param, MS_TENSOR_SYNCED, &synced));
  return ms_params_copy_in(state, &synced, first, count, values);
}

int ms_outer_restart(ms_state *state) {
  MS_TRY(ms_progress_check_masters(state, "restart local SGD"));
  if (!ms_model_local_units(state->model)) return MS_OK;
  float *room = ms_calloc(AT_ONCE, sizeof *room);
  if (!room) return MS_ENOMEM;
  int rc = MS_OK;
  for (int i = 0; i < state->model->params && !rc; i++)
    for (int what = MS_TENSOR_SYNCED; what <= MS_TENSOR_OUTER_SUM && !rc; what++) rc = restart(state, i, what, room);
  free(room);
  if (!rc) ms_progress_set(state, MS_SYNC_FAILED, 0);
  return rc;
}
