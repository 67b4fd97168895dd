/* runner.c - shared by all runners: whether a phase may run, calling a kernel (with notes, profile and error text),
 * injected delays of collectives, and counts. */
#include <math.h>
#include <string.h>

#include "base/config.h"
#include "base/clock.h"
#include "base/error.h"
#include "exec/tensors/params.h"
#include "exec/profile/profile.h"
#include "exec/tensors/record_table.h"

/* ---- admission ---- */

static int check_run(const ms_exec *exec, int phase) {
  if (phase < 0 || phase >= MS_PHASES) return MS_FAIL(MS_EINVAL, "phase %d does not exist", phase);
  if (!exec->plan->phase[phase].present)
    return MS_FAIL(MS_EINVAL, "this plan has no phase %s: compile it with%s", ms_phase_name(phase),
                   phase == MS_PHASE_NEXT     ? " accumulate = 1"
                   : phase == MS_PHASE_LAST   ? " sync other than every"
                   : phase == MS_PHASE_UPDATE ? " train = 1 and an optimizer"
                   : phase == MS_PHASE_OUTER  ? " outer_parts = apply"
                                              : " train = 1");
  return ms_progress_check(exec->state, phase);
}

/* The largest values that a double and a float hold exactly, as averages and divisors do. */
static const int64_t MAX_STEPS = (int64_t)1 << 53;
enum { MAX_MICRO_BATCHES = 1 << 24 };

/* Refuses values that an optimizer would turn into NaNs. */
static int check_inputs(int phase, const ms_step_inputs *inputs) {
  if (!inputs || phase == MS_PHASE_EVALUATE) return MS_OK;
  if (!(inputs->lr >= 0 && isfinite(inputs->lr))) return MS_FAIL(MS_EINVAL, "lr must be 0 or more, not %g", inputs->lr);
  if (!(inputs->muon_lr >= 0 && isfinite(inputs->muon_lr)))
    return MS_FAIL(MS_EINVAL, "muon_lr must be 0 or more, not %g", inputs->muon_lr);
  if (inputs->step < 1 || inputs->step > MAX_STEPS)
    return MS_FAIL(MS_EINVAL, "step must be from 1 to %lld, not %lld", (long long)MAX_STEPS, (long long)inputs->step);
  if (inputs->micro_batches < 1 || inputs->micro_batches > MAX_MICRO_BATCHES)
    return MS_FAIL(MS_EINVAL, "micro_batches must be from 1 to %d, not %d", MAX_MICRO_BATCHES, inputs->micro_batches);
  if (inputs->first_row < 0 || inputs->row_step < 0)
    return MS_FAIL(MS_EINVAL, "first_row and row_step must be 0 or more, not %lld and %lld",
                   (long long)inputs->first_row, (long long)inputs->row_step);
  return MS_OK;
}

/* Waits until all replicas have swapped their slices back, before anything reads them; makes copies that an update
 * which failed has left behind; and waits for the weights that the last update left in flight, unless this phase joins
 * them one by one. */
static int make_weights_whole(ms_exec *exec, int phase) {
  ms_state *state = exec->state;
  MS_TRY(ms_state_settle_others(state));
  MS_TRY(ms_state_make_whole(state));
  if (phase != MS_PHASE_FIRST || !exec->leaves_in_flight) MS_TRY(ms_state_settle(state));
  if (ms_progress_has(state, MS_COPIES_BEHIND)) MS_TRY(ms_params_copy(state, 0));
  return ms_progress_has(state, MS_REPLICAS_MUST_MEET) ? ms_ema_meet_replicas(state) : MS_OK;
}

int ms_exec_take_inputs(const ms_step_inputs *given, ms_step_inputs *own) {
  MS_TAKE_CONFIG(ms_step_inputs, taken, given);
  *own = taken;
  return MS_OK;
}

