/* lower_resident.c - frozen weights that stay gathered for the whole run (MS_RESHARD_RUN): the phase GATHER gathers
 * them, and no other phase does.
 *
 * They do not change in a step, so a step needs no collective for them. An exec runs GATHER before the first phase that
 * reads weights, and again when they were written or placed elsewhere. Where the shards read a unit's masters in place,
 * its resident weights are these masters, and GATHER only waits until every owner has written them. All other resident
 * weights are in the arena RESIDENT, in the order of units, so that every plan with the same rules finds them at the
 * same places.
 */
#include <stdlib.h>

#include "base/text/hash.h"
#include "plan/lower/lower.h"

static int has_resident(const ms_model *model, const ms_unit *u) {
  for (int s = 0; s < u->segments; s++)
    if (ms_segment_is_resident(model, u, &u->segment[s])) return 1;
  return 0;
}

static int place(ms_plan *plan, int unit) {
  const ms_unit *u = &plan->model->unit[unit];
  const int64_t from = ms_unit_resident_from(plan->model, u);
  ms_place *at = &plan->resident[unit];
  *at = (ms_place){ms_state_buffer(unit, MS_SLOT_MASTER), 0};
  if (ms_plan_shares_masters(plan, unit)) return MS_OK;
  at->offset = -from;
  return ms_plan_buffer(plan, -1, MS_ARENA_RESIDENT, MS_CAT_GATHERED, u->gathered_bytes - from, u->name, &at->buffer);
}

int ms_lower_resident(ms_plan *plan) {
  const ms_model *model = plan->model;
  ms_lowering l = {.plan = plan, .phase = MS_PHASE_GATHER, .model = model};
  int rc = MS_OK;
  l.part = ms_calloc(ms_model_max_segments(model), sizeof *l.part);
  if (!l.part) return MS_ENOMEM;
  for (int u = 0; u < model->units; u++) {
    if (!has_resident(model, &model->unit[u]) || ms_unit_is_direct(model, u)) continue;
    plan->phase[MS_PHASE_GATHER].present = 1;
    MS_GOTO(place(plan, u));
    MS_GOTO(ms_lower_unshard(&l, u, plan->resident[u], ms_model_shards(model), 1));
  }
fail:
  free(l.part);
  return rc;
}

uint64_t ms_plan_resident_layout(const ms_plan *plan) {
  uint64_t hash = MS_HASH_INIT;
  if (!plan->phase[MS_PHASE_GATHER].present) return 0;
  for (int u = 0; u < plan->model->units; u++) {
    const ms_place *at = &plan->resident[u];
    const ms_buffer *buffer = at->buffer >= 0 ? &plan->buffer[at->buffer] : NULL;
    hash = ms_hash_int(ms_hash_int(hash, at->buffer >= 0), buffer ? buffer->offset + at->offset : 0);
    hash = ms_hash_int(hash, buffer ? buffer->arena : 0);
  }
  return hash;
}
