/* param_group.c - the table of the settings of a parameter's updates, and what follows from its rows. */
#include "shard/param_group.h"

#include <math.h>
#include <stdio.h>

#include "base/error.h"

#define AT(field) offsetof(ms_param_group, field)
#define OF(field) offsetof(ms_plan_config, field)

/* In the order in which groups are compared. */
const ms_group_setting ms_group_settings[MS_GROUP_SETTINGS] = {
    {.name = "lr_scale", .at = AT(lr_scale), .range = MS_SETTING_RATE},
    {.name = "weight_decay", .at = AT(weight_decay), .range = MS_SETTING_RATE},
    {"beta1",
     AT(beta1),
     MS_SETTING_FRACTION,
     1,
     {[MS_OPT_ADAMW] = OF(beta1), [MS_OPT_ADAM] = OF(beta1), [MS_OPT_LION] = OF(beta1)}},
    {"beta2",
     AT(beta2),
     MS_SETTING_FRACTION,
     1,
     {[MS_OPT_ADAMW] = OF(beta2), [MS_OPT_ADAM] = OF(beta2), [MS_OPT_LION] = OF(beta2)}},
    {"eps", AT(eps), MS_SETTING_POSITIVE, 1, {[MS_OPT_ADAMW] = OF(eps), [MS_OPT_ADAM] = OF(eps)}},
    {"momentum",
     AT(momentum),
     MS_SETTING_FRACTION,
     1,
     {[MS_OPT_SGD] = OF(momentum), [MS_OPT_MUON] = OF(muon_momentum)}},
};

_Static_assert(sizeof(ms_param_group) == MS_GROUP_SETTINGS * sizeof(double), "each field has a row");

static int is_in_range(int range, double value) {
  switch (range) {
    case MS_SETTING_RATE: return value >= 0 && isfinite(value);
    case MS_SETTING_FRACTION: return value >= 0 && value < 1;
    default: return (float)value > 0 && isfinite(value);
  }
}

int ms_group_check(const char *name, const ms_param_group *group) {
  static const char *const ranges[] = {[MS_SETTING_RATE] = "0 or more",
                                       [MS_SETTING_FRACTION] = "at least 0 and below 1",
                                       [MS_SETTING_POSITIVE] = "above 0, also in f32"};
  for (int i = 0; i < MS_GROUP_SETTINGS; i++) {
    const ms_group_setting *s = &ms_group_settings[i];
    const double value = ms_group_value(group, s);
    if (!ms_group_inherits(group, s) && !is_in_range(s->range, value))
      return MS_FAIL(MS_EINVAL, "parameter '%s': %s must be %s%s, not %g", name, s->name, ranges[s->range],
                     s->inherits ? ", or -1 (the plan's)" : "", value);
  }
  return MS_OK;
}

int ms_group_check_optimizer(const char *name, const ms_param_group *group, int optimizer, const char *called) {
  for (int i = 0; i < MS_GROUP_SETTINGS; i++) {
    const ms_group_setting *s = &ms_group_settings[i];
    if (s->inherits && !s->of_plan[optimizer] && !ms_group_inherits(group, s))
      return MS_FAIL(MS_EINVAL, "parameter '%s': its %s is %g, which its optimizer, %s, does not have: leave it at -1",
                     name, s->name, ms_group_value(group, s), called);
  }
  return MS_OK;
}

ms_param_group ms_group_complete(const ms_param_group *group, int optimizer, const ms_plan_config *config) {
  ms_param_group whole = *group;
  for (int i = 0; i < MS_GROUP_SETTINGS; i++) {
    const ms_group_setting *s = &ms_group_settings[i];
    if (ms_group_inherits(group, s) && s->of_plan[optimizer])
      *(double *)((char *)&whole + s->at) = *(const double *)((const char *)config + s->of_plan[optimizer]);
  }
  return whole;
}

/* The larger first. */
static int compare(double a, double b) { return (a < b) - (a > b); }

int ms_group_compare(const ms_param_group *a, const ms_param_group *b) {
  int order = 0;
  for (int i = 0; i < MS_GROUP_SETTINGS && !order; i++)
    order = compare(ms_group_value(a, &ms_group_settings[i]), ms_group_value(b, &ms_group_settings[i]));
  return order;
}

const char *ms_group_names(char *names) {
  int n = 0;
  for (int i = 0; i < MS_GROUP_SETTINGS; i++)
    n += snprintf(names + n, (size_t)(MS_GROUP_NAMES - n), "%s%s", i ? ", " : "", ms_group_settings[i].name);
  return names;
}
