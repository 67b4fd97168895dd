/* exposed_communication.c - finds the collectives of a phase that no computation can overlap, from the order of the
 * instructions rather than from timing.
 *
 * A kernel can overlap a collective when no chain of events orders the two. A collective without such a kernel is
 * exposed: this rank only waits while it runs. Kernels that merely move or add data do not count as computation.
 */
#include <stdlib.h>

#include "plan/plan.h"

static int is_work(const ms_instr *instr) {
  return instr->kind == MS_INSTR_KERNEL && (ms_op_row_of(instr->call->op)->flags & MS_OP_COMPUTES);
}

/* clock: [instr][streams]; place: [instr] position on its stream, from 1. */
static int has_work_beside(const ms_plan_phase *phase, int streams, const int *clock, const int *place, int at) {
  const ms_instr *coll = &phase->instr[at];
  for (int i = 0; i < phase->n; i++) {
    const ms_instr *instr = &phase->instr[i];
    if (!is_work(instr) || instr->stream == coll->stream) continue;
    int before = clock[at * streams + instr->stream] >= place[i],
        after = clock[i * streams + coll->stream] >= place[at];
    if (!before && !after) return 1;
  }
  return 0;
}

int ms_plan_find_exposed(const ms_plan *plan, int phase, char *exposed) {
  const ms_plan_phase *p = &plan->phase[phase];
  const int streams = plan->streams;
  int *clock = ms_calloc((int64_t)p->n * streams, sizeof *clock), *count = ms_calloc(streams, sizeof *count);
  int *place = ms_calloc(p->n, sizeof *place), rc = MS_ENOMEM;
  if (!clock || !count || !place) goto fail;
  MS_GOTO(ms_plan_clocks(plan, phase, clock));
  for (int i = 0; i < p->n; i++) place[i] = ++count[p->instr[i].stream];
  for (int i = 0; i < p->n; i++)
    exposed[i] = p->instr[i].kind == MS_INSTR_COLLECTIVE && !has_work_beside(p, streams, clock, place, i);
fail:
  free(clock);
  free(count);
  free(place);
  return rc;
}
