/* prepare.c - kernels are prepared once for all equal calls of a plan: layers repeat, and calls run one after another.
*/
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
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

static uint64_t hash_info(uint64_t hash, const ms_value_info *info) {
  hash = ms_hash_int(hash, info->dtype);
  for (int d = 0; d < info->ndim; d++) hash = ms_hash_int(hash, info->dims[d]);
  return hash;
}

static uint64_t hash_call(const ms_kernel_call *call) {
  uint64_t hash = ms_hash_int(MS_HASH_INIT, call->op);
  for (int i = 0; i < call->inputs; i++) hash = hash_info(hash, &call->in[i]);
  for (int i = 0; i < call->outputs; i++) hash = hash_info(hash, &call->out[i]);
  return hash;
}

static int slot_of(const ms_prepared *p, const ms_kernel_call *call) {
  int slot = (int)(hash_call(call) & (uint64_t)(p->slots - 1));
  while (p->slot[slot] && !same_call(&p->call[p->slot[slot] - 1], call)) slot = (slot + 1) & (p->slots - 1);
  return slot;
}

static int grow(ms_prepared *p) {
  int slots = p->slots ? 2 * p->slots : 64;
  int *slot = ms_calloc(slots, sizeof *slot);
  if (!slot) return MS_ENOMEM;
  free(p->slot);
  p->slot = slot;
  p->slots = slots;
  for (int i = 0; i < p->n; i++) slot[slot_of(p, &p->call[i])] = i + 1;
  return MS_OK;
}

int ms_plan_prepare(ms_plan *plan, ms_kernel_call *call) {
  ms_prepared *p = &plan->prepared;
  const ms_kernel *kernel = ms_device_kernel(plan->config.device, call->op);
  if (!kernel)
    return MS_FAIL(MS_EUNSUPPORTED, "op %s has no kernel on the device %s", ms_op_row_of(call->op)->name,
                   ms_device_name(plan->config.device));
  if (!kernel->prepare) return MS_OK;
  if (2 * p->n >= p->slots) MS_TRY(grow(p));
  int slot = slot_of(p, call);
  if (!p->slot[slot]) {
    MS_TRY(ms_grow((void **)&p->call, &p->capacity, p->n + 1, sizeof *p->call));
    MS_TRY(kernel->prepare(call));
    p->call[p->n++] = *call;
    p->slot[slot] = p->n;
  }
  call->workspace_bytes = p->call[p->slot[slot] - 1].workspace_bytes;
  call->prepared = p->call[p->slot[slot] - 1].prepared;
  return MS_OK;
}

void ms_plan_release_prepared(ms_plan *plan) {
  ms_prepared *p = &plan->prepared;
  for (int i = 0; i < p->n; i++) {
    const ms_kernel *kernel = ms_device_kernel(plan->config.device, p->call[i].op);
    if (p->call[i].prepared && kernel->release) kernel->release(p->call[i].prepared);
  }
  free(p->call);
  free(p->slot);
}
