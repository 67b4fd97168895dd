/* optimizer.c - the table of optimizers, and what each of its rows points to. */
#include "plan/optimizer.h"

#include <pthread.h>
#include <stdio.h>

#include "base/settings/settings.h"
#include "kernels/formats/moments.h"
#include "plan/layout/factors.h"
#include "shard/param_group.h"

/* ---- SGD: its momentum, if it has one ---- */

static int sgd_moments(const ms_param_group *by) { return by->momentum != 0; }

static ms_op_attrs sgd_attrs(const ms_plan_config *c, const ms_updated *u) {
  return (ms_op_attrs){.update = {.lr_scale = u->by.lr_scale,
                                  .weight_decay = u->by.weight_decay,
                                  .momentum = u->by.momentum,
                                  .dampening = c->sgd.dampening,
                                  .nesterov = c->sgd.nesterov}};
}

/* ---- AdamW and Adam: exp_avg and exp_avg_sq ---- */

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

/* ---- Muon, whose parameters keep their momentum, and Adafactor, whose averages are no moments (factors.h) ---- */

static int no_moments(const ms_param_group *by) {
  (void)by;
  return 0;
}

/* ---- the table ---- */

static const ms_optimizer rows[] = {
    [MS_OPT_SGD] = {MS_OP_sgd, 1, sgd_moments, sgd_attrs},
    [MS_OPT_ADAMW] = {MS_OP_adamw, 2, adamw_moments, adamw_attrs},
    [MS_OPT_MUON] = {.moments = no_moments},
    [MS_OPT_ADAM] = {MS_OP_adamw, 2, adamw_moments, adamw_attrs},
    [MS_OPT_LION] = {MS_OP_lion, 1, lion_moments, lion_attrs},
    [MS_OPT_ADAFACTOR] = {.check_model = ms_factors_check, .moments = no_moments},
};

_Static_assert(sizeof rows / sizeof *rows == MS_OPTIMIZER_KINDS, "groups know every optimizer");

const ms_optimizer *ms_optimizer_of(const ms_plan_config *config) {
  const int n = config->optimizer;
  return n > MS_OPT_NONE && n < MS_OPTIMIZER_KINDS ? &rows[n] : NULL;
}

int ms_moments_kept(const ms_plan_config *config) {
  static const ms_param_group none = {.beta1 = -1, .beta2 = -1, .eps = -1, .momentum = -1};
  const ms_optimizer *optimizer = config->train ? ms_optimizer_of(config) : NULL;
  if (!optimizer) return 0;
  const ms_param_group by = ms_group_complete(&none, config->optimizer, config);
  return optimizer->moments(&by);
}

/* By optimizer: its setting `moments`, or NULL. Looked up once, because every parameter asks. */
static const ms_setting *moments_setting[MS_OPTIMIZER_KINDS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void look_up(void) {
  for (int kind = 0; kind < MS_OPTIMIZER_KINDS; kind++) {
    char name[64];
    snprintf(name, sizeof name, "%s.moments", ms_optimizer_name(kind));
    moments_setting[kind] = ms_setting_find(ms_settings_of("ms_plan_config"), name);
  }
}

int ms_moment_dtype_of(const ms_plan_config *config) {
  pthread_once(&once, look_up);
  const ms_setting *setting = moments_setting[config->optimizer];
  return setting ? (int)ms_setting_value(setting, config) : MS_F32;
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
    MS_TRY(ms_group_check_optimizer(p->name, &p->config.group, kind));
    if (kind == MS_OPT_SGD && config->sgd.momentum == 0 && ms_updates_of(config, p).momentum != 0)
      return MS_FAIL(MS_EINVAL,
                     "parameter '%s': its momentum is %g, but that of the plan's sgd is 0, so no momentum is kept: set "
                     "momentum of the plan above 0, and that of other parameters to 0",
                     p->name, p->config.group.momentum);
  }
  return optimizer && optimizer->check_model ? optimizer->check_model(model) : MS_OK;
}
