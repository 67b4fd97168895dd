/* exec_run.c - the public functions of execs: creating one, and running a phase. */
#include "exec/bound/exec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/env.h"
#include "base/error.h"
#include "base/text/hash.h"
#include "exec/state/compare.h"
#include "exec/tensors/params.h"
#include "exec/profile/profile.h"

/* ---- making ---- */

/* MOONSHARD_STREAMS: "inline" runs all streams on one thread; "threads" uses one thread per stream, so that a thread
 * sanitizer detects a missing wait in a plan. */
static int choose_runner(ms_exec *exec) {
  const char *mode = ms_env_string("MOONSHARD_STREAMS", "inline");
  if (ms_device_has(exec->state->device, MS_DEVICE_ASYNCHRONOUS)) exec->runner = &ms_async_runner;
  else if (!strcmp(mode, "inline")) exec->runner = &ms_inline_runner;
  else if (!strcmp(mode, "threads")) exec->runner = &ms_threads_runner;
  else return MS_FAIL(MS_EINVAL, "environment variable MOONSHARD_STREAMS must be inline or threads, not '%s'", mode);
  return exec->runner->open ? exec->runner->open(exec) : MS_OK;
}

/* Notes the first collective of a step, for reports. */
static void note_opening(const ms_exec *exec) {
  const ms_plan_phase *first = &exec->plan->phase[MS_PHASE_FIRST];
  char opening[MS_RECORDER_TEXT_BYTES];
  if (!first->present || !first->colls || first->coll[0]->unit < 0) return;
  const ms_plan_coll *coll = first->coll[0];
  snprintf(opening, sizeof opening, "%s %s", ms_coll_name(coll->kind), exec->plan->model->unit[coll->unit].name);
  atomic_store(&exec->recorder->opening, (uint32_t)ms_recorder_number(exec->recorder, opening));
}

/* Lets kernels make choices that depend on the device or on the addresses of their tensors. */
static int bind_kernels(ms_exec *exec) {
  for (int p = 0; p < MS_PHASES; p++) {
    for (int i = 0; i < exec->phase[p].kernels; i++) {
      const ms_kernel_call *call = &exec->phase[p].call[i];
      const ms_kernel *kernel = ms_device_kernel(exec->plan->config.device, call->op);
      if (kernel->bind) MS_TRY(kernel->bind(call));
    }
  }
  return MS_OK;
}

/* Compares plans first, so that ranks with different plans fail before anything is allocated. */
static int bind_plan(ms_exec *exec) {
  MS_TRY(ms_compare_plans(&exec->state->process_group, exec->plan));
  ms_delays_get(ms_world_rank(exec->state->world), &exec->delays);
  MS_TRY(ms_exec_sort(exec));
  MS_TRY(choose_runner(exec));
  MS_TRY(ms_state_reserve(exec->state, exec->plan->arena_bytes));
  ms_exec_rebind(exec);
  if (exec->leaves_in_flight) ms_state_gathers_in_flight(exec->state);
  MS_TRY(bind_kernels(exec));
  exec->counters.host_bytes = (int64_t)sizeof *exec + ms_exec_sorted_bytes(exec) + ms_plan_bytes(exec->plan);
  note_opening(exec);
  return MS_OK;
}

/* A run that failed can have left collectives in flight, which use what ms_exec_sort allocated. */
static void give_up_collectives(const ms_exec *exec) {
  for (int p = 0; p < MS_PHASES; p++)
    for (int s = 0; s < MS_NAMED_STREAMS; s++) {
      const ms_exec_stream *stream = &exec->phase[p].stream[s];
      for (int i = 0; i < stream->n; i++)
        if (stream->instr[i].kind == MS_INSTR_COLLECTIVE && stream->instr[i].comm)
          ms_comm_give_up(stream->instr[i].comm);
    }
}

static void destroy_exec(void *object) {
  ms_exec *exec = object;
  if (exec->leaves_in_flight) ms_state_end_in_flight(exec->state);
  if (exec->runner && exec->runner->close) exec->runner->close(exec);
  give_up_collectives(exec);
  ms_exec_unsort(exec);
  ms_handle_drop(exec->profile);
}

