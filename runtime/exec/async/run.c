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
#include "exec/async/async.h"

/* ---- one instruction ---- */

/* Converts all segments of a unit in one call. */
static int convert(const ms_exec *exec, int phase, const ms_coll *coll, int stream) {
  const ms_state *state = exec->state;
  const ms_move *move = &exec->async->phase[phase].convert[coll->part - exec->phase[phase].part];
  return state->device->api->move(state->device, state->async->stream[stream], coll->parts, move);
}

/* The buffers of a collective: in place in the shared buffer, unless the library can write the result to its
 * destination directly. */
static ms_device_part part_of(const ms_exec *exec, int phase, const ms_exec_instr *instr, const ms_coll_part *part) {
  const ms_move *move = &exec->async->phase[phase].convert[part - exec->phase[phase].part];
  int gathers = instr->coll->kind == MS_COLL_ALL_GATHER;
  if (gathers) return (ms_device_part){move->to, part->shared[0], part->count, part->dst_dtype};
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
  exec->issued++;
  exec->issue_seconds += ms_clock() - began;
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
  pending->by = ms_async_comm(exec->state, stream, ms_comm_size(instr->comm));
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
  ms_device_comm *comm = ms_async_comm(exec->state, stream, ms_comm_size(instr->comm));
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
  MS_TRY(record(exec, async->fork, MS_STREAM_COMPUTE));
  for (int s = MS_STREAM_COMPUTE + 1; s < MS_NAMED_STREAMS; s++)
    if (exec->async->phase[phase].forks[s]) MS_TRY(wait(exec, s, async->fork));
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

/* How many instructions are issued as one. What inspects values wants each kernel's own. */
static int issued_at_once(const ms_exec *exec, int phase, int i) {
  return exec->after_kernel ? 1 : exec->async->phase[phase].together[i];
}

static int issue_all(ms_exec *exec, int phase, ms_async_run *run, int captures) {
  MS_TRY(fork_streams(exec, phase));
  for (int i = 0, n; i < exec->async->phase[phase].n; i += n) {
    n = issued_at_once(exec, phase, i);
    MS_TRY(n > 1 ? issue_together(exec, phase, i, n) : issue_alone(exec, phase, i, run, captures));
  }
  return join_streams(exec, phase, 0);
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

/* Copies scalars and inputs to the device through pinned memory that belongs to this run until it has ended. */
static int send_inputs(ms_exec *exec, int phase, const ms_async_run *run) {
  ms_state *state = exec->state;
  struct ms_async_exec *a = exec->async;
  ms_device_stream *compute = state->async->stream[MS_STREAM_COMPUTE];
  const ms_device_api *api = state->device->api;
  run->words->args = (ms_async_args){exec->scalars, state->async->begun};
  MS_TRY(api->copy_in(state->device, compute, state->async->args, &run->words->args, sizeof(ms_async_args)));
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
  return MS_FAIL(MS_EINVAL, "%s: %lld is not in 0 to %lld", ms_op_row_of(found.op)->name, (long long)found.value,
                 (long long)found.limit - 1);
}

static int is_waited_for(const ms_exec *exec, int phase) {
  return phase == MS_PHASE_NORM || phase == MS_PHASE_EVALUATE || exec->profile || exec->after_kernel;
}

/* Together with the run's end the host then has all that decides about the update. */
static int send_norms(const ms_exec *exec, ms_async_run *run) {
  const ms_state *state = exec->state;
  const ms_ref *ref[] = {&exec->plan->norm, &exec->plan->norm_of_synced};
  for (int i = 0; i < 2; i++) {
    if (ref[i]->buffer < 0) continue;
    MS_TRY(state->device->api->copy_out(state->device, state->async->stream[MS_STREAM_COMPUTE], run->words->norm[i],
                                        ms_exec_pointer(exec, ref[i]), sizeof run->words->norm[i]));
  }
  return MS_OK;
}

static int run_phase(ms_exec *exec, int phase, ms_async_run *run) {
  ms_state *state = exec->state;
  ms_async *async = state->async;
  MS_TRY(send_inputs(exec, phase, run));
  MS_TRY(record(exec, run->begin, MS_STREAM_COMPUTE));
  int replays = exec->async->captures && exec->async->phase[phase].warm && !exec->profile && !exec->after_kernel;
  MS_TRY(replays ? run_graph(exec, phase, run) : issue_all(exec, phase, run, 0));
  exec->async->phase[phase].warm = 1;
  if (phase == MS_PHASE_NORM) MS_TRY(send_norms(exec, run));
  if (is_waited_for(exec, phase))
    MS_TRY(state->device->api->copy_out(state->device, async->stream[MS_STREAM_COMPUTE], &run->words->fault,
                                        async->fault, sizeof(ms_fault)));
  if (async->ended == async->begun) async->ended--; /* it was drained during the phase, to inspect values */
  return record(exec, run->end, MS_STREAM_COMPUTE);
}

/* After a failure: makes the run's end event follow everything that was enqueued. */
static void give_up(ms_exec *exec, int phase, ms_async_run *run) {
  if (!join_streams(exec, phase, 1)) record(exec, run->end, MS_STREAM_COMPUTE);
  if (exec->state->process_group.size > 1) ms_async_disconnect(exec->state);
}

/* ---- times of a profiled phase: device events around each instruction, relative to one that the host timed ---- */

/* Creates two timed events per instruction, before the run. */
static int reserve_timers(ms_exec *exec, int phase) {
  struct ms_async_exec *a = exec->async;
  int wanted = 2 * a->phase[phase].n + 1;
  MS_TRY(ms_grow((void **)&a->timer, &a->timer_capacity, wanted, sizeof *a->timer));
  for (; a->timers < wanted; a->timers++)
    MS_TRY(exec->state->device->api->event_open(exec->state->device, 1, &a->timer[a->timers]));
  return MS_OK;
}

/* The timer after those of the instructions is the phase's zero. */
static ms_device_event *zero(const ms_exec *exec, int phase) {
  return exec->async->timer[2 * exec->async->phase[phase].n];
}

/* Records the zero on an idle device, which reaches it at once. The host spins, since after a sleep it would see it
 * late. */
static int start_timers(ms_exec *exec, int phase) {
  ms_state *state = exec->state;
  int come = 0;
  MS_TRY(ms_async_drain(state));
  MS_TRY(state->device->api->record(state->device, zero(exec, phase), state->async->stream[MS_STREAM_COMPUTE]));
  while (!come) MS_TRY(state->device->api->query(state->device, zero(exec, phase), &come));
  exec->async->zero_at = ms_recorder_now();
  return MS_OK;
}

/* *at: a timer in ns, clamped to `least` (the end of the stream's previous slice) and `most` (now). */
static int read_timer(const ms_exec *exec, int phase, int timer, uint64_t least, uint64_t most, uint64_t *at) {
  double seconds;
  ms_device *device = exec->state->device;
  MS_TRY(device->api->elapsed(device, zero(exec, phase), exec->async->timer[timer], &seconds));
  *at = exec->async->zero_at + (uint64_t)(1e9 * (seconds > 0 ? seconds : 0));
  if (*at > most) *at = most;
  if (*at < least) *at = least;
  return MS_OK;
}

static double bytes_of(const ms_kernel_call *call) {
  const ms_cost_case c = {call->op, &call->attrs, call->inputs, call->outputs, call->in, call->out};
  return ms_op_bytes(&c);
}

/* Kernels that ran together share their time by the bytes that they move. */
static void divide_time(ms_profile_event *event, int n) {
  const uint64_t begin = event[0].begin, end = event[n - 1].end;
  double all = 0, done = 0;
  for (int i = 0; i < n; i++) all += bytes_of(event[i].instr->call);
  for (int i = 0; i < n; i++) {
    event[i].met = event[i].begin = begin + (uint64_t)((double)(end - begin) * (all > 0 ? done / all : 0));
    done += bytes_of(event[i].instr->call);
    event[i].end = begin + (uint64_t)((double)(end - begin) * (all > 0 ? done / all : 1));
  }
}

static int read_timers(ms_exec *exec, int phase) {
  ms_device *device = exec->state->device;
  int at[MS_NAMED_STREAMS];
  uint64_t ended[MS_NAMED_STREAMS], now = ms_recorder_now();
  for (int s = 0; s < MS_NAMED_STREAMS; s++) {
    at[s] = exec->profile->stream[s].before;
    ended[s] = exec->async->zero_at;
  }
  for (int i = 0, n; i < exec->async->phase[phase].n; i += n) {
    int s = exec->plan->phase[phase].instr[exec->async->phase[phase].order[i]->source].stream;
    ms_profile_event *event = &exec->profile->stream[s].event[at[s]];
    n = issued_at_once(exec, phase, i);
    at[s] += n;
    if (event->kind != MS_PROFILE_KERNEL && event->kind != MS_PROFILE_COLLECTIVE) continue;
    const int last = 2 * (i + n) - 1;
    MS_TRY(read_timer(exec, phase, 2 * i, ended[s], now, &event->begin));
    MS_TRY(read_timer(exec, phase, last, event->begin, now, &event[n - 1].end));
    event->met = event->begin;
    ended[s] = event[n - 1].end;
    if (n > 1) divide_time(event, n);
    double seconds;
    MS_TRY(device->api->elapsed(device, exec->async->timer[2 * i], exec->async->timer[last], &seconds));
    if (event->kind == MS_PROFILE_KERNEL) exec->cursor[s].kernel_seconds += seconds;
    else exec->cursor[s].collective_seconds += seconds;
  }
  return MS_OK;
}

/* ---- the runner ---- */

static int run(ms_exec *exec, int phase) {
  ms_state *state = exec->state;
  ms_async_run *run;
  double began = ms_clock(), *waited = &exec->cursor[MS_STREAM_COMPUTE].wait_seconds;
  MS_TRY(state->device->api->attach(state->device));
  MS_TRY(ms_async_connect(state));
  if (exec->profile) MS_TRY(start_timers(exec, phase));
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
  if (!rc && is_waited_for(exec, phase)) rc = report_fault(exec, &run->words->fault);
  if (!rc && exec->profile) rc = read_timers(exec, phase);
  if (rc && state->process_group.size > 1) ms_async_disconnect(state);
  return rc;
}

/* Of the last run, which was NORM. */
static const float *norm_of(const ms_exec *exec, int synced) {
  const ms_async *async = exec->state->async;
  return async->run[(async->begun - 1) % MS_ASYNC_RUNS].words->norm[synced];
}

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
                                   .reserve_profile = reserve_timers};
