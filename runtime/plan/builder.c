/* builder.c - appends buffers and instructions to a plan under construction.
 *
 * The lifetime of a buffer is the range of the instructions that name it; it is never computed separately.
 */
#include <stdlib.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "base/text/hash.h"
#include "base/text/xxh3.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/lower.h"
#include "plan/layout/residuals.h"

int ms_plan_buffer(ms_plan *plan, int phase, int arena, int category, int64_t bytes, const char *label, int *buffer) {
  MS_TRY(ms_grow((void **)&plan->buffer, &plan->buffers_capacity, plan->buffers + 1, sizeof *plan->buffer));
  plan->buffer[plan->buffers] = (ms_buffer){.arena = arena,
                                            .category = category,
                                            .bytes = bytes,
                                            .offset = -1,
                                            .phase = phase,
                                            .first = -1,
                                            .last = -1,
                                            .label = label};
  *buffer = plan->buffers++;
  return MS_OK;
}

void ms_plan_touch(ms_plan *plan, int buffer, int position) {
  if (buffer < 0) return;
  ms_buffer *b = &plan->buffer[buffer];
  if (b->first < 0 || position < b->first) b->first = position;
  if (position > b->last) b->last = position;
}

/* Extends the lifetime of a buffer to a kernel's position. */
static void compute_with(ms_plan *plan, int buffer, int position) {
  ms_plan_touch(plan, buffer, position);
  if (buffer >= 0) plan->buffer[buffer].computed = 1;
}

static int append(ms_plan *plan, int phase, ms_instr **instr) {
  ms_plan_phase *p = &plan->phase[phase];
  p->present = 1;
  MS_TRY(ms_grow((void **)&p->instr, &p->capacity, p->n + 1, sizeof *p->instr));
  *instr = &p->instr[p->n++];
  memset(*instr, 0, sizeof **instr);
  (*instr)->workspace = -1;
  return MS_OK;
}

/* Returns the slot of a scope, or the empty slot where it belongs. slots is a power of two, and the table is never
 * full. Scopes are compared by address: the caller has one string per scope, which lives as long as compilation. */
static ms_scope *slot_of(ms_scope *scope, int slots, const char *from) {
  int slot = (int)(ms_hash_int(MS_HASH_INIT, (intptr_t)from) & (uint64_t)(slots - 1));
  while (scope[slot].from && scope[slot].from != from) slot = (slot + 1) & (slots - 1);
  return &scope[slot];
}

static int widen_scopes(ms_plan *plan) {
  int slots = plan->scope_slots, wider = slots ? 2 * slots : 64;
  ms_scope *scope = ms_calloc(wider, sizeof *scope);
  if (!scope) return MS_ENOMEM;
  for (int i = 0; i < slots; i++)
    if (plan->scope[i].from) *slot_of(scope, wider, plan->scope[i].from) = plan->scope[i];
  free(plan->scope);
  plan->scope = scope;
  plan->scope_slots = wider;
  return MS_OK;
}

static int copy_scope(ms_plan *plan, const char *from, const char **own) {
  enum { USUAL = 1 << 14 };
  const int64_t bytes = (int64_t)strlen(from) + 1;
  ms_scope_texts *in = plan->scope_texts;
  if (!in || in->used + bytes > in->bytes) {
    const int64_t room = bytes > USUAL ? bytes : USUAL;
    in = ms_calloc(1, (int64_t)sizeof *in + room);
    if (!in) return MS_ENOMEM;
    in->bytes = room;
    in->next = plan->scope_texts;
    plan->scope_texts = in;
  }
  *own = memcpy(in->text + in->used, from, (size_t)bytes);
  in->used += bytes;
  return MS_OK;
}

int ms_plan_own_scope(ms_plan *plan, const char *from, const char **own) {
  if (plan->latest_scope.from != from) {
    if (2 * plan->scopes >= plan->scope_slots) MS_TRY(widen_scopes(plan));
    ms_scope *scope = slot_of(plan->scope, plan->scope_slots, from);
    if (!scope->from) {
      MS_TRY(copy_scope(plan, from, &scope->own));
      scope->from = from;
      plan->scopes++;
    }
    plan->latest_scope = *scope;
  }
  *own = plan->latest_scope.own;
  return MS_OK;
}

/* Reserves n consecutive places in the plan's storage. */
static int take_places(ms_plan *plan, int n, ms_place **place) {
  const int all = sizeof plan->places->place / sizeof *plan->places->place;
  if (!plan->places || plan->places->n + n > all) {
    ms_places *more = ms_calloc(1, sizeof *more);
    if (!more) return MS_ENOMEM;
    more->next = plan->places;
    plan->places = more;
  }
  *place = &plan->places->place[plan->places->n];
  plan->places->n += n;
  return MS_OK;
}

