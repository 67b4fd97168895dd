/* factors.c - access to what Adafactor keeps of a parameter (plan/layout/factors.h). */
#include "plan/layout/factors.h"

#include "exec/tensors/params.h"

int64_t ms_params_factors(const ms_model *model, int param, int what) {
  const ms_factored f = ms_factored_param(model, &model->param[param]);
  if (what == MS_TENSOR_COL_VAR) return ms_factored_column_count(&f);
  return (what == MS_TENSOR_VARIANCE) == !f.matrices ? ms_factored_row_count(&f) : 0;
}

int ms_params_find_factors(const ms_state *state, int param, int what, ms_elements *at) {
  const ms_model *model = state->model;
  const ms_param *p = &model->param[param];
  const int64_t of_unit = state->layout.unit[p->unit].at[MS_SLOT_FACTORS],
                count = ms_params_factors(model, param, what);
  if (of_unit < 0 || !ms_param_has_factors(&state->layout, p) || !count) return 0;
  int64_t first = ms_param_factors_first(model, &state->layout, p);
  if (what == MS_TENSOR_COL_VAR) first += ms_params_factors(model, param, MS_TENSOR_ROW_VAR);
  char *data = ms_state_block(state, MS_ARENA_STATE) + of_unit + 4 * first;
  *at = (ms_elements){.data = data, .dtype = MS_F32, .param = param, .count = count};
  return 1;
}
