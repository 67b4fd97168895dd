/* together.c - kernels of a phase that are one launch: neighbours in the program that call one kernel on different
 * bytes. A device's executor starts them so, and a price charges one start. */
#include <string.h>

#include "plan/plan.h"

enum { ACCESSES = MS_MAX_INPUTS + MS_MAX_OUTPUTS + 1 };

static int meet(const ms_access *a, const ms_access *b) {
  return a->arena == b->arena && (a->write || b->write) && a->begin < b->end && b->begin < a->end;
}

static int any_meet(const ms_access *a, int n, const ms_access *b, int m) {
  for (int i = 0; i < n; i++)
    for (int k = 0; k < m; k++)
      if (meet(&a[i], &b[k])) return 1;
  return 0;
}

/* The kernel of an instruction and the calls that a launch of it takes; NULL where that is one. */
static const ms_kernel *joined_kernel(const ms_plan *plan, const ms_instr *instr, int *most) {
  if (instr->kind != MS_INSTR_KERNEL) return NULL;
  const ms_kernel *kernel = ms_device_kernel(plan->config.device, instr->call->op);
  *most = kernel->together ? kernel->together(instr->call) : 1;
  return *most > 1 ? kernel : NULL;
}

void ms_plan_together(const ms_plan *plan, int phase, int *together) {
  const ms_plan_phase *p = &plan->phase[phase];
  ms_access all[MS_RUN_TOGETHER * ACCESSES], own[ACCESSES];
  const ms_kernel *before = NULL;
  for (int i = 0, first = 0, known = 0, most = 1; i < p->n; i++) {
    const ms_kernel *kernel = joined_kernel(plan, &p->instr[i], &most);
    const int n = kernel ? ms_instr_accesses(plan, &p->instr[i], own, ACCESSES) : 0;
    const int joins = kernel && kernel == before && together[first] < most && !any_meet(all, known, own, n);
    if (!joins) first = i, known = 0;
    together[i] = 1;
    together[first] = i - first + 1;
    memcpy(all + known, own, (size_t)n * sizeof *own);
    known += n;
    before = kernel;
  }
}
