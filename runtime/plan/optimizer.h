/* optimizer.h - the table of optimizers: what each keeps of a parameter, and its update as a program, a list of steps.
 *
 * Updates are lowered from the table alone (lower/optimizers): a new optimizer needs its row and settings
 * (base/settings/settings.def), ops with kernels (kernels/ops.def), and in the Lua layer a row (engine/optimizers.lua)
 * and its constructor (train/optim.lua). If it has several steps, the row names an array of programs.c.
 * A moment that no other optimizer keeps is a row of MS_EACH_MOMENT (layout/slots.h).
 */
#ifndef MS_PLAN_OPTIMIZER_H
#define MS_PLAN_OPTIMIZER_H

#include "plan/layout/state_layout.h"
#include "plan/plan.h"

/* ---- programs ---------------------------------------------------------------------------------------------------- */

/* What is updated: the elements of a parameter, or a stretch of a unit's chunks, that this rank updates. */
typedef struct ms_stretch {
  int64_t begin, end; /* elements of the unit's chunks */
} ms_stretch;
typedef struct ms_update_item {
  int param; /* -1: a stretch */
  int unit, segment;
  ms_stretch own;
} ms_update_item;

typedef struct ms_optimizer ms_optimizer;

/* What a kernel reads or writes of an item. */
enum ms_operand {
  MS_OF_NOTHING = 0, /* ends a list */
  /* This rank's elements, f32 [n]; moments in their format. */
  MS_OF_GRADIENT,
  MS_OF_WEIGHT, /* the master. After a kernel that writes a parameter's, its copy in bf16 is written if it has one */
  MS_OF_MOMENT, /* the first of MS_MOMENTS; empty where it is not kept */
  MS_OF_EMA = MS_OF_MOMENT + MS_MOMENTS,
  MS_OF_SYNCED,
  MS_OF_OUTER_MOMENTUM, /* empty without momentum */
  /* One for the parameter. */
  MS_OF_NORM,    /* f32 [4]: step_norm's output */
  MS_OF_UPDATES, /* f32 scalar: how many there were, with this one */
  MS_OF_ROW_AVERAGES,
  MS_OF_COLUMN_AVERAGES, /* factors.h */
  /* f32 vectors of the program: the first of MS_VECTORS. Which they are, the row's `vector` says, or who lowers it. */
  MS_OF_VECTOR
};
enum { MS_VECTORS = 6 };

/* On the way over an owner a parameter is in three vectors: this rank's elements, in both directions; on the owner the
 * whole matrix, and what becomes of it. */
enum { MS_OF_PART = MS_OF_VECTOR, MS_OF_MATRIX, MS_OF_RESULT };

enum ms_step_kind {
  MS_STEP_END = 0,
  MS_STEP_KERNEL,     /* of this rank's elements; of none there is no kernel */
  MS_STEP_CONTRIBUTE, /* a kernel on every rank, of the elements that it contributes to sums over the mesh: of those
                       * that several ranks have, the first one's */
  MS_STEP_SUM,        /* of a buffer of vectors, of all parameters together, over the mesh */
  MS_STEP_TO_OWNER,   /* the parts of a matrix go to the rank that owns it, on which the next kernels run alone, of the
                       * matrix or of its transpose: they give the same result, transposed */
  MS_STEP_FROM_OWNER  /* and the results to the ranks that have its parts */
};

typedef struct ms_update_step {
  int kind;   /* enum ms_step_kind */
  int op;     /* of a kernel; its attributes are settings of the same names (optimizer.c) */
  int buffer; /* of SUM */
  unsigned char in[MS_MAX_INPUTS + 1], out[MS_MAX_OUTPUTS + 1]; /* enum ms_operand */
  /* Sets the attributes that are no settings; NULL: there are none. */
  void (*attributes)(const ms_plan *plan, const ms_optimizer *by, const ms_update_item *item, ms_op_attrs *attrs);
} ms_update_step;

/* A vector of a program: the buffer that it shares with others, and its elements of a parameter. Ranks exchange the
 * buffers that a step sums. */
