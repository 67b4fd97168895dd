/* dump_json.c - a finished plan as one JSON object, for programs: the facts of the text (dump.c), and the memory in use
 * at each instruction.
 */
#include <stdlib.h>

#include "base/numbers/dtype.h"
#include "plan/layout/state_layout.h"
#include "plan/report/dump.h"

static void json_bytes(ms_text *text, const char *name, int64_t bytes, int first) {
  ms_text_append(text, "%s\"%s\":%lld", first ? "" : ",", name, (long long)bytes);
}

static void json_refs(const ms_plan *plan, const char *name, const ms_place *list, const ms_value_info *info, int n,
                      ms_text *text) {
  ms_text_append(text, ",\"%s\":[", name);
  for (int i = 0; i < n; i++) {
    const ms_buffer *b = &plan->buffer[list[i].buffer];
    ms_text_append(text, "%s{\"arena\":\"%s\",\"offset\":%lld,\"dtype\":\"%s\",\"shape\":[", i ? "," : "",
                   ms_arena_name(b->arena), (long long)(b->offset + list[i].offset), ms_dtype_name(info[i].dtype));
    for (int d = 0; d < info[i].ndim; d++) ms_text_append(text, "%s%lld", d ? "," : "", (long long)info[i].dims[d]);
    ms_text_append(text, "]}");
  }
  ms_text_append(text, "]");
}

static void json_traffic(const ms_traffic *moved, ms_text *text) {
  ms_text_append(text, ",\"inside_bytes\":%.0f,\"sent_bytes\":%.0f,\"received_bytes\":%.0f", moved->inside, moved->sent,
                 moved->received);
}

/* What a step moves over each dimension, and the memory of each node. */
static int json_nodes(const ms_plan *plan, ms_text *text) {
  ms_text_append(text, ",\"traffic\":[");
  int dim[MS_DIMS];
  const int dims = ms_plan_dims_in_order(plan, dim);
  for (int d = 0; d < dims; d++) {
    const ms_dim_group *group = &plan->model->dim[dim[d]];
    ms_traffic rank, node;
    MS_TRY(ms_plan_traffic_of(plan, group->mesh_dim, &rank, &node));
    ms_text_append(text, "%s{\"dim\":\"%s\",\"ranks\":%d", d ? "," : "", group->name, group->size);
    json_traffic(&rank, text);
    ms_text_append(text, ",\"node\":{\"ranks\":%d", ms_plan_ranks_on(plan, plan->topology.node_of[plan->model->rank]));
    json_traffic(&node, text);
    ms_text_append(text, "}}");
  }
  ms_text_append(text, "],\"node_bytes\":[");
  for (int n = 0; n < plan->topology.nodes; n++) {
    int64_t bytes;
    MS_TRY(ms_plan_node_bytes(plan, n, &bytes));
    ms_text_append(text, "%s%lld", n ? "," : "", (long long)bytes);
  }
  ms_text_append(text, "]");
  return MS_OK;
}

static void json_dtypes(const ms_plan_coll *coll, ms_text *text) {
  const char *before = "";
  ms_text_append(text, ",\"dtypes\":{");
  for (int dtype = 0; dtype < MS_DTYPES; dtype++) {
    if (ms_plan_bytes_in(coll, dtype) <= 0) continue;
    ms_text_append(text, "%s\"%s\":%.0f", before, ms_dtype_name(dtype), ms_plan_bytes_in(coll, dtype));
    before = ",";
  }
  ms_text_append(text, "}");
}

static void json_instruction(const ms_plan *plan, const ms_instr *instr, ms_text *text) {
  static const char *const kinds[] = {"kernel", "collective", "record", "wait", "join"};
  ms_text_append(text, "{\"kind\":\"%s\",\"stream\":\"%s\"", kinds[instr->kind], ms_stream_name(instr->stream));
  if (instr->kind == MS_INSTR_RECORD || instr->kind == MS_INSTR_WAIT) {
    ms_text_append(text, ",\"event\":%d}", instr->event);
    return;
  }
  ms_text_append(text, ",\"scope\":");
  ms_text_json_string(text, instr->scope ? instr->scope : "");
  if (instr->kind == MS_INSTR_KERNEL) {
    ms_text_append(text, ",\"op\":\"%s\",\"backward\":%s", ms_op_row_of(instr->call->op)->name,
                   instr->backward ? "true" : "false");
    if (instr->call->spared) ms_text_append(text, ",\"overlapped\":true");
    json_refs(plan, "in", instr->in, instr->call->in, instr->call->inputs, text);
    json_refs(plan, "out", instr->out, instr->call->out, instr->call->outputs, text);
  } else if (instr->kind == MS_INSTR_JOIN) {
    ms_text_append(text, ",\"op\":\"%s\"", ms_coll_name(instr->coll->kind));
  } else {
    const ms_plan_coll *coll = instr->coll;
    ms_text_append(text, ",\"op\":\"%s\",\"dim\":\"%s\",\"ranks\":%d,\"segments\":%d,\"bytes\":%.0f",
                   ms_coll_name(coll->kind), plan->model->dim[coll->dim].name, coll->ranks, coll->parts, coll->bytes);
    if (coll->kind == MS_COLL_ALL_GATHER) json_dtypes(coll, text);
    json_traffic(&coll->moved, text);
    if (ms_plan_coll_is_between_nodes(coll))
      ms_text_append(text, ",\"stride\":%d,\"between_nodes\":%s", coll->stride,
                     ms_plan_joins_nodes(plan, coll) ? "true" : "false");
    if (coll->in_flight) ms_text_append(text, ",\"in_flight\":true");
    if (coll->largest) ms_text_append(text, ",\"max\":true");
    if (coll->replicas) ms_text_append(text, ",\"replicas\":%d,\"also_bytes\":%.0f", coll->replicas, coll->also_bytes);
  }
  ms_text_append(text, "}");
}

