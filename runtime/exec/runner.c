/* runner.c - shared by all runners: calling a kernel (with notes, profile and error text), injected delays of
 * collectives, and counts. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "exec/profile.h"

/* ---- kernels ---- */

/* Prefixes the error message of a kernel with its location: "in layers.3.attn: embedding: ...". */
static int explain(const ms_exec *exec, int phase, const ms_exec_instr *instr, int rc) {
  const ms_instr *source = &exec->plan->phase[phase].instr[instr->source];
  const char *op = ms_op_row_of(instr->call->op)->name, *message = ms_error_message();
  size_t length = strlen(op);
  if (strncmp(message, op, length) || message[length] != ':') ms_error_prefix("%s", op);
  if (source->scope && *source->scope) ms_error_prefix("in %s", source->scope);
  return rc;
}

static void delay_backward(ms_exec *exec, int phase, const ms_exec_instr *instr) {
  if (exec->forward_ended || !exec->plan->phase[phase].instr[instr->source].backward) return;
  exec->forward_ended = 1;
  if (exec->delays.forward > 0) ms_delay_sleep(exec->delays.forward);
}

void ms_exec_enter_kernel(ms_exec *exec, int phase, const ms_exec_instr *instr, double now) {
  ms_recorder_at(exec->recorder, (uint32_t)instr->label, now);
  if (exec->delays.any) delay_backward(exec, phase, instr);
}

int ms_exec_call_kernel(const ms_exec *exec, int phase, const ms_exec_instr *instr) {
  int rc = instr->run(instr->call);
  return rc ? explain(exec, phase, instr, rc) : MS_OK;
}

int ms_exec_run_kernel(ms_exec *exec, int phase, const ms_exec_instr *instr, double now) {
  ms_exec_enter_kernel(exec, phase, instr, now);
  uint64_t began = exec->profile ? ms_recorder_now() : 0;
  MS_TRY(ms_exec_call_kernel(exec, phase, instr));
  if (exec->profile) ms_profile_kernel(exec, phase, instr, began);
  return exec->after_kernel ? exec->after_kernel(exec, phase, instr) : MS_OK;
}

/* ---- collectives ---- */

int ms_exec_may_start(ms_exec *exec, int stream) {
  ms_exec_cursor *cursor = &exec->cursor[stream];
  double delay = exec->delays.before[stream];
  if (delay <= 0) return 1;
  double now = ms_clock();
  if (cursor->ready_at == 0) cursor->ready_at = now + delay;
  if (now < cursor->ready_at) return 0;
  cursor->ready_at = 0;
  return 1;
}

void ms_exec_count_collective(ms_exec_cursor *cursor, const ms_exec_instr *instr) {
  cursor->collectives++;
  cursor->comm_bytes[instr->mesh_dim] += instr->bytes;
  if (instr->also_bytes <= 0) return;
  cursor->collectives++;
  cursor->comm_bytes[instr->also_dim] += instr->also_bytes;
}

/* ---- inputs ---- */

void *ms_exec_input_at(ms_exec *exec, int input) {
  if (exec->runner->input) return exec->runner->input(exec, input);
  return ms_exec_pointer(exec, &exec->plan->input[input].at);
}
