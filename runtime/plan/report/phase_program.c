/* phase_program.c - reads the instructions of a phase that lifetimes count, and where its backward pass begins. */
#include "plan/report/phase_program.h"

#include <stdlib.h>

#include "base/config.h"

int ms_phase_program_read(const ms_plan *plan, int phase, ms_phase_program *out) {
  const ms_plan_phase *p = &plan->phase[phase];
  *out = (ms_phase_program){.phase = p, .at = ms_calloc(p->n, sizeof *out->at), .forward_last = -1};
  if (!out->at) return MS_ENOMEM;
  for (int i = 0; i < p->n; i++)
    if (p->instr[i].kind != MS_INSTR_RECORD && p->instr[i].kind != MS_INSTR_WAIT) out->at[out->n++] = i;
  out->backward_first = out->n;
  for (int i = out->n - 1; i >= 0; i--) {
    const ms_instr *instr = &p->instr[out->at[i]];
    if (instr->kind == MS_INSTR_KERNEL && instr->backward) out->backward_first = i;
  }
  for (int i = 0; i < out->backward_first; i++)
    if (p->instr[out->at[i]].kind == MS_INSTR_KERNEL) out->forward_last = i;
  return MS_OK;
}
