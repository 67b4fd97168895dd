/* factors.h - what Adafactor keeps of parameters (kernels/adafactor.h): averages of squares by row and by column of a
 * matrix, or by element of a parameter with fewer than two axes. They are of whole parameters, and whole on every rank,
 * the same bits: a unit's are one after the other, in the order of its parameters.
 */
#ifndef MS_PLAN_FACTORS_H
#define MS_PLAN_FACTORS_H

#include "kernels/adafactor.h"
#include "plan/layout/state_layout.h"

/* 1 when a state keeps such averages of the parameter. */
static inline int ms_param_has_factors(const ms_state_layout *layout, const ms_param *p) {
  return !p->config.frozen && layout->optimizer[ms_param_chosen(p)].factors;
}
/* The parameter, of which this rank has its part along a tensor dimension; first is 0. */
ms_factored ms_factored_param(const ms_model *model, const ms_param *p);
/* The averages that a state keeps of a unit. */
int64_t ms_unit_factors(const ms_model *model, const ms_state_layout *layout, const ms_unit *unit);
/* The first average of a parameter's among its unit's: of rows, or elements. Those of columns are after them. */
int64_t ms_param_factors_first(const ms_model *model, const ms_state_layout *layout, const ms_param *p);
/* Fails when a model has units that take local steps: replicas would have other averages. */
int ms_factors_check(const ms_model *model);

#endif
