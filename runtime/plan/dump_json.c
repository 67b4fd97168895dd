/* dump_json.c - a plan as one JSON object, for programs: the same facts as the text. */
#include "plan/plan.h"

static void key_bytes(ms_text *text, const char *name, int64_t bytes, int first) {
  ms_text_append(text, "%s\"%s\":%lld", first ? "" : ",", name, (long long)bytes);
}

static void refs(const ms_plan *plan, const char *name, const ms_place *list, const ms_value_info *info, int n,
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

static void instruction(const ms_plan *plan, const ms_instr *instr, ms_text *text) {
  static const char *const kinds[] = {"kernel", "collective", "record", "wait"};
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
    refs(plan, "in", instr->in, instr->call->in, instr->call->inputs, text);
    refs(plan, "out", instr->out, instr->call->out, instr->call->outputs, text);
  } else {
    const ms_plan_coll *coll = instr->coll;
    ms_text_append(text, ",\"op\":\"%s\",\"dim\":\"%s\",\"ranks\":%d,\"segments\":%d,\"bytes\":%.0f",
                   ms_coll_name(coll->kind), coll->dim == MS_DIM_SHARD ? "shard" : "replicate", coll->ranks,
                   coll->parts, coll->bytes);
    if (coll->between_nodes) ms_text_append(text, ",\"between_nodes\":true");
    if (coll->replicas) ms_text_append(text, ",\"replicas\":%d,\"also_bytes\":%.0f", coll->replicas, coll->also_bytes);
  }
  ms_text_append(text, "}");
}

static void phase(const ms_plan *plan, int id, ms_text *text) {
  const ms_plan_phase *p = &plan->phase[id];
  ms_text_append(text, "{\"name\":\"%s\",\"events\":%d,\"collectives\":%d,\"flops\":%.0f,\"instructions\":[",
                 ms_phase_name(id), p->events, p->colls, p->flops);
  for (int i = 0; i < p->n; i++) {
    if (i) ms_text_append(text, ",");
    instruction(plan, &p->instr[i], text);
  }
  ms_text_append(text, "]}");
}

int ms_plan_json(const ms_plan *plan, ms_text *text) {
  const ms_model *model = plan->model;
  double fullest[MS_CATEGORIES];
  MS_TRY(ms_plan_category_peaks(plan, fullest));
  ms_text_append(text, "{\"rank\":%d,\"world\":%d,\"mesh\":", model->rank, model->world);
  ms_text_json_string(text, model->mesh_text);
  ms_text_append(text,
                 ",\"ranks_per_node\":%d,\"replicas_together\":%d,\"nodes\":", ms_plan_node_ranks(model, &plan->config),
                 plan->replicas);
  ms_text nodes = {0};
  ms_plan_describe_nodes(plan, &nodes);
  if (!ms_text_status(&nodes)) ms_text_json_string(text, nodes.data);
  ms_text_free(&nodes);
  ms_text_append(text, ",\"fingerprint\":\"%016llx\",\"bytes\":{", (unsigned long long)plan->fingerprint);
  for (int c = 0; c < MS_CATEGORIES; c++) key_bytes(text, ms_category_name(c), plan->category_bytes[c], c == 0);
  ms_text_append(text, "},\"fullest\":{");
  for (int c = 0; c < MS_CATEGORIES; c++) key_bytes(text, ms_category_name(c), (int64_t)fullest[c], c == 0);
  ms_text_append(text, "},\"arenas\":{");
  for (int a = 0; a < MS_ARENAS; a++)
    key_bytes(text, ms_arena_name(a), plan->arena_bytes[a] - plan->peers_bytes[a], a == 0);
  ms_text_append(text, "},\"peak_bytes\":%lld,\"phases\":[", (long long)ms_plan_peak(plan));
  int first = 1;
  for (int p = 0; p < MS_PHASES; p++) {
    if (!plan->phase[p].present) continue;
    if (!first) ms_text_append(text, ",");
    phase(plan, p, text);
    first = 0;
  }
  ms_text_append(text, "]}\n");
  return ms_text_status(text);
}
