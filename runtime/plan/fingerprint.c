/* fingerprint.c - describes, in readable lines, everything that all ranks must agree on, and hashes these lines.
 *
 * Ranks compare the hash at start. If it differs, they compare the lines, and the first different line names the
 * mistake. The lines are therefore ordered from cause to effect: mesh, precision and units, parameters, inputs, and
 * then what follows from these.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "base/settings/settings.h"
#include "base/text/hash.h"
#include "base/numbers/number.h"
#include "base/text/xxh3.h"
#include "graph/infer/infer.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/lower.h"
#include "plan/lower/optimizers/owners.h"
#include "shard/param_group.h"

/* The settings of parameters as text: most share a few, and formatting reals is slow. */
enum { KNOWN = 8 };
typedef struct known_settings {
  const ms_param_config *config[KNOWN];
  ms_text text[KNOWN];
  int n;
} known_settings;

/* Padding between fields is not compared. */
static int are_equal(const ms_settings *of, const void *a, const void *b) {
  for (int i = 0; i < of->rows; i++) {
    const ms_setting *s = &of->row[i];
    if (ms_setting_is_number(s) && ms_setting_value(s, a) != ms_setting_value(s, b)) return 0;
    if (s->kind == MS_SETTING_PART &&
        !are_equal(ms_settings_of(s->part), (const char *)a + s->at, (const char *)b + s->at))
      return 0;
  }
  return 1;
}

static void append_settings(known_settings *known, const ms_param_config *c, ms_text *text) {
  const ms_settings *of = ms_settings_of("ms_param_config");
  int i = 0;
  while (i < KNOWN && known->config[i] && !are_equal(of, known->config[i], c)) i++;
  if (i == KNOWN || !known->config[i]) {
    i = known->n++ % KNOWN;
    known->config[i] = c;
    known->text[i].length = 0;
    ms_settings_describe(of, c, MS_SCOPE_STATE, &known->text[i]);
  }
  text->failed |= known->text[i].failed;
  ms_text_raw(text, known->text[i].data ? known->text[i].data : "", known->text[i].length);
}

static void describe_model(const ms_model *model, ms_text *text) {
  known_settings known = {0};
  ms_text_append(text, "mesh %s, %d shards, %d replicas\n", model->mesh_text, ms_model_shards(model),
                 ms_model_replicas(model));
  ms_text_append(text, "seed %llu\n", (unsigned long long)model->seed);
  for (int u = 0; u < model->units; u++) {
    const ms_unit *unit = &model->unit[u];
    ms_text_string(text, "unit ");
    ms_text_string(text, unit->name);
    ms_settings_describe(ms_settings_of("ms_unit_config"), &unit->config, MS_SCOPE_STATE, text);
    ms_settings_describe(ms_settings_of("ms_unit_config"), &unit->config, MS_SCOPE_PLAN, text);
    ms_text_string(text, "\n");
  }
  for (int i = 0; i < model->params; i++) {
    const ms_param *p = &model->param[i];
    ms_text_string(text, "parameter ");
    ms_text_string(text, p->name);
    ms_text_string(text, ":");
    for (int d = 0; d < p->ndim; d++) {
      ms_text_string(text, d ? "x" : " ");
      ms_text_integer(text, p->whole[d]);
    }
    ms_text_string(text, " in unit ");
    ms_text_string(text, model->unit[p->unit].name);
    append_settings(&known, &p->config, text);
    ms_text_string(text, "\n");
  }
  for (int i = 0; i < KNOWN; i++) ms_text_free(&known.text[i]);
}

static int is_of(const char *name, const char *group) {
  const size_t n = strlen(group);
  return !strncmp(name, group, n) && name[n] == '.';
}

