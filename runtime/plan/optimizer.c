/* optimizer.c - the table of optimizers, and the settings of their updates. */
#include "plan/optimizer.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/settings/settings.h"
#include "graph/graph.h"
#include "plan/layout/factors.h"
#include "shard/param_group.h"

/* ---- the table ---- */

static const ms_optimizer rows[] = {
#define MS_OPTIMIZER(title, NAME, ...) [MS_OPT_##NAME] = {.name = #title, __VA_ARGS__},
#include "base/settings/each_setting.h"
};

_Static_assert(sizeof rows / sizeof *rows == MS_OPTIMIZER_KINDS, "groups know every optimizer");

const ms_optimizer *ms_optimizer_of(const ms_plan_config *config) {
  const int n = config->optimizer;
  return n > MS_OPT_NONE && n < MS_OPTIMIZER_KINDS ? &rows[n] : NULL;
}

static int kind_of(const ms_plan_config *config, const ms_param *p) {
  const int chosen = ms_param_chosen(p);
  return chosen ? chosen : config->optimizer;
}

const ms_optimizer *ms_param_optimizer(const ms_plan_config *config, const ms_param *p) {
  if (p->config.frozen) return NULL;
  return ms_param_is_balanced(p) ? &ms_balance : &rows[kind_of(config, p)];
}

int ms_optimizer_has(const ms_optimizer *optimizer, int kind) {
  for (const ms_update_step *s = optimizer->step; s->kind; s++)
    if (s->kind == kind) return 1;
  return 0;
}

/* ---- what they keep ---- */

/* The setting `moments` of each, looked up once, because every layout asks. */
static const ms_setting *moments_setting[MS_OPTIMIZER_KINDS];
static pthread_once_t moments_once = PTHREAD_ONCE_INIT;

static void look_up_moments(void) {
  for (int kind = 0; kind < MS_OPTIMIZER_KINDS; kind++) {
    char name[MS_SETTING_TEXT];
    snprintf(name, sizeof name, "%.100s.moments", ms_optimizer_name(kind));
    moments_setting[kind] = ms_setting_find(ms_settings_of("ms_plan_config"), name);
  }
}

static double plan_momentum(const ms_plan_config *config, int kind) {
  static const ms_param_group none = {.beta1 = -1, .beta2 = -1, .eps = -1, .momentum = -1, .heads = -1};
  return ms_group_complete(&none, kind, config).momentum;
}

/* Whatever momentum groups have: that of the plan decides. */
ms_optimizer_state ms_optimizer_keeps(const ms_plan_config *config, int chosen) {
  if (!config->train || !ms_optimizer_of(config)) return (ms_optimizer_state){0};
  const int kind = chosen ? chosen : config->optimizer;
  const ms_optimizer *optimizer = &rows[kind];
  if (!chosen && optimizer->is_chosen) return (ms_optimizer_state){0};
  const int without = optimizer->needs_momentum && plan_momentum(config, kind) == 0;
  pthread_once(&moments_once, look_up_moments);
  const ms_setting *dtype = moments_setting[kind];
  return (ms_optimizer_state){.moments = without ? 0 : optimizer->moments,
                              .dtype = dtype ? (int)ms_setting_value(dtype, config) : MS_F32,
                              .factors = optimizer->factors};
}

/* ---- settings by optimizer, looked up once, because every parameter asks ---- */

enum { MAX_ATTRIBUTES = sizeof(ms_op_attrs) / 8, MAX_STEPS = 8 }; /* each attribute has a word */

/* An attribute of a step's op, and the setting of the same name: of the parameter's group, or the plan's. */
typedef struct attribute_source {
  const ms_attribute *attribute;
  const ms_setting *setting;
  int is_group;
} attribute_source;

static const ms_optimizer *const others[] = {&ms_balance, &ms_ema, &ms_outer_difference, &ms_outer_step, &ms_qk_clip};
enum { OTHERS = sizeof others / sizeof *others };

static attribute_source sources[MS_OPTIMIZER_KINDS + OTHERS][MAX_STEPS][MAX_ATTRIBUTES + 1]; /* NULL after the last */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const ms_setting *plan_setting(const char *name) {
  return ms_setting_find(ms_settings_of("ms_plan_config"), name);
}

/* "adamw.eps", "ema_decay". */
static const ms_setting *own_setting(const ms_optimizer *optimizer, const char *name) {
  char whole[MS_SETTING_TEXT];
  snprintf(whole, sizeof whole, "%.100s.%.100s", optimizer->name, name);
  const ms_setting *setting = plan_setting(whole);
  if (setting) return setting;
  snprintf(whole, sizeof whole, "%.100s_%.100s", optimizer->name, name);
  return plan_setting(whole);
}

