/* run.c - runs a phase on an asynchronous device: enqueues all instructions in program order and returns.
 *
 * The plan's events become device events. Phases are ordered as on the CPU: other streams wait for compute at the
 * beginning of a phase (fork), and compute waits for them at its end (join), unless the plan's own events already
 * ensure that. The host waits for the norm and for evaluations, and then also reads the fault that kernels have
 * reported since it last waited.
 */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/numbers/dtype.h"
#include "exec/async/async.h"

/* ---- one instruction ---- */

/* Converts all segments of a unit in one call. */
static int convert(const ms_exec *exec, int phase, const ms_coll *coll, int stream) {
  const ms_state *state = exec->state;
  const ms_move *move = &exec->async->phase[phase].convert[coll->part - exec->phase[phase].part];
  return state->device->api->move(state->device, state->async->stream[stream], coll->parts, move);
}

/* The buffers of a collective: in place in the shared buffer, unless the library can read the source, or write the
 * result to its destination, directly. */
static ms_device_part part_of(const ms_exec *exec, int phase, const ms_exec_instr *instr, const ms_coll_part *part) {
  const ms_move *move = &exec->async->phase[phase].convert[part - exec->phase[phase].part];
  int gathers = instr->coll->kind == MS_COLL_ALL_GATHER;
  const void *from = move->n || !part->src ? move->to : part->src;
  if (gathers) return (ms_device_part){from, part->shared[0], part->count, part->dst_dtype};
  const void *to = move->n ? move->from : part->dst;
  return (ms_device_part){part->shared[0], (void *)(uintptr_t)to, part->count, part->src_dtype};
}

enum { GROUPED_PARTS = 64 }; /* the most parts in one operation of the library */

static int collect(ms_exec *exec, int phase, const ms_exec_instr *instr, int stream, ms_device_comm *comm) {
  static const int kinds[] = {[MS_COLL_ALL_GATHER] = MS_DEVICE_ALL_GATHER,
                              [MS_COLL_REDUCE_SCATTER] = MS_DEVICE_REDUCE_SCATTER,
                              [MS_COLL_ALL_REDUCE] = MS_DEVICE_ALL_REDUCE,
                              [MS_COLL_ALL_TO_ALL] = MS_DEVICE_ALL_TO_ALL};
  const ms_state *state = exec->state;
  const ms_coll *coll = instr->coll;
  ms_device_part part[GROUPED_PARTS];
  const double began = ms_clock();
  const int kind = coll->largest ? MS_DEVICE_ALL_REDUCE_MAX : kinds[coll->kind];
  for (int first = 0; first < coll->parts; first += GROUPED_PARTS) {
    int n = coll->parts - first < GROUPED_PARTS ? coll->parts - first : GROUPED_PARTS;
    for (int i = 0; i < n; i++) part[i] = part_of(exec, phase, instr, &coll->part[first + i]);
    MS_TRY(state->device->api->collective(state->device, comm, state->async->stream[stream], kind, n, part));
    MS_TRY(ms_async_comm_ready(exec->state, comm));
  }
  exec->counters.issued++;
  exec->counters.issue_seconds += ms_clock() - began;
  return MS_OK;
}

static int record(const ms_exec *exec, ms_device_event *event, int stream) {
  return exec->state->device->api->record(exec->state->device, event, exec->state->async->stream[stream]);
}

static int wait(const ms_exec *exec, int stream, ms_device_event *event) {
  return exec->state->device->api->wait(exec->state->device, exec->state->async->stream[stream], event);
}

static int64_t *marks_of(const ms_exec *exec, int phase, const ms_exec_instr *instr) {
  return exec->async->phase[phase].marks + 2 * (instr->coll - exec->phase[phase].coll);
}

