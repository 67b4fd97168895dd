/* bind.c - prepares a plan to run: sorts its instructions by stream and resolves their pointers.
 *
 * Binding has two halves. Sorting allocates and copies, once. Resolving writes pointers, and is repeated when the
 * state's arenas have moved; it allocates nothing, so it can happen before a run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "exec/bound/exec.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/lower.h"
#include "plan/optimizer.h"

/* ---- pointers ---- */

/* Offset of a persistent buffer in the state's layout. The plan's can differ: a plan that only evaluates has fewer
 * buffers. */
static int64_t state_offset(const ms_exec *exec, int buffer) {
  const ms_state_layout *layout = &exec->state->layout;
  const ms_plan *plan = exec->plan;
  if (buffer == ms_squares_buffer(plan)) return layout->squares;
  if (buffer == ms_loss_sum_buffer(plan)) return layout->loss_sum;
  if (buffer == ms_norm_buffer(plan)) return layout->norm;
  if (buffer == ms_updates_buffer(plan)) return layout->updates;
  return layout->unit[buffer / MS_SLOTS].at[buffer % MS_SLOTS];
}

void *ms_exec_pointer(const ms_exec *exec, const ms_ref *ref) {
  if (ref->buffer < 0) return NULL;
  const ms_buffer *buffer = &exec->plan->buffer[ref->buffer];
  int persists = buffer->phase < 0 && buffer->arena < MS_ARENA_ACTIVATIONS;
  int64_t offset = persists ? state_offset(exec, ref->buffer) : buffer->offset;
  char *block = ms_state_block(exec->state, buffer->arena);
  if (buffer->ranks) { /* gathered among neighbours, into the block of the first on this host */
    const int dim = buffer->dim, first = ms_plan_group_start(exec->plan, dim, buffer->ranks);
    const int *leader = exec->plan->model->dim[dim].ranks + first;
    do block = ms_state_peer_block(exec->state, buffer->arena, *leader++);
    while (!block && exec->state->arena[buffer->arena].base);
  }
  if (!block) return NULL; /* empty optimizer state, in an arena without other buffers */
  return block + offset + ref->offset;
}

/* The same ref in a peer's block. */
static void *peer_pointer(const ms_exec *exec, const ms_ref *ref, int rank) {
  const ms_buffer *buffer = &exec->plan->buffer[ref->buffer];
  int64_t offset = buffer->arena == MS_ARENA_STATE ? state_offset(exec, ref->buffer) : buffer->offset;
  char *block = ms_state_peer_block(exec->state, buffer->arena, rank);
  return block ? block + offset + ref->offset : NULL; /* of another host */
}

static void resolve_kernel(ms_exec *exec, const ms_instr *source, ms_kernel_call *call) {
  for (int i = 0; i < call->inputs; i++) {
    ms_ref in = ms_instr_input(source, i);
    call->in_data[i] = ms_exec_pointer(exec, &in);
  }
  for (int i = 0; i < call->outputs; i++) {
    ms_ref out = ms_instr_output(source, i);
    call->out_data[i] = ms_exec_pointer(exec, &out);
  }
  ms_ref scratch = {source->workspace, 0, {0}};
  call->workspace = ms_exec_pointer(exec, &scratch);
}

static int ranks_of(const ms_plan_coll *coll) { return coll->replicas ? coll->ranks * coll->replicas : coll->ranks; }

static void resolve_collective(ms_exec *exec, const ms_exec_phase *phase, const ms_plan_coll *source,
                               const ms_exec_instr *instr) {
  const ms_coll *coll = instr->coll;
  const int *group = ms_comm_ranks(instr->comm), ranks = ms_comm_size(instr->comm);
  for (int i = 0; i < coll->parts; i++) {
    const ms_plan_part *from = &source->part[i];
    ms_coll_part *part = &phase->part[coll->part - phase->part + i];
    void **shared = &phase->shared[part->shared - phase->shared];
    part->src = ms_exec_pointer(exec, &from->src);
    if (ms_plan_part_is_coded(source, from)) part->scale = ms_exec_pointer(exec, &from->scale);
    part->dst = ms_exec_pointer(exec, &from->dst);
    for (int p = 0; p < ranks; p++)
      shared[p] = coll->kind == MS_COLL_ALL_GATHER ? ms_exec_pointer(exec, &from->shared)
                                                   : peer_pointer(exec, &from->shared, group[p]);
  }
}

