/* dump.c - reports on a finished plan: a summary in numbers, and a text for people: costs, then what runs in each
 * phase. dump_json.c has the same facts for programs.
 */
#include "plan/report/dump.h"

#include <stdlib.h>

#include "base/config.h"
#include "base/numbers/dtype.h"

int ms_plan_summarize(const ms_plan *plan, ms_plan_summary *summary, int size) {
  MS_HANDLE(plan, PLAN);
  MS_GIVEN(summary);
  ms_plan_summary own = {0}, *s = &own;
  for (int p = 0; p < MS_PHASES; p++) {
    const ms_plan_phase *phase = &plan->phase[p];
    s->instructions += phase->n;
    s->collectives[p] = phase->colls;
    for (int i = 0; i < phase->colls; i++) {
      const int dim = plan->model->dim[phase->coll[i]->dim].mesh_dim;
      s->comm_bytes[dim] += ms_plan_runs(plan, p) * phase->coll[i]->bytes;
    }
  }
  for (int c = 0; c < MS_CATEGORIES; c++) s->bytes[c] = plan->category_bytes[c];
  MS_TRY(ms_plan_category_peaks(plan, s->fullest));
  s->peak_bytes = ms_plan_peak(plan);
  s->fingerprint = plan->fingerprint;
  s->flops = plan->phase[plan->phase[MS_PHASE_FIRST].present ? MS_PHASE_FIRST : MS_PHASE_EVALUATE].flops;
  s->compile_ms = 1e3 * plan->compile_seconds;
  MS_TRY(ms_plan_find_peak(plan, &s->peak));
  MS_GIVE_INFO(summary, size, own);
}

/* ---- text ------------------------------------------------------------------------------------------------------- */

static void categories(const char *what, const int64_t *bytes, ms_text *text) {
  ms_text_append(text, "\n  %s:", what);
  for (int c = 0; c < MS_CATEGORIES; c++) {
    ms_text_append(text, " %s ", ms_category_name(c));
    ms_text_bytes(text, (double)bytes[c]);
  }
}

/* ", 704 B to and 704 B from other nodes" */
static void append_wire(const ms_plan *plan, const ms_traffic *moved, ms_text *text) {
  const int least = ms_device_can(plan->config.device, MS_DEVICE_SPANS_HOSTS); /* NCCL can send more */
  ms_text_append(text, least ? ", at least " : ", ");
  ms_text_bytes(text, moved->sent);
  ms_text_append(text, " to and ");
  ms_text_bytes(text, moved->received);
  ms_text_append(text, " from other nodes");
}

/* "a step over shard: 888 B inside the node, 448 B to and 448 B from other nodes; its 2 ranks together: ..." */
static int traffic(const ms_plan *plan, ms_text *text) {
  const int ranks = ms_plan_ranks_on(plan, plan->topology.node_of[plan->model->rank]);
  int dim[MS_DIMS];
  const int dims = ms_plan_dims_in_order(plan, dim);
  for (int d = 0; d < dims; d++) {
    const ms_dim_group *group = &plan->model->dim[dim[d]];
    ms_traffic moved[2]; /* by this rank, by its node */
    MS_TRY(ms_plan_traffic_of(plan, group->mesh_dim, &moved[0], &moved[1]));
    ms_text_append(text, "\n  a step over %s: ", group->label);
    for (int i = 0; i < (ranks > 1 ? 2 : 1); i++) {
      if (i) ms_text_append(text, "; its %d ranks together: ", ranks);
      ms_text_bytes(text, moved[i].inside);
      ms_text_append(text, i ? " inside" : " inside the node");
      if (moved[1].sent + moved[1].received > 0) append_wire(plan, &moved[i], text);
    }
  }
  return MS_OK;
}

/* "memory of each node: 19.1 KiB for its 2 ranks", or of this rank's node and of the fullest */
static int node_memory(const ms_plan *plan, ms_text *text) {
  const int nodes = plan->topology.nodes, here = plan->topology.node_of[plan->model->rank];
  int64_t own, bytes, most = 0, least = INT64_MAX;
  int fullest = here;
  MS_TRY(ms_plan_node_bytes(plan, here, &own));
  for (int node = 0; node < nodes; node++) {
    MS_TRY(ms_plan_node_bytes(plan, node, &bytes));
    if (bytes > most) fullest = node;
    if (bytes > most) most = bytes;
    if (bytes < least) least = bytes;
  }
  if (most == least) ms_text_append(text, "\n  memory of %s node: ", nodes == 1 ? "the" : "each");
  else ms_text_append(text, "\n  memory of node %d: ", here);
  ms_text_bytes(text, (double)own);
  if (ms_plan_ranks_on(plan, here) > 1) ms_text_append(text, " for its %d ranks", ms_plan_ranks_on(plan, here));
  if (own == most) return MS_OK;
  ms_text_append(text, "; of node %d, the fullest: ", fullest);
  ms_text_bytes(text, (double)most);
  ms_text_append(text, " for %d", ms_plan_ranks_on(plan, fullest));
  return MS_OK;
}

