/* optimizer.c - the table of optimizers, and the settings of their updates. */
#include "plan/optimizer.h"

#include <pthread.h>
#include <stdio.h>

#include "base/settings/settings.h"
#include "graph/graph.h"
#include "kernels/formats/moments.h"
#include "plan/layout/factors.h"
#include "shard/param_group.h"

/* ---- the table ---- */

static const ms_optimizer rows[] = {
#define MS_OPTIMIZER(name, NAME, ...) [MS_OPT_##NAME] = {__VA_ARGS__},
#include "base/settings/each_setting.h"
};

_Static_assert(sizeof rows / sizeof *rows == MS_OPTIMIZER_KINDS, "groups know every optimizer");

const ms_optimizer *ms_optimizer_of(const ms_plan_config *config) {
  const int n = config->optimizer;
  return n > MS_OPT_NONE && n < MS_OPTIMIZER_KINDS ? &rows[n] : NULL;
}

int ms_moments_updated(const ms_optimizer *optimizer, const ms_param_group *by) {
  return optimizer->needs_momentum && by->momentum == 0 ? 0 : optimizer->moments;
}

int ms_moments_kept(const ms_plan_config *config) {
  static const ms_param_group none = {.beta1 = -1, .beta2 = -1, .eps = -1, .momentum = -1};
  const ms_optimizer *optimizer = config->train ? ms_optimizer_of(config) : NULL;
  if (!optimizer) return 0;
  const ms_param_group by = ms_group_complete(&none, config->optimizer, config);
  return ms_moments_updated(optimizer, &by);
}

/* ---- settings by optimizer, looked up once, because every parameter asks ---- */

enum { MOST_ATTRIBUTES = sizeof(ms_op_attrs) / 8 }; /* each has a word */

/* An attribute of an optimizer's op, and the setting of the same name: of the parameter's group, or the plan's. */
typedef struct attribute_source {
  const ms_attribute *attribute;
  const ms_setting *setting;
  int is_group;
} attribute_source;

static attribute_source sources[MS_OPTIMIZER_KINDS][MOST_ATTRIBUTES + 1]; /* NULL behind the last one */
static const ms_setting *moments_setting[MS_OPTIMIZER_KINDS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const ms_setting *plan_setting(int kind, const char *name) {
  char whole[MS_SETTING_TEXT];
  snprintf(whole, sizeof whole, "%.100s.%.100s", ms_optimizer_name(kind), name);
  return ms_setting_find(ms_settings_of("ms_plan_config"), whole);
}

static void find_sources(int kind) {
  int attributes, n = 0;
  const ms_attribute *a = ms_op_attributes(rows[kind].op, &attributes);
  for (; attributes > 0; attributes--, a++) {
    char name[MS_SETTING_TEXT];
    snprintf(name, sizeof name, "%.*s", a->length, a->name);
    const ms_setting *of_group = ms_setting_find(ms_settings_of("ms_param_group"), name);
    const ms_setting *setting = of_group ? of_group : plan_setting(kind, name);
    if (!setting || setting == moments_setting[kind]) continue;
    sources[kind][n++] = (attribute_source){a, setting, of_group != NULL};
  }
}

static void look_up(void) {
  for (int kind = 0; kind < MS_OPTIMIZER_KINDS; kind++) {
    moments_setting[kind] = plan_setting(kind, "moments");
    if (rows[kind].moments) find_sources(kind);
  }
}

ms_op_attrs ms_update_attrs(const ms_plan_config *config, const ms_updated *u) {
  pthread_once(&once, look_up);
  ms_op_attrs attrs = {0};
  for (const attribute_source *s = sources[config->optimizer]; s->attribute; s++)
    ms_attribute_set(s->attribute, &attrs, ms_setting_value(s->setting, s->is_group ? (const void *)&u->by : config));
  attrs.update.coupled = rows[config->optimizer].coupled;
  if (!moments_setting[config->optimizer]) return attrs;
  const ms_moment_form *form = ms_moment_form_of(u->moments);
  attrs.update.moments = form->kernel;
  if (!form->rounds_at_random) return attrs;
  attrs.update.stream = (int64_t)u->key;
  attrs.update.first = u->first;
  return attrs;
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
