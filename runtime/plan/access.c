/* access.c - which bytes an instruction touches: the one source that synchronisation and verification both read. */
#include "plan/plan.h"

static int add(const ms_plan *plan, const ms_ref *ref, int write, ms_access *access, int n, int capacity) {
  if (ref->buffer < 0) return n;
  int64_t bytes = ms_numel(&ref->info) * ms_dtype_size(ref->info.dtype);
  if (bytes == 0 || n >= capacity) return n;
  const ms_buffer *b = &plan->buffer[ref->buffer];
  int64_t begin = b->offset + ref->offset;
  access[n] = (ms_access){b->arena, ref->buffer, begin, begin + bytes, write};
  return n + 1;
}

/* An all-gather fills the shared buffer; an all-reduce may leave sums in its own source for the others to copy. */
static int collective(const ms_plan *plan, const ms_plan_coll *coll, ms_access *access, int capacity) {
  int n = 0, writes_shared = coll->kind == MS_COLL_ALL_GATHER || coll->kind == MS_COLL_ALL_REDUCE;
  for (int i = 0; i < coll->parts; i++) {
    const ms_plan_part *part = &coll->part[i];
    n = add(plan, &part->src, 0, access, n, capacity);
    n = add(plan, &part->shared, writes_shared, access, n, capacity);
    n = add(plan, &part->dst, 1, access, n, capacity);
  }
  return n;
}

int ms_instr_accesses(const ms_plan *plan, const ms_instr *instr, ms_access *access, int capacity) {
  if (instr->kind == MS_INSTR_COLLECTIVE) return collective(plan, instr->coll, access, capacity);
  if (instr->kind != MS_INSTR_KERNEL) return 0;
  int n = 0;
  for (int i = 0; i < instr->call.inputs; i++) n = add(plan, &instr->in[i], 0, access, n, capacity);
  for (int i = 0; i < instr->call.outputs; i++) n = add(plan, &instr->out[i], 1, access, n, capacity);
  if (instr->workspace >= 0) {
    ms_ref scratch = ms_ref_bytes(instr->workspace, plan->buffer[instr->workspace].bytes);
    n = add(plan, &scratch, 1, access, n, capacity);
  }
  return n;
}

int ms_instr_access_limit(const ms_instr *instr) {
  return instr->kind == MS_INSTR_COLLECTIVE ? 3 * instr->coll->parts : MS_MAX_INPUTS + MS_MAX_OUTPUTS + 1;
}

ms_ref ms_ref_bytes(int buffer, int64_t bytes) {
  return (ms_ref){buffer, 0, {.dtype = MS_U8, .ndim = 1, .dims = {bytes}}};
}
