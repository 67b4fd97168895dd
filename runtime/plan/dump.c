/* dump.c - a plan as text that a person can follow: what it costs, then phase by phase what runs where. */
#include "plan/plan.h"

static void categories(const char *what, const double *bytes, ms_text *text) {
  ms_text_append(text, "\n  %s:", what);
  for (int c = 0; c < MS_CATEGORIES; c++) {
    ms_text_append(text, " %s ", ms_category_name(c));
    ms_text_bytes(text, bytes[c]);
  }
}

static int head(const ms_plan *plan, ms_text *text) {
  const ms_model *model = plan->model;
  ms_plan_summary summary;
  MS_TRY(ms_plan_summarize(plan, &summary));
  int instructions = 0;
  for (int p = 0; p < MS_PHASES; p++) instructions += plan->phase[p].n;
  ms_text_append(text, "plan: rank %d of %d, mesh %s, fingerprint %016llx, %d instructions, peak ", model->rank,
                 model->world, model->mesh_text, (unsigned long long)plan->fingerprint, instructions);
  ms_text_bytes(text, (double)ms_plan_peak(plan));
  ms_text_append(text, "\n  ");
  ms_plan_describe_nodes(plan, text);
  categories("the peak's bytes", summary.bytes, text);
  categories("each at its own peak", summary.fullest, text);
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

static void collective(const ms_plan *plan, const ms_plan_coll *coll, ms_text *text) {
  double bytes = 0;
  for (int i = 0; i < coll->parts; i++) {
    const ms_value_info *info = &coll->part[i].shared.info;
    bytes += (double)ms_numel(info) * ms_dtype_size(info->dtype);
  }
  int whole = coll->dim == MS_DIM_SHARD ? plan->model->shard_size : plan->model->replicate_size;
  ms_text_append(text, "%s over %s", ms_coll_name(coll->kind), coll->dim == MS_DIM_SHARD ? "shard" : "replicate");
  if (coll->between_nodes) ms_text_append(text, " between %d nodes", coll->ranks);
  else if (coll->ranks != whole) ms_text_append(text, " in groups of %d", coll->ranks);
  if (coll->replicas)
    ms_text_append(text, "%s%s", coll->kind == MS_COLL_ALL_GATHER ? " for all replicas" : ", all_reduce over replicate",
                   coll->replicas < plan->model->replicate_size ? " of a node" : "");
  if (coll->kind == MS_COLL_BARRIER) return;
  ms_text_append(text, ", ");
  ms_text_bytes(text, bytes);
  ms_text_append(text, " in %d segment%s,", coll->parts, coll->parts == 1 ? "" : "s");
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
    int named = instr->kind == MS_INSTR_KERNEL || instr->kind == MS_INSTR_COLLECTIVE;
    if (named && instr->scope && instr->scope[0])
      ms_text_append(text, "   %s%s", instr->scope, instr->backward ? " (backward)" : "");
    ms_text_append(text, "\n");
  }
}

int ms_plan_text(const ms_plan *plan, ms_text *text) {
  MS_TRY(head(plan, text));
  for (int p = 0; p < MS_PHASES; p++)
    if (plan->phase[p].present) phase(plan, p, text);
  return ms_text_status(text);
}