int ms_plan_kernel(ms_plan *plan, int phase, int op, const ms_op_attrs *attrs, int inputs, const ms_ref *in,
                   int outputs, const ms_ref *out, const char *scope, int backward) {
  ms_instr *instr;
  MS_TRY(append(plan, phase, &instr));
  int position = plan->phase[phase].n - 1;
  instr->kind = MS_INSTR_KERNEL;
  instr->stream = MS_STREAM_COMPUTE;
  instr->backward = backward;
  MS_TRY(ms_plan_own_scope(plan, scope ? scope : "", &instr->scope));
  MS_TRY(take_places(plan, inputs + outputs, &instr->in));
  instr->out = instr->in + inputs;
  for (int i = 0; i < inputs; i++) {
    instr->in[i] = (ms_place){in[i].buffer, in[i].offset};
    compute_with(plan, in[i].buffer, position);
  }
  for (int i = 0; i < outputs; i++) {
    instr->out[i] = (ms_place){out[i].buffer, out[i].offset};
    compute_with(plan, out[i].buffer, position);
  }
  MS_TRY(ms_plan_prepare(plan, op, attrs, inputs, in, outputs, out, instr));
  if (instr->call->workspace_bytes > 0) {
    int workspace;
    MS_TRY(ms_plan_buffer(plan, phase, MS_ARENA_WORKSPACE, MS_CAT_WORKSPACE, instr->call->workspace_bytes, "workspace",
                          &workspace));
    instr->workspace = workspace;
    compute_with(plan, workspace, position);
  }
  return MS_OK;
}

int ms_plan_group_start(const ms_plan *plan, int dim, int ranks) { return plan->model->dim[dim].place / ranks * ranks; }

/* Appends a collective to a phase's list, with space for its parts. */
static int list_collective(ms_plan *plan, int phase, int kind, int dim, int unit, int parts, ms_plan_coll **out) {
  ms_plan_phase *p = &plan->phase[phase];
  MS_TRY(ms_grow((void **)&p->coll, &p->colls_capacity, p->colls + 1, sizeof *p->coll));
  ms_plan_coll *coll = ms_calloc(1, sizeof *coll);
  if (!coll) return MS_ENOMEM;
  p->coll[p->colls++] = coll;
  int capacity = 0;
  MS_TRY(ms_grow((void **)&coll->part, &capacity, parts, sizeof *coll->part));
  coll->kind = kind;
  coll->dim = dim;
  coll->unit = unit;
  coll->ranks = plan->model->dim[dim].size;
  coll->stride = 1;
  *out = coll;
  return MS_OK;
}

ms_coll_part ms_plan_part_sizes(const ms_plan_coll *coll, const ms_plan_part *part) {
  const int gathers = coll->kind == MS_COLL_ALL_GATHER, shared_dtype = part->shared.info.dtype;
  return (ms_coll_part){.count = part->count,
                        .src_dtype = gathers ? part->src.info.dtype : shared_dtype,
                        .dst_dtype = gathers ? shared_dtype : part->dst.info.dtype};
}

static double bytes_of_part(const ms_plan_coll *coll, const ms_plan_part *part) {
  const ms_coll_part sizes = ms_plan_part_sizes(coll, part);
  return ms_coll_bytes(coll->kind, coll->ranks, &sizes, 1);
}

int ms_plan_collective(ms_plan *plan, int phase, int stream, int kind, int dim, int ranks, int unit, int parts,
                       const ms_plan_part *part) {
  ms_instr *instr;
  MS_TRY(append(plan, phase, &instr));
  MS_TRY(list_collective(plan, phase, kind, dim, unit, parts, &instr->coll));
  ms_plan_coll *coll = instr->coll;
  if (parts) memcpy(coll->part, part, (size_t)parts * sizeof *part);
  coll->parts = parts;
  if (ranks) coll->ranks = ranks;
  instr->kind = MS_INSTR_COLLECTIVE;
  instr->stream = stream;
  if (stream >= plan->streams) plan->streams = stream + 1;
  instr->scope = unit >= 0 ? plan->model->unit[unit].name : kind == MS_COLL_BARRIER ? "update" : "step totals";
  for (int i = 0; i < parts; i++) {
    coll->bytes += bytes_of_part(coll, &part[i]);
    ms_plan_touch(plan, part[i].src.buffer, plan->phase[phase].n - 1);
    if (ms_plan_part_is_coded(coll, &part[i])) ms_plan_touch(plan, part[i].scale.buffer, plan->phase[phase].n - 1);
    ms_plan_touch(plan, part[i].shared.buffer, plan->phase[phase].n - 1);
    ms_plan_touch(plan, part[i].dst.buffer, plan->phase[phase].n - 1);
  }
  return MS_OK;
}