int ms_exec_admit(ms_exec *exec, int phase, const ms_step_inputs *inputs) {
  MS_TRY(check_run(exec, phase));
  MS_TRY(ms_records_check_finished(exec->state));
  MS_TRY(ms_resident_check(exec->state, exec->plan));
  MS_TRY(check_inputs(phase, inputs));
  return make_weights_whole(exec, phase);
}

/* ---- kernels ---- */

/* Prefixes the error message of a kernel with its location: "in layers.3.attn: embedding: ...". A message that begins
 * with the beginning of the op's name, such as cross_entropy, says what a recipe called. calls: of the launch, of which
 * this is the first. */
static int explain(const ms_exec *exec, int phase, const ms_exec_instr *instr, int calls, int rc) {
  const ms_instr *source = &exec->plan->phase[phase].instr[instr->source];
  const char *op = ms_op_row_of(instr->call->op)->name, *message = ms_error_message();
  const char *colon = strchr(message, ':');
  const int is_named = colon && colon > message && !strncmp(message, op, (size_t)(colon - message));
  if (!is_named) ms_error_prefix("%s", op);
  if (source->scope && *source->scope && calls > 1)
    ms_error_prefix("in %s, or in one of %d more calls that run with it", source->scope, calls - 1);
  else if (source->scope && *source->scope) ms_error_prefix("in %s", source->scope);
  return rc;
}

static void delay_backward(ms_exec *exec, int phase, const ms_exec_instr *instr) {
  if (exec->forward_ended || !exec->plan->phase[phase].instr[instr->source].backward) return;
  exec->forward_ended = 1;
  if (exec->delays.forward > 0) ms_delay_sleep(exec->delays.forward);
}

void ms_exec_enter_kernel(ms_exec *exec, int phase, const ms_exec_instr *instr, double now) {
  ms_recorder_at(exec->recorder, (uint32_t)instr->label, now);
  if (!exec->delays.any) return;
  delay_backward(exec, phase, instr);
  if (phase == MS_PHASE_UPDATE && exec->delays.update_kernel > 0) ms_delay_sleep(exec->delays.update_kernel);
}

int ms_exec_call_kernel(const ms_exec *exec, int phase, const ms_exec_instr *instr) {
  int rc = instr->run(instr->call);
  return rc ? explain(exec, phase, instr, 1, rc) : MS_OK;
}

int ms_exec_call_together(const ms_exec *exec, int phase, ms_exec_instr *const *instr, int n) {
  const ms_kernel_call *call[MS_RUN_TOGETHER];
  for (int i = 0; i < n; i++) call[i] = instr[i]->call;
  const ms_kernel *kernel = ms_device_kernel(exec->plan->config.device, call[0]->op);
  const int rc = kernel->run_together(call, n);
  return rc ? explain(exec, phase, instr[0], n, rc) : MS_OK;
}

int ms_exec_run_kernel(ms_exec *exec, int phase, const ms_exec_instr *instr, double now) {
  ms_exec_enter_kernel(exec, phase, instr, now);
  uint64_t began = exec->profile ? ms_recorder_now() : 0;
  MS_TRY(ms_exec_call_kernel(exec, phase, instr));
  if (exec->profile) ms_profile_kernel(exec, phase, instr, began);
  return exec->after_kernel ? exec->after_kernel(exec, phase, instr) : MS_OK;
}

/* ---- collectives ---- */

/* 1: no delay was injected before the stream's next collective, or the delay has passed. The first call starts it. */
static int delay_has_passed(ms_exec *exec, int stream) {
  ms_exec_cursor *cursor = &exec->cursor[stream];
  double delay = exec->delays.before[stream];
  if (delay <= 0) return 1;
  double now = ms_clock();
  if (cursor->ready_at == 0) cursor->ready_at = now + delay;
  if (now < cursor->ready_at) return 0;
  cursor->ready_at = 0;
  return 1;
}

/* After a collective in flight, the next one can be started on the same communicator, which executes what it is given
 * strictly in order. A delay on purpose is one after the other. */
