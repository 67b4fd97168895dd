/* profile.c - records what runs. Every stream has its own list, so streams on different threads record without a lock;
 * room is allocated before a run, never during it. Texts stay flight recorder numbers until the trace is written.
 */
#include "exec/profile/profile.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"

static void destroy_profile(void *object) {
  ms_profile *profile = object;
  for (int s = 0; s < MS_NAMED_STREAMS; s++) free(profile->stream[s].event);
  free(profile->span);
}

int ms_profile_new(ms_world *world, ms_profile **out) {
  MS_HANDLE(world, WORLD);
  MS_GIVEN(out);
  ms_profile *profile = ms_handle_new(MS_HANDLE_PROFILE, sizeof *profile, destroy_profile);
  if (!profile) return MS_ENOMEM;
  profile->world = world;
  ms_handle_set_on(profile, world);
  profile->recorder = ms_world_recorder(world);
  const ms_recorder_record *last = ms_recorder_last(&profile->recorder->ring[0]);
  profile->synced = last ? atomic_load(&last->sequence) : 0;
  *out = profile;
  return MS_OK;
}

void ms_exec_set_profile(ms_exec *exec, ms_profile *profile) {
  MS_HANDLE_OR(, exec, EXEC);
  if (profile) MS_HANDLE_OR(, profile, PROFILE);
  ms_handle_keep(profile);
  ms_handle_drop(exec->profile);
  exec->profile = profile;
}

/* ---- events of streams ---- */

int ms_profile_reserve(ms_profile *profile, const ms_exec_phase *phase) {
  for (int s = 0; s < MS_NAMED_STREAMS; s++) {
    ms_profile_list *list = &profile->stream[s];
    list->before = list->n;
    MS_TRY(ms_grow((void **)&list->event, &list->capacity, list->n + phase->stream[s].n, sizeof *list->event));
  }
  profile->runs++;
  return MS_OK;
}

ms_profile_event *ms_profile_append(ms_exec *exec, int phase, int stream, const ms_exec_instr *instr) {
  static const int kinds[] = {[MS_INSTR_KERNEL] = MS_PROFILE_KERNEL,
                              [MS_INSTR_COLLECTIVE] = MS_PROFILE_COLLECTIVE,
                              [MS_INSTR_RECORD] = MS_PROFILE_RECORD,
                              [MS_INSTR_WAIT] = MS_PROFILE_WAIT,
                              [MS_INSTR_JOIN] = MS_PROFILE_COLLECTIVE};
  ms_profile_list *list = &exec->profile->stream[stream];
  ms_profile_event *event = &list->event[list->n++];
  *event = (ms_profile_event){.kind = kinds[instr->kind],
                              .phase = phase,
                              .instr = instr,
                              .run = exec->profile->runs,
                              .event = instr->event,
                              .step = atomic_load_explicit(&exec->recorder->step, memory_order_relaxed)};
  return event;
}

void ms_profile_kernel(ms_exec *exec, int phase, const ms_exec_instr *instr, uint64_t began) {
  ms_profile_event *event = ms_profile_append(exec, phase, MS_STREAM_COMPUTE, instr);
  event->begin = began;
  event->end = ms_recorder_now();
}

/* Takes the times of a collective from the flight recorder, which records them anyway. One that outlasts its phase is
 * an event of the phase that joins it. */
void ms_profile_add(ms_exec *exec, int phase, int stream, const ms_exec_instr *instr) {
  const int collective = instr->kind == MS_INSTR_COLLECTIVE, join = instr->kind == MS_INSTR_JOIN;
  if ((collective && instr->in_flight) || (join && !exec->state->in_flight.ended_here)) return;
  ms_profile_event *event = ms_profile_append(exec, phase, stream, instr);
  if (!collective && !join) return;
  const ms_recorder_record *record = ms_comm_last_done(instr->comm);
  event->begin = atomic_load_explicit(&record->entered, memory_order_relaxed);
  event->met = atomic_load_explicit(&record->met, memory_order_relaxed);
  event->end = atomic_load_explicit(&record->left, memory_order_relaxed);
  event->sequence = atomic_load_explicit(&record->sequence, memory_order_relaxed);
}

/* 1 for an all-gather of what is in place already: its ranks only meet. */
static int moves_nothing(const ms_coll *coll) {
  if (coll->kind != MS_COLL_ALL_GATHER) return 0;
  for (int i = 0; i < coll->parts; i++)
    if (coll->part[i].src) return 0;
  return 1;
}