int ms_plan_collective_of(ms_plan *plan, int phase, int stream, int kind, int dim, const char *scope,
                          const ms_plan_part *part) {
  MS_TRY(ms_plan_collective(plan, phase, stream, kind, dim, 0, -1, 1, part));
  return ms_plan_own_scope(plan, scope, &plan->phase[phase].instr[plan->phase[phase].n - 1].scope);
}

void ms_plan_takes_largest(ms_plan *plan, int phase) {
  plan->phase[phase].instr[plan->phase[phase].n - 1].coll->largest = 1;
}

void ms_plan_gathers_sums(ms_plan *plan, int phase) {
  plan->phase[phase].instr[plan->phase[phase].n - 1].coll->of_sums = 1;
}

void ms_plan_hash_alike(ms_plan *plan, int phase, int op, const ms_op_attrs *attrs) {
  ms_instr *instr = &plan->phase[phase].instr[plan->phase[phase].n - 1];
  const ms_kernel_call *call = instr->call;
  uint64_t hash = ms_hash_int(ms_hash_int(MS_HASH_INIT, call->op), op);
  hash = ms_hash_int(hash, (int64_t)XXH3_64bits(attrs, sizeof *attrs));
  for (int i = 0; i < call->inputs + call->outputs; i++) {
    const ms_value_info *info = i < call->inputs ? &call->in[i] : &call->out[i - call->inputs];
    hash = ms_hash_int(ms_hash_int(hash, info->dtype), info->ndim);
    for (int d = 0; d < info->ndim; d++) hash = ms_hash_int(hash, info->dims[d]);
  }
  instr->hash = hash;
}

int ms_plan_join(ms_plan *plan, int phase, int stream, int unit) {
  ms_instr *instr;
  MS_TRY(append(plan, phase, &instr));
  instr->kind = MS_INSTR_JOIN;
  instr->stream = stream;
  if (stream >= plan->streams) plan->streams = stream + 1;
  instr->scope = plan->model->unit[unit].name;
  return MS_OK;
}

/* The collective itself also runs the all_reduce over the replicas: the phase lists it for reports, but it is not a
 * separate instruction. */
int ms_plan_take_replicas(ms_plan *plan, int phase) {
  ms_plan_phase *p = &plan->phase[phase];
  ms_plan_coll *coll = p->instr[p->n - 1].coll, *also;
  coll->replicas = plan->layout->replicas;
  if (coll->kind == MS_COLL_ALL_GATHER) return MS_OK;
  coll->sliced = coll->kind == MS_COLL_REDUCE_SCATTER;
  MS_TRY(list_collective(plan, phase, MS_COLL_ALL_REDUCE, MS_DIM_REPLICATE, coll->unit, 0, &also));
  also->ranks = plan->layout->replicas;
  for (int i = 0; i < coll->parts; i++) also->bytes += bytes_of_part(also, &coll->part[i]);
  coll->also_bytes = also->bytes;
  return MS_OK;
}

void ms_plan_set_stride(ms_plan *plan, int phase, int stride) {
  plan->phase[phase].instr[plan->phase[phase].n - 1].coll->stride = stride;
}

int ms_plan_between_copies(ms_plan *plan, int phase, int kind, int unit, int parts, const ms_plan_part *part) {
  const int copies = ms_replica_copies(plan->model, plan->layout->replicas);
  if (copies == 1) return MS_OK;
  MS_TRY(ms_plan_collective(plan, phase, MS_STREAM_REPLICATE, kind, MS_DIM_REPLICATE, copies, unit, parts, part));
  ms_plan_set_stride(plan, phase, plan->layout->replicas);
  return MS_OK;
}

int ms_plan_open(ms_plan *plan, int phase, int instr, ms_ref bytes) {
  ms_plan_coll *coll = plan->phase[phase].instr[instr].coll;
  MS_TRY(ms_grow((void **)&coll->opens, &coll->opens_capacity, coll->opened + 1, sizeof *coll->opens));
  coll->opens[coll->opened++] = bytes;
  ms_plan_touch(plan, bytes.buffer, instr);
  return MS_OK;
}

void ms_plan_slice_sum(ms_plan *plan, int phase) {
  const ms_plan_phase *p = &plan->phase[phase];
  p->instr[p->n - 1].coll->sliced = 1;
}

ms_ref ms_ref_vector(int buffer, int64_t offset, int dtype, int64_t n) {
  return (ms_ref){buffer, offset, {.dtype = dtype, .ndim = 1, .dims = {n}}};
}