/* Notes the beginning or end of a collective: by an event or, during capture, by a write to pinned memory. */
static int note_place(const ms_exec *exec, int phase, const ms_exec_instr *instr, int stream,
                      const ms_async_coll *pending, int after) {
  const ms_state *state = exec->state;
  if (pending) return record(exec, after ? pending->after : pending->before, stream);
  return state->device->api->mark(state->device, state->async->stream[stream], marks_of(exec, phase, instr) + after,
                                  &state->async->args->run);
}

/* Takes a ring entry for a collective that is enqueued, or that a graph is about to run. */
static int take_coll(ms_exec *exec, const ms_exec_instr *instr, int stream, const int64_t *marks, ms_async_coll **out) {
  MS_TRY(ms_async_take_coll(exec->state, out));
  ms_async_coll *pending = *out;
  pending->by = ms_async_comm(exec->state, stream, instr->comm);
  pending->comm = instr->comm;
  pending->marks = marks;
  pending->run = exec->state->async->begun;
  pending->stream = stream;
  pending->entered = 0;
  pending->profiled = NULL;
  return MS_OK;
}

static int issue_collective(ms_exec *exec, int phase, const ms_exec_instr *instr, int stream, int captures,
                            ms_profile_event *profiled) {
  ms_async_coll *pending = NULL;
  ms_device_comm *comm = ms_async_comm(exec->state, stream, instr->comm);
  if (exec->delays.before[stream] > 0) ms_delay_sleep(exec->delays.before[stream]);
  if (!captures) MS_TRY(take_coll(exec, instr, stream, NULL, &pending));
  MS_TRY(note_place(exec, phase, instr, stream, pending, 0));
  if (instr->coll->kind == MS_COLL_ALL_GATHER) MS_TRY(convert(exec, phase, instr->coll, stream));
  MS_TRY(collect(exec, phase, instr, stream, comm));
  if (instr->coll->kind != MS_COLL_ALL_GATHER) MS_TRY(convert(exec, phase, instr->coll, stream));
  MS_TRY(note_place(exec, phase, instr, stream, pending, 1));
  if (!pending) return MS_OK;
  pending->profiled = profiled;
  pending->coll = instr->coll;
  return MS_OK;
}

/* Enters the collectives of a graph that is about to run into the ring, for the flight recorder. */
static int announce_collectives(ms_exec *exec, int phase) {
  for (int i = 0; i < exec->async->phase[phase].n; i++) {
    const ms_exec_instr *instr = exec->async->phase[phase].order[i];
    ms_async_coll *pending;
    if (instr->kind != MS_INSTR_COLLECTIVE) continue;
    int stream = exec->plan->phase[phase].instr[i].stream;
    MS_TRY(take_coll(exec, instr, stream, marks_of(exec, phase, instr), &pending));
    pending->coll = instr->coll;
  }
  return MS_OK;
}

static int issue(ms_exec *exec, int phase, const ms_exec_instr *instr, int captures, ms_profile_event *profiled) {
  int stream = exec->plan->phase[phase].instr[instr->source].stream;
  if (instr->kind == MS_INSTR_WAIT) return wait(exec, stream, exec->async->event[instr->event]);
  if (instr->kind == MS_INSTR_RECORD) return record(exec, exec->async->event[instr->event], stream);
  if (instr->kind == MS_INSTR_COLLECTIVE) return issue_collective(exec, phase, instr, stream, captures, profiled);
  ms_exec_enter_kernel(exec, phase, instr, ms_clock());
  return ms_exec_call_kernel(exec, phase, instr);
}

/* ---- a phase ---- */

static int fork_streams(const ms_exec *exec, int phase) {
  const ms_async *async = exec->state->async;
  int recorded = 0;
  for (int s = MS_STREAM_COMPUTE + 1; s < MS_NAMED_STREAMS; s++) {
    if (!exec->async->phase[phase].forks[s]) continue;
    if (!recorded++) MS_TRY(record(exec, async->fork, MS_STREAM_COMPUTE));
    MS_TRY(wait(exec, s, async->fork));
  }
  return MS_OK;
}

