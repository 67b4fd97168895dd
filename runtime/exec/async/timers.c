/* timers.c - the times of a profiled phase: device events around each instruction, relative to one that the host timed.
 * Kernels that run together have two for all of them.
 */
#include "base/error.h"
#include "exec/async/async.h"

/* Creates two timed events per instruction, before the run. */
int ms_async_reserve_timers(ms_exec *exec, int phase) {
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
int ms_async_start_timers(ms_exec *exec, int phase) {
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

int ms_async_read_timers(ms_exec *exec, int phase) {
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
    n = ms_async_issued_at_once(exec, phase, i);
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
