/* factors.h - what Adafactor keeps of parameters (kernels/adafactor.h): averages of squares by row and by column of a
 * matrix, or by element of a parameter with fewer than two axes. They are of whole parameters, and whole on every rank,
 * the same bits: a unit's are one after the other, in the order of its parameters.
 */
#ifndef MS_PLAN_FACTORS_H
#define MS_PLAN_FACTORS_H

#include "kernels/adafactor.h"
#include "plan/plan.h"

/* 1 when states of an optimizer (enum ms_optimizer_kind) keep such averages of the parameter; when it updates it with
 * them. */
static inline int ms_param_has_factors(const ms_param *p, int optimizer) {
  return optimizer == MS_OPT_ADAFACTOR && !p->config.frozen && !ms_param_takes_muon(p);
}
static inline int ms_param_takes_adafactor(const ms_param *p, int optimizer) {
  return ms_param_has_factors(p, optimizer) && !ms_param_is_balanced(p);
}
/* The parameter, of which this rank has its part along a tensor dimension; first is 0. */
ms_factored ms_factored_param(const ms_model *model, const ms_param *p);
/* The averages that are kept of it; of a unit. */
int64_t ms_param_factors(const ms_model *model, const ms_param *p);
int64_t ms_unit_factors(const ms_model *model, const ms_unit *unit, int optimizer);
/* The first average of a parameter's among its unit's: of rows, or elements. Those of columns are behind them. */
int64_t ms_param_factors_first(const ms_model *model, int param, int optimizer);
/* Fails when a model has units that take local steps: replicas would have other averages. */
int ms_factors_check(const ms_model *model);

#endif
