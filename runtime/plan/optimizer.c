/* optimizer.c - the table of optimizers, and what each of its rows points to. */
#include "plan/optimizer.h"

#include <math.h>
#include <string.h>

#include "kernels/formats/moments.h"
#include "plan/layout/factors.h"
#include "shard/param_group.h"

enum { MOST_STEPS = 99 }; /* of an iteration that five steps end */

/* ---- SGD: its momentum, if it has one ---- */

/* The negated comparisons in the checks also reject NaN. */
static int check_sgd(const ms_plan_config *c) {
  if (!(c->momentum >= 0 && c->momentum < 1))
    return MS_FAIL(MS_EINVAL, "momentum must be at least 0 and below 1, not %g", c->momentum);
  if (!isfinite(c->dampening)) return MS_FAIL(MS_EINVAL, "dampening must be finite, not %g", c->dampening);
  return MS_OK;
}

static int sgd_moments(const ms_param_group *by) { return by->momentum != 0; }

static ms_op_attrs sgd_attrs(const ms_plan_config *c, const ms_updated *u) {
  return (ms_op_attrs){.update = {.lr_scale = u->by.lr_scale,
                                  .weight_decay = u->by.weight_decay,
                                  .momentum = u->by.momentum,
                                  .dampening = c->dampening,
                                  .nesterov = c->nesterov}};
}

/* ---- AdamW and Adam: exp_avg and exp_avg_sq ---- */

static int check_betas(const ms_plan_config *c) {
  if (!(c->beta1 >= 0 && c->beta1 < 1))
    return MS_FAIL(MS_EINVAL, "beta1 must be at least 0 and below 1, not %g", c->beta1);
  if (!(c->beta2 >= 0 && c->beta2 < 1))
    return MS_FAIL(MS_EINVAL, "beta2 must be at least 0 and below 1, not %g", c->beta2);
  return MS_OK;
}

static int check_adamw(const ms_plan_config *c) {
  MS_TRY(check_betas(c));
  if (!((float)c->eps > 0 && isfinite(c->eps)))
    return MS_FAIL(MS_EINVAL, "eps must be above 0 and finite, also in f32, not %g", c->eps);
  return MS_OK;
}

static int adamw_moments(const ms_param_group *by) {
  (void)by;
  return 2;
}

/* The form of the moments, and where their rounding draws. */
static void set_form(ms_op_attrs *attrs, const ms_updated *u) {
  const ms_moment_form *form = ms_moment_form_of(u->moments);
  attrs->update.moments = form->kernel;
  if (!form->rounds_at_random) return;
  attrs->update.stream = (int64_t)u->key;
  attrs->update.first = u->first;
}

static ms_op_attrs adamw_attrs(const ms_plan_config *c, const ms_updated *u) {
  const ms_param_group *by = &u->by;
  ms_op_attrs attrs = {.update = {.lr_scale = by->lr_scale,
                                  .weight_decay = by->weight_decay,
                                  .beta1 = by->beta1,
                                  .beta2 = by->beta2,
                                  .eps = by->eps,
                                  .coupled = c->optimizer == MS_OPT_ADAM}};
  set_form(&attrs, u);
  return attrs;
}

/* ---- Lion: exp_avg ---- */

static int lion_moments(const ms_param_group *by) {
  (void)by;
  return 1;
}

static ms_op_attrs lion_attrs(const ms_plan_config *c, const ms_updated *u) {
  (void)c;
  ms_op_attrs attrs = {
      .update = {
          .lr_scale = u->by.lr_scale, .weight_decay = u->by.weight_decay, .beta1 = u->by.beta1, .beta2 = u->by.beta2}};
  set_form(&attrs, u);
  return attrs;
}

/* ---- Muon: its momentum. Parameters say that they take it, and keep its momentum ---- */

int ms_muon_check(const ms_plan_config *c) {
  if (!(c->muon_momentum >= 0 && c->muon_momentum < 1))
    return MS_FAIL(MS_EINVAL, "muon_momentum must be at least 0 and below 1, not %g", c->muon_momentum);
  if (c->muon_adjust != MS_MUON_ORIGINAL && c->muon_adjust != MS_MUON_MATCH_RMS_ADAMW)
    return MS_FAIL(MS_EINVAL, "muon_adjust must be original (0) or match_rms_adamw (1), not %d", c->muon_adjust);
  if (c->muon_steps < 1 || c->muon_steps > MOST_STEPS)
    return MS_FAIL(MS_EINVAL, "muon_steps must be 1 to %d, not %d", MOST_STEPS, c->muon_steps);
  if (c->muon_dtype != MS_F32 && c->muon_dtype != MS_BF16)
    return MS_FAIL(MS_EINVAL, "muon_dtype must be f32 (%d) or bf16 (%d), not %d", MS_F32, MS_BF16, c->muon_dtype);
  return MS_OK;
}

