/* moments_finish.c - makes the records of moments that were written in part (moments.c). */
#include "exec/tensors/moments.h"

int ms_moments_finish(ms_state *state) {
  static const int what[MS_MOMENTS] = {MS_TENSOR_EXP_AVG, MS_TENSOR_EXP_AVG_SQ};
  for (int i = 0; state->open_moments && i < state->model->params * MS_MOMENTS; i++) {
    const struct ms_open_moment *moment = &state->open_moments[i];
    ms_elements to;
    if (!moment->open) continue;
    MS_TRY(ms_params_find(state, i / MS_MOMENTS, what[i % MS_MOMENTS], &to));
    for (int64_t r = 0; r < moment->records; r++) MS_TRY(ms_moments_close_record(state, &to, r));
  }
  ms_moments_free(state);
  return MS_OK;
}
