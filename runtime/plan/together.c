/* together.c - kernels of a phase that a device runs with fewer launches: neighbours in the program that call one
 * kernel on different bytes. Its executor starts them so, and a price charges the starts that are left. */
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

/* The kernel of an instruction, if calls of it can run together. */
static const ms_kernel *joined_kernel(const ms_plan *plan, const ms_instr *instr) {
  if (instr->kind != MS_INSTR_KERNEL) return NULL;
  const ms_kernel *kernel = ms_device_kernel(plan->config.device, instr->call->op);
  return kernel->joins ? kernel : NULL;
}

void ms_plan_together(const ms_plan *plan, int phase, int *together) {
  const ms_plan_phase *p = &plan->phase[phase];
  ms_access all[MS_RUN_TOGETHER * ACCESSES], own[ACCESSES];
  const ms_kernel *before = NULL;
  for (int i = 0, first = 0, known = 0; i < p->n; i++) {
    const ms_kernel *kernel = joined_kernel(plan, &p->instr[i]);
    const int n = kernel ? ms_instr_accesses(plan, &p->instr[i], own, ACCESSES) : 0;
    const int joins = kernel && kernel == before && together[first] < MS_RUN_TOGETHER && !any_meet(all, known, own, n);
    if (!joins) first = i, known = 0;
    together[i] = 1;
    together[first] = i - first + 1;
    memcpy(all + known, own, (size_t)n * sizeof *own);
    known += n;
    before = kernel;
  }
}

void ms_plan_mark_joined(const ms_plan *plan, int phase, const int *together, char *joined) {
  const ms_plan_phase *p = &plan->phase[phase];
  for (int first = 0; first < p->n; first += together[first]) {
    const ms_kernel *kernel = joined_kernel(plan, &p->instr[first]);
    for (int i = first + 1; i < first + together[first]; i++) {
      int earlier = 0;
      for (int k = first; k < i; k++) earlier += kernel->joins(p->instr[k].call, p->instr[i].call);
      joined[i] = earlier % MS_LAUNCH_CALLS != 0;
    }
  }
}