/* Fills in an event after the run, while the exec still exists. */
static void complete(const ms_exec *exec, int phase, ms_profile_event *event) {
  const ms_exec_instr *instr = event->instr;
  event->instr = NULL;
  event->source = instr->source;
  event->backward = exec->plan->phase[phase].instr[instr->source].backward;
  if (event->kind == MS_PROFILE_KERNEL) {
    const ms_kernel_call *call = instr->call;
    ms_cost_case c = {call->op, &call->attrs, call->inputs, call->outputs, call->in, call->out};
    event->op = call->op;
    event->label = instr->label;
    event->flops = ms_op_flops(&c);
    event->bytes = ms_op_bytes(&c);
    const ms_kernel *kernel = ms_device_kernel(exec->plan->config.device, call->op);
    if (kernel->computed) event->computed = kernel->computed(call);
  } else if (event->kind == MS_PROFILE_COLLECTIVE) {
    event->op = instr->coll->kind;
    event->label = instr->coll->label_number;
    event->bytes = instr->bytes + instr->also_bytes;
    event->inside = moves_nothing(instr->coll) ? 0 : instr->moved.inside + instr->also_bytes;
    event->wire = fmax(instr->moved.sent, instr->moved.received);
  }
}

void ms_profile_drop(ms_profile *profile) {
  for (int s = 0; s < MS_NAMED_STREAMS; s++) profile->stream[s].n = profile->stream[s].before;
}

/* ---- spans of the calling thread ---- */

static int add_span(ms_profile *profile, const ms_profile_span *span) {
  MS_TRY(ms_grow((void **)&profile->span, &profile->spans_capacity, profile->spans + 1, sizeof *profile->span));
  profile->span[profile->spans++] = *span;
  return MS_OK;
}

int ms_profile_finish_phase(ms_profile *profile, const ms_exec *exec, int phase, uint64_t began) {
  double flops = 0, bytes = 0;
  for (int s = 0; s < MS_NAMED_STREAMS; s++) {
    ms_profile_list *list = &profile->stream[s];
    for (int i = list->before; i < list->n; i++) {
      complete(exec, phase, &list->event[i]);
      flops += list->event[i].flops;
      if (list->event[i].kind == MS_PROFILE_COLLECTIVE) bytes += list->event[i].bytes;
    }
  }
  return add_span(profile, &(ms_profile_span){.begin = began,
                                              .end = ms_recorder_now(),
                                              .name = exec->phase[phase].activity,
                                              .step = atomic_load(&exec->recorder->step),
                                              .flops = flops,
                                              .bytes = bytes});
}

/* Adds barriers and all-gathers of bytes that are still in the flight recorder's ring. */
static int add_synchronization(ms_profile *profile) {
  uint64_t newest = profile->synced;
  for (int i = 0; i < MS_RECORDER_RECORDS; i++) {
    const ms_recorder_record *record = &profile->recorder->ring[0].record[i];
    uint64_t sequence = atomic_load(&record->sequence), left = atomic_load(&record->left);
    if (sequence <= profile->synced || !left) continue;
    if (sequence > newest) newest = sequence;
    const char *kind = ms_coll_kind_name((int)atomic_load(&record->kind));
    MS_TRY(add_span(profile, &(ms_profile_span){.begin = atomic_load(&record->entered),
                                                .end = left,
                                                .name = ms_recorder_number(profile->recorder, kind),
                                                .label = atomic_load(&record->label),
                                                .step = atomic_load(&record->step),
                                                .bytes = (double)atomic_load(&record->bytes)}));
  }
  profile->synced = newest;
  return MS_OK;
}

int ms_profile_mark(ms_profile *profile, const char *name, double began) {
  MS_HANDLE(profile, PROFILE);
  MS_GIVEN(name);
  if (!(began >= 0 && began <= 1e-9 * (double)ms_recorder_now()))
    return MS_FAIL(MS_EINVAL, "ms_profile_mark: began is %g; it must be 0 to now, in seconds of CLOCK_MONOTONIC",
                   began);
  MS_TRY(add_synchronization(profile));
  return add_span(profile, &(ms_profile_span){.begin = (uint64_t)(1e9 * began),
                                              .end = ms_recorder_now(),
                                              .name = ms_recorder_number(profile->recorder, name),
                                              .step = atomic_load(&profile->recorder->step)});
}