/* ---- Adafactor: averages that are no moments (factors.h) ---- */

static int check_adafactor(const ms_plan_config *c) {
  if (!(c->adafactor_beta2_decay <= 0 && isfinite(c->adafactor_beta2_decay)))
    return MS_FAIL(MS_EINVAL, "adafactor_beta2_decay must be at most 0 and finite, not %g", c->adafactor_beta2_decay);
  if (!(c->adafactor_eps1 >= 0 && isfinite(c->adafactor_eps1)))
    return MS_FAIL(MS_EINVAL, "adafactor_eps1 must be 0 or more and finite, not %g", c->adafactor_eps1);
  if (!(c->adafactor_eps2 >= 0 && isfinite(c->adafactor_eps2)))
    return MS_FAIL(MS_EINVAL, "adafactor_eps2 must be 0 or more and finite, not %g", c->adafactor_eps2);
  if (!(c->adafactor_d >= 1 && isfinite(c->adafactor_d)))
    return MS_FAIL(MS_EINVAL, "adafactor_d must be 1 or more and finite, not %g", c->adafactor_d);
  return MS_OK;
}

static int no_moments(const ms_param_group *by) {
  (void)by;
  return 0;
}

/* ---- the table ---- */

static const ms_optimizer rows[] = {
    [MS_OPT_SGD] = {"sgd", MS_OP_sgd, 1, 0, check_sgd, sgd_moments, sgd_attrs},
    [MS_OPT_ADAMW] = {"adamw", MS_OP_adamw, 2, 2, check_adamw, adamw_moments, adamw_attrs},
    [MS_OPT_MUON] = {.name = "muon", .check = ms_muon_check, .moments = no_moments},
    [MS_OPT_ADAM] = {"adam", MS_OP_adamw, 2, 2, check_adamw, adamw_moments, adamw_attrs},
    [MS_OPT_LION] = {"lion", MS_OP_lion, 1, 1, check_betas, lion_moments, lion_attrs},
    [MS_OPT_ADAFACTOR] = {.name = "adafactor",
                          .check = check_adafactor,
                          .check_model = ms_factors_check,
                          .moments = no_moments},
};

_Static_assert(sizeof rows / sizeof *rows == MS_OPTIMIZER_KINDS, "groups know every optimizer");

const ms_optimizer *ms_optimizer_of(const ms_plan_config *config) {
  const int n = config->optimizer;
  return n > MS_OPT_NONE && n < (int)(sizeof rows / sizeof *rows) && rows[n].name ? &rows[n] : NULL;
}

int ms_moments_kept(const ms_plan_config *config) {
  static const ms_param_group none = {1, 0, -1, -1, -1, -1};
  const ms_optimizer *optimizer = config->train ? ms_optimizer_of(config) : NULL;
  if (!optimizer) return 0;
  const ms_param_group by = ms_group_complete(&none, config->optimizer, config);
  return optimizer->moments(&by);
}

static int kind_of(const ms_plan_config *config, const ms_param *p) {
  return ms_param_takes_muon(p) ? MS_OPT_MUON : config->optimizer;
}

ms_param_group ms_updates_of(const ms_plan_config *config, const ms_param *p) {
  return ms_group_complete(&p->config.group, kind_of(config, p), config);
}

int ms_plan_check_updates(const ms_model *model, const ms_plan_config *config) {
  const ms_optimizer *optimizer = config->train ? ms_optimizer_of(config) : NULL;
  for (int i = 0; i < model->params && optimizer; i++) {
    const ms_param *p = &model->param[i];
    const int kind = kind_of(config, p);
    if (p->config.frozen || ms_param_is_balanced(p)) continue;
    MS_TRY(ms_group_check_optimizer(p->name, &p->config.group, kind, rows[kind].name));
    if (kind == MS_OPT_SGD && config->momentum == 0 && ms_updates_of(config, p).momentum != 0)
      return MS_FAIL(MS_EINVAL,
                     "parameter '%s': its momentum is %g, but that of the plan's sgd is 0, so no momentum is kept: set "
                     "momentum of the plan above 0, and that of other parameters to 0",
                     p->name, p->config.group.momentum);
  }
  return optimizer && optimizer->check_model ? optimizer->check_model(model) : MS_OK;
}
