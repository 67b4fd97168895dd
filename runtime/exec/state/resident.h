/* resident.h - whether the weights that stay gathered (MS_RESHARD_RUN) are those that the state has: they are gathered
 * again after something else than a step has written parameters, and where a plan places them elsewhere.
 *
 * All ranks gather or none does, so only what all ranks call can say that they are to: a scatter, the end of
 * writes, an arena that moves. A rank that writes alone can only say that ms_state_finish_writes has to follow.
 */
#ifndef MS_EXEC_RESIDENT_H
#define MS_EXEC_RESIDENT_H

#include "shard/model.h"

typedef struct ms_state ms_state;
typedef struct ms_plan ms_plan;

typedef struct ms_resident {
  uint64_t layout; /* ms_plan_resident_layout of what is gathered; 0: nothing, or something older */
  int written;     /* 1 + a parameter of which this rank alone knows that it was written since; 0: none */
} ms_resident;

/* Something that all ranks called may have written parameters: they are gathered again before they are read. */
void ms_resident_forget(ms_state *state);
/* This rank is about to write a parameter. */
void ms_resident_note(ms_state *state, int param);
/* Fails if a parameter was written and its writes were not finished, for a plan that reads gathered weights which stay.
 */
int ms_resident_check(const ms_state *state, const ms_plan *plan);
/* 1 when this plan's phase GATHER has to run before a phase (enum ms_phase). */
int ms_resident_is_due(const ms_state *state, const ms_plan *plan, int phase);
/* It has. */
void ms_resident_gathered(ms_state *state, const ms_plan *plan);

#endif
