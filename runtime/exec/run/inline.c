/* inline.c - runs a phase on one thread: the compute stream's kernels in order, and collectives between them.
 *
 * A collective is a state machine that never blocks, so one thread can advance all streams: after each kernel it checks
 * the heads of the other streams, starts collectives that are ready and tests those in flight. Between hosts it also
 * starts those after them, so that the link is in use while a kernel takes long. It sleeps only when compute must wait
 * and no stream can advance.
 */
#include <math.h>

#include "base/clock.h"
#include "base/error.h"
#include "exec/profile/profile.h"

static void record(ms_exec *exec, int event) {
  atomic_store_explicit(&exec->event[event], exec->epoch, memory_order_relaxed);
}

/* Advances a stream of collectives as far as possible without waiting. */
static int poll(ms_exec *exec, int phase, const ms_exec_stream *list, int stream, int *moved) {
  ms_exec_cursor *cursor = &exec->cursor[stream];
  for (;;) {
    MS_TRY(ms_exec_start_ahead(exec, phase, stream));
    if (cursor->at == cursor->ahead) return MS_OK;
    const ms_exec_instr *instr = &list->instr[cursor->at];
    int done = 1;
    if (ms_exec_moves(instr)) MS_TRY(ms_exec_test_collective(exec, cursor, instr, &done));
    if (!done) return MS_OK;
    if (instr->kind == MS_INSTR_RECORD) record(exec, instr->event);
    if (exec->profile) ms_profile_add(exec, phase, stream, instr);
    cursor->at++;
    cursor->instructions++;
    *moved = 1;
  }
}

/* Advances the compute stream until it has run one kernel (*ran), must wait, or has ended. */
static int compute(ms_exec *exec, int phase, const ms_exec_stream *list, double now, int *moved, int *ran) {
  ms_exec_cursor *cursor = &exec->cursor[MS_STREAM_COMPUTE];
  while (cursor->at < list->n && !*ran) {
    const ms_exec_instr *instr = &list->instr[cursor->at];
    if (instr->kind == MS_INSTR_WAIT) {
      if (!ms_exec_is_recorded(exec, instr->event)) return MS_OK;
    } else if (instr->kind == MS_INSTR_RECORD) {
      record(exec, instr->event);
    } else {
      MS_TRY(ms_exec_run_kernel(exec, phase, instr, now));
      *ran = 1;
    }
    if (exec->profile && !*ran) ms_profile_add(exec, phase, MS_STREAM_COMPUTE, instr);
    cursor->at++;
    cursor->instructions++;
    *moved = 1;
  }
  return MS_OK;
}

/* Sleeps until the collective that blocks compute may have advanced. Follows the waits from stream to stream to find
 * it; *blocking: its stream. */
static int pause(ms_exec *exec, int phase, unsigned seen, int *blocking) {
  const ms_exec_stream *stream = exec->phase[phase].stream;
  int s = MS_STREAM_COMPUTE;
  while (s < MS_NAMED_STREAMS - 1 && exec->cursor[s].at == stream[s].n) s++;
  for (int hops = 0; hops < MS_NAMED_STREAMS; hops++) {
    const ms_exec_instr *head = &stream[s].instr[exec->cursor[s].at];
    *blocking = s;
    if (exec->cursor[s].in_flight || head->in_flight) return ms_comm_pause(head->comm, &exec->cursor[s].wait, seen);
    if (exec->cursor[s].ready_at > 0) {
      ms_delay_sleep(fmax(0, exec->cursor[s].ready_at - ms_clock()));
      return ms_world_check(exec->state->world);
    }
    s = head->recorder;
  }
  return MS_FAIL(MS_EINTERNAL, "phase %s: deadlock: the streams wait for each other", ms_phase_name(phase));
}

/* Adds the time since `since`, in which kernels waited for a collective of a stream; returns now. */
static double charge_wait(ms_exec *exec, int stream, double since) {
  ms_exec_cursor *mine = &exec->cursor[MS_STREAM_COMPUTE];
  const int dim = ms_exec_dim(exec, stream);
  if (dim >= 0) ms_exec_charge(since, &mine->waited_for[dim]);
  return ms_exec_charge(since, &mine->wait_seconds);
}

static int run_inline(ms_exec *exec, int phase) {
  const ms_exec_stream *stream = exec->phase[phase].stream;
  ms_exec_cursor *cursor = exec->cursor, *mine = &cursor[MS_STREAM_COMPUTE];
  double now = ms_clock();
  int blocked = 0, blocking = MS_STREAM_COMPUTE;
  for (;;) {
    unsigned seen = blocked ? ms_world_doorbell(exec->state->world) : 0;
    int moved = 0, ran = 0, open = 0;
    for (int s = MS_STREAM_COMPUTE + 1; s < MS_NAMED_STREAMS; s++) {
      if (cursor[s].at == stream[s].n) continue;
      open = 1;
      MS_TRY(poll(exec, phase, &stream[s], s, &moved));
    }
    if (open && blocked && !moved) now = charge_wait(exec, blocking, now);
    else if (open) now = ms_exec_charge(now, &mine->collective_seconds);
    if (!open && mine->at == stream[MS_STREAM_COMPUTE].n) return MS_OK;
    MS_TRY(compute(exec, phase, &stream[MS_STREAM_COMPUTE], now, &moved, &ran));
    if (ran) now = ms_exec_charge(now, &mine->kernel_seconds);
    if (!moved && blocked) {
      MS_TRY(pause(exec, phase, seen, &blocking));
      now = charge_wait(exec, blocking, now);
    }
    blocked = !moved;
  }
}

const ms_runner ms_inline_runner = {.run = run_inline};
