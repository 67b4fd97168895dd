/* param_group.h - the settings of a parameter's updates (ms_param_group): one row a setting, from which the engine
 * takes defaults, ranges, the order of groups, their description, and which optimizers have a setting.
 *
 * A new setting is a field of ms_param_group, a row of the table (param_group.c), and its use in the attributes of an
 * optimizer (plan/optimizer.c); in the Lua layer a row of the settings in engine/optimizers.lua.
 */
#ifndef MS_SHARD_PARAM_GROUP_H
#define MS_SHARD_PARAM_GROUP_H

#include <stddef.h>

#include "moonshard.h"

/* What a setting can be. */
enum ms_setting_range {
  MS_SETTING_RATE,     /* 0 or more */
  MS_SETTING_FRACTION, /* at least 0 and below 1 */
  MS_SETTING_POSITIVE  /* above 0, also in f32 */
};

enum { MS_OPTIMIZER_KINDS = MS_OPT_ADAFACTOR + 1 };

typedef struct ms_group_setting {
  const char *name;
  size_t at;    /* offset of its double in ms_param_group */
  int range;    /* enum ms_setting_range */
  int inherits; /* 1: -1 stands for the plan's, of the optimizers below; 0: all of them have it, and there is no plan's
                 */
  /* Offsets of the plan's in ms_plan_config, by enum ms_optimizer_kind; 0: that optimizer does not have it. */
  size_t of_plan[MS_OPTIMIZER_KINDS];
} ms_group_setting;

enum { MS_GROUP_SETTINGS = 6 };
extern const ms_group_setting ms_group_settings[MS_GROUP_SETTINGS];

static inline double ms_group_value(const ms_param_group *group, const ms_group_setting *setting) {
  return *(const double *)((const char *)group + setting->at);
}
/* 1 when the group leaves the setting to its optimizer. */
static inline int ms_group_inherits(const ms_param_group *group, const ms_group_setting *setting) {
  return setting->inherits && ms_group_value(group, setting) == -1;
}

/* Checks the ranges of a group's settings; name: its parameter's. */
int ms_group_check(const char *name, const ms_param_group *group);
/* Checks that an optimizer (enum ms_optimizer_kind, called so) has what the group sets. */
int ms_group_check_optimizer(const char *name, const ms_param_group *group, int optimizer, const char *called);
/* The group with the plan's settings where it leaves them to its optimizer. */
ms_param_group ms_group_complete(const ms_param_group *group, int optimizer, const ms_plan_config *config);
/* Negative, 0 or positive: in which order parameters of these groups are. 0: they are the same. */
int ms_group_compare(const ms_param_group *a, const ms_param_group *b);
/* The names of all settings, "lr_scale, weight_decay, ..."; into [MS_GROUP_NAMES]. Returns it. */
enum { MS_GROUP_NAMES = 128 };
const char *ms_group_names(char *names);

#endif