typedef struct ms_update_vector {
  int buffer;                                       /* 1, 2, ...; 0 ends the list */
  int64_t (*count)(const ms_plan *plan, int param); /* NULL: a scalar */
} ms_update_vector;

/* ---- the table --------------------------------------------------------------------------------------------------- */

struct ms_optimizer {
  const char *name;           /* its settings are name.x or name_x */
  const ms_update_step *step; /* MS_STEP_END ends them */
  const ms_update_vector *vector;
  const char *scope;  /* in plans; NULL: the unit's name */
  int moments;        /* how many it keeps for each element */
  int factors;        /* 1: it keeps averages by row and by column (layout/factors.h) */
  int is_chosen;      /* 1: only parameters that choose it take it, also where it is the plan's */
  int needs_momentum; /* 1: where the setting `momentum` is 0, it keeps no moment */
  int coupled;        /* 1: the weight decay is in the gradient */
  int updates_units;  /* 1: items are stretches, which have no group of settings */
  double (*flops)(const ms_plan_config *config, const ms_value_info *matrix); /* of the owner of a matrix */
  int (*check_model)(const ms_model *model); /* whether it can train this model; NULL: any */
};

#define MS_MOMENT_OF(index, ...) MS_OF_MOMENT + index,
/* The program of an optimizer with one kernel, which has the outputs of its op's row, of these. */
#define MS_ELEMENTWISE(kernel)                     \
  (const ms_update_step[]) {                       \
    {MS_STEP_KERNEL,                               \
     kernel,                                       \
     0,                                            \
     {MS_OF_GRADIENT, MS_OF_NORM, MS_OF_UPDATES},  \
     {MS_OF_WEIGHT, MS_EACH_MOMENT(MS_MOMENT_OF)}, \
     ms_update_set_moments},                       \
    {                                              \
      MS_STEP_END                                  \
    }                                              \
  }

/* Those with several steps, and what moves weights besides optimizers (programs.c). */
extern const ms_update_step ms_muon_steps[], ms_adafactor_steps[];
extern const ms_update_vector ms_adafactor_vectors[];
/* router biases; averages of weights; the difference of local SGD, and its outer step; QK-clip */
extern const ms_optimizer ms_balance, ms_ema, ms_outer_difference, ms_outer_step, ms_qk_clip;
/* Checks ms_plan_config.logit_clip (logit_clips.c). */
int ms_plan_check_logit_clips(const ms_model *model, const ms_plan_config *config);
int ms_muon_check_others(const ms_model *model);
double ms_muon_flops(const ms_plan_config *config, const ms_value_info *matrix);
void ms_update_set_moments(const ms_plan *plan, const ms_optimizer *by, const ms_update_item *item, ms_op_attrs *attrs);

/* NULL: the plan has none, or a number that is not one. */
const ms_optimizer *ms_optimizer_of(const ms_plan_config *config);
/* What a state keeps of parameters that choose this optimizer; MS_OPT_NONE: that take the plan's. */
ms_optimizer_state ms_optimizer_keeps(const ms_plan_config *config, int chosen);
/* What updates a parameter; NULL: it is frozen. */
const ms_optimizer *ms_param_optimizer(const ms_plan_config *config, const ms_param *p);
/* Whether its program has a step of this kind. */
int ms_optimizer_has(const ms_optimizer *optimizer, int kind);

/* The attributes of a step's kernel that are settings. */
ms_op_attrs ms_update_attrs(const ms_plan_config *config, const ms_optimizer *optimizer, const ms_update_step *step,
                            const ms_param_group *by);
/* The settings of a parameter's updates: its group's, and the plan's where that has none. */
ms_param_group ms_updates_of(const ms_plan_config *config, const ms_param *p);
/* A parameter as the matrices that an optimizer of whole matrices computes with, [matrices,rows,columns]: its last two
 * axes, whose rows count as those of `heads` matrices. */
ms_value_info ms_matrices_of(const ms_plan_config *config, const ms_param *p);
/* Checks that the optimizer can train the model, and that the one of each parameter has what its group sets. */
int ms_plan_check_updates(const ms_model *model, const ms_plan_config *config);

#endif
