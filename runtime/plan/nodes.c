/* nodes.c - which ranks of a plan are on one node, and so what they keep once.
**
** A plan is made for ranks that need not exist, so it is given how many of them each node has
** (ms_plan_config.ranks_per_node): the number of ranks alone does not say it. Ranks fill nodes in their order. Memory
** is mapped together within a node and never between nodes: a shard group that reaches over nodes copies what it
** gathers, and replicas on different nodes have copies of their own.
*/
#include "comm/group/world.h"
#include "plan/plan.h"

static int node_of(const ms_plan_config *config, int rank) {
  return config->ranks_per_node ? rank / config->ranks_per_node : 0;
}

int ms_plan_node_ranks(const ms_model *model, const ms_plan_config *config) {
  return config->ranks_per_node && config->ranks_per_node < model->world ? config->ranks_per_node : model->world;
}

int ms_plan_check_nodes(const ms_model *model, const ms_plan_config *config) {
  const int ranks = ms_plan_node_ranks(model, config);
  if (config->ranks_per_node < 0)
    return MS_FAIL(MS_EINVAL, "ranks_per_node must be 0 (all ranks) or more, not %d", config->ranks_per_node);
  if (ranks <= MS_MAX_LOCAL_RANKS) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%d ranks are more than one node takes (%d): set ranks_per_node to how many each node has",
                 ranks, MS_MAX_LOCAL_RANKS);
}

/* World rank of a place in the grid of replicas and shards. */
static int rank_at(const ms_model *m, int replica, int shard) {
  return m->member_rank[m->replicate_dim < m->shard_dim ? replica * m->shard_size + shard
                                                        : shard * m->replicate_size + replica];
}

/* 1 when the ranks [first, first + n) of the replicas, with all their shards, are on one node. */
static int on_one_node(const ms_model *m, const ms_plan_config *config, int first, int n) {
  const int node = node_of(config, rank_at(m, first, 0));
  for (int r = first; r < first + n; r++)
    for (int s = 0; s < m->shard_size; s++)
      if (node_of(config, rank_at(m, r, s)) != node) return 0;
  return 1;
}

int ms_shards_together(const ms_model *model, const ms_plan_config *config) {
  for (int r = 0; r < model->replicate_size; r++)
    if (!on_one_node(model, config, r, 1)) return 0;
  return 1;
}

static int all_blocks_fit(const ms_model *model, const ms_plan_config *config, int n) {
  for (int first = 0; first < model->replicate_size; first += n)
    if (!on_one_node(model, config, first, n)) return 0;
  return 1;
}

int ms_replicas_together(const ms_model *model, const ms_plan_config *config) {
  if (!config->shared_masters || config->device != MS_DEVICE_CPU) return 1;
  for (int n = model->replicate_size; n > 1; n--)
    if (model->replicate_size % n == 0 && all_blocks_fit(model, config, n)) return n;
  return 1;
}

static void append_count(ms_text *text, int n, const char *what) {
  ms_text_append(text, "%d %s%s", n, what, n == 1 ? "" : "s");
}

void ms_plan_describe_nodes(const ms_plan *plan, ms_text *text) {
  const ms_model *m = plan->model;
  const int ranks = ms_plan_node_ranks(m, &plan->config), nodes = (m->world + ranks - 1) / ranks;
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
  if (nodes > 1 && plan->config.device == MS_DEVICE_CPU)
    ms_text_append(text, "; CPU ranks on several nodes are planned, not yet run");
}
