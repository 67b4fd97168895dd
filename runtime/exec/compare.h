/* compare.h - ranks compare what they are about to do together: a difference is an error here, and not a hang later. */
#ifndef MS_EXEC_COMPARE_H
#define MS_EXEC_COMPARE_H

#include "comm/group/group.h"
#include "plan/plan.h"

/* MS_EMISMATCH on every member, naming the first that differs from the first of them, and the first line that does.
** Collective over the members. */
int ms_compare_models(ms_group *group, const ms_model *model, const ms_plan_config *config);
int ms_compare_plans(ms_group *group, const ms_plan *plan);

#endif
