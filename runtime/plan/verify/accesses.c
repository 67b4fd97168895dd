/* accesses.c - the byte ranges that a phase's instructions touch, and what is known to be done when each instruction
 * starts. Synchronisation and verification both use this file, and no other source.
 */
#include <stdlib.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "plan/lower/lower.h"

/* ---- bytes: those in a row, such as the parts of a collective, are one access ----------------------------------- */

static inline int add_bytes(const ms_plan *plan, ms_place at, int64_t bytes, int write, ms_access *access, int n,
                            int capacity) {
  if (at.buffer < 0 || bytes == 0 || n >= capacity) return n;
  const ms_buffer *b = &plan->buffer[at.buffer];
  int64_t begin = b->offset + at.offset;
  ms_access *before = &access[n - 1];
  if (n && before->buffer == at.buffer && before->write == write && before->end == begin) {
    before->end += bytes;
    return n;
  }
  access[n] = (ms_access){b->arena, at.buffer, begin, begin + bytes, write};
  return n + 1;
}

static int64_t bytes_of(const ms_value_info *info) { return ms_numel(info) * ms_dtype_size(info->dtype); }

static int add(const ms_plan *plan, const ms_ref *ref, int write, ms_access *access, int n, int capacity) {
  return add_bytes(plan, (ms_place){ref->buffer, ref->offset}, bytes_of(&ref->info), write, access, n, capacity);
}

/* Where a node's gather finds this rank's chunk in place, and moves only those of peers. */
static int gathers_in_place(const ms_plan_coll *coll, const ms_plan_part *part) {
  return coll->kind == MS_COLL_ALL_GATHER && coll->unit < 0 && part->src.buffer < 0;
}

static int add_gathered(const ms_plan *plan, const ms_plan_coll *coll, const ms_plan_part *part, ms_access *access,
                        int n, int capacity) {
  const int64_t chunk = part->count * ms_dtype_size(part->shared.info.dtype), place = plan->model->dim[coll->dim].place;
  const ms_place all = {part->shared.buffer, part->shared.offset}, own = {all.buffer, all.offset + place * chunk};
  const ms_place after = {own.buffer, own.offset + chunk};
  n = add_bytes(plan, all, place * chunk, 1, access, n, capacity);
  n = add_bytes(plan, own, chunk, 0, access, n, capacity);
  return add_bytes(plan, after, (coll->ranks - 1 - place) * chunk, 1, access, n, capacity);
}

/* An all-gather writes the shared buffer. What a collective hands over counts as written by it: so it waits for earlier
 * readers, and what writes there later waits for it. An all-reduce can leave sums in its own source for other ranks to
 * copy. Collectives of a device's library sum in place. */
static int collective(const ms_plan *plan, const ms_plan_coll *coll, ms_access *access, int capacity) {
  int n = 0,
      writes_shared = coll->kind == MS_COLL_ALL_GATHER || coll->kind == MS_COLL_ALL_REDUCE ||
                      (coll->kind != MS_COLL_ALL_TO_ALL && ms_device_can(plan->config.device, MS_DEVICE_SUMS_IN_PLACE));
  for (int i = 0; i < coll->parts; i++) n = add(plan, &coll->part[i].src, 0, access, n, capacity);
  for (int i = 0; i < coll->parts; i++)
    if (ms_plan_part_is_coded(coll, &coll->part[i])) n = add(plan, &coll->part[i].scale, 0, access, n, capacity);
  for (int i = 0; i < coll->parts; i++) {
    const ms_plan_part *part = &coll->part[i];
    if (gathers_in_place(coll, part)) n = add_gathered(plan, coll, part, access, n, capacity);
    else n = add(plan, &part->shared, writes_shared, access, n, capacity);
  }
  for (int i = 0; i < coll->parts; i++) n = add(plan, &coll->part[i].dst, 1, access, n, capacity);
  for (int i = 0; i < coll->opened; i++) n = add(plan, &coll->opens[i], 1, access, n, capacity);
  return n;
}

static int moves(const ms_instr *instr) { return instr->kind == MS_INSTR_COLLECTIVE || instr->kind == MS_INSTR_JOIN; }

int ms_instr_accesses(const ms_plan *plan, const ms_instr *instr, ms_access *access, int capacity) {
  if (moves(instr)) return collective(plan, instr->coll, access, capacity);
  if (instr->kind != MS_INSTR_KERNEL) return 0;
  int n = 0;
  const ms_kernel_call *call = instr->call;
  for (int i = 0; i < call->inputs; i++) n = add_bytes(plan, instr->in[i], instr->bytes[i], 0, access, n, capacity);
  for (int i = 0; i < call->outputs; i++)
    n = add_bytes(plan, instr->out[i], instr->bytes[call->inputs + i], 1, access, n, capacity);
  if (instr->workspace < 0) return n;
  ms_place scratch = {instr->workspace, 0};
  return add_bytes(plan, scratch, plan->buffer[instr->workspace].bytes, 1, access, n, capacity);
}

int ms_instr_access_limit(const ms_instr *instr) {
  if (moves(instr)) return 6 * instr->coll->parts + instr->coll->opened;
  return instr->kind == MS_INSTR_KERNEL ? instr->call->inputs + instr->call->outputs + 1 : 0;
}

int ms_phase_access_limit(const ms_plan_phase *phase) {
  int limit = 0;
  for (int i = 0; i < phase->n; i++) limit += ms_instr_access_limit(&phase->instr[i]);
  return limit;
}

