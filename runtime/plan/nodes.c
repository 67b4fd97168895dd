/* nodes.c - which ranks of a plan are on one node, whether they share one copy of the state, and what that leaves of
 * the node's memory.
 *
 * A plan can be made for ranks that do not exist, so the caller passes their topology (ms_plan_config.node_of): the
 * number of ranks alone does not determine it. Ranks map memory together within a node, never between nodes: a shard
 * group that spans nodes copies what it gathers, and replicas on different nodes have their own copies of the state.
 */
#include <string.h>

#include "moonshard.h"
#include "plan/layout/state_layout.h"

/* ---- the grid of replicas and shards ---- */

int ms_grid_rank(const ms_model *m, const int *at) {
  int member = 0;
  for (int d = 0; d < MS_GRID_DIMS; d++) member += at[d] * m->dim[d].stride;
  return m->member_rank[member];
}

int ms_grid_sibling(const ms_model *m, int replica, int shard) {
  int at[MS_GRID_DIMS];
  ms_grid_position(m, m->member, at);
  at[MS_DIM_REPLICATE] = replica;
  at[MS_DIM_SHARD] = shard;
  return ms_grid_rank(m, at);
}

void ms_grid_position(const ms_model *m, int member, int *at) {
  for (int d = 0; d < MS_GRID_DIMS; d++) at[d] = member / m->dim[d].stride % m->dim[d].size;
}

/* ---- in which order ranks on several nodes sum ---- */

/* The first place along a dimension of the grid whose rank is on the node of the one at `at`. */
static int first_on_node(const ms_model *m, const ms_topology *topology, const int *at, int dim) {
  const int node = topology->node_of[ms_grid_rank(m, at)];
  int other[MS_GRID_DIMS];
  memcpy(other, at, sizeof other);
  for (other[dim] = 0; topology->node_of[ms_grid_rank(m, other)] != node;) other[dim]++;
  return other[dim];
}

/* 1 when the ranks of each group along a dimension are on one node. */
static int stays_on_nodes(const ms_model *model, const ms_topology *topology, int dim) {
  for (int i = 0; i < model->members; i++) {
    int first[MS_GRID_DIMS];
    ms_grid_position(model, i, first);
    first[dim] = 0;
    if (topology->node_of[model->member_rank[i]] != topology->node_of[ms_grid_rank(model, first)]) return 0;
  }
  return 1;
}

/* The ranks along a dimension, `copies`, each have a copy of some parameters, and each sums the copy's gradients with
 * the ranks at its own place. Between nodes the order of a sum follows from which of its ranks share a node, and two
 * terms have the same sum in any order: where it differs, the copies would drift apart. Not if the ranks of a group
 * share a node: then these nodes are the same at all places. Sums are over the dimensions before `end`. */
static int check_sums(const ms_model *model, const ms_topology *topology, int copies, int end) {
  const ms_dim_group *group = &model->dim[copies];
  if (topology->nodes == 1 || group->size == 1 || stays_on_nodes(model, topology, copies)) return MS_OK;
  for (int i = 0; i < model->members; i++)
    for (int dim = MS_DIM_REPLICATE; dim < end; dim++) {
      int at[MS_GRID_DIMS], first[MS_GRID_DIMS];
      ms_grid_position(model, i, at);
      memcpy(first, at, sizeof first);
      first[copies] = 0;
      if (model->dim[dim].size < 3 ||
          first_on_node(model, topology, at, dim) == first_on_node(model, topology, first, dim))
        continue;
      return MS_FAIL(MS_EINVAL,
                     "mesh %s: the %d ranks along dimension %s are divided among the nodes in another way at rank %d "
                     "than at rank %d, of the same group along dimension %s, so they would sum gradients in another "
                     "order, and their copies of a parameter would drift apart: give each node a multiple of %d ranks",
                     model->mesh_text, model->dim[dim].size, model->dim[dim].name, model->member_rank[i],
                     ms_grid_rank(model, first), group->name, group->size);
    }
  return MS_OK;
}

