/* optimizer.h - the table of optimizers: how many moments each keeps, and the kernel that updates.
 *
 * A new optimizer needs its row and settings (base/settings/settings.def), an op with its kernels (kernels/ops.def),
 * and in the Lua layer a row (engine/optimizers.lua) and its constructor (train/optim.lua).
 */
#ifndef MS_PLAN_OPTIMIZER_H
#define MS_PLAN_OPTIMIZER_H

#include "plan/plan.h"

/* The elements that one call updates. */
typedef struct ms_updated {
  ms_param_group by; /* the settings of its parameter's group, none of them -1 */
  uint64_t key;      /* of the parameter's random numbers */
  int64_t first;     /* index of the first element in its parameter, for these */
  int moments;       /* the dtype of its moments */
} ms_updated;

/* The op's inputs are the gradients, the step's norm and the count of updates; its outputs the masters, then the
 * moments, of which those that are not kept are empty, and of ops with MS_OP_COPIES the masters' copy in bf16, if the
 * unit has one. Its attributes are settings of the same names. Muon and Adafactor have an op for each of their steps,
 * and none here (lower_muon.c, lower_adafactor.c).
 */
typedef struct ms_optimizer {
  int op, moments;
  int needs_momentum;                        /* 1: where the setting `momentum` is 0, it keeps no moment */
  int coupled;                               /* 1: the weight decay is in the gradient */
  int (*check_model)(const ms_model *model); /* whether it can train this model; NULL: any */
} ms_optimizer;

/* How many moments it updates of a parameter with these settings. */
int ms_moments_updated(const ms_optimizer *optimizer, const ms_param_group *by);
/* The attributes of the op of the plan's optimizer. */
ms_op_attrs ms_update_attrs(const ms_plan_config *config, const ms_updated *updated);
/* NULL: the plan has none, or a number that is not one. */
const ms_optimizer *ms_optimizer_of(const ms_plan_config *config);
/* The settings of a parameter's updates: its group's, and the plan's where that has none. */
ms_param_group ms_updates_of(const ms_plan_config *config, const ms_param *p);
/* Checks that the optimizer can train the model, and that the one of each parameter has what its group sets. */
int ms_plan_check_updates(const ms_model *model, const ms_plan_config *config);
/* The dtype in which the plan's optimizer keeps its moments: its setting `moments`, or f32. */
int ms_moment_dtype_of(const ms_plan_config *config);
/* The moments that a state keeps for plans with these settings, whatever those of groups are. */
int ms_moments_kept(const ms_plan_config *config);

#endif
