/* clocks.c - what is known to be done when an instruction starts: vector clocks along a phase's program (Fidge 1988,
** Mattern 1989), from streams and events alone.
*/
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

static int check_event(const ms_plan_phase *phase, int phase_id, int i, const char *recorded) {
  const ms_instr *instr = &phase->instr[i];
  if (instr->event < 0 || instr->event >= phase->events)
    return MS_FAIL(MS_ERACE, "phase %s: instruction %d names event %d of %d", ms_phase_name(phase_id), i, instr->event,
                   phase->events);
  if (instr->kind == MS_INSTR_WAIT && !recorded[instr->event])
    return MS_FAIL(MS_ERACE, "phase %s: instruction %d waits for event %d, which nothing above it records",
                   ms_phase_name(phase_id), i, instr->event);
  return MS_OK;
}

int ms_plan_clocks(const ms_plan *plan, int phase, int (*clock)[MS_STREAMS]) {
  const ms_plan_phase *p = &plan->phase[phase];
  int now[MS_STREAMS][MS_STREAMS] = {{0}}, rc = MS_OK;
  int(*known)[MS_STREAMS] = ms_calloc(p->events, sizeof *known);
  char *recorded = ms_calloc(p->events, 1);
  if (!known || !recorded) rc = MS_ENOMEM;
  for (int i = 0; i < p->n && !rc; i++) {
    const ms_instr *instr = &p->instr[i];
    int *mine = now[instr->stream];
    if (instr->kind == MS_INSTR_RECORD || instr->kind == MS_INSTR_WAIT) MS_GOTO(check_event(p, phase, i, recorded));
    for (int s = 0; instr->kind == MS_INSTR_WAIT && s < MS_STREAMS; s++)
      if (known[instr->event][s] > mine[s]) mine[s] = known[instr->event][s];
    memcpy(clock[i], mine, sizeof now[0]);
    mine[instr->stream]++;
    if (instr->kind != MS_INSTR_RECORD) continue;
    memcpy(known[instr->event], mine, sizeof now[0]);
    recorded[instr->event] = 1;
  }
fail:
  free(known);
  free(recorded);
  return rc;
}
