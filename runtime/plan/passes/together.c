/* together.c - kernels of a phase that a device runs with fewer launches: neighbours in the program that call one
 * kernel on different bytes. Its executor starts them so, and a price charges the starts that are left. */
#include "plan/plan.h"

enum { ACCESSES = MS_MAX_INPUTS + MS_MAX_OUTPUTS + 1 };

/* The k-th accesses of kernels that run together. Most kernels continue where the one before has ended, input by input:
 * a new access seldom meets the range of those before, and then it meets none of them. */
typedef struct slot {
  ms_access all[MS_RUN_TOGETHER], range; /* all: [n] */
  int n, several;                        /* several: 1: they are in several arenas */
} slot;

static int meet(const ms_access *a, const ms_access *b) {
  return a->arena == b->arena && (a->write || b->write) && a->begin < b->end && b->begin < a->end;
}

static int meets_any(const slot *s, const ms_access *access) {
  if (!s->n || (!s->several && !meet(&s->range, access))) return 0;
  for (int i = 0; i < s->n; i++)
    if (meet(&s->all[i], access)) return 1;
  return 0;
}

static int any_meet(const slot *slots, const ms_access *own, int n) {
  for (int k = 0; k < ACCESSES; k++)
    for (int i = 0; i < n; i++)
      if (meets_any(&slots[k], &own[i])) return 1;
  return 0;
}

static void add(slot *s, const ms_access *access) {
  ms_access *range = &s->range;
  if (!s->n) {
    *range = *access;
    s->several = 0;
  }
  s->several |= range->arena != access->arena;
  range->write |= access->write;
  if (access->begin < range->begin) range->begin = access->begin;
  if (access->end > range->end) range->end = access->end;
  s->all[s->n++] = *access;
}

/* The kernel of an instruction, if calls of it can run together. */
static const ms_kernel *joined_kernel(const ms_plan *plan, const ms_instr *instr) {
  if (instr->kind != MS_INSTR_KERNEL) return NULL;
  const ms_kernel *kernel = ms_device_kernel(plan->config.device, instr->call->op);
  return kernel->joins ? kernel : NULL;
}

void ms_plan_together(const ms_plan *plan, int phase, int *together) {
  const ms_plan_phase *p = &plan->phase[phase];
  ms_access own[ACCESSES];
  slot slots[ACCESSES];
  const ms_kernel *before = NULL;
  for (int i = 0, first = 0; i < p->n; i++) {
    const ms_kernel *kernel = joined_kernel(plan, &p->instr[i]);
    const int n = kernel ? ms_instr_accesses(plan, &p->instr[i], own, ACCESSES) : 0;
    const int joins = kernel && kernel == before && together[first] < MS_RUN_TOGETHER && !any_meet(slots, own, n);
    if (!joins) first = i;
    for (int k = 0; k < ACCESSES && !joins && kernel; k++) slots[k].n = 0;
    together[i] = 1;
    together[first] = i - first + 1;
    for (int k = 0; k < n; k++) add(&slots[k], &own[k]);
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
