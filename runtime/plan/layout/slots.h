/* slots.h - the table of what a state keeps of a unit's parameters: one row a slot. The layout of the arenas, the
 * buffers of a plan, what instructions read and write there, what an exec binds, the elements that a rank has, and the
 * bytes of each category are loops over it, or ask it.
 *
 * A new slot is a row here and, if programs read it, one in the table of tensors (exec/tensors/tensor_table.h).
 */
#ifndef MS_PLAN_SLOTS_H
#define MS_PLAN_SLOTS_H

#include "shard/model.h"

typedef struct ms_state_layout ms_state_layout;

/* The moments that an optimizer can keep of each element, in this order: MOMENT(index, TENSOR, name, records), where
 * programs read it as MS_TENSOR_<TENSOR>, errors call it by name, and a state in few bits has it in such records. */
#define MS_EACH_MOMENT(MOMENT)                                      \
  MOMENT(0, EXP_AVG, "exp_avg (momentum)", MS_FIRST_MOMENT_RECORDS) \
  MOMENT(1, EXP_AVG_SQ, "exp_avg_sq", MS_SECOND_MOMENT_RECORDS)
#define MS_COUNT_MOMENT(...) +1
enum { MS_MOMENTS = MS_EACH_MOMENT(MS_COUNT_MOMENT) };

/* In the order of a plan's buffers. */
enum ms_slot {
  MS_SLOT_MASTER = 0,
  MS_SLOT_GRADIENT,
  MS_SLOT_MOMENT, /* the first of MS_MOMENTS. AdamW: exp_avg, exp_avg_sq; SGD, Muon: the momentum */
  MS_SLOT_EMA = MS_SLOT_MOMENT + MS_MOMENTS,
  MS_SLOT_SYNCED, /* local SGD: the weights at the last sync, the outer momentum, and what was sent and not applied */
  MS_SLOT_OUTER_MOMENTUM,
  MS_SLOT_OUTER_SUM,
  MS_SLOT_FACTORS,   /* averages by row and by column (factors.h) */
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

/* Which of a parameter's elements a rank has in a slot. */
enum ms_slot_rank_has {
  MS_RANK_HAS_CHUNK,  /* those that it owns */
  MS_RANK_HAS_MASTER, /* those; of a sliced unit, of its slice alone */
  MS_RANK_HAS_SLICE,  /* those that it updates: of its slice, too, where replicas share one copy of the state */
  MS_RANK_HAS_WHOLE,  /* every rank has the same of whole parameters */
  MS_RANK_HAS_UNIT    /* it is of the unit, and of no parameter */
};

/* How a slot has the elements of a segment: as elements, or as records. */
enum ms_slot_records {
  MS_ELEMENTS,
  MS_FIRST_MOMENT_RECORDS, /* kernels/formats/moments.h */
  MS_SECOND_MOMENT_RECORDS,
  MS_STORED_RECORDS, /* kernels/formats/storage.h */
  MS_SLOT_RECORDS
};
typedef struct ms_slot_form {
  int dtype;            /* of elements, or of codes in records; MS_I32: words of records */
  int records;          /* enum ms_slot_records */
  int64_t block, words; /* elements of a record, and its words of 32 bits; of elements 1, 1 */
} ms_slot_form;

typedef struct ms_slot_row {
  int category; /* enum ms_category */
  /* Slots of one turn lie side by side, unit by unit; those of the next turn after them. */
  int turn;
  int rank_has; /* enum ms_slot_rank_has */
  /* The arena that it is in. */
  int (*arena)(const ms_model *model, const ms_state_layout *layout, int unit);
  /* The bytes that this rank keeps, the same on all ranks that share the arena; -1: there is none. */
  int64_t (*bytes)(const ms_slot_owner *of);
  /* Where element `local` of the unit's chunks, which is of segment s, is in it: bytes from its start. NULL: it has no
   * elements of chunks. */
  int64_t (*at)(const ms_model *model, const ms_state_layout *layout, int unit, int s, int64_t local);
  /* Where what it has of a whole parameter begins: bytes from its start. NULL: it has elements of chunks. */
  int64_t (*whole_at)(const ms_model *model, const ms_state_layout *layout, const ms_param *p);
  /* The form of its elements; NULL: f32. */
  ms_slot_form (*form)(const ms_model *model, const ms_state_layout *layout, int unit, int s);
  /* 1 when it has a parameter, if it has any of the unit; NULL: if that trains. */
  int (*has)(const ms_state_layout *layout, const ms_param *p);
} ms_slot_row;

extern const ms_slot_row ms_slots[MS_SLOTS];
enum { MS_SLOT_TURNS = 7 };

ms_slot_form ms_slot_form_of(const ms_model *model, const ms_state_layout *layout, int slot, int unit, int s);
/* 1 when a state of this layout has a parameter in a slot. */
int ms_slot_has(const ms_state_layout *layout, int slot, const ms_param *p);

#endif
