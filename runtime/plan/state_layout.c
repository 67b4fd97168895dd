/* state_layout.c - the arenas STATE, MASTERS and REPLICATED, which live as long as training. Their layout is the
 * same for every plan of a model and optimizer; masters and scalars come first, so that a plan that only evaluates
 * can read the state of one that trains.
 *
 * Ranks of one node do not copy what a peer keeps in f32 anyway. Masters that kernels read in f32 are in memory of
 * the whole shard group, in the layout of the gathered unit; gathering them only means to wait until every owner has
 * updated its chunks. Replicas of a node also share one copy of their state: each maps it, holds the gradients of a
 * slice of every unit's chunks, and updates that slice. */
#include <stdlib.h>

#include "base/slice.h"
#include "plan/optimizer.h"

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

int64_t ms_unit_slice(const ms_model *model, const ms_unit *unit, int replicas, int64_t *first) {
  return ms_slice(unit->trainable_count, replicas, model->replicate_rank % replicas, first);
}

int64_t ms_unit_slice_room(const ms_unit *unit, int replicas) {
  return ms_slice_longest(unit->trainable_count, replicas);
}

int ms_state_optimizer_arena(const ms_state_layout *layout) {
  return layout->replicas > 1 ? MS_ARENA_REPLICATED : MS_ARENA_STATE;
}

int ms_state_master_arena(const ms_state_layout *layout, int unit) {
  return layout->unit[unit].shared ? MS_ARENA_MASTERS : ms_state_optimizer_arena(layout);
}

/* 1 when the shard group reads a unit's masters in place: kernels read every segment in f32, and the ranks share
 * memory. */
static int shares_masters(const ms_unit *u, int shards_together) {
  for (int s = 0; s < u->segments; s++)
    if (u->segment[s].param_dtype != MS_F32) return 0;
  return shards_together;
}

int64_t ms_master_offset(const ms_model *model, const ms_unit *unit, int shared, int s, int64_t local) {
  const ms_segment *seg = &unit->segment[s];
  if (!shared) return 4 * local;
  return seg->gathered + 4 * (model->shard_rank * seg->chunk + local - seg->local);
}

/* Reserves masters or optimizer state of a rank's chunks. */
static int64_t take_chunks(ms_state_layout *layout, int category, int64_t bytes) {
  if (layout->replicas == 1) return take(layout, MS_ARENA_STATE, category, bytes);
  return take_together(layout, MS_ARENA_REPLICATED, category, bytes, layout->replicas);
}

static void take_masters(const ms_model *model, int unit, int shards_together, ms_state_layout *layout) {
  const ms_unit *u = &model->unit[unit];
  layout->unit[unit].shared = shares_masters(u, shards_together);
  if (layout->unit[unit].shared) {
    int ranks = model->shard_size * layout->replicas;
    layout->unit[unit].master = take_together(layout, MS_ARENA_MASTERS, MS_CAT_PARAMETERS, u->gathered_bytes, ranks);
  } else {
    layout->unit[unit].master = take_chunks(layout, MS_CAT_PARAMETERS, 4 * u->master_count);
  }
}

int ms_state_layout_make(const ms_model *model, const ms_plan_config *config, ms_state_layout *layout) {
  ms_topology topology;
  *layout = (ms_state_layout){0};
  int rc = ms_plan_topology(model, config, &topology);
  const int shards_together = !rc && ms_shards_together(model, config, &topology);
  layout->replicas = rc ? 1 : ms_replicas_together(model, config, &topology);
  ms_topology_free(&topology);
  if (rc) return rc;
  layout->unit = ms_calloc(model->units, sizeof *layout->unit);
  if (!layout->unit) return MS_ENOMEM;
  const int moments = ms_moments_kept(config);
  layout->moment_dtype = moments ? config->moment_dtype : MS_F32;
  for (int u = 0; u < model->units; u++) take_masters(model, u, shards_together, layout);
  layout->squares = take(layout, MS_ARENA_STATE, MS_CAT_WORKSPACE, 4 * model->units);
  layout->loss_sum = take(layout, MS_ARENA_STATE, MS_CAT_WORKSPACE, 8);
  layout->norm = take(layout, MS_ARENA_STATE, MS_CAT_WORKSPACE, 16);
  layout->updates = take(layout, MS_ARENA_STATE, MS_CAT_WORKSPACE, 4 * model->params);
  for (int u = 0; u < model->units; u++) {
    int64_t room = 4 * ms_unit_slice_room(&model->unit[u], layout->replicas);
    layout->unit[u].gradient = config->train && room ? take(layout, MS_ARENA_STATE, MS_CAT_GRADIENTS, room) : -1;
  }
  for (int u = 0; u < model->units; u++) {
    int64_t trainable = ms_dtype_size(layout->moment_dtype) * model->unit[u].trainable_count;
    for (int m = 0; m < MS_MOMENTS; m++)
      layout->unit[u].moment[m] = m < moments && trainable ? take_chunks(layout, MS_CAT_OPTIMIZER, trainable) : -1;
  }
  for (int u = 0; u < model->units; u++) {
    int64_t trainable = 4 * model->unit[u].trainable_count;
    int averaged = config->train && config->ema_decay > 0 && trainable;
    layout->unit[u].ema = averaged ? take_chunks(layout, MS_CAT_OPTIMIZER, trainable) : -1;
  }
  return MS_OK;
}

void ms_state_layout_free(ms_state_layout *layout) {
  free(layout->unit);
  layout->unit = NULL;
}
