/* phase_program.h - the instructions of a phase that lifetimes count: those that are no event.
 *
 * Reports on a finished plan ask which buffers hold data at an instruction. A buffer's lifetime says so in positions,
 * and people read the numbers of instructions that the plan's text shows.
 */
#ifndef MS_PLAN_PHASE_PROGRAM_H
#define MS_PLAN_PHASE_PROGRAM_H

#include "plan/plan.h"

/* Lifetimes count instructions without events; at[position] is the index of the instruction in the finished program. */
typedef struct ms_phase_program {
  const ms_plan_phase *phase;
  int *at, n;
  int forward_last, backward_first; /* positions; backward_first == n: no backward pass */
} ms_phase_program;

/* The caller frees out->at. */
int ms_phase_program_read(const ms_plan *plan, int phase, ms_phase_program *out);

#endif
