/* param_group.c - see param_group.h. A model has thousands of parameters, so the settings that an optimizer has are
 * looked up by name once in a process.
 */
#include "shard/param_group.h"

#include <pthread.h>
#include <stdio.h>

#include "base/settings/settings.h"

enum { SETTINGS = sizeof(ms_param_group) / sizeof(double) };

static char optimizer_name[MS_OPTIMIZER_KINDS][MS_SETTING_TEXT];
/* By optimizer and setting of groups: the plan's; NULL: the optimizer does not have it. */
static const ms_setting *of_plan[MS_OPTIMIZER_KINDS][SETTINGS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const ms_setting *group_row(int i) { return &ms_settings_of("ms_param_group")->row[i]; }

static void look_up(void) {
  const ms_settings *plan = ms_settings_of("ms_plan_config");
  const char *names = ms_setting_find(plan, "optimizer")->range.names;
  for (int kind = 0; kind < MS_OPTIMIZER_KINDS; kind++) {
    ms_setting_name(names, kind, optimizer_name[kind]);
    for (int i = 0; i < SETTINGS; i++) {
      char name[MS_SETTING_TEXT];
      snprintf(name, sizeof name, "%.31s.%.31s", optimizer_name[kind], group_row(i)->name);
      of_plan[kind][i] = ms_setting_find(plan, name);
    }
  }
}

const char *ms_optimizer_name(int optimizer) {
  pthread_once(&once, look_up);
  return optimizer_name[optimizer >= 0 && optimizer < MS_OPTIMIZER_KINDS ? optimizer : MS_OPT_NONE];
}

static int inherits(const ms_param_group *group, const ms_setting *row) {
  return row->range.inherits && ms_setting_value(row, group) == -1;
}

int ms_group_check_optimizer(const char *name, const ms_param_group *group, int optimizer) {
  pthread_once(&once, look_up);
  for (int i = 0; i < SETTINGS; i++) {
    const ms_setting *row = group_row(i);
    if (row->range.inherits && !of_plan[optimizer][i] && !inherits(group, row))
      return MS_FAIL(MS_EINVAL, "parameter '%s': its %s is %g, which its optimizer, %s, does not have: leave it at -1",
                     name, row->name, ms_setting_value(row, group), optimizer_name[optimizer]);
  }
  return MS_OK;
}

ms_param_group ms_group_complete(const ms_param_group *group, int optimizer, const ms_plan_config *config) {
  ms_param_group whole = *group;
  pthread_once(&once, look_up);
  for (int i = 0; i < SETTINGS; i++) {
    const ms_setting *row = group_row(i), *plan = of_plan[optimizer][i];
    if (plan && inherits(group, row)) *(double *)((char *)&whole + row->at) = ms_setting_value(plan, config);
  }
  return whole;
}

/* The larger first. */
static int compare(double a, double b) { return (a < b) - (a > b); }

/* Settings that the next plan can have otherwise do not divide parameters into segments, which stay. */
static int divides(int i) { return group_row(i)->scope == MS_SCOPE_STATE; }

int ms_group_compare(const ms_param_group *a, const ms_param_group *b) {
  const double *x = (const double *)a, *y = (const double *)b;
  int order = 0;
  for (int i = 0; i < SETTINGS && !order; i++) order = divides(i) ? compare(x[i], y[i]) : 0;
  return order;
}

const char *ms_group_names(char *names) {
  int n = 0;
  for (int i = 0; i < SETTINGS; i++)
    if (divides(i)) n += snprintf(names + n, (size_t)(MS_GROUP_NAMES - n), "%s%s", n ? ", " : "", group_row(i)->name);
  return names;
}