/* A line for each, so that the first line that differs names the setting. */
static void describe_settings(const ms_model *model, const ms_plan_config *c, int scope, ms_text *text) {
  const ms_settings *of = ms_settings_of("ms_plan_config");
  /* The optimizers that update parameters: settings of others have a point in their names, too, and say nothing. */
  int other = c->optimizer;
  for (int i = 0; i < model->params; i++)
    if (ms_param_chosen(&model->param[i])) other = ms_param_chosen(&model->param[i]);
  for (int i = 0; i < of->rows; i++) {
    const ms_setting *s = &of->row[i];
    if (!ms_setting_is_number(s) || s->scope != scope) continue;
    if (strchr(s->name, '.') && !is_of(s->name, ms_optimizer_name(c->optimizer)) &&
        !is_of(s->name, ms_optimizer_name(other)))
      continue;
    char is[MS_SETTING_TEXT];
    ms_text_string(text, s->name);
    ms_text_string(text, " ");
    ms_text_string(text, ms_setting_text(s, ms_setting_value(s, c), is));
    ms_text_string(text, "\n");
  }
}

void ms_plan_describe_state(const ms_model *model, const ms_plan_config *c, ms_text *text) {
  describe_model(model, text);
  describe_settings(model, c, MS_SCOPE_STATE, text);
}

static void describe_owners(const ms_plan *plan, ms_text *text) {
  for (int i = 0; i < ms_owned_count(plan); i++) {
    const ms_owned *o = &plan->owned[i];
    ms_text_append(text, "muon of %s: element %lld, rank %d of the grid\n", plan->model->param[o->param].name,
                   (long long)o->first, o->owner);
  }
}

/* Settings of the plan alone: plans that differ in them can share a state. */
static void describe_config(const ms_plan *plan, ms_text *text) {
  const ms_plan_config *c = &plan->config;
  describe_settings(plan->model, c, MS_SCOPE_PLAN, text);
  for (int g = 0; g < c->norm_groups; g++) {
    ms_text_append(text, "norm group %d: max_norm %.17g, of", g, c->max_norms[g]);
    for (int p = 0; p < plan->model->params; p++)
      if (c->norm_group[p] == g) ms_text_append(text, " %d", p);
    ms_text_string(text, "\n");
  }
  for (int i = 0; i < c->logit_clips; i++) {
    const ms_logit_clip *clip = ms_plan_logit_clip(c, i);
    ms_text_append(text,
                   "qk_clip of %s by %s: from %lld, %lld heads of %lld scores, rows %lld %lld %lld, %.17g %.17g\n",
                   plan->model->param[clip->param].name, clip->output, (long long)clip->at, (long long)clip->heads,
                   (long long)clip->shared, (long long)clip->from, (long long)clip->middle, (long long)clip->to,
                   clip->power, clip->rest_power);
  }
  for (int p = 0; p < plan->model->params; p++) {
    const ms_param *param = &plan->model->param[p];
    if (plan->phase[MS_PHASE_FIRST].present && !param->config.frozen && !plan->has_gradient[p])
      ms_text_append(text, "no gradient of %s\n", param->name);
  }
  describe_owners(plan, text);
  for (int i = 0; i < plan->inputs; i++) {
    char shape[128];
    ms_text_append(text, "input %s: %s %s\n", plan->input[i].name, ms_dtype_name(plan->input[i].at.info.dtype),
                   ms_shape_text(&plan->input[i].at.info, shape));
  }
}

/* 1 for kernels that clear gradients: they have no inputs. */
static int fills_gradients(const ms_plan *plan, const ms_instr *instr) {
  const int buffer = instr->call->inputs == 0 ? instr->out[0].buffer : -1;
  return buffer >= 0 && buffer < ms_squares_buffer(plan) && buffer % MS_SLOTS == MS_SLOT_GRADIENT;
}

/* 1 for kernels that differ from rank to rank, because they work on the parameters that the rank owns or on its
 * slice of a shared copy. The lines about the model already determine them. */
static int is_of_one_rank(const ms_plan *plan, const ms_instr *instr) {
  const int flags = ms_op_row_of(instr->call->op)->flags;
  if (flags & MS_OP_RANK_LOCAL) return 1;
  const int slices = plan->layout->replicas > 1 || plan->layout->sliced;
  return slices && ((flags & MS_OP_REPLICA_LOCAL) || fills_gradients(plan, instr));
}

