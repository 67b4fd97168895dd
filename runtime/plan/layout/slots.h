/* slots.h - the table of what a state keeps of a unit's parameters: one row a slot. The layout of the arenas, the
 * buffers of a plan, what an exec binds, and the bytes of each category are loops over it; what a parameter has in a
 * slot is in the table of tensors (exec/tensors/tensor_table.h).
 *
 * A new slot is a row here and, if programs read it, one there.
 */
#ifndef MS_PLAN_SLOTS_H
#define MS_PLAN_SLOTS_H

#include "plan/plan.h"

typedef struct ms_state_layout ms_state_layout;

enum { MS_MOMENTS = 2 }; /* most that an optimizer keeps */

/* In the order of a plan's buffers. */
enum ms_slot {
  MS_SLOT_MASTER = 0,
  MS_SLOT_GRADIENT,
  MS_SLOT_MOMENT, /* the first of MS_MOMENTS. AdamW: exp_avg, exp_avg_sq; SGD, Muon: the momentum */
  MS_SLOT_EMA = MS_SLOT_MOMENT + MS_MOMENTS,
  MS_SLOT_SYNCED, /* local SGD: the weights at the last sync, the outer momentum, and what was sent and not applied */
  MS_SLOT_OUTER_MOMENTUM,
  MS_SLOT_OUTER_SUM,
  MS_SLOT_FACTORS,   /* Adafactor's averages (factors.h) */
  MS_SLOT_RESIDUALS, /* of gradients that are rounded (residuals.h) */
  MS_SLOT_WEIGHTS,   /* what is read instead of masters: chunks of a sliced unit, or copies */
  MS_SLOTS
};

/* What decides whether and how a state keeps a unit's slot. */
typedef struct ms_slot_owner {
  const ms_model *model;
  const ms_plan_config *config;
  const ms_state_layout *layout; /* replicas, moments and the like, and the slots before this one */
  int unit;
} ms_slot_owner;

typedef struct ms_slot_row {
  int category; /* enum ms_category */
  /* Slots of one turn lie side by side, unit by unit; those of the next turn behind them. */
  int turn;
  /* The arena that it is in. */
  int (*arena)(const ms_model *model, const ms_state_layout *layout, int unit);
  /* The bytes that this rank keeps, the same on all ranks that share the arena; -1: there is none. */
  int64_t (*bytes)(const ms_slot_owner *of);
} ms_slot_row;

extern const ms_slot_row ms_slots[MS_SLOTS];
enum { MS_SLOT_TURNS = 7 };

#endif
