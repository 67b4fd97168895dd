/* prepare.c - prepares a kernel once for all equal calls in a plan: layers repeat, and calls run one after another. */
#include <stdlib.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "base/text/hash.h"
#include "base/text/xxh3.h"
#include "plan/lower/lower.h"

/* The key of a call: op and multiprocessors that it spares, attributes and all shapes, in a row. Calls are equal when
 * their keys and numbers of inputs are. */
enum {
  ATTRIBUTES = sizeof(ms_op_attrs) / 8,
  KEY = 1 + ATTRIBUTES + (MS_MAX_INPUTS + MS_MAX_OUTPUTS) * (1 + MS_MAX_DIMS)
};

struct ms_prepared_call {
  ms_kernel_call call;
  uint64_t hash; /* of the key */
  size_t key_bytes;
  int64_t key[KEY];
  int64_t bytes[MS_MAX_INPUTS + MS_MAX_OUTPUTS]; /* sizes of the inputs, then of the outputs */
};

static int put_infos(int64_t *key, int n, const ms_ref *ref, int refs) {
  for (int i = 0; i < refs; i++) {
    const ms_value_info *info = &ref[i].info;
    key[n++] = info->dtype * (1 + MS_MAX_DIMS) + info->ndim;
    for (int d = 0; d < info->ndim; d++) key[n++] = info->dims[d];
  }
  return n;
}

/* Returns the slot of a call, or the empty slot where it belongs. The table is never full. */
static struct ms_prepared_call **find(const ms_prepared *p, uint64_t hash, const int64_t *key, size_t bytes,
                                      int inputs) {
  int slot = (int)(hash & (uint64_t)(p->slots - 1));
  for (struct ms_prepared_call *c = p->slot[slot]; c; c = p->slot[slot]) {
    if (c->hash == hash && c->key_bytes == bytes && c->call.inputs == inputs && !memcmp(c->key, key, bytes)) break;
    slot = (slot + 1) & (p->slots - 1);
  }
  return &p->slot[slot];
}

static int grow(ms_prepared *p) {
  ms_prepared wider = {.n = p->n, .slots = p->slots ? 2 * p->slots : 64};
  wider.slot = ms_calloc(wider.slots, sizeof *wider.slot);
  if (!wider.slot) return MS_ENOMEM;
  for (int i = 0; i < p->slots; i++) {
    struct ms_prepared_call *c = p->slot[i];
    if (c) *find(&wider, c->hash, c->key, c->key_bytes, c->call.inputs) = c;
  }
  free(p->slot);
  *p = wider;
  return MS_OK;
}

static int64_t bytes_of(const ms_value_info *info) { return ms_numel(info) * ms_dtype_size(info->dtype); }

/* Kernels tell bf16 from f32 and ask no further, so what they have no loops for ends here. The graph has checked its
 * nodes; lowering makes calls of its own. */
static int check_dtypes(int op, const char *kind, int n, const ms_ref *ref) {
  for (int i = 0; i < n; i++) MS_TRY(ms_op_check_dtype(op, ref[i].info.dtype, kind, i));
  return MS_OK;
}

/* Fills made->bytes and prepares made->call; the caller sets the hash and the key. */
static int prepare(const ms_plan *plan, const ms_kernel *kernel, int op, int spared, const ms_op_attrs *attrs,
                   int inputs, const ms_ref *in, int outputs, const ms_ref *out, struct ms_prepared_call *made) {
  MS_TRY(check_dtypes(op, "input", inputs, in));
  MS_TRY(check_dtypes(op, "output", outputs, out));
  made->call = (ms_kernel_call){.op = op,
                                .attrs = *attrs,
                                .inputs = inputs,
                                .outputs = outputs,
                                .threads = plan->config.threads,
                                .spared = spared};
  for (int i = 0; i < inputs; i++) {
    made->call.in[i] = in[i].info;
    made->bytes[i] = bytes_of(&in[i].info);
  }
  for (int i = 0; i < outputs; i++) {
    made->call.out[i] = out[i].info;
    made->bytes[inputs + i] = bytes_of(&out[i].info);
  }
  return kernel->prepare ? kernel->prepare(&made->call) : MS_OK;
}

static int prepare_once(ms_plan *plan, int op, int spared, const ms_op_attrs *attrs, int inputs, const ms_ref *in,
                        int outputs, const ms_ref *out, ms_instr *instr) {
  ms_prepared *p = &plan->prepared;
  const ms_kernel *kernel = ms_device_kernel(plan->config.device, op);
  if (!kernel)
    return MS_FAIL(MS_EUNSUPPORTED, "op %s has no kernel on device %s", ms_op_row_of(op)->name,
                   ms_device_name(plan->config.device));
  if (2 * p->n >= p->slots) MS_TRY(grow(p));
  int64_t key[KEY];
  key[0] = op | (int64_t)spared << 32;
  memcpy(&key[1], attrs, sizeof *attrs);
  int n = put_infos(key, 1 + ATTRIBUTES, in, inputs);
  n = put_infos(key, n, out, outputs);
  const size_t bytes = (size_t)n * sizeof *key;
  const uint64_t hash = XXH3_64bits(key, bytes);
  struct ms_prepared_call **place = find(p, hash, key, bytes, inputs);
  if (!*place) {
    struct ms_prepared_call *made = ms_calloc(1, sizeof *made);
    if (!made) return MS_ENOMEM;
    int rc = prepare(plan, kernel, op, spared, attrs, inputs, in, outputs, out, made);
    if (rc) {
      free(made);
      return rc;
    }
    made->hash = hash;
    made->key_bytes = bytes;
    memcpy(made->key, key, bytes);
    *place = made;
    p->n++;
  }
  instr->call = &(*place)->call;
  instr->hash = hash;
  instr->bytes = (*place)->bytes;
  return MS_OK;
}

int ms_plan_prepare(ms_plan *plan, int op, const ms_op_attrs *attrs, int inputs, const ms_ref *in, int outputs,
                    const ms_ref *out, ms_instr *instr) {
  return prepare_once(plan, op, 0, attrs, inputs, in, outputs, out, instr);
}

int ms_plan_prepare_spared(ms_plan *plan, ms_instr *instr) {
  const ms_kernel_call *call = instr->call;
  const uint64_t hash = instr->hash; /* of an op that ranks share, it is not that of the key */
  const ms_op_attrs attrs = call->attrs;
  ms_ref in[MS_MAX_INPUTS], out[MS_MAX_OUTPUTS];
  for (int i = 0; i < call->inputs; i++) in[i] = (ms_ref){.info = call->in[i]};
  for (int o = 0; o < call->outputs; o++) out[o] = (ms_ref){.info = call->out[o]};
  MS_TRY(prepare_once(plan, call->op, plan->config.sm_carveout, &attrs, call->inputs, in, call->outputs, out, instr));
  instr->hash = ms_hash_int(hash, instr->call->spared);
  return MS_OK;
}

int64_t ms_plan_prepared_bytes(const ms_plan *plan) {
  const ms_prepared *p = &plan->prepared;
  return p->slots * (int64_t)sizeof *p->slot + p->n * (int64_t)sizeof(struct ms_prepared_call);
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