static void resolve_phase(ms_exec *exec, const ms_plan_phase *plan, const ms_exec_phase *phase) {
  for (int s = 0; s < MS_NAMED_STREAMS; s++) {
    for (int i = 0; i < phase->stream[s].n; i++) {
      const ms_exec_instr *instr = &phase->stream[s].instr[i];
      const ms_instr *source = &plan->instr[instr->source];
      if (instr->kind == MS_INSTR_KERNEL) resolve_kernel(exec, source, instr->call);
      else if (instr->kind == MS_INSTR_COLLECTIVE) resolve_collective(exec, phase, source->coll, instr);
    }
  }
}

void ms_exec_rebind(ms_exec *exec) {
  if (exec->generation == exec->state->generation) return;
  ms_state_settle(exec->state); /* what is in flight reads these pointers; the next phase reports a failure */
  for (int phase = 0; phase < MS_PHASES; phase++) resolve_phase(exec, &exec->plan->phase[phase], &exec->phase[phase]);
  if (exec->runner->rebind) exec->runner->rebind(exec);
  exec->generation = exec->state->generation;
}

void ms_exec_begin(ms_exec *exec, const ms_step_inputs *inputs) {
  exec->scalars = (ms_scalars){.step = 1, .micro_batches = 1};
  if (inputs)
    exec->scalars = (ms_scalars){.lr = inputs->lr,
                                 .step = inputs->step,
                                 .micro_batches = inputs->micro_batches,
                                 .seed = inputs->seed,
                                 .rows = {inputs->first_row, inputs->row_step},
                                 .muon_lr = inputs->muon_lr};
  if (!exec->scalars.rows.step) exec->scalars.rows.step = 1;
  ms_exec_rebind(exec);
  memset(exec->cursor, 0, sizeof exec->cursor);
  exec->epoch++;
  exec->forward_ended = 0;
}

/* ---- sorting ---- */

/* The number of ranks in a collective. */
static int allocate_phase(const ms_plan_phase *source, ms_exec_phase *phase) {
  int n[MS_NAMED_STREAMS] = {0}, kernels = 0, colls = 0, parts = 0, shares = 0;
  for (int i = 0; i < source->n; i++) {
    const ms_instr *instr = &source->instr[i];
    n[instr->stream]++;
    kernels += instr->kind == MS_INSTR_KERNEL;
    colls += instr->kind == MS_INSTR_COLLECTIVE || instr->kind == MS_INSTR_JOIN;
    if (instr->kind != MS_INSTR_COLLECTIVE) continue;
    parts += instr->coll->parts;
    shares += instr->coll->parts * ranks_of(instr->coll);
  }
  for (int s = 0; s < MS_NAMED_STREAMS; s++) {
    phase->stream[s].instr = ms_calloc(n[s], sizeof *phase->stream[s].instr);
    if (!phase->stream[s].instr) return MS_ENOMEM;
  }
  phase->call = ms_calloc(kernels, sizeof *phase->call);
  phase->coll = ms_calloc(colls, sizeof *phase->coll);
  phase->part = ms_calloc(parts, sizeof *phase->part);
  phase->shared = ms_calloc(shares, sizeof *phase->shared);
  return phase->call && phase->coll && phase->part && phase->shared ? MS_OK : MS_ENOMEM;
}

