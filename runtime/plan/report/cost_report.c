/* cost_report.c - what the decisions of a plan cost: a unit's gathers and kept bytes, and the activations that a module
 * keeps for backward.
 *
 * All numbers come from the finished plan, its collectives and the lifetimes of its buffers, so they describe what
 * runs.
 */
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/lower.h"
#include "plan/report/dump.h"
#include "plan/report/phase_program.h"

static int stays_for_backward(const ms_phase_program *p, const ms_buffer *b) {
  return b->first >= 0 && b->first <= p->forward_last && b->last >= p->backward_first;
}

static int check_phase(const ms_plan *plan, int phase) {
  if (phase < 0 || phase >= MS_PHASES || !plan->phase[phase].present)
    return MS_FAIL(MS_EINVAL, "the plan has no phase %d", phase);
  return MS_OK;
}

/* MS_EINVAL if the plan does not have the phase, or the model the unit. */
static int check_unit(const ms_plan *plan, int phase, int unit) {
  MS_TRY(check_phase(plan, phase));
  if (unit >= 0 && unit < plan->model->units) return MS_OK;
  return MS_FAIL(MS_EINVAL, "unit %d: the model has units 0 to %d", unit, plan->model->units - 1);
}

/* ---- a unit ----------------------------------------------------------------------------------------------------- */

static void add_collectives(const ms_plan *plan, int phase, int unit, ms_unit_cost *cost) {
  const ms_plan_phase *p = &plan->phase[phase];
  for (int i = 0; i < p->colls; i++) {
    const ms_plan_coll *coll = p->coll[i];
    if (coll->unit != unit) continue;
    if (coll->kind != MS_COLL_ALL_GATHER || coll->of_sums) {
      cost->reduced_bytes += coll->bytes;
      continue;
    }
    int again = cost->gathers > 0;
    cost->gathers++;
    cost->gathered_bytes += (int64_t)coll->bytes;
    if (!again) continue;
    cost->gathers_again++;
    cost->gathered_again_bytes += (int64_t)coll->bytes;
  }
}

static int is_weights_of(const ms_plan *plan, int buffer, int unit) {
  return buffer >= 0 && plan->buffer[buffer].category == MS_CAT_GATHERED &&
         plan->buffer[buffer].label == plan->model->unit[unit].name;
}

/* need: [buffers] position of the first kernel that touches the buffer. */
static void find_needs(const ms_phase_program *p, int *need) {
  for (int i = p->n - 1; i >= 0; i--) {
    const ms_instr *instr = &p->phase->instr[p->at[i]];
    if (instr->kind != MS_INSTR_KERNEL) continue;
    for (int k = 0; k < instr->call->inputs; k++)
      if (instr->in[k].buffer >= 0) need[instr->in[k].buffer] = i;
    for (int k = 0; k < instr->call->outputs; k++)
      if (instr->out[k].buffer >= 0) need[instr->out[k].buffer] = i;
  }
}

static int64_t gathered_ahead(const ms_plan *plan, int phase, int unit, int position, const int *need) {
  int64_t bytes = 0;
  for (int b = 0; b < plan->buffers; b++) {
    const ms_buffer *buffer = &plan->buffer[b];
    if (buffer->category != MS_CAT_GATHERED || buffer->phase != phase || is_weights_of(plan, b, unit)) continue;
    if (buffer->first < position && position < need[b]) bytes += buffer->bytes;
  }
  return bytes;
}

static int price_prefetch(const ms_plan *plan, int phase, int unit, const ms_phase_program *p, int64_t *most) {
  int *need = ms_calloc(plan->buffers, sizeof *need);
  if (!need) return MS_ENOMEM;
  find_needs(p, need);
  for (int i = 0; i < p->n; i++) {
    const ms_instr *instr = &p->phase->instr[p->at[i]];
    int reads = 0;
    for (int k = 0; instr->kind == MS_INSTR_KERNEL && k < instr->call->inputs; k++)
      reads |= is_weights_of(plan, instr->in[k].buffer, unit);
    int64_t bytes = reads ? gathered_ahead(plan, phase, unit, i, need) : 0;
    if (bytes > *most) *most = bytes;
  }
  free(need);
  return MS_OK;
}

/* Bytes of which `ranks` ranks keep one copy: the part that each counts, rounded up as in state_layout.c. */
static int64_t share_of(int64_t bytes, int ranks) { return (bytes + ranks - 1) / ranks; }