/* all: also streams that the plan joins itself, as a failed phase might not have reached that. */
static int join_streams(const ms_exec *exec, int phase, int all) {
  const ms_async *async = exec->state->async;
  for (int s = MS_NAMED_STREAMS - 1; s > MS_STREAM_COMPUTE; s--) {
    if (!all && !exec->async->phase[phase].joins[s]) continue;
    MS_TRY(record(exec, async->join[s], s));
    MS_TRY(wait(exec, MS_STREAM_COMPUTE, async->join[s]));
  }
  return MS_OK;
}

/* Waits for a kernel and lets after_kernel inspect its output, before the next kernel can overwrite it. */
static int wait_and_inspect(ms_exec *exec, int phase, const ms_exec_instr *instr, ms_async_run *run) {
  MS_TRY(record(exec, run->end, MS_STREAM_COMPUTE));
  MS_TRY(ms_async_wait(exec->state, run->end));
  return exec->after_kernel(exec, phase, instr);
}

/* Kernels that run together; only the first and the last one have timers. */
static int issue_together(ms_exec *exec, int phase, int first, int n) {
  ms_exec_instr *const *instr = exec->async->phase[phase].order + first;
  for (int i = 0; i < n; i++) {
    ms_exec_enter_kernel(exec, phase, instr[i], ms_clock());
    if (exec->profile) ms_profile_append(exec, phase, MS_STREAM_COMPUTE, instr[i]);
  }
  if (exec->profile) MS_TRY(record(exec, exec->async->timer[2 * first], MS_STREAM_COMPUTE));
  MS_TRY(ms_exec_call_together(exec, phase, instr, n));
  return exec->profile ? record(exec, exec->async->timer[2 * (first + n) - 1], MS_STREAM_COMPUTE) : MS_OK;
}

static int issue_alone(ms_exec *exec, int phase, int i, ms_async_run *run, int captures) {
  const struct ms_async_exec *a = exec->async;
  const ms_exec_instr *instr = a->phase[phase].order[i];
  const int stream = exec->plan->phase[phase].instr[instr->source].stream;
  ms_profile_event *profiled = NULL;
  if (exec->profile) {
    profiled = ms_profile_append(exec, phase, stream, instr);
    MS_TRY(record(exec, a->timer[2 * i], stream));
  }
  MS_TRY(issue(exec, phase, instr, captures, profiled));
  if (exec->profile) MS_TRY(record(exec, a->timer[2 * i + 1], stream));
  if (exec->after_kernel && instr->kind == MS_INSTR_KERNEL) return wait_and_inspect(exec, phase, instr, run);
  return MS_OK;
}

static int is_waited_for(const ms_exec *exec, int phase) {
  return phase == MS_PHASE_NORM || phase == MS_PHASE_EVALUATE || exec->profile || exec->after_kernel;
}

/* With the end of NORM the host has all that decides about the update. */
static int send_norms(const ms_exec *exec) {
  const ms_state *state = exec->state;
  for (int i = 0; i < MS_NORMS; i++) {
    const ms_ref at = ms_exec_norm_at(exec->plan, i);
    float *to = state->async->words->norm[i];
    if (at.buffer < 0) continue;
    MS_TRY(state->device->api->copy_out(state->device, state->async->stream[MS_STREAM_COMPUTE], to,
                                        ms_exec_pointer(exec, &at), sizeof state->async->words->norm[i]));
  }
  return MS_OK;
}

/* What the host reads when the run has ended: part of a captured graph. */
static int send_results(const ms_exec *exec, int phase) {
  const ms_async *async = exec->state->async;
  if (phase == MS_PHASE_NORM) MS_TRY(send_norms(exec));
  if (!is_waited_for(exec, phase)) return MS_OK;
  return exec->state->device->api->copy_out(exec->state->device, async->stream[MS_STREAM_COMPUTE], &async->words->fault,
                                            async->fault, sizeof(ms_fault));
}