static attribute_source source_of(const ms_optimizer *optimizer, const ms_attribute *attribute) {
  char name[MS_SETTING_TEXT];
  snprintf(name, sizeof name, "%.*s", attribute->length, attribute->name);
  if (!strcmp(name, "clip")) return (attribute_source){attribute, plan_setting("max_value"), 0};
  const ms_setting *of_group =
      optimizer->updates_units ? NULL : ms_setting_find(ms_settings_of("ms_param_group"), name);
  return (attribute_source){attribute, of_group ? of_group : own_setting(optimizer, name), of_group != NULL};
}

static void find_sources(const ms_optimizer *optimizer, attribute_source list[][MAX_ATTRIBUTES + 1]) {
  for (int s = 0; optimizer->step[s].kind; s++) {
    int attributes, n = 0;
    const ms_attribute *a = ms_op_attributes(optimizer->step[s].op, &attributes);
    for (; attributes > 0; attributes--, a++) {
      const attribute_source source = source_of(optimizer, a);
      if (source.setting) list[s][n++] = source;
    }
  }
}

static void look_up(void) {
  for (int kind = MS_OPT_NONE + 1; kind < MS_OPTIMIZER_KINDS; kind++) find_sources(&rows[kind], sources[kind]);
  for (int i = 0; i < OTHERS; i++) find_sources(others[i], sources[MS_OPTIMIZER_KINDS + i]);
}

static int number_of(const ms_optimizer *optimizer) {
  for (int i = 0; i < OTHERS; i++)
    if (others[i] == optimizer) return MS_OPTIMIZER_KINDS + i;
  return (int)(optimizer - rows);
}

ms_op_attrs ms_update_attrs(const ms_plan_config *config, const ms_optimizer *optimizer, const ms_update_step *step,
                            const ms_param_group *by) {
  pthread_once(&once, look_up);
  ms_op_attrs attrs = {0};
  for (const attribute_source *s = sources[number_of(optimizer)][step - optimizer->step]; s->attribute; s++)
    ms_attribute_set(s->attribute, &attrs, ms_setting_value(s->setting, s->is_group ? (const void *)by : config));
  return attrs;
}

ms_param_group ms_updates_of(const ms_plan_config *config, const ms_param *p) {
  return ms_group_complete(&p->config.group, kind_of(config, p), config);
}

ms_value_info ms_matrices_of(const ms_plan_config *config, const ms_param *p) {
  const int64_t rows = p->whole[p->ndim - 2] / (int64_t)ms_updates_of(config, p).heads, columns = p->whole[p->ndim - 1];
  int64_t all = 1;
  for (int d = 0; d < p->ndim; d++) all *= p->whole[d];
  return (ms_value_info){.dtype = MS_F32, .ndim = 3, .dims = {all / (rows * columns), rows, columns}};
}

static int check_heads(const ms_plan_config *config, const ms_param *p) {
  const double heads = ms_updates_of(config, p).heads;
  const int64_t rows = p->ndim > 1 ? p->whole[p->ndim - 2] : 1;
  if (heads == -1 || (heads == floor(heads) && heads <= (double)rows && rows % (int64_t)heads == 0)) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "parameter '%s': heads is %g, which does not divide its %lld rows", p->name, heads,
                 (long long)rows);
}

int ms_plan_check_updates(const ms_model *model, const ms_plan_config *config) {
  const ms_optimizer *optimizer = config->train ? ms_optimizer_of(config) : NULL;
  for (int i = 0; i < model->params && optimizer; i++) {
    const ms_param *p = &model->param[i];
    const int kind = kind_of(config, p);
    if (p->config.frozen || ms_param_is_balanced(p)) continue;
    MS_TRY(ms_group_check_optimizer(p->name, &p->config.group, kind));
    MS_TRY(check_heads(config, p));
    if (rows[kind].needs_momentum && plan_momentum(config, kind) == 0 && ms_updates_of(config, p).momentum != 0)
      return MS_FAIL(MS_EINVAL,
                     "parameter '%s': its momentum is %g, but that of the plan's %s is 0, so no momentum is kept: set "
                     "momentum of the plan above 0, and that of other parameters to 0",
                     p->name, p->config.group.momentum, rows[kind].name);
  }
  return optimizer && optimizer->check_model ? optimizer->check_model(model) : MS_OK;
}
