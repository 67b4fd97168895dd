/* lower_update.c - the kernel of a step of an update: where its operands are, and its attributes. */
#include "plan/layout/factors.h"
#include "plan/lower/optimizers/update.h"

ms_update_item ms_update_item_of(const ms_plan *plan, int param) {
  const ms_param *p = &plan->model->param[param];
  ms_update_item item = {.param = param, .unit = p->unit, .segment = p->segment};
  if (p->owned) item.own = ms_lower_own_part(plan, p->unit, p->local, p->local + p->owned);
  if (item.own.end <= item.own.begin) item.own = (ms_stretch){0, 0};
  return item;
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Operands that are this rank's elements in a slot. */
#define SLOT_OF_MOMENT(index, ...) [MS_OF_MOMENT + index] = MS_SLOT_MOMENT + index,
static const int slot_of[MS_OF_NORM] = {[MS_OF_GRADIENT] = MS_SLOT_GRADIENT,
                                        [MS_OF_WEIGHT] = MS_SLOT_MASTER,
                                        [MS_OF_EMA] = MS_SLOT_EMA,
                                        [MS_OF_SYNCED] = MS_SLOT_SYNCED,
                                        [MS_OF_OUTER_MOMENTUM] = MS_SLOT_OUTER_MOMENTUM,
                                        MS_EACH_MOMENT(SLOT_OF_MOMENT)};

/* 1 when a step updates what a slot has: not a moment of a group without momentum, and nothing where it is empty. */
static int is_updated(const ms_plan *plan, const ms_optimizer *by, const ms_update_item *item, int of) {
  const int slot = slot_of[of], is_moment = slot >= MS_SLOT_MOMENT && slot < MS_SLOT_MOMENT + MS_MOMENTS;
  if (item->param < 0) return plan->layout->unit[item->unit].at[slot] >= 0;
  const ms_param *p = &plan->model->param[item->param];
  const ms_param_group group = ms_updates_of(&plan->config, p);
  return ms_slot_has(plan->layout, slot, p) && !(is_moment && by->needs_momentum && group.momentum == 0);
}

static ms_ref averages(const ms_plan *plan, const ms_update_item *item, int of_columns) {
  const ms_param *p = &plan->model->param[item->param];
  const ms_factored f = ms_factored_param(plan->model, p);
  const int64_t first = ms_param_factors_first(plan->model, plan->layout, p);
  const int64_t rows = ms_factored_row_count(&f), columns = ms_factored_column_count(&f);
  return ms_ref_vector(ms_state_buffer(item->unit, MS_SLOT_FACTORS), 4 * (first + (of_columns ? rows : 0)), MS_F32,
                       of_columns ? columns : rows);
}

static ms_ref operand(const ms_plan *plan, const ms_optimizer *by, const ms_update_item *item, int of, ms_stretch own,
                      const ms_ref *vector) {
  switch (of) {
    case MS_OF_NORM: return ms_lower_norm_of(plan, item->param);
    case MS_OF_UPDATES: return ms_ref_scalar(ms_updates_buffer(plan), 4 * item->param);
    case MS_OF_ROW_AVERAGES: return averages(plan, item, 0);
    case MS_OF_COLUMN_AVERAGES: return averages(plan, item, 1);
    default: break;
  }
  if (of >= MS_OF_VECTOR) return vector[of - MS_OF_VECTOR];
  if (is_updated(plan, by, item, of)) return ms_lower_slot(plan, slot_of[of], item->unit, item->segment, own);
  return ms_ref_vector(ms_state_buffer(item->unit, slot_of[of]), 0, MS_F32, 0);
}

/* The operands of a list, at most `most`; returns their number. *writes: the weight is one of them. */
static int operands(const ms_plan *plan, const ms_optimizer *by, const ms_update_item *item, const unsigned char *list,
                    int most, ms_stretch own, const ms_ref *vector, ms_ref *ref, int *weight) {
  int n = 0;
  for (*weight = 0; n < most && list[n] != MS_OF_NOTHING; n++) {
    ref[n] = operand(plan, by, item, list[n], own, vector);
    *weight |= list[n] == MS_OF_WEIGHT;
  }
  return n;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

int ms_lower_update_kernel(ms_plan *plan, int phase, const ms_optimizer *by, const ms_update_step *step,
                           const ms_update_item *item, ms_stretch own, const ms_ref *vector) {
  const ms_op_row *op = ms_op_row_of(step->op);
  const int unit = item->unit, segment = item->segment;
  const char *scope = by->scope ? by->scope : plan->model->unit[unit].name;
  ms_ref in[MS_MAX_INPUTS], out[MS_MAX_OUTPUTS];
  int reads, writes;
  const int inputs = operands(plan, by, item, step->in, op->max_inputs, own, vector, in, &reads);
  int outputs = operands(plan, by, item, step->out, op->outputs, own, vector, out, &writes);
  ms_op_attrs attrs;
  if (by->updates_units) attrs = ms_update_attrs(&plan->config, by, step, NULL);
  else {
    const ms_param_group group = ms_updates_of(&plan->config, &plan->model->param[item->param]);
    attrs = ms_update_attrs(&plan->config, by, step, &group);
  }
  if (step->attributes) step->attributes(plan, by, item, &attrs);
  const int copies = op->flags & MS_OP_COPIES;
  if (copies && ms_lower_has_copy(plan, unit, segment))
    out[outputs++] = ms_plan_weights(plan, unit, segment, own.begin, own.end - own.begin);
  MS_TRY(ms_plan_kernel(plan, phase, step->op, &attrs, inputs, in, outputs, out, scope, 0));
  if (copies || !writes || by->updates_units) return MS_OK;
  return ms_lower_copy(plan, phase, unit, segment, own, scope);
}

int ms_lower_update_item(ms_plan *plan, int phase, const ms_optimizer *by, const ms_update_item *item,
                         const ms_ref *vector) {
  for (const ms_update_step *s = by->step; s->kind && item->own.end > item->own.begin; s++)
    MS_TRY(ms_lower_update_kernel(plan, phase, by, s, item, item->own, vector));
  return MS_OK;
}