ms_ref ms_instr_input(const ms_instr *instr, int i) {
  return (ms_ref){instr->in[i].buffer, instr->in[i].offset, instr->call->in[i]};
}

ms_ref ms_instr_output(const ms_instr *instr, int i) {
  return (ms_ref){instr->out[i].buffer, instr->out[i].offset, instr->call->out[i]};
}

/* ---- order: vector clocks along a program (Fidge 1988, Mattern 1989), from streams and events alone ------------- */

static int check_event(const ms_plan_phase *phase, int phase_id, int i, const char *recorded) {
  const ms_instr *instr = &phase->instr[i];
  if (instr->event < 0 || instr->event >= phase->events)
    return MS_FAIL(MS_ERACE, "phase %s: instruction %d refers to event %d, but the phase has %d",
                   ms_phase_name(phase_id), i, instr->event, phase->events);
  if (instr->kind == MS_INSTR_WAIT && !recorded[instr->event])
    return MS_FAIL(MS_ERACE, "phase %s: instruction %d waits for event %d, which no earlier instruction records",
                   ms_phase_name(phase_id), i, instr->event);
  return MS_OK;
}

int ms_plan_clocks(const ms_plan *plan, int phase, int *clock) {
  const ms_plan_phase *p = &plan->phase[phase];
  const int streams = plan->streams;
  const size_t bytes = (size_t)streams * sizeof *clock;
  int rc = MS_OK, *now = ms_calloc((int64_t)streams * streams, sizeof *now);
  int *known = ms_calloc((int64_t)p->events * streams, sizeof *known);
  char *recorded = ms_calloc(p->events, 1);
  if (!now || !known || !recorded) rc = MS_ENOMEM;
  for (int i = 0; i < p->n && !rc; i++) {
    const ms_instr *instr = &p->instr[i];
    int *mine = &now[instr->stream * streams];
    if (instr->kind == MS_INSTR_RECORD || instr->kind == MS_INSTR_WAIT) MS_GOTO(check_event(p, phase, i, recorded));
    const int *other = &known[instr->event * streams];
    for (int s = 0; instr->kind == MS_INSTR_WAIT && s < streams; s++)
      if (other[s] > mine[s]) mine[s] = other[s];
    memcpy(&clock[i * streams], mine, bytes);
    mine[instr->stream]++;
    if (instr->kind != MS_INSTR_RECORD) continue;
    memcpy(&known[instr->event * streams], mine, bytes);
    recorded[instr->event] = 1;
  }
fail:
  free(now);
  free(known);
  free(recorded);
  return rc;
}

/* ---- gradient chunks: since when they hold anything ------------------------------------------------------------- */

/* Between a step's update and the first gradient sums of the next step, nothing reads the gradient chunks. Forward
 * keeps most activations during just that time, so layout.c also places activations there. */
int ms_instr_needs(const ms_instr *instr, int buffer) {
  if (moves(instr)) {
    for (int i = 0; i < instr->coll->parts; i++) {
      const ms_plan_part *part = &instr->coll->part[i];
      int sums = instr->coll->kind != MS_COLL_ALL_GATHER;
      if (ms_plan_part_is_coded(instr->coll, part) && part->scale.buffer == buffer) return 1;
      if (part->src.buffer == buffer || (sums && part->shared.buffer == buffer)) return 1;
      if (part->accumulate && part->dst.buffer == buffer) return 1;
    }
    return 0;
  }
  if (instr->kind != MS_INSTR_KERNEL) return 0;
  for (int i = 0; i < instr->call->inputs; i++)
    if (instr->in[i].buffer == buffer) return 1;
  for (int o = 0; o < instr->call->outputs; o++)
    if (instr->out[o].buffer == buffer && ms_op_reads_outputs(instr->call->op, &instr->call->attrs)) return 1;
  return 0;
}

static inline void note(const ms_plan *plan, const ms_instr *instr, int buffer, int position, int *begin) {
  if (buffer < 0 || buffer >= MS_SLOTS * plan->model->units || buffer % MS_SLOTS != MS_SLOT_GRADIENT) return;
  int unit = buffer / MS_SLOTS;
  if (ms_instr_needs(instr, buffer)) begin[unit] = 0;
  else if (begin[unit] < 0) begin[unit] = position;
}

void ms_gradients_begin(const ms_plan *plan, int phase, int *begin) {
  const ms_plan_phase *p = &plan->phase[phase];
  for (int u = 0; u < plan->model->units; u++) begin[u] = -1;
  for (int i = 0, position = 0; i < p->n; i++) {
    const ms_instr *instr = &p->instr[i];
    if (moves(instr)) {
      for (int k = 0; k < instr->coll->parts; k++) note(plan, instr, instr->coll->part[k].dst.buffer, position, begin);
      for (int k = 0; k < instr->coll->parts; k++)
        note(plan, instr, instr->coll->part[k].shared.buffer, position, begin);
    } else if (instr->kind == MS_INSTR_KERNEL) {
      for (int k = 0; k < instr->call->inputs; k++) note(plan, instr, instr->in[k].buffer, position, begin);
      for (int k = 0; k < instr->call->outputs; k++) note(plan, instr, instr->out[k].buffer, position, begin);
    } else {
      continue;
    }
    position++;
  }
  for (int u = 0; u < plan->model->units; u++)
    if (begin[u] < 0) begin[u] = 0;
}