/* "loss in 3 chunks of 352 rows: 67.6 MiB of logits at a time, not 197 MiB" */
static int losses(const ms_plan *plan, ms_text *text) {
  ms_chunked_loss loss[MS_LISTED_LOSSES];
  int n;
  MS_TRY(ms_plan_listed_losses(plan, loss, &n));
  for (int i = 0; i < n; i++) {
    ms_text_append(text, "\n  loss in %lld chunk%s of %lld rows: ", (long long)loss[i].chunks,
                   loss[i].chunks == 1 ? "" : "s", (long long)loss[i].chunk);
    ms_text_bytes(text, (double)loss[i].logits_bytes);
    ms_text_append(text, " of logits at a time, not ");
    ms_text_bytes(text, (double)loss[i].whole_bytes);
    if (loss[i].again) ms_text_append(text, "; backward makes them again");
  }
  return MS_OK;
}

/* "277 of 292 products can run at the same time as a collective, and leave it 32 multiprocessors" */
static void overlapped(const ms_plan *plan, ms_text *text) {
  int products, spared;
  if (!plan->config.sm_carveout) return;
  ms_plan_count_spared(plan, &products, &spared);
  ms_text_append(text,
                 "\n  %d of %d products can run at the same time as a collective, and leave it %d multiprocessor%s",
                 spared, products, plan->config.sm_carveout, plan->config.sm_carveout == 1 ? "" : "s");
}

static int head(const ms_plan *plan, ms_text *text) {
  const ms_model *model = plan->model;
  ms_plan_summary summary;
  MS_TRY(ms_plan_summarize(plan, &summary, sizeof summary));
  int instructions = 0;
  for (int p = 0; p < MS_PHASES; p++) instructions += plan->phase[p].n;
  ms_text_append(text, "plan: rank %d of %d, mesh %s, fingerprint %016llx, %d instructions, peak ", model->rank,
                 model->world, model->mesh_text, (unsigned long long)plan->fingerprint, instructions);
  ms_text_bytes(text, (double)ms_plan_peak(plan));
  ms_text_append(text, "\n  ");
  ms_plan_describe_nodes(plan, text);
  categories("the peak's bytes", summary.bytes, text);
  categories("each at its own peak", summary.fullest, text);
  const int64_t copies = ms_plan_all_copies(plan);
  if (copies) {
    ms_text_append(text, "\n  copies of parameters in bf16: ");
    ms_text_bytes(text, (double)copies);
    ms_text_append(text, ", which updates write with their masters");
  }
  if (model->members > 1) MS_TRY(node_memory(plan, text));
  MS_TRY(traffic(plan, text));
  MS_TRY(losses(plan, text));
  overlapped(plan, text);
  ms_text_append(text, "\n");
  return MS_OK;
}

static void ref(const ms_plan *plan, ms_ref r, ms_text *text) {
  char shape[128];
  const ms_buffer *b = &plan->buffer[r.buffer];
  ms_text_append(text, " %s+%lld%s", ms_arena_name(b->arena), (long long)(b->offset + r.offset),
                 r.info.ndim ? ms_shape_text(&r.info, shape) : "");
}

static void kernel(const ms_plan *plan, const ms_instr *instr, ms_text *text) {
  ms_text_append(text, "%s", ms_op_row_of(instr->call->op)->name);
  for (int i = 0; i < instr->call->inputs; i++) ref(plan, ms_instr_input(instr, i), text);
  ms_text_append(text, " ->");
  for (int i = 0; i < instr->call->outputs; i++) ref(plan, ms_instr_output(instr, i), text);
}

/* Appends the dtypes of a collective whose parts differ. */
static void append_dtypes(const ms_plan_coll *coll, ms_text *text) {
  int dtypes = 0;
  for (int dtype = 0; dtype < MS_DTYPES; dtype++) dtypes += ms_plan_bytes_in(coll, dtype) > 0;
  const char *before = " of ";
  for (int dtype = 0; dtype < MS_DTYPES && dtypes > 1; dtype++) {
    if (ms_plan_bytes_in(coll, dtype) <= 0) continue;
    ms_text_append(text, "%s%s", before, ms_dtype_name(dtype));
    before = ", ";
  }
}

