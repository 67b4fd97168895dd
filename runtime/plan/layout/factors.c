/* factors.c - see the header. */
#include "plan/layout/factors.h"

#include "shard/divided.h"

ms_factored ms_factored_param(const ms_model *model, const ms_param *p) {
  const ms_division part = ms_param_division(model, p, model->dim[MS_DIM_TENSOR].place);
  ms_factored f = {.run = part.run, .stride = part.stride, .origin = part.origin};
  f.rows = ms_param_whole_numel(model, p);
  f.columns = 1;
  if (p->ndim < 2) return ms_factored_shape(f);
  f.matrices = 1;
  for (int d = 0; d < p->ndim - 2; d++) f.matrices *= p->whole[d];
  f.rows = p->whole[p->ndim - 2];
  f.columns = p->whole[p->ndim - 1];
  return ms_factored_shape(f);
}

/* Those of the unit's parameters before one; NULL: of all. */
static int64_t factors_before(const ms_model *model, const ms_state_layout *layout, const ms_unit *unit,
                              const ms_param *end) {
  int64_t n = 0;
  for (int i = 0; i < unit->params && &model->param[unit->order[i]] != end; i++) {
    const ms_param *p = &model->param[unit->order[i]];
    const ms_factored f = ms_factored_param(model, p);
    if (ms_param_has_factors(layout, p)) n += ms_factored_row_count(&f) + ms_factored_column_count(&f);
  }
  return n;
}

int64_t ms_unit_factors(const ms_model *model, const ms_state_layout *layout, const ms_unit *unit) {
  return factors_before(model, layout, unit, NULL);
}

int64_t ms_param_factors_first(const ms_model *model, const ms_state_layout *layout, const ms_param *p) {
  return factors_before(model, layout, &model->unit[p->unit], p);
}

int ms_factors_check(const ms_model *model) {
  for (int u = 0; u < model->units; u++)
    if (model->unit[u].config.fragment && model->unit[u].trainable_count)
      return MS_FAIL(
          MS_EUNSUPPORTED,
          "unit '%s' takes local steps (fragment %d), and adafactor keeps averages that are the same on all replicas: "
          "give it adamw, or no local steps",
          model->unit[u].name, model->unit[u].config.fragment);
  return MS_OK;
}
