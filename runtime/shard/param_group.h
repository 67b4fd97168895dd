/* param_group.h - the settings of a parameter's updates (ms_param_group), and which of them its optimizer has: those
 * for which the optimizer has a setting of the same name in ms_plan_config (settings.def).
 */
#ifndef MS_SHARD_PARAM_GROUP_H
#define MS_SHARD_PARAM_GROUP_H

#include "moonshard.h"

enum {
  MS_OPTIMIZER_KINDS = 1 /* that there is none */
#define MS_OPTIMIZER(...) +1
#include "base/settings/each_setting.h"
};

/* The name of enum ms_optimizer_kind, by which ms_plan_config calls its settings; "none" of what is none. */
const char *ms_optimizer_name(int optimizer);
/* Checks that an optimizer (enum ms_optimizer_kind) has what the group of a parameter sets. */
int ms_group_check_optimizer(const char *name, const ms_param_group *group, int optimizer);
/* The group with the plan's settings where it leaves them to its optimizer. */
ms_param_group ms_group_complete(const ms_param_group *group, int optimizer, const ms_plan_config *config);
/* Negative, 0 or positive: in which order parameters of these groups are. 0: they are the same. */
int ms_group_compare(const ms_param_group *a, const ms_param_group *b);
/* The names of all settings, "lr_scale, weight_decay, ..."; into [MS_GROUP_NAMES]. Returns it. */
enum { MS_GROUP_NAMES = 128 };
const char *ms_group_names(char *names);

#endif
