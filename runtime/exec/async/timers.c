/* timers.c - when a profiled phase's instructions ran on the device: by events around each of them, and one whose time the host
** saw.
*/
#include "base/error.h"
#include "exec/async/async.h"

int ms_async_exec_reserve_timers(ms_exec *exec, int phase) {
  struct ms_async_exec *a = exec->async;
  int wanted = 2 * a->phase[phase].n + 1;
  MS_TRY(ms_grow((void **)&a->timer, &a->timer_capacity, wanted, sizeof *a->timer));
  for (; a->timers < wanted; a->timers++)
    MS_TRY(exec->state->device->api->event_open(exec->state->device, 1, &a->timer[a->timers]));
  return MS_OK;
}

/* The last timer of a phase is its zero. */
static ms_device_event *zero(const ms_exec *exec, int phase) {
  return exec->async->timer[2 * exec->async->phase[phase].n];
}

/* The device is idle then, so it comes to the zero at once; a host that slept would see it late. */
int ms_async_exec_start_timers(ms_exec *exec, int phase) {
  ms_state *state = exec->state;
  int come = 0;
  MS_TRY(ms_async_drain(state));
  MS_TRY(state->device->api->record(state->device, zero(exec, phase), state->async->stream[MS_STREAM_COMPUTE]));
  while (!come) MS_TRY(state->device->api->query(state->device, zero(exec, phase), &come));
  exec->async->zero_at = ms_recorder_now();
  return MS_OK;
}

/* Never before `least`, where the stream's last slice ended, nor after `most`. */
static int read_timer(const ms_exec *exec, int phase, int timer, uint64_t least, uint64_t most, uint64_t *at) {
  double seconds;
  ms_device *device = exec->state->device;
  MS_TRY(device->api->elapsed(device, zero(exec, phase), exec->async->timer[timer], &seconds));
  *at = exec->async->zero_at + (uint64_t)(1e9 * (seconds > 0 ? seconds : 0));
  if (*at > most) *at = most;
  if (*at < least) *at = least;
  return MS_OK;
}

int ms_async_exec_read_timers(ms_exec *exec, int phase) {
  ms_device *device = exec->state->device;
  int at[MS_STREAMS];
  uint64_t ended[MS_STREAMS], now = ms_recorder_now();
  for (int s = 0; s < MS_STREAMS; s++) {
    at[s] = exec->profile->stream[s].before;
    ended[s] = exec->async->zero_at;
  }
  for (int i = 0; i < exec->async->phase[phase].n; i++) {
    int s = exec->plan->phase[phase].instr[exec->async->phase[phase].order[i]->source].stream;
    ms_profile_event *event = &exec->profile->stream[s].event[at[s]++];
    if (event->kind != MS_PROFILE_KERNEL && event->kind != MS_PROFILE_COLLECTIVE) continue;
    MS_TRY(read_timer(exec, phase, 2 * i, ended[s], now, &event->begin));
    MS_TRY(read_timer(exec, phase, 2 * i + 1, event->begin, now, &event->end));
    event->met = event->begin;
    ended[s] = event->end;
    double seconds;
    MS_TRY(device->api->elapsed(device, exec->async->timer[2 * i], exec->async->timer[2 * i + 1], &seconds));
    if (event->kind == MS_PROFILE_KERNEL) exec->cursor[s].kernel_seconds += seconds;
    else exec->cursor[s].collective_seconds += seconds;
  }
  return MS_OK;
}