static int issue_all(ms_exec *exec, int phase, ms_async_run *run, int captures) {
  ms_exec_instr *const *order = exec->async->phase[phase].order;
  const double began = ms_clock();
  int64_t launches = 0;
  MS_TRY(fork_streams(exec, phase));
  for (int i = 0, n; i < exec->async->phase[phase].n; i += n) {
    n = ms_async_issued_at_once(exec, phase, i);
    MS_TRY(n > 1 ? issue_together(exec, phase, i, n) : issue_alone(exec, phase, i, run, captures));
    launches += order[i]->kind == MS_INSTR_KERNEL || order[i]->kind == MS_INSTR_COLLECTIVE;
  }
  MS_TRY(join_streams(exec, phase, 0));
  if (!captures) exec->counters.launches += launches, exec->counters.launch_seconds += ms_clock() - began;
  return send_results(exec, phase);
}

/* Counts what was enqueued. */
static void count(ms_exec *exec, int phase) {
  for (int s = 0; s < MS_NAMED_STREAMS; s++) {
    ms_exec_cursor *cursor = &exec->cursor[s];
    const ms_exec_stream *stream = &exec->phase[phase].stream[s];
    cursor->instructions = stream->n;
    for (int i = 0; i < stream->n; i++)
      if (stream->instr[i].kind == MS_INSTR_COLLECTIVE) ms_exec_count_collective(cursor, &stream->instr[i]);
  }
}

static int run_graph(ms_exec *exec, int phase, ms_async_run *run) {
  ms_state *state = exec->state;
  const ms_device_api *api = state->device->api;
  ms_device_stream *compute = state->async->stream[MS_STREAM_COMPUTE];
  ms_device_graph **graph = &exec->async->phase[phase].graph;
  if (!*graph) {
    MS_TRY(api->capture_begin(state->device, compute));
    int rc = issue_all(exec, phase, run, 1);
    if (rc) api->capture_end(state->device, compute, NULL);
    else rc = api->capture_end(state->device, compute, graph);
    if (rc) return rc;
  }
  MS_TRY(announce_collectives(exec, phase));
  return api->graph_run(state->device, *graph, compute);
}

static int reads_inputs(int phase) {
  return phase != MS_PHASE_NORM && phase != MS_PHASE_UPDATE && phase != MS_PHASE_OUTER;
}

/* The scalars of a step are the same in all of its phases. A captured phase with collectives writes the run's number.
 */
static int send_args(ms_exec *exec, int phase, const ms_async_run *run) {
  ms_async *async = exec->state->async;
  ms_async_args *args = &async->words->args[run - async->run];
  const int is_new = memcmp(&async->sent, &exec->scalars, sizeof async->sent) || async->begun == 1;
  if (!is_new && !(exec->async->captures && exec->phase[phase].colls)) return MS_OK;
  *args = (ms_async_args){exec->scalars, async->begun};
  MS_TRY(exec->state->device->api->copy_in(exec->state->device, async->stream[MS_STREAM_COMPUTE], async->args, args,
                                           sizeof *args));
  async->sent = exec->scalars;
  return MS_OK;
}

/* Copies scalars and inputs to the device through pinned memory that belongs to this run until it has ended. */
static int send_inputs(ms_exec *exec, int phase, const ms_async_run *run) {
  ms_state *state = exec->state;
  struct ms_async_exec *a = exec->async;
  ms_device_stream *compute = state->async->stream[MS_STREAM_COMPUTE];
  const ms_device_api *api = state->device->api;
  MS_TRY(send_args(exec, phase, run));
  if (!reads_inputs(phase) || !a->staged_bytes) return MS_OK;
  char *pinned = a->pinned + (run - state->async->run) * a->staged_bytes;
  memcpy(pinned, a->staged, (size_t)a->staged_bytes);
  for (int i = 0; i < exec->plan->inputs; i++) {
    const ms_ref *at = &exec->plan->input[i].at;
    int64_t bytes = ms_numel(&at->info) * ms_dtype_size(at->info.dtype);
    MS_TRY(api->copy_in(state->device, compute, ms_exec_pointer(exec, at), pinned + a->staged_at[i], bytes));
  }
  return MS_OK;
}

