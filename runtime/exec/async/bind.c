/* bind.c - completes an exec for an asynchronous device, after exec/bound/bind.c: instructions in program order,
 * events, staging of inputs and outputs, and conversions between the buffers of a collective.
 *
 * A collective library neither casts nor accumulates. Before an in-place all-gather, the master chunk is therefore cast
 * into its place in the gathered segment; a chunk of the gathered dtype is sent from where it is. After a reduction,
 * the sums in the shared buffer are cast or added to their destination, unless the library can write them there itself.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "exec/async/async.h"

enum { ALIGNMENT = 256 };

static int64_t align_up(int64_t n) { return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* ---- conversions ---- */

/* How a conversion counts elements of a dtype: what is moved as it is, and is neither f32 nor bf16, as f32. */
static int moved_as(const ms_coll_part *part, int dtype) {
  return part->src_dtype == part->dst_dtype && ms_dtype_size(dtype) == ms_dtype_size(MS_F32) ? MS_F32 : dtype;
}

/* Whether a conversion is needed: from the source of an all-gather, or into the destination of a reduction. With
 * windows always, because source and destination are not registered. */
static int converts(const ms_state *state, const ms_coll *coll, const ms_coll_part *part, int from_is_null) {
  if (coll->kind == MS_COLL_ALL_TO_ALL || (coll->kind == MS_COLL_ALL_GATHER && from_is_null)) return 0;
  return state->nccl || part->accumulate || part->src_dtype != part->dst_dtype;
}

static int describe_conversions(ms_exec *exec, int index) {
  ms_exec_phase *phase = &exec->phase[index];
  ms_move *move = exec->async->phase[index].convert = ms_calloc(phase->parts, sizeof *move);
  if (!move) return MS_ENOMEM;
  for (int s = 0; s < MS_NAMED_STREAMS; s++) {
    for (int k = 0; k < phase->stream[s].n; k++) {
      const ms_exec_instr *instr = &phase->stream[s].instr[k];
      if (instr->kind != MS_INSTR_COLLECTIVE) continue;
      const ms_plan_coll *source = exec->plan->phase[index].instr[instr->source].coll;
      for (int i = 0; i < instr->coll->parts; i++) {
        const ms_coll_part *part = &instr->coll->part[i];
        move[part - phase->part] =
            (ms_move){.n = converts(exec->state, instr->coll, part, source->part[i].src.buffer < 0) * part->count,
                      .from_dtype = moved_as(part, part->src_dtype),
                      .to_dtype = moved_as(part, part->dst_dtype),
                      .add = part->accumulate};
      }
    }
  }
  return MS_OK;
}

/* This rank's chunk of the shared buffer; the whole buffer for an all-reduce. */
static char *own_chunk(const ms_exec_instr *instr, const ms_coll_part *part) {
  const ms_coll *coll = instr->coll;
  int chunked = coll->kind != MS_COLL_ALL_REDUCE;
  int dtype = coll->kind == MS_COLL_ALL_GATHER ? part->dst_dtype : part->src_dtype;
  return (char *)part->shared[0] + chunked * ms_comm_rank(instr->comm) * part->count * ms_dtype_size(dtype);
}

void ms_async_exec_rebind(ms_exec *exec) {
  for (int p = 0; p < MS_PHASES; p++) {
    for (int s = 0; s < MS_NAMED_STREAMS; s++) {
      for (int k = 0; k < exec->phase[p].stream[s].n; k++) {
        const ms_exec_instr *instr = &exec->phase[p].stream[s].instr[k];
        for (int i = 0; instr->kind == MS_INSTR_COLLECTIVE && i < instr->coll->parts; i++) {
          const ms_coll_part *part = &instr->coll->part[i];
          ms_move *move = &exec->async->phase[p].convert[part - exec->phase[p].part];
          int gathers = instr->coll->kind == MS_COLL_ALL_GATHER;
          move->scale = part->scale;
          move->from = gathers ? part->src : own_chunk(instr, part);
          move->to = gathers ? own_chunk(instr, part) : part->dst;
        }
      }
    }
  }
  ms_async_exec_drop_graphs(exec->state, exec->async); /* captured graphs contain the old addresses */
}