static int sort_collective(ms_exec *exec, ms_exec_phase *phase, const ms_instr *source, ms_exec_instr *instr) {
  const ms_plan_coll *from = source->coll;
  const ms_model *model = exec->plan->model;
  const int dim = ms_stream_dim(source->stream);
  int ranks = ranks_of(from);
  MS_TRY(ms_state_open_comm(exec->state, exec->plan, from, source->stream, &instr->comm));
  if (from->dim != dim)
    return MS_FAIL(MS_EINTERNAL, "collective %s of %s cannot run on stream %s", ms_coll_name(from->kind), source->scope,
                   ms_stream_name(source->stream));
  ms_coll *coll = &phase->coll[phase->colls++];
  int parts = from->kind == MS_COLL_BARRIER ? 0 : from->parts; /* a barrier moves no data; its parts only order it */
  const char *label = *source->scope ? source->scope : model->dim[dim].name; /* of the whole model: the dimension's */
  *coll = (ms_coll){.kind = from->kind,
                    .replicas = from->replicas,
                    .sliced = from->sliced,
                    .largest = from->largest,
                    .parts = parts,
                    .part = &phase->part[phase->parts],
                    .label = label};
  for (int i = 0; i < parts; i++) {
    ms_coll_part *part = &phase->part[phase->parts++];
    int gathers = from->kind == MS_COLL_ALL_GATHER, shared_dtype = from->part[i].shared.info.dtype;
    part->count = from->part[i].count;
    part->accumulate = from->part[i].accumulate;
    part->src_dtype = gathers ? from->part[i].src.info.dtype : shared_dtype;
    part->dst_dtype = gathers ? shared_dtype : from->part[i].dst.info.dtype;
    part->shared = &phase->shared[phase->shares];
    part->first = from->part[i].first;
    part->n = ms_numel(&from->part[i].dst.info);
    phase->shares += ranks;
  }
  coll->label_number = ms_recorder_number(exec->recorder, label);
  instr->coll = coll;
  instr->bytes = from->bytes;
  instr->moved = from->moved;
  if (from->replicas && from->kind != MS_COLL_ALL_GATHER) {
    instr->also_bytes = from->also_bytes;
    instr->also_dim = model->dim[MS_DIM_REPLICATE].mesh_dim;
  }
  instr->mesh_dim = model->dim[dim].mesh_dim;
  /* Only operations that are queued move by themselves: within a host, ranks move them when they poll. */
  instr->in_flight = from->in_flight && ms_comm_free(instr->comm) > 1;
  exec->leaves_in_flight |= instr->in_flight;
  return MS_OK;
}

/* A join waits on the communicator of the collective, which UPDATE starts with its own parts. */
static int sort_join(ms_exec *exec, ms_exec_phase *phase, const ms_instr *source, ms_exec_instr *instr) {
  ms_coll *coll = &phase->coll[phase->colls++];
  MS_TRY(ms_state_open_comm(exec->state, exec->plan, source->coll, source->stream, &instr->comm));
  coll->kind = source->coll->kind;
  coll->label = source->scope;
  coll->label_number = ms_recorder_number(exec->recorder, source->scope);
  instr->coll = coll;
  instr->bytes = source->coll->bytes;
  return MS_OK;
}

static int sort_kernel(ms_exec *exec, ms_exec_phase *phase, const ms_instr *source, ms_exec_instr *instr) {
  if (source->stream != MS_STREAM_COMPUTE)
    return MS_FAIL(MS_EINTERNAL, "a kernel of %s is on stream %s", source->scope, ms_stream_name(source->stream));
  instr->call = &phase->call[phase->kernels++];
  *instr->call = *source->call;
  instr->call->scalars = &exec->scalars;
  instr->run = ms_device_kernel(exec->plan->config.device, source->call->op)->run;
  instr->label = ms_recorder_number(exec->recorder, source->scope);
  return MS_OK;
}

/* The state must have every persistent buffer that the plan uses, in the same arena. */
static int check_state(const ms_exec *exec) {
  const ms_plan *plan = exec->plan;
  if (plan->arena_bytes[MS_ARENA_MASTERS] != exec->state->layout.bytes[MS_ARENA_MASTERS] ||
      plan->layout->replicas != exec->state->layout.replicas)
    return MS_FAIL(MS_EINVAL, "the plan was compiled with shared_masters = %d, but the state was created with %d",
                   plan->config.shared_masters, !plan->config.shared_masters);
  for (int u = 0; u < plan->model->units; u++)
    if (exec->state->layout.unit[u].at[MS_SLOT_RESIDUALS] >= 0 &&
        plan->layout->inner_shards != exec->state->layout.inner_shards)
      return MS_FAIL(MS_EINVAL,
                     "the plan sums gradients of unit '%s' among %d shards of a node first, but the state keeps what "
                     "sums among %d round off: create both with the same nodes and node_of",
                     plan->model->unit[u].name, plan->layout->inner_shards, exec->state->layout.inner_shards);
  const ms_optimizer_state *planned = &plan->layout->optimizer[MS_OPT_NONE],
                           *own = &exec->state->layout.optimizer[MS_OPT_NONE];
  if (planned->moments && planned->dtype != own->dtype)
    return MS_FAIL(MS_EINVAL, "the plan was compiled for moments in %s, but the state keeps them in %s",
                   ms_dtype_name(planned->dtype), ms_dtype_name(own->dtype));
  for (int b = 0; b < plan->buffers && b < ms_squares_buffer(plan); b++)
    if (plan->buffer[b].first >= 0 && plan->buffer[b].bytes && state_offset(exec, b) < 0)
      return MS_FAIL(
          MS_EINVAL,
          "the plan keeps %s of unit '%s', but the state does not: create both for the same optimizer and ema",
          ms_category_name(plan->buffer[b].category), plan->buffer[b].label);
  return MS_OK;
}