/* What this rank counts of a buffer of optimizer state or masters that the shards do not share. */
static int64_t counted(const ms_plan *plan, const ms_buffer *b) {
  const int ranks = b->arena == MS_ARENA_CHUNKS       ? plan->layout->replicas_here
                    : b->arena == MS_ARENA_REPLICATED ? plan->layout->replicas
                                                      : 1;
  return share_of(b->bytes, ranks);
}

static int64_t parameter_bytes(const ms_plan *plan, int unit) {
  const ms_buffer *of = &plan->buffer[ms_state_buffer(unit, 0)];
  if (ms_plan_shares_masters(plan, unit))
    return share_of(4 * plan->model->unit[unit].master_count, plan->layout->replicas);
  return counted(plan, &of[MS_SLOT_MASTER]) + counted(plan, &of[MS_SLOT_WEIGHTS]);
}

int64_t ms_plan_copy_bytes(const ms_plan *plan, int unit) {
  const ms_unit *u = &plan->model->unit[unit];
  const int sliced = ms_unit_is_sliced(plan->model, u, plan->layout->replicas); /* its chunks are in bf16 anyway */
  return sliced ? 0 : counted(plan, &plan->buffer[ms_state_buffer(unit, MS_SLOT_WEIGHTS)]);
}

int ms_plan_unit_cost(const ms_plan *plan, int phase, int unit, ms_unit_cost *given, int size) {
  MS_HANDLE(plan, PLAN);
  MS_GIVEN(given);
  const ms_model *model = plan->model;
  MS_TRY(check_unit(plan, phase, unit));
  ms_unit_cost own = {0}, *cost = &own;
  add_collectives(plan, phase, unit, cost);
  ms_plan_unit_traffic(plan, phase, unit, cost);
  ms_phase_program p;
  MS_TRY(ms_phase_program_read(plan, phase, &p));
  for (int i = 0; i < plan->buffers; i++) {
    const ms_buffer *b = &plan->buffer[i];
    if (b->category != MS_CAT_GATHERED || b->label != model->unit[unit].name) continue;
    if (b->phase < 0 || (b->phase == phase && stays_for_backward(&p, b))) cost->kept_bytes += b->bytes;
  }
  int rc = price_prefetch(plan, phase, unit, &p, &cost->ahead_bytes);
  free(p.at);
  if (rc) return rc;
  cost->parameter_bytes = parameter_bytes(plan, unit);
  cost->copy_bytes = ms_plan_copy_bytes(plan, unit);
  cost->gradient_bytes = plan->buffer[ms_state_buffer(unit, MS_SLOT_GRADIENT)].bytes;
  for (int which = MS_SLOT_MOMENT; which <= MS_SLOT_RESIDUALS; which++)
    cost->optimizer_bytes += counted(plan, &plan->buffer[ms_state_buffer(unit, which)]);
  MS_GIVE_INFO(given, size, own);
}

/* ---- activations of a module ------------------------------------------------------------------------------------ */

static int is_inside(const char *scope, const char *module) {
  size_t length = strlen(module);
  return !length || (!strncmp(scope, module, length) && (scope[length] == '\0' || scope[length] == '.'));
}

int ms_plan_kept_activations(const ms_plan *plan, const char *module, int64_t *bytes) {
  MS_HANDLE(plan, PLAN);
  MS_GIVEN(module);
  MS_GIVEN(bytes);
  MS_TRY(check_phase(plan, MS_PHASE_FIRST));
  *bytes = 0;
  ms_phase_program p;
  MS_TRY(ms_phase_program_read(plan, MS_PHASE_FIRST, &p));
  const char **writer = ms_calloc(plan->buffers, sizeof *writer);
  int rc = writer ? MS_OK : MS_ENOMEM;
  if (rc) goto fail;
  /* The last writer in forward: an in-place op stores another value in the same bytes. */
  for (int i = 0; i <= p.forward_last; i++) {
    const ms_instr *instr = &p.phase->instr[p.at[i]];
    for (int o = 0; instr->kind == MS_INSTR_KERNEL && o < instr->call->outputs; o++)
      if (instr->out[o].buffer >= 0) writer[instr->out[o].buffer] = instr->scope;
  }
  for (int i = 0; i < plan->buffers; i++) {
    const ms_buffer *b = &plan->buffer[i];
    if (b->category == MS_CAT_ACTIVATIONS && b->phase == MS_PHASE_FIRST && writer[i] && is_inside(writer[i], module) &&
        stays_for_backward(&p, b))
      *bytes += b->bytes;
  }
fail:
  free(writer);
  free(p.at);
  return rc;
}