int ms_exec_new(ms_state *state, const ms_plan *plan, ms_exec **out) {
  MS_HANDLE(state, STATE);
  MS_HANDLE(plan, PLAN);
  MS_GIVEN(out);
  if (plan->model != state->model)
    return MS_FAIL(MS_EINVAL, "the plan was compiled for another model than the state was made for");
  if (plan->config.device != state->device->api->kind)
    return MS_FAIL(MS_EINVAL, "the plan was compiled for the device %s, but the state is on %s",
                   ms_device_name(plan->config.device), state->device->api->name);
  if (plan->config.sm_carveout != state->sm_carveout)
    return MS_FAIL(MS_EINVAL,
                   "products of the plan leave %d multiprocessors to collectives, but collectives of the state "
                   "expect %d: give the configs of both the same sm_carveout",
                   plan->config.sm_carveout, state->sm_carveout);
  if (plan->streams > MS_NAMED_STREAMS)
    return MS_FAIL(MS_EUNSUPPORTED, "the plan has %d streams, but execs run at most %d", plan->streams,
                   MS_NAMED_STREAMS);
  ms_exec *exec = ms_handle_new(MS_HANDLE_EXEC, sizeof *exec, destroy_exec);
  if (!exec) return MS_ENOMEM;
  exec->state = state;
  exec->recorder = ms_world_recorder(state->world);
  exec->plan = plan;
  ms_handle_set_on(exec, state);
  ms_handle_set_keeps(exec, plan);
  exec->generation = -1;
  exec->graph_phase = plan->phase[MS_PHASE_FIRST].present ? MS_PHASE_FIRST : MS_PHASE_EVALUATE;
  int trains = plan->phase[MS_PHASE_FIRST].present;
  ms_recorder_enter(exec->recorder, ms_recorder_number(exec->recorder, trains ? "binding a plan to train"
                                                                              : "binding a plan to evaluate"));
  int rc = bind_plan(exec);
  ms_recorder_leave(exec->recorder, rc);
  if (rc) ms_free(exec);
  else *out = exec;
  return rc;
}

/* ---- running ---- */

static void count(ms_exec *exec, int phase) {
  ms_exec_counters *total = &exec->counters;
  for (int s = 0; s < MS_NAMED_STREAMS; s++) {
    const ms_exec_cursor *c = &exec->cursor[s];
    total->collectives[phase] += c->collectives;
    total->instructions += c->instructions;
    for (int d = 0; d < MS_MAX_MESH_DIMS; d++) {
      total->comm_bytes[d] += c->comm_bytes[d];
      total->waited_for[d] += c->waited_for[d];
      ms_traffic_add(&exec->counters.traffic[d], &c->traffic[d]);
    }
    total->kernel_seconds += c->kernel_seconds;
    total->wait_seconds += c->wait_seconds;
    total->collective_seconds += c->collective_seconds;
  }
}

/* Ranks that run other plans, or another phase or step of the same one, can enter the same collectives: each says what
 * it is a part of. Evaluations have no step. So can ranks one of which has caught an error that the others did not
 * have: they are a call apart, with batches of different steps. */
static void sign_collectives(ms_exec *exec, int phase) {
  const int64_t step = phase == MS_PHASE_EVALUATE ? 0 : (int64_t)exec->scalars.step;
  const int64_t failures = ms_world_failures(exec->state->world);
  const uint64_t run = ms_hash_int(ms_hash_int(ms_hash_int((uint64_t)exec->plan->fingerprint, phase), step), failures);
  for (int i = 0; i < exec->phase[phase].colls; i++) exec->phase[phase].coll[i].part_of = run;
}

static int run_profiled(ms_exec *exec, int phase) {
  uint64_t began = ms_recorder_now();
  int rc = exec->runner->run(exec, phase);
  if (!rc) return ms_profile_finish_phase(exec->profile, exec, phase, began);
  ms_profile_drop(exec->profile);
  return rc;
}

static int64_t count_allocations(const ms_exec *exec) {
  const ms_device_api *api = exec->state->device->api;
  return ms_allocations() + exec->state->mapped + (api->allocations ? api->allocations() : 0);
}

/* Evaluations, and what they gather first, are in no step, whatever number their inputs have. */
static int has_step(const ms_exec *exec, int phase) {
  return phase != MS_PHASE_EVALUATE && exec->plan->phase[MS_PHASE_FIRST].present;
}

