/* overlaps.c - which instructions of a phase can run at the same time as others: no chain of events orders the two.
 * How long either takes is not known here, so two that never meet can count.
 */
#include <stdlib.h>

#include "plan/plan.h"

/* clock: [instr][streams]; place: [instr] position on its stream, from 1. */
static int meets_one(const ms_plan_phase *phase, int streams, const int *clock, const int *place, int at,
                     ms_instr_test *with) {
  const ms_instr *one = &phase->instr[at];
  for (int i = 0; i < phase->n; i++) {
    const ms_instr *other = &phase->instr[i];
    if (other->stream == one->stream || !with(other)) continue;
    const int before = clock[at * streams + other->stream] >= place[i];
    const int after = clock[i * streams + one->stream] >= place[at];
    if (!before && !after) return 1;
  }
  return 0;
}

int ms_plan_find_overlaps(const ms_plan *plan, int phase, ms_instr_test *of, ms_instr_test *with, char *overlaps) {
  const ms_plan_phase *p = &plan->phase[phase];
  const int streams = plan->streams;
  int *clock = ms_calloc((int64_t)p->n * streams, sizeof *clock), *count = ms_calloc(streams, sizeof *count);
  int *place = ms_calloc(p->n, sizeof *place), rc = MS_ENOMEM;
  if (!clock || !count || !place) goto fail;
  MS_GOTO(ms_plan_clocks(plan, phase, clock));
  for (int i = 0; i < p->n; i++) place[i] = ++count[p->instr[i].stream];
  for (int i = 0; i < p->n; i++) overlaps[i] = of(&p->instr[i]) && meets_one(p, streams, clock, place, i, with);
fail:
  free(clock);
  free(count);
  free(place);
  return rc;
}