static const char *named(const char *scope) { return *scope ? scope : "the model"; }

static void describe_collective(const ms_plan *plan, int phase, const ms_plan_coll *coll, const char *scope,
                                ms_text *text) {
  ms_text_string(text, "phase ");
  ms_text_string(text, ms_phase_name(phase));
  ms_text_string(text, ": ");
  ms_text_string(text, ms_coll_name(coll->kind));
  ms_text_string(text, " over ");
  ms_text_integer(text, coll->ranks);
  ms_text_string(text, " of ");
  ms_text_string(text, plan->model->dim[coll->dim].name);
  ms_text_string(text, " of ");
  if (ms_plan_coll_is_between_nodes(coll)) ms_text_string(text, "nodes of ");
  ms_text_string(text, named(scope));
  ms_text_string(text, ":");
  if (coll->replicas) ms_text_append(text, " %d replicas", coll->replicas);
  if (ms_plan_coll_is_of_slices(coll)) ms_text_append(text, " a slice");
  if (coll->in_flight) ms_text_string(text, " in flight");
  if (coll->largest) ms_text_string(text, " max");
  for (int k = 0; k < coll->parts && !ms_plan_coll_is_of_slices(coll) && coll->kind != MS_COLL_BARRIER; k++) {
    const ms_ref *shared = &coll->part[k].shared;
    ms_text_string(text, " ");
    ms_text_integer(text, coll->part[k].count);
    ms_text_string(text, " ");
    ms_text_string(text, ms_dtype_name(shared->info.dtype));
  }
  ms_text_string(text, "\n");
}

/* Kernels of one scope that follow each other. */
typedef struct run_of_kernels {
  const char *scope;
  int n;
  uint64_t hash;
} run_of_kernels;

/* As "%016llx": a plan has hundreds of these lines. */
static void append_hash(uint64_t hash, ms_text *text) {
  char digits[16];
  for (int i = 15; i >= 0; i--, hash >>= 4) digits[i] = "0123456789abcdef"[hash & 15];
  ms_text_raw(text, digits, sizeof digits);
}

static void describe_kernels(int phase, run_of_kernels *run, ms_text *text) {
  if (run->n) {
    ms_text_string(text, "phase ");
    ms_text_string(text, ms_phase_name(phase));
    ms_text_string(text, ": kernels of ");
    ms_text_string(text, named(run->scope));
    ms_text_string(text, ": ");
    ms_text_integer(text, run->n);
    ms_text_string(text, ", hash ");
    append_hash(run->hash, text);
    ms_text_string(text, "\n");
  }
  *run = (run_of_kernels){.hash = MS_HASH_INIT};
}

static void describe_phase(const ms_plan *plan, int phase, ms_text *text) {
  const ms_plan_phase *p = &plan->phase[phase];
  run_of_kernels run = {.hash = MS_HASH_INIT};
  for (int i = 0; i < p->n; i++) {
    const ms_instr *instr = &p->instr[i];
    if (instr->kind == MS_INSTR_COLLECTIVE) {
      describe_kernels(phase, &run, text);
      describe_collective(plan, phase, instr->coll, instr->scope, text);
    }
    if (instr->kind != MS_INSTR_KERNEL || is_of_one_rank(plan, instr)) continue;
    if (run.n && run.scope != instr->scope && strcmp(run.scope, instr->scope)) describe_kernels(phase, &run, text);
    run.scope = instr->scope;
    run.hash = ms_hash_int(run.hash, (int64_t)instr->hash);
    run.n++;
  }
  describe_kernels(phase, &run, text);
}

