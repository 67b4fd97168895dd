/* state_layout.c - the arenas STATE, MASTERS, REPLICATED and CHUNKS, which live as long as training. Their layout is
 * the same for every plan of a model and optimizer; masters and scalars come first, so that a plan that only evaluates
 * can read the state of one that trains.
 *
 * Ranks of one node do not copy what a peer keeps in f32 anyway. Masters that kernels read in f32 are in memory of
 * the whole shard group, in the layout of the gathered unit; gathering them only means to wait until every owner has
 * updated its chunks. Replicas of a node also share one copy of their state: each maps it, holds the gradients of a
 * slice of every unit's chunks, and updates that slice. Of sliced units a rank has only its slice, and whole chunks of
 * weights, of which the replicas of a node share one copy (replica_slices.h). */
#include <stdlib.h>

#include "plan/layout/factors.h"
#include "plan/layout/moment_layout.h"
#include "plan/optimizer.h"
#include "plan/layout/rests.h"

static int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

static int64_t take(ms_state_layout *layout, int arena, int category, int64_t bytes) {
  int64_t at = layout->bytes[arena], size = whole_lines(bytes);
  layout->bytes[arena] += size;
  layout->category_bytes[category] += size;
  return at;
}

/* Reserves bytes of which `ranks` ranks share one copy; each counts an equal part. */
static int64_t take_together(ms_state_layout *layout, int arena, int category, int64_t bytes, int ranks) {
  int64_t at = layout->bytes[arena], own = (bytes + ranks - 1) / ranks, size = whole_lines(bytes);
  layout->bytes[arena] += size;
  layout->peers[arena] += size - own;
  layout->category_bytes[category] += own;
  return at;
}

int ms_state_optimizer_arena(const ms_model *model, const ms_state_layout *layout, int unit) {
  if (ms_unit_is_sliced(model, &model->unit[unit], layout->replicas)) return MS_ARENA_STATE;
  return layout->replicas > 1 ? MS_ARENA_REPLICATED : MS_ARENA_STATE;
}

int ms_state_master_arena(const ms_model *model, const ms_state_layout *layout, int unit) {
  const ms_unit *u = &model->unit[unit];
  if (layout->unit[unit].shared) return MS_ARENA_MASTERS;
  if (ms_unit_is_sliced(model, u, layout->replicas) && !ms_unit_has_weights(model, u, layout->replicas))
    return MS_ARENA_CHUNKS;
  return ms_state_optimizer_arena(model, layout, unit);
}

int ms_state_weights_arena(const ms_model *model, const ms_state_layout *layout, int unit) {
  if (ms_unit_is_sliced(model, &model->unit[unit], layout->replicas)) return MS_ARENA_CHUNKS;
  return ms_state_optimizer_arena(model, layout, unit);
}

/* 1 when the shard group reads a unit's masters in place: every segment is kept as it is gathered, and the ranks share
 * memory. */
static int shares_masters(const ms_unit *u, int shards_together) {
  for (int s = 0; s < u->segments; s++)
    if (!ms_segment_is_as_gathered(&u->segment[s])) return 0;
  return shards_together;
}

/* Reserves masters or optimizer state of a rank's chunks. */
static int64_t take_chunks(ms_state_layout *layout, int category, int64_t bytes) {
  if (layout->replicas == 1) return take(layout, MS_ARENA_STATE, category, bytes);
  return take_together(layout, MS_ARENA_REPLICATED, category, bytes, layout->replicas);
}

/* The masters of a rank's slice, and the chunks that the replicas of its node share. */
static void take_sliced_masters(const ms_model *model, int unit, ms_state_layout *layout) {
  const ms_unit *u = &model->unit[unit];
  const int64_t masters = ms_unit_master_bytes(model, u, layout->replicas);
  const int64_t weights = ms_unit_weights_bytes(model, u, layout->replicas);
  const int64_t chunks =
      take_together(layout, MS_ARENA_CHUNKS, MS_CAT_PARAMETERS, weights ? weights : masters, layout->replicas_here);
  layout->sliced++;
  layout->unit[unit].weights = weights ? chunks : -1;
  layout->unit[unit].master = weights ? take(layout, MS_ARENA_STATE, MS_CAT_PARAMETERS, masters) : chunks;
}

static void take_masters(const ms_model *model, int unit, int shards_together, ms_state_layout *layout) {
  const ms_unit *u = &model->unit[unit];
  layout->unit[unit].weights = -1;
  if (ms_unit_is_sliced(model, u, layout->replicas)) {
    take_sliced_masters(model, unit, layout);
    return;
  }
  layout->unit[unit].shared = shares_masters(u, shards_together);
  if (layout->unit[unit].shared) {
    int ranks = ms_model_shards(model) * layout->replicas;
    layout->unit[unit].master = take_together(layout, MS_ARENA_MASTERS, MS_CAT_PARAMETERS, u->gathered_bytes, ranks);
  } else {
    layout->unit[unit].master = take_chunks(layout, MS_CAT_PARAMETERS, 4 * u->master_count);
    if (u->copy_bytes) layout->unit[unit].weights = take_chunks(layout, MS_CAT_PARAMETERS, u->copy_bytes);
  }
}

