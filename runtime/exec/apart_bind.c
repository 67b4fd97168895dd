/* apart_bind.c - what an exec needs on a device besides what bind.c makes: instructions in program order, events, staging of
** inputs and outputs, and the kernels that convert between a collective's buffers.
**
** A library of collectives neither casts nor adds to what is there. So a master chunk is cast into its place of the gathered
** segment in front of an all-gather in place, and what was summed in place in the shared buffer is cast or added to its
** destination after a reduction, unless the library can write it there itself.
*/
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "exec/apart.h"

enum { ALIGNMENT = 256, NO_OP = -1 };

static int64_t align_up(int64_t n) { return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* ---- conversions ---- */

/* From the source of an all-gather, or into the destination of a reduction; NO_OP where the library does it. */
static int conversion(const ms_coll *coll, const ms_coll_part *part, int from_is_null) {
  if (coll->kind == MS_COLL_ALL_GATHER) return from_is_null ? NO_OP : MS_OP_cast;
  if (part->accumulate) return MS_OP_accumulate;
  return part->src_dtype == part->dst_dtype ? NO_OP : MS_OP_cast;
}

static int prepare_conversion(ms_exec *exec, const ms_coll *coll, const ms_coll_part *part, const ms_plan_part *from,
                              ms_kernel_call *call) {
  *call = (ms_kernel_call){.op = part->count ? conversion(coll, part, from->src.buffer < 0) : NO_OP};
  if (call->op == NO_OP) return MS_OK;
  const ms_kernel *kernel = ms_device_kernel(exec->plan->config.device, call->op);
  call->inputs = call->outputs = 1;
  call->threads = exec->plan->config.threads;
  call->in[0] = (ms_value_info){.dtype = part->src_dtype, .ndim = 1, .dims = {part->count}};
  call->out[0] = (ms_value_info){.dtype = part->dst_dtype, .ndim = 1, .dims = {part->count}};
  if (call->op == MS_OP_cast) call->attrs.i[7] = 1 + part->dst_dtype;
  else call->attrs.i[0] = 1;
  call->scalars = exec->state->apart->scalars;
  call->fault = exec->state->apart->fault;
  if (kernel->prepare) MS_TRY(kernel->prepare(call));
  if (!call->workspace_bytes) return MS_OK;
  return MS_FAIL(MS_EINTERNAL, "op %s wants workspace beside a collective", ms_op_row_of(call->op)->name);
}

static int prepare_conversions(ms_exec *exec, int index) {
  ms_exec_phase *phase = &exec->phase[index];
  ms_kernel_call *call = exec->apart->phase[index].convert = ms_calloc(phase->parts, sizeof *call);
  if (!call) return MS_ENOMEM;
  for (int i = 0; i < phase->parts; i++) call[i].op = NO_OP;
  for (int s = 0; s < MS_STREAMS; s++) {
    for (int k = 0; k < phase->stream[s].n; k++) {
      const ms_exec_instr *instr = &phase->stream[s].instr[k];
      if (instr->kind != MS_INSTR_COLLECTIVE) continue;
      const ms_plan_coll *source = exec->plan->phase[index].instr[instr->source].coll;
      for (int i = 0; i < instr->coll->parts; i++) {
        int64_t at = instr->coll->part - phase->part + i;
        MS_TRY(prepare_conversion(exec, instr->coll, &instr->coll->part[i], &source->part[i], &call[at]));
        call[at].stream = exec->state->apart->stream[s];
      }
    }
  }
  return MS_OK;
}

static void release_conversions(ms_exec *exec, int index) {
  ms_kernel_call *call = exec->apart->phase[index].convert;
  for (int i = 0; call && i < exec->phase[index].parts; i++) {
    if (call[i].op == NO_OP || !call[i].prepared) continue;
    ms_device_kernel(exec->apart->on->device->api->kind, call[i].op)->release(call[i].prepared);
  }
  free(call);
}

/* Its chunk of a buffer of all ranks' chunks; an all-reduce is of everything. */
static char *own_chunk(const ms_exec_instr *instr, const ms_coll_part *part) {
  const ms_coll *coll = instr->coll;
  int chunked = coll->kind != MS_COLL_ALL_REDUCE;
  int dtype = coll->kind == MS_COLL_ALL_GATHER ? part->dst_dtype : part->src_dtype;
  return (char *)part->shared[0] + chunked * ms_comm_rank(instr->comm) * part->count * ms_dtype_size(dtype);
}

void ms_exec_apart_rebind(ms_exec *exec) {
  for (int p = 0; p < MS_PHASES; p++) {
    for (int s = 0; s < MS_STREAMS; s++) {
      for (int k = 0; k < exec->phase[p].stream[s].n; k++) {
        const ms_exec_instr *instr = &exec->phase[p].stream[s].instr[k];
        for (int i = 0; instr->kind == MS_INSTR_COLLECTIVE && i < instr->coll->parts; i++) {
          const ms_coll_part *part = &instr->coll->part[i];
          ms_kernel_call *call = &exec->apart->phase[p].convert[part - exec->phase[p].part];
          int gathers = instr->coll->kind == MS_COLL_ALL_GATHER;
          call->in_data[0] = gathers ? part->src : own_chunk(instr, part);
          call->out_data[0] = gathers ? own_chunk(instr, part) : part->dst;
        }
      }
    }
  }
  ms_exec_apart_drop_graphs(exec->apart); /* they have the old addresses */
}

/* ---- order ---- */

static int sort_order(ms_exec *exec, int index) {
  ms_exec_phase *phase = &exec->phase[index];
  int at[MS_STREAMS] = {0}, n = 0;
  for (int s = 0; s < MS_STREAMS; s++) n += phase->stream[s].n;
  exec->apart->phase[index].order = ms_calloc(n, sizeof *exec->apart->phase[index].order);
  if (!exec->apart->phase[index].order) return MS_ENOMEM;
  exec->apart->phase[index].n = n;
  for (int i = 0; i < n; i++) {
    int s = exec->plan->phase[index].instr[i].stream;
    exec->apart->phase[index].order[i] = &phase->stream[s].instr[at[s]++];
    exec->apart->phase[index].uses[s] = 1;
  }
  for (int i = 0; i < phase->kernels; i++) {
    phase->call[i].stream = exec->state->apart->stream[MS_STREAM_COMPUTE];
    phase->call[i].scalars = exec->state->apart->scalars;
    phase->call[i].fault = exec->state->apart->fault;
  }
  return MS_OK;
}

static int open_events(ms_exec *exec) {
  int most = 0;
  for (int p = 0; p < MS_PHASES; p++)
    if (exec->plan->phase[p].events > most) most = exec->plan->phase[p].events;
  exec->apart->event = ms_calloc(most, sizeof *exec->apart->event);
  if (!exec->apart->event) return MS_ENOMEM;
  for (; exec->apart->events < most; exec->apart->events++)
    MS_TRY(exec->state->device->api->event_open(exec->state->device, 0, &exec->apart->event[exec->apart->events]));
  return MS_OK;
}

/* ---- inputs and outputs ---- */

static int64_t bytes_of(const ms_ref *ref) { return ms_numel(&ref->info) * ms_dtype_size(ref->info.dtype); }

static int64_t most_bytes(const ms_plan_output *output) {
  int64_t most = 0;
  for (int p = 0; p < MS_PHASES; p++)
    if (output->at[p].buffer >= 0 && bytes_of(&output->at[p]) > most) most = bytes_of(&output->at[p]);
  return most;
}

static int stage(ms_exec *exec) {
  const ms_plan *plan = exec->plan;
  struct ms_exec_apart *a = exec->apart;
  int64_t outputs = 0;
  a->staged_at = ms_calloc(plan->inputs, sizeof *a->staged_at);
  a->output_at = ms_calloc(plan->outputs, sizeof *a->output_at);
  if (!a->staged_at || !a->output_at) return MS_ENOMEM;
  for (int i = 0; i < plan->inputs; i++) {
    a->staged_at[i] = a->staged_bytes;
    a->staged_bytes += align_up(bytes_of(&plan->input[i].at));
  }
  for (int i = 0; i < plan->outputs; i++) {
    a->output_at[i] = outputs;
    outputs += align_up(most_bytes(&plan->output[i]));
  }
  a->staged = ms_calloc(a->staged_bytes, 1);
  a->output = ms_calloc(outputs, 1);
  if (!a->staged || !a->output) return MS_ENOMEM;
  if (!a->staged_bytes) return MS_OK;
  void *pinned;
  MS_TRY(exec->state->device->api->pin(exec->state->device, MS_APART_RUNS * a->staged_bytes, &pinned));
  a->pinned = pinned;
  return MS_OK;
}

/* ---- the whole ---- */

static int reserve(ms_exec *exec) {
  int most = 0;
  for (int p = 0; p < MS_PHASES; p++)
    if (exec->phase[p].colls > most) most = exec->phase[p].colls;
  return ms_apart_reserve(exec->state, most);
}

int ms_exec_apart_new(ms_exec *exec) {
  if (!exec->state->apart) return MS_OK;
  exec->apart = ms_calloc(1, sizeof *exec->apart);
  if (!exec->apart) return MS_ENOMEM;
  exec->apart->on = exec->state->apart;
  exec->apart->next = exec->state->apart->execs;
  exec->state->apart->execs = exec->apart;
  for (int p = 0; p < MS_PHASES; p++) {
    MS_TRY(sort_order(exec, p));
    MS_TRY(prepare_conversions(exec, p));
  }
  MS_TRY(open_events(exec));
  MS_TRY(stage(exec));
  return reserve(exec);
}

void ms_exec_apart_drop_graphs(struct ms_exec_apart *apart) {
  ms_device *device = apart->on->device;
  for (int p = 0; p < MS_PHASES; p++) {
    if (apart->phase[p].graph) device->api->graph_close(device, apart->phase[p].graph);
    apart->phase[p].graph = NULL;
  }
}

static void take_off(struct ms_exec_apart *a) {
  struct ms_exec_apart **place = &a->on->execs;
  while (*place != a) place = &(*place)->next;
  *place = a->next;
}

void ms_exec_apart_free(ms_exec *exec) {
  struct ms_exec_apart *a = exec->apart;
  if (!a) return;
  ms_device *device = a->on->device;
  ms_apart_settle(a->on);
  ms_exec_apart_drop_graphs(a);
  for (int p = 0; p < MS_PHASES; p++) {
    release_conversions(exec, p);
    free(a->phase[p].order);
  }
  for (int i = 0; i < a->events; i++) device->api->event_close(device, a->event[i]);
  for (int i = 0; i < a->timers; i++) device->api->event_close(device, a->timer[i]);
  if (a->pinned) device->api->unpin(device, a->pinned, MS_APART_RUNS * a->staged_bytes);
  take_off(a);
  ms_apart_release(a->on);
  free(a->event);
  free(a->timer);
  free(a->staged);
  free(a->staged_at);
  free(a->output);
  free(a->output_at);
  free(a);
}