static int may_start(ms_exec *exec, int stream, const ms_exec_instr *instr) {
  const ms_exec_cursor *cursor = &exec->cursor[stream];
  const int was_started = instr->kind == MS_INSTR_JOIN;
  if (!cursor->in_flight) return was_started || delay_has_passed(exec, stream);
  if (exec->delays.before[stream] > 0 || cursor->comm != instr->comm) return 0;
  return was_started || ms_comm_free(instr->comm) > 0;
}

/* *started: 0 if there is no room for a gather that is to outlast the phase. A join's collective was started before. */
static int start_collective(ms_exec *exec, ms_exec_cursor *cursor, const ms_exec_instr *instr, int *started) {
  *started = 1;
  if (instr->in_flight) MS_TRY(ms_state_begin_in_flight(exec->state, instr->comm, instr->coll, started));
  else if (instr->kind == MS_INSTR_COLLECTIVE) MS_TRY(ms_comm_start(instr->comm, instr->coll));
  if (!*started) return MS_OK;
  if (!cursor->in_flight) cursor->wait = (ms_wait){0};
  cursor->in_flight++;
  cursor->comm = instr->comm;
  return MS_OK;
}

/* What is started ahead is entered while collectives before it in the stream are not complete. That is in order:
 * - What other streams do before it is ordered by events, and its waits are over. One for an event that this stream
 *   records itself, after what is in flight, is not over before that is complete.
 * - What its own stream does before it is ordered by the stream alone, such as two gathers into the same buffer. The
 *   communicator enters it only when the collective before it is done on this rank, and moves no byte before all ranks
 *   of the host have entered it, and so have done the one before it, too.
 * A RECORD is recorded when the collectives before it are complete. */
int ms_exec_start_ahead(ms_exec *exec, int phase, int stream) {
  const ms_exec_stream *list = &exec->phase[phase].stream[stream];
  ms_exec_cursor *cursor = &exec->cursor[stream];
  for (; cursor->ahead < list->n; cursor->ahead++) {
    const ms_exec_instr *instr = &list->instr[cursor->ahead];
    if (instr->kind == MS_INSTR_WAIT) {
      if (!ms_exec_is_recorded(exec, instr->event)) return MS_OK;
    } else if (ms_exec_moves(instr)) {
      int started;
      if (!may_start(exec, stream, instr)) return MS_OK;
      MS_TRY(start_collective(exec, cursor, instr, &started));
      if (!started) return MS_OK;
    }
  }
  return MS_OK;
}

int ms_exec_dim(const ms_exec *exec, int stream) {
  const int dim = ms_stream_dim(stream);
  return dim < 0 ? -1 : exec->plan->model->dim[dim].mesh_dim;
}

void ms_exec_count_collective(ms_exec_cursor *cursor, const ms_exec_instr *instr) {
  cursor->collectives++;
  cursor->comm_bytes[instr->mesh_dim] += instr->bytes;
  ms_traffic_add(&cursor->traffic[instr->mesh_dim], &instr->moved);
  if (instr->also_bytes <= 0) return;
  cursor->collectives++;
  cursor->comm_bytes[instr->also_dim] += instr->also_bytes;
  cursor->traffic[instr->also_dim].inside += instr->also_bytes;
}

int ms_exec_test_collective(ms_exec *exec, ms_exec_cursor *cursor, const ms_exec_instr *instr, int *done) {
  if (instr->kind == MS_INSTR_JOIN) MS_TRY(ms_state_join(exec->state, done));
  else if (instr->in_flight) *done = 1; /* for this phase */
  else MS_TRY(ms_comm_test(instr->comm, done));
  if (!*done) return MS_OK;
  cursor->in_flight--;
  cursor->wait = (ms_wait){0};
  if (instr->kind == MS_INSTR_COLLECTIVE) ms_exec_count_collective(cursor, instr);
  return MS_OK;
}

/* ---- inputs ---- */

void *ms_exec_input_at(ms_exec *exec, int input) {
  if (exec->runner->input) return exec->runner->input(exec, input);
  return ms_exec_pointer(exec, &exec->plan->input[input].at);
}