/* "mul in layers.0: beta 3, f32 [6,4]": what a kernel computes, with the attributes that its op's row has. */
static void describe_kernel(const ms_instr *instr, ms_text *text) {
  const ms_kernel_call *call = instr->call;
  const ms_op_row *row = ms_op_row_of(call->op);
  char shape[MS_SHAPE_TEXT];
  ms_text_append(text, "%s in %s:", row->name, named(instr->scope));
  int n;
  for (const ms_attribute *a = ms_op_attributes(call->op, &n); n > 0; n--, a++)
    ms_text_append(text, " %.*s %.9g,", a->length, a->name, ms_attribute_value(a, &call->attrs));
  for (int o = 0; o < call->outputs; o++)
    ms_text_append(text, "%s %s %s", o ? "," : "", ms_dtype_name(call->out[o].dtype),
                   ms_shape_text(&call->out[o], shape));
}

void ms_plan_describe_kernels(const ms_plan *plan, ms_text *text) {
  for (int phase = 0; phase < MS_PHASES; phase++) {
    const ms_plan_phase *p = &plan->phase[phase];
    for (int i = 0; p->present && i < p->n; i++) {
      const ms_instr *instr = &p->instr[i];
      if (instr->kind != MS_INSTR_KERNEL || is_of_one_rank(plan, instr)) continue;
      append_hash(instr->hash, text);
      ms_text_append(text, " phase %s: ", ms_phase_name(phase));
      describe_kernel(instr, text);
      ms_text_string(text, "\n");
    }
  }
}

/* Where collectives find what they move: it follows from all of the above, so a difference above is said first. */
static void describe_places(const ms_plan *plan, int phase, ms_text *text) {
  const ms_plan_phase *p = &plan->phase[phase];
  uint64_t places = MS_HASH_INIT;
  for (int i = 0; i < p->n; i++) {
    const ms_plan_coll *coll = p->instr[i].kind == MS_INSTR_COLLECTIVE ? p->instr[i].coll : NULL;
    if (!coll || ms_plan_coll_is_of_slices(coll) || coll->kind == MS_COLL_BARRIER) continue;
    for (int k = 0; k < coll->parts; k++) {
      const ms_ref *shared = &coll->part[k].shared;
      places = ms_hash_int(places, plan->buffer[shared->buffer].offset + shared->offset);
    }
  }
  ms_text_append(text, "phase %s: places of collectives, hash %016llx\n", ms_phase_name(phase),
                 (unsigned long long)places);
}

int ms_plan_fingerprint(ms_plan *plan) {
  enum { USUAL_BYTES = 256 }; /* typical length of the lines for a parameter */
  ms_text text = {0};
  ms_text_reserve(&text, (size_t)plan->model->params * USUAL_BYTES);
  ms_plan_describe_state(plan->model, &plan->config, &text);
  describe_config(plan, &text);
  for (int phase = 0; phase < MS_PHASES; phase++)
    if (plan->phase[phase].present) describe_phase(plan, phase, &text);
  for (int phase = 0; phase < MS_PHASES; phase++)
    if (plan->phase[phase].present) describe_places(plan, phase, &text);
  ms_text_append(&text, "arenas: communication %lld bytes, gathered %lld bytes, masters %lld bytes\n",
                 (long long)plan->arena_bytes[MS_ARENA_COMM], (long long)plan->arena_bytes[MS_ARENA_GATHERED],
                 (long long)plan->arena_bytes[MS_ARENA_MASTERS]);
  if (plan->arena_bytes[MS_ARENA_RESIDENT])
    ms_text_append(&text, "weights that stay gathered: %lld bytes\n", (long long)plan->arena_bytes[MS_ARENA_RESIDENT]);
  if (plan->arena_bytes[MS_ARENA_REPLICATED])
    ms_text_append(&text, "replicas keep one copy of %lld bytes\n", (long long)plan->arena_bytes[MS_ARENA_REPLICATED]);
  if (plan->arena_bytes[MS_ARENA_CHUNKS])
    ms_text_append(&text, "replicas gather %lld bytes of chunks\n", (long long)plan->arena_bytes[MS_ARENA_CHUNKS]);
  int rc = ms_text_status(&text);
  if (rc) {
    ms_text_free(&text);
    return rc;
  }
  plan->manifest = text.data;
  plan->fingerprint = XXH3_64bits(plan->manifest, text.length);
  return MS_OK;
}