static int run_phase(ms_exec *exec, int phase, const ms_step_inputs *inputs) {
  if (exec->profile) MS_TRY(ms_profile_reserve(exec->profile, &exec->phase[phase]));
  if (exec->profile && exec->runner->reserve_profile) MS_TRY(exec->runner->reserve_profile(exec, phase));
  ms_progress_begin(exec->state, phase);
  double began = ms_clock();
  int64_t allocations = count_allocations(exec);
  if (has_step(exec, phase) && inputs && inputs->step > 0) atomic_store(&exec->recorder->step, inputs->step);
  ms_recorder_enter(exec->recorder, exec->phase[phase].activity);
  ms_exec_begin(exec, inputs);
  sign_collectives(exec, phase);
  if (phase == MS_PHASE_UPDATE && exec->delays.update > 0) ms_delay_sleep(exec->delays.update);
  int rc = exec->profile ? run_profiled(exec, phase) : exec->runner->run(exec, phase);
  ms_recorder_leave(exec->recorder, rc);
  count(exec, phase);
  exec->counters.total_seconds += ms_clock() - began;
  exec->counters.allocations += count_allocations(exec) - allocations;
  ms_progress_end(exec->state, phase, rc);
  if (!rc && phase == MS_PHASE_GATHER) ms_resident_gathered(exec->state, exec->plan);
  return rc;
}

/* Of NORM and EVALUATE, also when what they report is not finite. */
static int report(const ms_exec *exec, int phase, ms_step_outputs *outputs, int size) {
  ms_step_outputs own = {0};
  const int rc = phase == MS_PHASE_NORM ? ms_exec_report_norm(exec, outputs ? &own : NULL)
                                        : ms_exec_report_evaluation(exec, outputs ? &own : NULL);
  if (outputs && (!rc || rc == MS_ENONFINITE)) MS_TRY(ms_info_give(outputs, size, &own, sizeof own, "ms_exec_run"));
  return rc;
}

int ms_exec_run(ms_exec *exec, int phase, const ms_step_inputs *inputs, ms_step_outputs *outputs, int size) {
  MS_HANDLE(exec, EXEC);
  ms_step_inputs own;
  if (outputs) MS_TRY(ms_info_check(size, __func__));
  if (inputs) MS_TRY(ms_exec_take_inputs(inputs, &own));
  inputs = inputs ? &own : NULL;
  MS_TRY(ms_exec_admit(exec, phase, inputs));
  if (ms_resident_is_due(exec->state, exec->plan, phase)) MS_TRY(run_phase(exec, MS_PHASE_GATHER, inputs));
  MS_TRY(run_phase(exec, phase, inputs));
  if (phase == MS_PHASE_GATHER) return MS_OK;
  if (phase == MS_PHASE_NORM) return report(exec, phase, outputs, size);
  if (phase != MS_PHASE_UPDATE && phase != MS_PHASE_OUTER) exec->graph_phase = phase;
  return phase == MS_PHASE_EVALUATE ? report(exec, phase, outputs, size) : MS_OK;
}

/* ---- reading ---- */

void *ms_exec_input(ms_exec *exec, const char *name) {
  MS_HANDLE_OR(NULL, exec, EXEC);
  MS_GIVEN_OR(NULL, name);
  ms_exec_rebind(exec);
  for (int i = 0; i < exec->plan->inputs; i++)
    if (!strcmp(exec->plan->input[i].name, name)) return ms_exec_input_at(exec, i);
  return NULL;
}

static const void *output_at(ms_exec *exec, int output) {
  if (exec->runner->output) return exec->runner->output(exec, output);
  return ms_exec_pointer(exec, &exec->plan->output[output].at[exec->graph_phase]);
}

const void *ms_exec_output(ms_exec *exec, const char *name) {
  MS_HANDLE_OR(NULL, exec, EXEC);
  MS_GIVEN_OR(NULL, name);
  ms_exec_rebind(exec);
  for (int i = 0; i < exec->plan->outputs; i++)
    if (!strcmp(exec->plan->output[i].name, name)) return output_at(exec, i);
  return NULL;
}

int ms_exec_set_graph(ms_exec *exec, int on) {
  MS_HANDLE(exec, EXEC);
  if (exec->runner->set_graph) return exec->runner->set_graph(exec, on);
  return on ? MS_FAIL(MS_EUNSUPPORTED, "graphs are captured only on the device cuda, but this state is on %s",
                      exec->state->device->api->name)
            : MS_OK;
}

int ms_exec_counts(const ms_exec *exec, ms_exec_counters *counters, int size) {
  MS_HANDLE(exec, EXEC);
  MS_GIVEN(counters);
  MS_GIVE_INFO(counters, size, exec->counters);
}
