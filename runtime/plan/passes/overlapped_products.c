/* overlapped_products.c - finds the matrix products that can run at the same time as a collective, and lets them leave
 * multiprocessors to it.
 *
 * The thread blocks of a collective take multiprocessors from a product that runs meanwhile: blocks of the product then
 * wait for others to end, which can double its time. A product that no chain of events orders with any collective of
 * its phase can meet one. How long either takes is not known here, so it counts even if the two never meet. It gets a
 * call of its own, which equal products that meet no collective do not share, so that each has its algorithm.
 */
#include <stdlib.h>

#include "plan/lower/lower.h"

static int is_product(const ms_instr *instr) {
  return instr->kind == MS_INSTR_KERNEL && (ms_op_row_of(instr->call->op)->flags & MS_OP_SPARES);
}

/* clock: [instr][streams]; place: [instr] position on its stream, from 1. */
static int meets_collective(const ms_plan_phase *phase, int streams, const int *clock, const int *place, int at) {
  const ms_instr *product = &phase->instr[at];
  for (int i = 0; i < phase->n; i++) {
    const ms_instr *coll = &phase->instr[i];
    if (coll->kind != MS_INSTR_COLLECTIVE || coll->stream == product->stream) continue;
    const int before = clock[at * streams + coll->stream] >= place[i];
    const int after = clock[i * streams + product->stream] >= place[at];
    if (!before && !after) return 1;
  }
  return 0;
}

int ms_plan_spare_processors(ms_plan *plan, int phase) {
  const ms_plan_phase *p = &plan->phase[phase];
  const int streams = plan->streams;
  int *clock = ms_calloc((int64_t)p->n * streams, sizeof *clock), *count = ms_calloc(streams, sizeof *count);
  int *place = ms_calloc(p->n, sizeof *place), rc = MS_ENOMEM;
  if (!clock || !count || !place) goto fail;
  MS_GOTO(ms_plan_clocks(plan, phase, clock));
  for (int i = 0; i < p->n; i++) place[i] = ++count[p->instr[i].stream];
  for (int i = 0; i < p->n; i++)
    if (is_product(&p->instr[i]) && meets_collective(p, streams, clock, place, i))
      MS_GOTO(ms_plan_prepare_spared(plan, &p->instr[i]));
fail:
  free(clock);
  free(count);
  free(place);
  return rc;
}

void ms_plan_count_spared(const ms_plan *plan, int *products, int *spared) {
  *products = *spared = 0;
  for (int phase = 0; phase < MS_PHASES; phase++)
    for (int i = 0; i < plan->phase[phase].n; i++) {
      const ms_instr *instr = &plan->phase[phase].instr[i];
      if (!is_product(instr)) continue;
      ++*products;
      *spared += instr->call->spared > 0;
    }
}