/* ---- order ---- */

static int sort_order(ms_exec *exec, int index) {
  ms_exec_phase *phase = &exec->phase[index];
  int at[MS_NAMED_STREAMS] = {0}, n = 0;
  for (int s = 0; s < MS_NAMED_STREAMS; s++) n += phase->stream[s].n;
  exec->async->phase[index].order = ms_calloc(n, sizeof *exec->async->phase[index].order);
  if (!exec->async->phase[index].order) return MS_ENOMEM;
  exec->async->phase[index].n = n;
  for (int i = 0; i < n; i++) {
    int s = exec->plan->phase[index].instr[i].stream;
    exec->async->phase[index].order[i] = &phase->stream[s].instr[at[s]++];
  }
  for (int i = 0; i < phase->kernels; i++) {
    phase->call[i].stream = exec->state->async->stream[MS_STREAM_COMPUTE];
    phase->call[i].scalars = &exec->state->async->args->scalars;
    phase->call[i].fault = exec->state->async->fault;
  }
  return MS_OK;
}

/* ---- kernels that run together ---- */

static int find_together(ms_exec *exec, int index) {
  int *together = exec->async->phase[index].together = ms_calloc(exec->plan->phase[index].n, sizeof *together);
  if (!together) return MS_ENOMEM;
  ms_plan_together(exec->plan, index, together);
  return MS_OK;
}

typedef struct reach {
  int of[MS_NAMED_STREAMS]; /* the number of instructions of each stream that are ordered before a point */
} reach;

static void extend(reach *to, const reach *by) {
  for (int s = 0; s < MS_NAMED_STREAMS; s++)
    if (by->of[s] > to->of[s]) to->of[s] = by->of[s];
}

/* A stream that begins with a wait needs no fork: the wait, or an earlier one, orders it after compute. A stream needs
 * no join if compute already waits for its last instruction, directly or through another stream. The last stream is
 * checked first, because it waits for the others. */
static int find_forks(ms_exec *exec, int index) {
  reach before[MS_NAMED_STREAMS] = {0}, *event = ms_calloc(exec->plan->phase[index].events, sizeof *event);
  int *forks = exec->async->phase[index].forks, *joins = exec->async->phase[index].joins;
  if (!event) return MS_ENOMEM;
  for (int s = MS_STREAM_COMPUTE + 1; s < MS_NAMED_STREAMS; s++) {
    const ms_exec_stream *stream = &exec->phase[index].stream[s];
    forks[s] = stream->n && stream->instr[0].kind != MS_INSTR_WAIT;
  }
  for (int i = 0; i < exec->async->phase[index].n; i++) {
    const ms_exec_instr *instr = exec->async->phase[index].order[i];
    int s = exec->plan->phase[index].instr[i].stream;
    if (instr->kind == MS_INSTR_RECORD) event[instr->event] = before[s];
    else if (instr->kind == MS_INSTR_WAIT) extend(&before[s], &event[instr->event]);
    else before[s].of[s]++;
  }
  for (int s = MS_NAMED_STREAMS - 1; s > MS_STREAM_COMPUTE; s--) {
    joins[s] = before[MS_STREAM_COMPUTE].of[s] < before[s].of[s];
    if (joins[s]) extend(&before[MS_STREAM_COMPUTE], &before[s]);
  }
  free(event);
  return MS_OK;
}

static int open_events(ms_exec *exec) {
  int most = 0;
  for (int p = 0; p < MS_PHASES; p++)
    if (exec->plan->phase[p].events > most) most = exec->plan->phase[p].events;
  exec->async->event = ms_calloc(most, sizeof *exec->async->event);
  if (!exec->async->event) return MS_ENOMEM;
  for (; exec->async->events < most; exec->async->events++)
    MS_TRY(exec->state->device->api->event_open(exec->state->device, 0, &exec->async->event[exec->async->events]));
  return MS_OK;
}

