/* compare.h - ranks compare their models and plans before they run them, so that a difference is an error here and
 * not a hang later. */
#ifndef MS_EXEC_COMPARE_H
#define MS_EXEC_COMPARE_H

#include "comm/group/group.h"
#include "plan/plan.h"

/* Return MS_EMISMATCH on every rank of the group when any differs; the message names the first rank that differs from
 * the group's first, and the first line that differs. Collective over the group. */
int ms_compare_models(ms_group *group, const ms_model *model, const ms_plan_config *config);
int ms_compare_plans(ms_group *group, const ms_plan *plan);
/* text: what decides the bits that this rank's kernels compute (kernels/cpu/instruction_sets.h). */
int ms_compare_instruction_sets(ms_group *group, const char *text);

#endif