static void groups_of(const ms_plan *plan, const ms_plan_coll *coll, ms_text *text) {
  if (!ms_plan_coll_is_between_nodes(coll)) {
    if (coll->ranks != plan->model->dim[coll->dim].size) ms_text_append(text, " in groups of %d", coll->ranks);
  } else if (ms_plan_joins_nodes(plan, coll)) ms_text_append(text, " between %d nodes", coll->ranks);
  else ms_text_append(text, " between %d groups of %d ranks", coll->ranks, coll->stride);
}

static void collective(const ms_plan *plan, const ms_plan_coll *coll, ms_text *text) {
  double bytes = 0;
  for (int dtype = 0; dtype < MS_DTYPES; dtype++) bytes += ms_plan_bytes_in(coll, dtype);
  ms_text_append(text, "%s%s over %s", ms_coll_name(coll->kind), coll->largest ? " max" : "",
                 plan->model->dim[coll->dim].label);
  groups_of(plan, coll, text);
  if (coll->replicas)
    ms_text_append(text, "%s%s", coll->kind == MS_COLL_ALL_GATHER ? " for all replicas" : ", all_reduce over replicate",
                   coll->replicas < ms_model_replicas(plan->model) ? " of a node" : "");
  if (coll->kind == MS_COLL_BARRIER) return;
  ms_text_append(text, ", ");
  ms_text_bytes(text, bytes);
  ms_text_append(text, " in %d segment%s", coll->parts, coll->parts == 1 ? "" : "s");
  append_dtypes(coll, text);
  if (coll->moved.sent + coll->moved.received > 0) append_wire(plan, &coll->moved, text);
  if (coll->in_flight) ms_text_append(text, ", joined by first");
  ms_text_append(text, ",");
  ref(plan, coll->part[0].shared, text);
}

static void phase(const ms_plan *plan, int id, ms_text *text) {
  const ms_plan_phase *p = &plan->phase[id];
  int counts[MS_COLL_KINDS] = {0};
  for (int i = 0; i < p->colls; i++) counts[p->coll[i]->kind]++;
  ms_text_append(text, "phase %s:", ms_phase_name(id));
  for (int k = 0; k < MS_COLL_KINDS; k++)
    if (counts[k]) ms_text_append(text, " %d %s,", counts[k], ms_coll_name(k));
  ms_text_append(text, " %d events, %.3g GFLOP\n", p->events, p->flops / 1e9);
  for (int i = 0; i < p->n; i++) {
    const ms_instr *instr = &p->instr[i];
    ms_text_append(text, "%5d %-9s ", i, ms_stream_name(instr->stream));
    if (instr->kind == MS_INSTR_RECORD) ms_text_append(text, "record event %d", instr->event);
    if (instr->kind == MS_INSTR_WAIT) ms_text_append(text, "wait for event %d", instr->event);
    if (instr->kind == MS_INSTR_KERNEL) kernel(plan, instr, text);
    if (instr->kind == MS_INSTR_COLLECTIVE) collective(plan, instr->coll, text);
    if (instr->kind == MS_INSTR_JOIN) ms_text_append(text, "join %s of update", ms_coll_name(instr->coll->kind));
    int named = instr->kind != MS_INSTR_RECORD && instr->kind != MS_INSTR_WAIT;
    if (named && instr->scope && instr->scope[0])
      ms_text_append(text, "   %s%s", instr->scope, instr->backward ? " (backward)" : "");
    ms_text_append(text, "\n");
  }
}

static int text_of_plan(const ms_plan *plan, ms_text *text) {
  MS_TRY(head(plan, text));
  for (int p = 0; p < MS_PHASES; p++)
    if (plan->phase[p].present) phase(plan, p, text);
  return ms_text_status(text);
}

int ms_plan_dump(ms_plan *plan, int json, const char **out) {
  MS_HANDLE(plan, PLAN);
  MS_GIVEN(out);
  ms_text text = {0};
  int rc = json ? ms_plan_json(plan, &text) : text_of_plan(plan, &text);
  if (rc) {
    ms_text_free(&text);
    return rc;
  }
  free(plan->dump);
  plan->dump = text.data;
  *out = plan->dump;
  return MS_OK;
}