/* Appends the bytes in use at a phase's first instruction, and what has changed at later ones. */
static void json_memory(const struct ms_peak *row, int rows, int phase, ms_text *text) {
  const struct ms_peak *before = NULL;
  ms_text_append(text, ",\"memory\":[");
  for (int i = 0; i < rows; i++) {
    if (row[i].phase != phase) continue;
    ms_text_append(text, "%s{\"instruction\":%d", before ? "," : "", row[i].instruction);
    for (int c = 0; c < MS_CATEGORIES; c++)
      if (!before || row[i].bytes[c] != before->bytes[c]) json_bytes(text, ms_category_name(c), row[i].bytes[c], 0);
    ms_text_append(text, "}");
    before = &row[i];
  }
  ms_text_append(text, "]");
}

static void json_phase(const ms_plan *plan, int id, const struct ms_peak *row, int rows, ms_text *text) {
  const ms_plan_phase *p = &plan->phase[id];
  ms_text_append(text, "{\"name\":\"%s\",\"events\":%d,\"collectives\":%d,\"flops\":%.0f,\"instructions\":[",
                 ms_phase_name(id), p->events, p->colls, p->flops);
  for (int i = 0; i < p->n; i++) {
    if (i) ms_text_append(text, ",");
    json_instruction(plan, &p->instr[i], text);
  }
  ms_text_append(text, "]");
  json_memory(row, rows, id, text);
  ms_text_append(text, "}");
}

static int json_phases(const ms_plan *plan, ms_text *text) {
  int n = 0, first = 1;
  MS_TRY(ms_plan_list(plan, MS_PLAN_MEMORY, NULL, 0, 0, &n));
  struct ms_peak *row = ms_calloc(n, sizeof *row);
  if (!row) return MS_ENOMEM;
  int rc = ms_plan_list(plan, MS_PLAN_MEMORY, row, sizeof *row, n, &n);
  ms_text_append(text, ",\"phases\":[");
  for (int p = 0; p < MS_PHASES && !rc; p++) {
    if (!plan->phase[p].present) continue;
    if (!first) ms_text_append(text, ",");
    json_phase(plan, p, row, n, text);
    first = 0;
  }
  ms_text_append(text, "]");
  free(row);
  return rc;
}

static int json_losses(const ms_plan *plan, ms_text *text) {
  ms_chunked_loss loss[MS_LISTED_LOSSES];
  int n;
  MS_TRY(ms_plan_listed_losses(plan, loss, &n));
  if (n) ms_text_append(text, ",\"chunked_losses\":[");
  for (int i = 0; i < n; i++)
    ms_text_append(text,
                   "%s{\"rows\":%lld,\"classes\":%lld,\"chunks\":%lld,\"chunk\":%lld,\"logits_bytes\":%lld,"
                   "\"whole_bytes\":%lld,\"again\":%s}",
                   i ? "," : "", (long long)loss[i].rows, (long long)loss[i].classes, (long long)loss[i].chunks,
                   (long long)loss[i].chunk, (long long)loss[i].logits_bytes, (long long)loss[i].whole_bytes,
                   loss[i].again ? "true" : "false");
  if (n) ms_text_append(text, "]");
  return MS_OK;
}

static void json_overlapped(const ms_plan *plan, ms_text *text) {
  int products, spared;
  if (!plan->config.sm_carveout) return;
  ms_plan_count_spared(plan, &products, &spared);
  ms_text_append(text, ",\"sm_carveout\":%d,\"products\":%d,\"overlapped_products\":%d", plan->config.sm_carveout,
                 products, spared);
}

int ms_plan_json(const ms_plan *plan, ms_text *text) {
  const ms_model *model = plan->model;
  int64_t fullest[MS_CATEGORIES];
  MS_TRY(ms_plan_category_peaks(plan, fullest));
  ms_text_append(text, "{\"rank\":%d,\"world\":%d,\"mesh\":", model->rank, model->world);
  ms_text_json_string(text, model->mesh_text);
  ms_text_append(text,
                 ",\"ranks_per_node\":%d,\"replicas_together\":%d,\"nodes\":", ms_topology_max_ranks(&plan->topology),
                 plan->layout->replicas);
  ms_text nodes = {0};
  ms_plan_describe_nodes(plan, &nodes);
  if (!ms_text_status(&nodes)) ms_text_json_string(text, nodes.data);
  ms_text_free(&nodes);
  ms_text_append(text, ",\"fingerprint\":\"%016llx\",\"bytes\":{", (unsigned long long)plan->fingerprint);
  for (int c = 0; c < MS_CATEGORIES; c++) json_bytes(text, ms_category_name(c), plan->category_bytes[c], c == 0);
  ms_text_append(text, "},\"fullest\":{");
  for (int c = 0; c < MS_CATEGORIES; c++) json_bytes(text, ms_category_name(c), fullest[c], c == 0);
  ms_text_append(text, "},\"arenas\":{");
  for (int a = 0; a < MS_ARENAS; a++)
    json_bytes(text, ms_arena_name(a), plan->arena_bytes[a] - plan->peers_bytes[a], a == 0);
  ms_text_append(text, "},\"peak_bytes\":%lld", (long long)ms_plan_peak(plan));
  const int64_t copies = ms_plan_all_copies(plan);
  if (copies) json_bytes(text, "copy_bytes", copies, 0);
  MS_TRY(json_nodes(plan, text));
  MS_TRY(json_losses(plan, text));
  json_overlapped(plan, text);
  MS_TRY(json_phases(plan, text));
  ms_text_append(text, "}\n");
  return ms_text_status(text);
}