/* What local SGD keeps of a unit; replicas do not share it. */
static void take_outer(const ms_model *model, const ms_plan_config *config, int unit, ms_state_layout *layout) {
  const int64_t bytes = 4 * model->unit[unit].trainable_count;
  const int kept = config->train && model->unit[unit].config.fragment && bytes;
  int64_t *at[] = {&layout->unit[unit].synced, &layout->unit[unit].outer_momentum, &layout->unit[unit].outer_sum};
  const int wanted[] = {1, config->outer_momentum != 0, config->outer_delay != 0};
  for (int i = 0; i < 3; i++) *at[i] = kept && wanted[i] ? take(layout, MS_ARENA_STATE, MS_CAT_OPTIMIZER, bytes) : -1;
}

/* Reserves optimizer state of a unit's trainable elements that this rank updates or shares; -1: there are none. */
static int64_t take_optimizer(const ms_model *model, int unit, ms_moment moment, ms_state_layout *layout) {
  const ms_unit *u = &model->unit[unit];
  const int64_t bytes = ms_moment_room(model, u, layout->replicas, moment);
  if (!u->trainable_count || (!bytes && moment.index >= moment.kept)) return -1;
  if (!ms_unit_is_sliced(model, u, layout->replicas)) return take_chunks(layout, MS_CAT_OPTIMIZER, bytes);
  return take(layout, MS_ARENA_STATE, MS_CAT_OPTIMIZER, bytes);
}

int ms_state_layout_make(const ms_model *model, const ms_plan_config *config, ms_state_layout *layout) {
  ms_topology topology;
  *layout = (ms_state_layout){0};
  int rc = ms_plan_topology(model, config, &topology);
  const int shards_together = !rc && ms_shards_together(model, config, &topology);
  layout->replicas = rc ? 1 : ms_replicas_together(model, config, &topology);
  layout->replicas_here = rc ? 1 : ms_replicas_here(model, config, &topology);
  layout->inner_shards = rc ? 1 : ms_shards_inside(model, &topology);
  ms_topology_free(&topology);
  if (rc) return rc;
  layout->unit = ms_calloc(model->units, sizeof *layout->unit);
  if (!layout->unit) return MS_ENOMEM;
  layout->optimizer = config->train ? config->optimizer : MS_OPT_NONE;
  const int updates = layout->optimizer != MS_OPT_NONE;
  layout->moments = ms_moments_kept(config);
  layout->moment_dtype = layout->moments ? ms_moment_dtype_of(config) : MS_F32;
  for (int u = 0; u < model->units; u++) take_masters(model, u, shards_together, layout);
  const int norms = 1 + ms_model_splits_norm(model);
  layout->squares = take(layout, MS_ARENA_STATE, MS_CAT_WORKSPACE, 4 * norms * model->units);
  layout->loss_sum = take(layout, MS_ARENA_STATE, MS_CAT_WORKSPACE, 8);
  layout->norm = take(layout, MS_ARENA_STATE, MS_CAT_WORKSPACE, 16 * norms);
  layout->updates = take(layout, MS_ARENA_STATE, MS_CAT_WORKSPACE, 4 * model->params);
  for (int u = 0; u < model->units; u++) {
    int64_t room = 4 * ms_unit_slice_room(model, &model->unit[u], layout->replicas);
    layout->unit[u].gradient = config->train && room ? take(layout, MS_ARENA_STATE, MS_CAT_GRADIENTS, room) : -1;
  }
  for (int u = 0; u < model->units; u++)
    for (int m = 0; m < MS_MOMENTS; m++)
      layout->unit[u].moment[m] = updates ? take_optimizer(model, u, ms_moment_of(layout, m), layout) : -1;
  const int averaged = config->train && config->ema_decay > 0;
  const ms_moment average = {.dtype = MS_F32, .kept = 1};
  for (int u = 0; u < model->units; u++)
    layout->unit[u].ema = averaged ? take_optimizer(model, u, average, layout) : -1;
  for (int u = 0; u < model->units; u++) take_outer(model, config, u, layout);
  for (int u = 0; u < model->units; u++) {
    const int64_t factors = ms_unit_factors(model, &model->unit[u], layout->optimizer);
    layout->unit[u].factors = factors ? take(layout, MS_ARENA_STATE, MS_CAT_OPTIMIZER, 4 * factors) : -1;
  }
  for (int u = 0; u < model->units; u++) {
    const int64_t rests = config->train ? ms_rests_bytes(model, u, layout->inner_shards) : 0;
    layout->unit[u].rests = rests ? take(layout, MS_ARENA_STATE, MS_CAT_OPTIMIZER, rests) : -1;
  }
  return MS_OK;
}

void ms_state_layout_free(ms_state_layout *layout) {
  free(layout->unit);
  layout->unit = NULL;
}
