/* exposed_communication.c - finds the collectives of a phase that no computation can overlap, from the order of the
 * instructions rather than from timing.
 *
 * A collective that no kernel can overlap (passes/overlaps.c) is exposed: this rank only waits while it runs. Kernels
 * that merely move or add data do not count as computation.
 */
#include "plan/plan.h"

static int is_work(const ms_instr *instr) {
  return instr->kind == MS_INSTR_KERNEL && (ms_op_row_of(instr->call->op)->flags & MS_OP_COMPUTES);
}

int ms_plan_find_exposed(const ms_plan *plan, int phase, char *exposed) {
  MS_TRY(ms_plan_find_overlaps(plan, phase, ms_instr_is_collective, is_work, exposed));
  for (int i = 0; i < plan->phase[phase].n; i++)
    exposed[i] = ms_instr_is_collective(&plan->phase[phase].instr[i]) && !exposed[i];
  return MS_OK;
}
