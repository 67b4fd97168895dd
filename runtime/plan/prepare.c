/* prepare.c - kernels are prepared once for all equal calls of a plan: layers repeat, and calls run one after another.
*/
#include <stdlib.h>
#include <string.h>

#include "base/xxh3.h"
#include "plan/lower.h"

static int same_info(const ms_value_info *a, const ms_value_info *b) {
  return a->dtype == b->dtype && a->ndim == b->ndim && !memcmp(a->dims, b->dims, (size_t)a->ndim * sizeof *a->dims);
}

static int same_call(const ms_kernel_call *a, const ms_kernel_call *b) {
  if (a->op != b->op || a->inputs != b->inputs || a->outputs != b->outputs || a->threads != b->threads) return 0;
  if (memcmp(&a->attrs, &b->attrs, sizeof a->attrs)) return 0;
  for (int i = 0; i < a->inputs; i++)
    if (!same_info(&a->in[i], &b->in[i])) return 0;
  for (int i = 0; i < a->outputs; i++)
    if (!same_info(&a->out[i], &b->out[i])) return 0;
  return 1;
}

/* What same_call compares, but for threads, in a row. */
enum { ATTRIBUTES = sizeof(ms_attrs) / 8, KEY = 1 + ATTRIBUTES + (MS_MAX_INPUTS + MS_MAX_OUTPUTS) * (1 + MS_MAX_DIMS) };

static int put_infos(int64_t *key, int n, const ms_value_info *info, int infos) {
  for (int i = 0; i < infos; i++) {
    key[n++] = info[i].dtype * (1 + MS_MAX_DIMS) + info[i].ndim;
    for (int d = 0; d < info[i].ndim; d++) key[n++] = info[i].dims[d];
  }
  return n;
}

static uint64_t hash_call(const ms_kernel_call *call) {
  int64_t key[KEY];
  key[0] = call->op;
  memcpy(&key[1], &call->attrs, sizeof call->attrs);
  int n = put_infos(key, 1 + ATTRIBUTES, call->in, call->inputs);
  n = put_infos(key, n, call->out, call->outputs);
  return XXH3_64bits(key, (size_t)n * sizeof *key);
}

/* Where a call stands, or the empty slot where it belongs. There is always room. */
static struct ms_prepared_call **find(const ms_prepared *p, const ms_kernel_call *call, uint64_t hash) {
  int slot = (int)(hash & (uint64_t)(p->slots - 1));
  while (p->slot[slot] && (p->slot[slot]->hash != hash || !same_call(&p->slot[slot]->call, call)))
    slot = (slot + 1) & (p->slots - 1);
  return &p->slot[slot];
}

static int grow(ms_prepared *p) {
  ms_prepared wider = {.n = p->n, .slots = p->slots ? 2 * p->slots : 64};
  wider.slot = ms_calloc(wider.slots, sizeof *wider.slot);
  if (!wider.slot) return MS_ENOMEM;
  for (int i = 0; i < p->slots; i++)
    if (p->slot[i]) *find(&wider, &p->slot[i]->call, p->slot[i]->hash) = p->slot[i];
  free(p->slot);
  *p = wider;
  return MS_OK;
}

static int add(ms_prepared *p, const ms_kernel *kernel, const ms_kernel_call *call, uint64_t hash,
               struct ms_prepared_call **place) {
  struct ms_prepared_call *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  made->call = *call;
  made->hash = hash;
  int rc = kernel->prepare ? kernel->prepare(&made->call) : MS_OK;
  if (rc) {
    free(made);
    return rc;
  }
  *place = made;
  p->n++;
  return MS_OK;
}

int ms_plan_prepare(ms_plan *plan, const ms_kernel_call *call, ms_instr *instr) {
  ms_prepared *p = &plan->prepared;
  const ms_kernel *kernel = ms_device_kernel(plan->config.device, call->op);
  if (!kernel)
    return MS_FAIL(MS_EUNSUPPORTED, "op %s has no kernel on the device %s", ms_op_row_of(call->op)->name,
                   ms_device_name(plan->config.device));
  if (2 * p->n >= p->slots) MS_TRY(grow(p));
  uint64_t hash = hash_call(call);
  struct ms_prepared_call **place = find(p, call, hash);
  if (!*place) MS_TRY(add(p, kernel, call, hash, place));
  instr->call = &(*place)->call;
  instr->hash = hash;
  return MS_OK;
}

void ms_plan_release_prepared(ms_plan *plan) {
  ms_prepared *p = &plan->prepared;
  for (int i = 0; i < p->slots; i++) {
    if (!p->slot[i]) continue;
    ms_kernel_call *call = &p->slot[i]->call;
    const ms_kernel *kernel = ms_device_kernel(plan->config.device, call->op);
    if (call->prepared && kernel->release) kernel->release(call->prepared);
    free(p->slot[i]);
  }
  free(p->slot);
}