/* ---- inputs and outputs ---- */

static int64_t bytes_of(const ms_ref *ref) { return ms_numel(&ref->info) * ms_dtype_size(ref->info.dtype); }

static int64_t max_bytes(const ms_plan_output *output) {
  int64_t most = 0;
  for (int p = 0; p < MS_PHASES; p++)
    if (output->at[p].buffer >= 0 && bytes_of(&output->at[p]) > most) most = bytes_of(&output->at[p]);
  return most;
}

static int stage(ms_exec *exec) {
  const ms_plan *plan = exec->plan;
  struct ms_async_exec *a = exec->async;
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
    outputs += align_up(max_bytes(&plan->output[i]));
  }
  a->staged = ms_calloc(a->staged_bytes, 1);
  a->output = ms_calloc(outputs, 1);
  if (!a->staged || !a->output) return MS_ENOMEM;
  if (!a->staged_bytes) return MS_OK;
  void *pinned;
  MS_TRY(exec->state->device->api->pin(exec->state->device, MS_ASYNC_RUNS * a->staged_bytes, &pinned));
  a->pinned = pinned;
  return MS_OK;
}

/* ---- opening and closing ---- */

static int reserve(ms_exec *exec) {
  int most = 0;
  for (int p = 0; p < MS_PHASES; p++)
    if (exec->phase[p].colls > most) most = exec->phase[p].colls;
  return ms_async_reserve(exec->state, most);
}

int ms_async_exec_new(ms_exec *exec) {
  exec->async = ms_calloc(1, sizeof *exec->async);
  if (!exec->async) return MS_ENOMEM;
  exec->async->next = exec->state->async->execs;
  exec->state->async->execs = exec->async;
  for (int p = 0; p < MS_PHASES; p++) {
    MS_TRY(sort_order(exec, p));
    MS_TRY(find_together(exec, p));
    MS_TRY(find_forks(exec, p));
    MS_TRY(describe_conversions(exec, p));
  }
  MS_TRY(open_events(exec));
  MS_TRY(stage(exec));
  return reserve(exec);
}

static int64_t mark_bytes(const ms_exec *exec, int phase) {
  return 2 * exec->phase[phase].colls * (int64_t)sizeof(int64_t);
}

int ms_async_exec_set_graph(ms_exec *exec, int on) {
  ms_device *device = exec->state->device;
  if (!on) ms_async_exec_drop_graphs(exec->state, exec->async);
  for (int p = 0; p < MS_PHASES && on; p++) {
    void *pinned;
    if (exec->async->phase[p].marks || !exec->phase[p].colls) continue;
    MS_TRY(device->api->pin(device, mark_bytes(exec, p), &pinned));
    exec->async->phase[p].marks = pinned;
  }
  exec->async->captures = on;
  return MS_OK;
}

static void take_off(ms_async *on, const struct ms_async_exec *a) {
  struct ms_async_exec **place = &on->execs;
  while (*place != a) place = &(*place)->next;
  *place = a->next;
}

void ms_async_exec_free(ms_exec *exec) {
  struct ms_async_exec *a = exec->async;
  if (!a) return;
  ms_device *device = exec->state->device;
  ms_async_settle(exec->state);
  ms_async_exec_drop_graphs(exec->state, a);
  for (int p = 0; p < MS_PHASES; p++) {
    free(a->phase[p].convert);
    if (a->phase[p].marks) device->api->unpin(device, a->phase[p].marks, mark_bytes(exec, p));
    free(a->phase[p].order);
    free(a->phase[p].together);
  }
  for (int i = 0; i < a->events; i++) device->api->event_close(device, a->event[i]);
  for (int i = 0; i < a->timers; i++) device->api->event_close(device, a->timer[i]);
  if (a->pinned) device->api->unpin(device, a->pinned, MS_ASYNC_RUNS * a->staged_bytes);
  take_off(exec->state->async, a);
  free(a->event);
  free(a->timer);
  free(a->staged);
  free(a->staged_at);
  free(a->output);
  free(a->output_at);
  free(a);
}
