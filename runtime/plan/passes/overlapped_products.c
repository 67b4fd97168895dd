/* overlapped_products.c - finds the matrix products that can run at the same time as a collective, and lets them leave
 * multiprocessors to it.
 *
 * The thread blocks of a collective take multiprocessors from a product that runs meanwhile: blocks of the product then
 * wait for others to end, which can double its time. A product that can run at the same time as a collective
 * of its phase (overlaps.c) gets a call of its own, which equal products that meet no collective do not share, so that
 * each has its algorithm.
 */
#include <stdlib.h>

#include "plan/lower/lower.h"

static int is_product(const ms_instr *instr) {
  return instr->kind == MS_INSTR_KERNEL && (ms_op_row_of(instr->call->op)->flags & MS_OP_SPARES);
}

int ms_plan_spare_processors(ms_plan *plan, int phase) {
  const ms_plan_phase *p = &plan->phase[phase];
  char *overlaps = ms_calloc(p->n, 1);
  int rc = MS_ENOMEM;
  if (!overlaps) goto fail;
  MS_GOTO(ms_plan_find_overlaps(plan, phase, is_product, ms_instr_is_collective, overlaps));
  for (int i = 0; i < p->n; i++)
    if (overlaps[i]) MS_GOTO(ms_plan_prepare_spared(plan, &p->instr[i]));
fail:
  free(overlaps);
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
