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

/* 1 when the shard group reads a unit's masters in place: every segment is kept as it is gathered, and the ranks share
 * memory. */
static int shares_masters(const ms_unit *u, int shards_together) {
  for (int s = 0; s < u->segments; s++)
    if (!ms_segment_is_as_gathered(&u->segment[s])) return 0;
  return shards_together;
}

/* The ranks that share one copy of what is in an arena, which is not STATE. */
static int sharers(const ms_model *model, const ms_state_layout *layout, int arena) {
  if (arena == MS_ARENA_CHUNKS) return layout->replicas_here;
  return arena == MS_ARENA_MASTERS ? ms_model_shards(model) * layout->replicas : layout->replicas;
}

static void take_slot(const ms_slot_owner *of, int slot, ms_state_layout *layout) {
  const ms_slot_row *row = &ms_slots[slot];
  const int64_t bytes = row->bytes(of);
  int64_t *at = &layout->unit[of->unit].at[slot];
  *at = -1;
  if (bytes < 0) return;
  const int arena = row->arena(of->model, layout, of->unit);
  layout->unit[of->unit].bytes[slot] = bytes;
  if (arena == MS_ARENA_STATE) *at = take(layout, arena, row->category, bytes);
  else *at = take_together(layout, arena, row->category, bytes, sharers(of->model, layout, arena));
}

static void take_turn(const ms_model *model, const ms_plan_config *config, int turn, ms_state_layout *layout) {
  for (int u = 0; u < model->units; u++) {
    const ms_slot_owner of = {model, config, layout, u};
    for (int slot = 0; slot < MS_SLOTS; slot++)
      if (ms_slots[slot].turn == turn) take_slot(&of, slot, layout);
  }
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
  for (int chosen = 0; chosen < MS_OPTIMIZER_KINDS; chosen++)
    layout->optimizer[chosen] = ms_optimizer_keeps(config, chosen);
  for (int u = 0; u < model->units; u++) {
    const int sliced = ms_unit_is_sliced(model, &model->unit[u], layout->replicas);
    layout->sliced += sliced;
    layout->unit[u].shared =
        !sliced && !ms_unit_is_whole(model, &model->unit[u]) && shares_masters(&model->unit[u], shards_together);
  }
  take_turn(model, config, 0, layout);
  const int norms = 1 + ms_model_splits_norm(model);
  layout->squares = take(layout, MS_ARENA_STATE, MS_CAT_WORKSPACE, 4 * norms * model->units);
  layout->loss_sum = take(layout, MS_ARENA_STATE, MS_CAT_WORKSPACE, 8);
  layout->norm = take(layout, MS_ARENA_STATE, MS_CAT_WORKSPACE, 16 * norms);
  layout->updates = take(layout, MS_ARENA_STATE, MS_CAT_WORKSPACE, 4 * model->params);
  for (int turn = 1; turn < MS_SLOT_TURNS; turn++) take_turn(model, config, turn, layout);
  return MS_OK;
}

void ms_state_layout_free(ms_state_layout *layout) {
  free(layout->unit);
  layout->unit = NULL;
}