/* Parameters that a tensor dimension does not divide have a copy on each of its ranks; units that are whole, on each
 * rank of shard, where the sum over the shards comes first and is the same on all. */
static int check_copies(const ms_model *model, const ms_topology *topology) {
  MS_TRY(check_sums(model, topology, MS_DIM_TENSOR, MS_DIM_SHARD + 1));
  return ms_model_has_whole_units(model) ? check_sums(model, topology, MS_DIM_SHARD, MS_DIM_SHARD) : MS_OK;
}

/* ---- what is on one node ---- */

int ms_plan_topology(const ms_model *model, const ms_plan_config *config, ms_topology *topology) {
  *topology = (ms_topology){0};
  if (config->nodes < 0 || (config->nodes > 0) != (config->node_of != NULL))
    return MS_FAIL(MS_EINVAL, "%d nodes %s node_of: set both, or neither to plan all ranks on one node", config->nodes,
                   config->node_of ? "with" : "without");
  MS_TRY(ms_topology_make(model->world, config->nodes, config->node_of, topology));
  MS_TRY(check_copies(model, topology));
  const int most = ms_topology_max_ranks(topology);
  if (most <= MS_MAX_LOCAL_RANKS) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%d ranks are more than one node supports (%d): set node_of to the node of each rank", most,
                 MS_MAX_LOCAL_RANKS);
}

/* 1 when every block of n neighbours along a dimension, with all positions along `with` (or none: -1), is on one node:
 * at each place in the other dimensions, so that all ranks decide alike. */
static int all_blocks_fit(const ms_model *m, const ms_topology *topology, int dim, int n, int with) {
  for (int i = 0; i < m->members; i++) {
    int at[MS_GRID_DIMS];
    ms_grid_position(m, i, at);
    at[dim] = at[dim] / n * n;
    if (with >= 0) at[with] = 0;
    if (topology->node_of[ms_grid_rank(m, at)] != topology->node_of[m->member_rank[i]]) return 0;
  }
  return 1;
}

static int shares_memory(const ms_plan_config *config) {
  return config->shared_masters && ms_device_can(config->device, MS_DEVICE_HOST_MEMORY);
}

/* Local steps make the weights of replicas differ, so a model with such a unit has a copy of the state per replica. */
int ms_replicas_together(const ms_model *model, const ms_plan_config *config, const ms_topology *topology) {
  if (ms_model_local_units(model)) return 1;
  for (int n = ms_model_replicas(model); n > 1 && shares_memory(config); n--)
    if (ms_model_replicas(model) % n == 0 && all_blocks_fit(model, topology, MS_DIM_REPLICATE, n, MS_DIM_SHARD))
      return n;
  return 1;
}

int ms_replicas_here(const ms_model *model, const ms_plan_config *config, const ms_topology *topology) {
  int here = 0;
  if (!ms_device_can(config->device, MS_DEVICE_HOST_MEMORY)) return 1;
  for (int r = 0; r < ms_model_replicas(model); r++)
    here += topology->node_of[model->dim[MS_DIM_REPLICATE].ranks[r]] == topology->node_of[model->rank];
  return here;
}

int ms_shards_together(const ms_model *model, const ms_plan_config *config, const ms_topology *topology) {
  return shares_memory(config) && ms_model_shards(model) > 1 &&
         all_blocks_fit(model, topology, MS_DIM_SHARD, ms_model_shards(model), -1);
}

int ms_shards_inside(const ms_model *model, const ms_topology *topology) {
  const int shards = ms_model_shards(model);
  for (int n = shards; n > 1; n--)
    if (shards % n == 0 && all_blocks_fit(model, topology, MS_DIM_SHARD, n, -1)) return n == shards ? 1 : n;
  return 1;
}

