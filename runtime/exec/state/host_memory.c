/* host_memory.c - which arenas the ranks of one host map together, how many blocks each has, and whose they are.
 *
 * Ranks of one host share memory, whichever part of the model's ranks they are; hosts share nothing. An arena that
 * peers read in place has a block for every rank of this host. Gathered weights and masters have one for every copy
 * of them: one for each replica with ranks here, or one for all replicas that share their state. The chunks of sliced
 * units have one for each shard.
 */
#include "exec/state/host_memory.h"

#include <stdlib.h>

#include "base/error.h"

/* ---- the ranks of this host ---- */

static int is_here(const ms_state *state, int rank) {
  const ms_world *world = state->world;
  return ms_world_node_of(world, rank) == ms_world_node_of(world, ms_world_rank(world));
}

/* Finds the ranks of a group that are on this host: all, or a part, for which it opens a group. */
static int find_here(const ms_state *state, ms_group *all, ms_group *part, ms_group **here) {
  int n = 0, rc = MS_OK, *ranks = ms_calloc(all->size, sizeof *ranks);
  if (!ranks) return MS_ENOMEM;
  for (int i = 0; i < all->size; i++)
    if (is_here(state, all->rank[i])) ranks[n++] = all->rank[i];
  *here = n < all->size ? part : all;
  if (*here == part) rc = ms_group_open(state->world, n, ranks, state->model->mesh_text, part);
  free(ranks);
  return rc;
}

/* ---- blocks ---- */

enum { WEIGHTS = 0, REPLICATED = 1, CHUNKS = 2, KINDS = 3 }; /* kinds of copies, see ms_state.copies */

/* 1 when each rank of the host has a block of its own. */
static int has_block_a_rank(int arena) { return arena == MS_ARENA_COMM || arena == MS_ARENA_GROUPED; }

static int kind_of(int arena) {
  return arena == MS_ARENA_REPLICATED ? REPLICATED : arena == MS_ARENA_CHUNKS ? CHUNKS : WEIGHTS;
}

/* The number, among all copies in the job, of the one that a rank uses. */
static int copy_of(const ms_state *state, int kind, int rank) {
  const ms_model *m = state->model;
  const int shards = ms_model_shards(m), copies = ms_model_replicas(m) / state->layout.replicas;
  int at[MS_GRID_DIMS], member = 0;
  while (m->member_rank[member] != rank) member++;
  ms_grid_position(m, member, at);
  const int copy = at[MS_DIM_TENSOR] * copies + at[MS_DIM_REPLICATE] / state->layout.replicas;
  if (kind == CHUNKS) return at[MS_DIM_TENSOR] * shards + at[MS_DIM_SHARD];
  return kind == REPLICATED ? copy * shards + at[MS_DIM_SHARD] : copy;
}

/* Gives each rank of this host the index of its copy among those that are here, in the order of their numbers. */
static int find_copies(ms_state *state, int kind) {
  const int n = state->host->size;
  int most = 0, *copy = ms_calloc(n, sizeof *copy);
  state->copies[kind].block = ms_calloc(n, sizeof *copy);
  if (!copy || !state->copies[kind].block) {
    free(copy);
    return MS_ENOMEM;
  }
  for (int i = 0; i < n; i++) copy[i] = copy_of(state, kind, state->host->rank[i]);
  for (int i = 0; i < n; i++) {
    int below = 0;
    for (int j = 0; j < n; j++) {
      int first = 0;
      while (copy[first] != copy[j]) first++;
      below += first == j && copy[j] < copy[i];
    }
    state->copies[kind].block[i] = below;
    if (below >= most) most = below + 1;
  }
  state->copies[kind].n = most;
  free(copy);
  return MS_OK;
}

int ms_host_memory_open(ms_state *state) {
  MS_TRY(find_here(state, &state->process_group, &state->ranks_here, &state->host));
  state->replica_here = state->host;
  if (state->replica == &state->own_replica)
    MS_TRY(find_here(state, &state->own_replica, &state->part_here, &state->replica_here));
  for (int kind = 0; kind < KINDS; kind++) MS_TRY(find_copies(state, kind));
  return MS_OK;
}

void ms_host_memory_close(ms_state *state) {
  for (int kind = 0; kind < KINDS; kind++) free(state->copies[kind].block);
  ms_group_close(&state->part_here);
  ms_group_close(&state->ranks_here);
}

static int is_shared(const ms_state *state, int arena) {
  if (state->host->size == 1 || !ms_device_has(state->device, MS_DEVICE_HOST_MEMORY)) return 0;
  if (has_block_a_rank(arena) || kind_of(arena) != WEIGHTS) return 1;
  return ms_model_shards(state->model) > 1 && ms_arena_is_of_shards(arena);
}

int ms_host_memory_blocks(const ms_state *state, int arena) {
  if (!is_shared(state, arena)) return 0;
  return has_block_a_rank(arena) ? state->host->size : state->copies[kind_of(arena)].n;
}

int ms_host_memory_block_of(const ms_state *state, int arena, int rank) {
  int place = 0;
  while (place < state->host->size && state->host->rank[place] != rank) place++;
  if (place == state->host->size) return -1;
  return has_block_a_rank(arena) ? place : state->copies[kind_of(arena)].block[place];
}

int ms_host_memory_windows(const ms_state *state) { return state->copies[WEIGHTS].n; }

int ms_host_memory_window_of(const ms_state *state) { return state->copies[WEIGHTS].block[state->host->me]; }