static int report_fault(ms_exec *exec, const ms_fault *fault) {
  static const ms_fault none;
  const ms_fault found = *fault;
  if (!found.set) return MS_OK;
  MS_TRY(ms_state_copy_in(exec->state, exec->state->async->fault, &none, sizeof none));
  return MS_FAIL(MS_EINVAL, "%s: %lld is not in %lld to %lld", ms_op_row_of(found.op)->name, (long long)found.value,
                 (long long)found.least, (long long)found.limit - 1);
}

static int run_phase(ms_exec *exec, int phase, ms_async_run *run) {
  ms_state *state = exec->state;
  ms_async *async = state->async;
  MS_TRY(send_inputs(exec, phase, run));
  int replays = exec->async->captures && exec->async->phase[phase].warm && !exec->profile && !exec->after_kernel;
  MS_TRY(replays ? run_graph(exec, phase, run) : issue_all(exec, phase, run, 0));
  exec->async->phase[phase].warm = 1;
  if (async->ended == async->begun) async->ended--; /* it was drained during the phase, to inspect values */
  return record(exec, run->end, MS_STREAM_COMPUTE);
}

/* After a failure: makes the run's end event follow everything that was enqueued. */
static void give_up(ms_exec *exec, int phase, ms_async_run *run) {
  if (!join_streams(exec, phase, 1)) record(exec, run->end, MS_STREAM_COMPUTE);
  if (exec->state->process_group.size > 1) ms_async_disconnect(exec->state);
}

/* ---- the runner ---- */

static int run(ms_exec *exec, int phase) {
  ms_state *state = exec->state;
  ms_async_run *run;
  double began = ms_clock(), *waited = &exec->cursor[MS_STREAM_COMPUTE].wait_seconds;
  MS_TRY(state->device->api->attach(state->device));
  MS_TRY(ms_async_connect(state));
  if (exec->profile) MS_TRY(ms_async_start_timers(exec, phase));
  MS_TRY(ms_async_take_run(state, &run));
  *waited += ms_clock() - began;
  int rc = run_phase(exec, phase, run);
  if (rc) {
    give_up(exec, phase, run);
    return rc;
  }
  count(exec, phase);
  began = ms_clock();
  if (is_waited_for(exec, phase)) rc = ms_async_drain(state);
  *waited += ms_clock() - began;
  if (!rc && is_waited_for(exec, phase)) rc = report_fault(exec, &state->async->words->fault);
  if (!rc && exec->profile) rc = ms_async_read_timers(exec, phase);
  if (rc && state->process_group.size > 1) ms_async_disconnect(state);
  return rc;
}

static const float *norm_of(const ms_exec *exec, int which) { return exec->state->async->words->norm[which]; }

static void *input_at(ms_exec *exec, int input) { return exec->async->staged + exec->async->staged_at[input]; }

/* Copies the output to the host now, after the device has finished the phase. */
static const void *output_at(ms_exec *exec, int output) {
  const ms_ref *at = &exec->plan->output[output].at[exec->graph_phase];
  void *data = ms_exec_pointer(exec, at);
  if (!data) return NULL;
  char *copy = exec->async->output + exec->async->output_at[output];
  return ms_state_copy_out(exec->state, copy, data, ms_numel(&at->info) * ms_dtype_size(at->info.dtype)) ? NULL : copy;
}

const ms_runner ms_async_runner = {.open = ms_async_exec_new,
                                   .close = ms_async_exec_free,
                                   .rebind = ms_async_exec_rebind,
                                   .run = run,
                                   .input = input_at,
                                   .output = output_at,
                                   .norm = norm_of,
                                   .set_graph = ms_async_exec_set_graph,
                                   .reserve_profile = ms_async_reserve_timers};
