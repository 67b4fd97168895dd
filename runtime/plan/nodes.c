/* nodes.c - which ranks of a plan are on one node and can share one copy of the state.
 *
 * A plan can be made for ranks that do not exist, so the caller passes their topology (ms_plan_config.node_of): the
 * number of ranks alone does not determine it. Ranks map memory together within a node, never between nodes: a shard
 * group that spans nodes copies what it gathers, and replicas on different nodes have their own copies of the state.
 */
#include "moonshard.h"
#include "plan/plan.h"

int ms_plan_topology(const ms_model *model, const ms_plan_config *config, ms_topology *topology) {
  *topology = (ms_topology){0};
  if (config->nodes < 0 || (config->nodes > 0) != (config->node_of != NULL))
    return MS_FAIL(MS_EINVAL, "%d nodes %s node_of: set both, or neither to plan all ranks on one node", config->nodes,
                   config->node_of ? "with" : "without");
  MS_TRY(ms_topology_make(model->world, config->nodes, config->node_of, topology));
  const int most = ms_topology_most_ranks(topology);
  if (most <= MS_MAX_LOCAL_RANKS) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%d ranks are more than one node supports (%d): set node_of to the node of each rank", most,
                 MS_MAX_LOCAL_RANKS);
}

/* World rank at a position in the grid of replicas and shards. */
static int rank_at(const ms_model *m, int replica, int shard) {
  return m->member_rank[m->replicate_dim < m->shard_dim ? replica * m->shard_size + shard
                                                        : shard * m->replicate_size + replica];
}

/* 1 when replicas [first, first + n), with all their shards, are on one node. */
static int on_one_node(const ms_model *m, const ms_topology *topology, int first, int n) {
  const int node = topology->node_of[rank_at(m, first, 0)];
  for (int r = first; r < first + n; r++)
    for (int s = 0; s < m->shard_size; s++)
      if (topology->node_of[rank_at(m, r, s)] != node) return 0;
  return 1;
}

/* 1 when every block of n neighbouring replicas is on one node. */
static int all_blocks_fit(const ms_model *model, const ms_topology *topology, int n) {
  for (int first = 0; first < model->replicate_size; first += n)
    if (!on_one_node(model, topology, first, n)) return 0;
  return 1;
}

static int shares_memory(const ms_plan_config *config) {
  return config->shared_masters && ms_device_can(config->device, MS_DEVICE_HOST_MEMORY);
}

int ms_replicas_together(const ms_model *model, const ms_plan_config *config, const ms_topology *topology) {
  for (int n = model->replicate_size; n > 1 && shares_memory(config); n--)
    if (model->replicate_size % n == 0 && all_blocks_fit(model, topology, n)) return n;
  return 1;
}

int ms_shards_together(const ms_model *model, const ms_plan_config *config, const ms_topology *topology) {
  return shares_memory(config) && model->shard_size > 1 && all_blocks_fit(model, topology, 1);
}

static void append_count(ms_text *text, int n, const char *what) {
  ms_text_append(text, "%d %s%s", n, what, n == 1 ? "" : "s");
}

void ms_plan_describe_nodes(const ms_plan *plan, ms_text *text) {
  const ms_model *m = plan->model;
  const int nodes = plan->topology.nodes;
  append_count(text, m->world, "rank");
  ms_text_append(text, " on ");
  append_count(text, nodes, "node");
  if (m->replicate_size > 1 && plan->replicas == m->replicate_size)
    ms_text_append(text, ": %d replicas share one copy of the state", plan->replicas);
  else if (plan->replicas > 1)
    ms_text_append(text, ": groups of %d replicas, each on one node, share one copy of the state: %d copies",
                   plan->replicas, m->replicate_size / plan->replicas);
  else if (m->replicate_size > 1)
    ms_text_append(text, ": each of %d replicas has its own copy of the state", m->replicate_size);
  if (nodes > 1 && !ms_device_can(plan->config.device, MS_DEVICE_SPANS_HOSTS))
    ms_text_append(text, "; CPU ranks on several nodes are planned, not yet run");
}