/* Ranks of context are neighbours along shard. */
int ms_plan_gathers_once(const ms_plan *plan, int dim) {
  const ms_model *m = plan->model;
  const int along = dim == MS_DIM_CONTEXT ? MS_DIM_SHARD : dim;
  return ms_device_can(plan->config.device, MS_DEVICE_HOST_MEMORY) &&
         all_blocks_fit(m, &plan->topology, along, m->dim[dim].size, -1);
}

/* ---- memory of a node ---- */

/* Lists the model's ranks on a node by their positions in the grid, at: [MS_MAX_LOCAL_RANKS]; returns their number. */
static int find_here(const ms_plan *plan, int node, int (*at)[MS_GRID_DIMS]) {
  int n = 0;
  for (int i = 0; i < plan->model->members; i++)
    if (plan->topology.node_of[plan->model->member_rank[i]] == node) ms_grid_position(plan->model, i, at[n++]);
  return n;
}

int ms_plan_ranks_on(const ms_plan *plan, int node) {
  int at[MS_MAX_LOCAL_RANKS][MS_GRID_DIMS];
  return find_here(plan, node, at);
}

/* The number of copies of an arena on a node: one for each rank, or for each set of ranks that share it. */
static int blocks_on(const ms_plan *plan, int arena, int node) {
  int at[MS_MAX_LOCAL_RANKS][MS_GRID_DIMS], blocks = 0;
  const int n = find_here(plan, node, at), weights = ms_arena_is_of_shards(arena);
  const int chunks = arena == MS_ARENA_CHUNKS; /* one block a shard, for all replicas of the node */
  if (!ms_device_can(plan->config.device, MS_DEVICE_HOST_MEMORY)) return n;
  if (arena != MS_ARENA_REPLICATED && !chunks && !(weights && ms_model_shards(plan->model) > 1)) return n;
  for (int i = 0; i < n; i++) {
    int known = 0;
    for (int j = 0; j < i && !known; j++)
      known = (chunks ||
               at[i][MS_DIM_REPLICATE] / plan->layout->replicas == at[j][MS_DIM_REPLICATE] / plan->layout->replicas) &&
              (weights || at[i][MS_DIM_SHARD] == at[j][MS_DIM_SHARD]) && at[i][MS_DIM_TENSOR] == at[j][MS_DIM_TENSOR];
    blocks += !known;
  }
  return blocks;
}

int ms_plan_node_bytes(const ms_plan *plan, int node, int64_t *bytes) {
  if (node < 0 || node >= plan->topology.nodes)
    return MS_FAIL(MS_EINVAL, "node %d: the plan has nodes 0 to %d", node, plan->topology.nodes - 1);
  *bytes = 0;
  for (int arena = 0; arena < MS_ARENAS; arena++)
    if (plan->arena_bytes[arena]) *bytes += plan->arena_bytes[arena] * blocks_on(plan, arena, node);
  return MS_OK;
}

/* ---- as text ---- */

static void append_count(ms_text *text, int n, const char *what) {
  ms_text_append(text, "%d %s%s", n, what, n == 1 ? "" : "s");
}

void ms_plan_describe_nodes(const ms_plan *plan, ms_text *text) {
  const ms_model *m = plan->model;
  const int nodes = plan->topology.nodes;
  append_count(text, m->world, "rank");
  ms_text_append(text, " on ");
  append_count(text, nodes, "node");
  if (ms_model_replicas(m) > 1 && plan->layout->replicas == ms_model_replicas(m))
    ms_text_append(text, ": %d replicas share one copy of the state", plan->layout->replicas);
  else if (plan->layout->replicas > 1)
    ms_text_append(text, ": groups of %d replicas, each on one node, share one copy of the state: %d copies",
                   plan->layout->replicas, ms_model_replicas(m) / plan->layout->replicas);
  else if (ms_model_replicas(m) > 1)
    ms_text_append(text, ": each of %d replicas has its own copy of the state", ms_model_replicas(m));
  if (plan->layout->sliced)
    ms_text_append(text, "; %d replicas shard the optimizer of %d of %d units among them", ms_model_replicas(m),
                   plan->layout->sliced, m->units);
}