static int sort_phase(ms_exec *exec, int index, int *recorder) {
  const ms_plan_phase *source = &exec->plan->phase[index];
  ms_exec_phase *phase = &exec->phase[index];
  char activity[32];
  snprintf(activity, sizeof activity, "phase %s", ms_phase_name(index));
  phase->activity = ms_recorder_number(exec->recorder, activity);
  MS_TRY(allocate_phase(source, phase));
  for (int i = 0; i < source->n; i++) {
    const ms_instr *from = &source->instr[i];
    ms_exec_stream *stream = &phase->stream[from->stream];
    ms_exec_instr *instr = &stream->instr[stream->n++];
    *instr = (ms_exec_instr){.kind = from->kind, .event = from->event, .source = i};
    if (from->kind == MS_INSTR_KERNEL) MS_TRY(sort_kernel(exec, phase, from, instr));
    if (from->kind == MS_INSTR_COLLECTIVE) MS_TRY(sort_collective(exec, phase, from, instr));
    if (from->kind == MS_INSTR_JOIN) MS_TRY(sort_join(exec, phase, from, instr));
    if (from->kind == MS_INSTR_RECORD) recorder[from->event] = from->stream;
    if (from->kind == MS_INSTR_WAIT) instr->recorder = recorder[from->event];
  }
  return MS_OK;
}

static int max_events(const ms_plan *plan) {
  int events = 0;
  for (int phase = 0; phase < MS_PHASES; phase++)
    if (plan->phase[phase].events > events) events = plan->phase[phase].events;
  return events;
}

int ms_exec_sort(ms_exec *exec) {
  int events = max_events(exec->plan), rc = MS_OK;
  int *recorder = ms_calloc(events, sizeof *recorder);
  exec->event = ms_calloc(events, sizeof *exec->event);
  if (!recorder || !exec->event) MS_GOTO(MS_ENOMEM);
  MS_GOTO(check_state(exec));
  for (int phase = 0; phase < MS_PHASES; phase++) MS_GOTO(sort_phase(exec, phase, recorder));
fail:
  free(recorder);
  return rc;
}

void ms_exec_unsort(ms_exec *exec) {
  for (int p = 0; p < MS_PHASES; p++) {
    ms_exec_phase *phase = &exec->phase[p];
    for (int s = 0; s < MS_NAMED_STREAMS; s++) free(phase->stream[s].instr);
    free(phase->call);
    free(phase->coll);
    free(phase->part);
    free(phase->shared);
  }
  free((void *)exec->event);
}

int64_t ms_exec_sorted_bytes(const ms_exec *exec) {
  int64_t bytes = max_events(exec->plan) * (int64_t)sizeof *exec->event;
  for (int p = 0; p < MS_PHASES; p++) {
    const ms_exec_phase *phase = &exec->phase[p];
    for (int s = 0; s < MS_NAMED_STREAMS; s++) bytes += phase->stream[s].n * (int64_t)sizeof *phase->stream[s].instr;
    bytes += phase->kernels * (int64_t)sizeof *phase->call + phase->colls * (int64_t)sizeof *phase->coll +
             phase->parts * (int64_t)sizeof *phase->part + phase->shares * (int64_t)sizeof *phase->shared;
  }
  return bytes;
}
