/* copies.c - masters that a rank keeps in bf16, too (ms_unit_keeps_copies).
 *
 * Updates write both, and so does whatever writes whole elements of parameters (params.c). This is for what changes
 * masters alone.
 */
#include <stdlib.h>

#include "base/least.h"
#include "exec/tensors/params.h"

int ms_params_copy(ms_state *state, int sliced) {
  enum { AT_ONCE = 1 << 18 };
  float *room = NULL;
  int rc = MS_OK;
  for (int i = 0; i < state->model->params && !rc; i++) {
    const ms_param *p = &state->model->param[i];
    ms_elements master, copy;
    if (!ms_params_has_copy(state, p)) continue;
    if (!room && !(room = ms_calloc(AT_ONCE, sizeof *room))) return MS_ENOMEM;
    MS_GOTO(ms_params_find(state, i, MS_TENSOR_PARAM, &master));
    ms_params_find_weights(state, p, &copy);
    int64_t begin = 0, count = sliced ? ms_params_slice(state, p, &begin) : p->owned;
    for (int64_t at = begin, n; at < begin + count; at += n) {
      n = ms_least(AT_ONCE, begin + count - at);
      MS_GOTO(ms_params_copy_out(state, &master, at, n, room));
      MS_GOTO(ms_params_copy_in(state, &copy, at, n, room));
    }
  }
  if (!sliced) ms_progress_set(state, MS_COPIES_BEHIND, 0);
fail:
  free(room);
  return rc;
}