ms_ref ms_ref_scalar(int buffer, int64_t offset) { return (ms_ref){buffer, offset, {.dtype = MS_F32, .ndim = 0}}; }

int ms_state_buffer(int unit, int which) { return unit * MS_SLOTS + which; }
int ms_plan_shares_masters(const ms_plan *plan, int unit) {
  return plan->buffer[ms_state_buffer(unit, MS_SLOT_MASTER)].arena == MS_ARENA_MASTERS;
}

ms_ref ms_plan_weights(const ms_plan *plan, int unit, int s, int64_t local, int64_t n) {
  const ms_unit *u = &plan->model->unit[unit];
  const int has_weights = ms_segment_has_weights(plan->model, u, plan->layout->replicas, s);
  const int slot = has_weights ? MS_SLOT_WEIGHTS : MS_SLOT_MASTER;
  const int64_t at = ms_slots[slot].at(plan->model, plan->layout, unit, s, local);
  int dtype = has_weights ? ms_slot_form_of(plan->model, plan->layout, slot, unit, s).dtype : MS_F32;
  if (ms_segment_is_stored(&u->segment[s])) dtype = u->segment[s].wire;
  return ms_ref_vector(ms_state_buffer(unit, slot), at, dtype, n);
}

int ms_squares_buffer(const ms_plan *plan) { return plan->model->units * MS_SLOTS; }
int ms_loss_sum_buffer(const ms_plan *plan) { return ms_squares_buffer(plan) + 1; }
int ms_norm_buffer(const ms_plan *plan) { return ms_squares_buffer(plan) + 2; }
int ms_updates_buffer(const ms_plan *plan) { return ms_squares_buffer(plan) + 3; }

int ms_plan_take_slots(ms_plan *plan, const ms_graph *graph) {
  plan->input = ms_calloc(graph->n_values, sizeof *plan->input);
  plan->output = ms_calloc(graph->n_outputs, sizeof *plan->output);
  if (!plan->input || !plan->output) return MS_ENOMEM;
  for (int v = 0; v < graph->n_values; v++) {
    const ms_value *value = &graph->values[v];
    if (value->kind != MS_VALUE_INPUT) continue;
    ms_plan_input *input = &plan->input[plan->inputs];
    int buffer;
    MS_TRY(ms_plan_buffer(plan, -1, MS_ARENA_ACTIVATIONS, MS_CAT_ACTIVATIONS,
                          ms_numel(&value->info) * ms_dtype_size(value->info.dtype), "input", &buffer));
    input->at = (ms_ref){buffer, 0, value->info};
    input->name = ms_strdup(value->name);
    if (!input->name) return MS_ENOMEM;
    plan->inputs++;
  }
  for (int o = 0; o < graph->n_outputs; o++) {
    ms_plan_output *output = &plan->output[o];
    for (int p = 0; p < MS_PHASES; p++) output->at[p].buffer = -1;
    output->name = ms_strdup(graph->outputs[o].name);
    if (!output->name) return MS_ENOMEM;
    plan->outputs++;
  }
  return MS_OK;
}

/* Appends a buffer whose offset the state's layout has already fixed; offset -1: an empty buffer. */
static int persistent(ms_plan *plan, int arena, int category, int64_t offset, int64_t bytes, const char *label) {
  int buffer;
  MS_TRY(ms_plan_buffer(plan, -1, arena, category, offset < 0 ? 0 : bytes, label, &buffer));
  plan->buffer[buffer].offset = offset < 0 ? 0 : offset;
  return MS_OK;
}

static int state_buffer(ms_plan *plan, int category, int64_t offset, int64_t bytes, const char *label) {
  return persistent(plan, MS_ARENA_STATE, category, offset, bytes, label);
}

int ms_plan_state_buffers(ms_plan *plan) {
  const ms_state_layout *layout = plan->layout;
  const ms_model *model = plan->model;
  for (int u = 0; u < model->units; u++)
    for (int slot = 0; slot < MS_SLOTS; slot++)
      MS_TRY(persistent(plan, ms_state_arena(model, layout, u, slot), ms_slots[slot].category, layout->unit[u].at[slot],
                        layout->unit[u].bytes[slot], model->unit[u].name));
  const int norms = 1 + ms_model_splits_norm(model);
  MS_TRY(state_buffer(plan, MS_CAT_WORKSPACE, layout->squares, 4 * norms * model->units, "squares"));
  MS_TRY(state_buffer(plan, MS_CAT_WORKSPACE, layout->loss_sum, 8, "loss sum"));
  MS_TRY(state_buffer(plan, MS_CAT_WORKSPACE, layout->norm, 16 * norms, "step norm"));
  return state_buffer(plan, MS_CAT_WORKSPACE, layout->updates, 4 * model->params, "updates");
}
