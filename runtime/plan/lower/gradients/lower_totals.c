/* lower_totals.c - sums a few numbers over the mesh: the loss of a step or of an evaluation, and squares of gradients.
 * All ranks get the same bits, whatever shares a node.
 */
#include <stdlib.h>
#include <string.h>

#include "plan/lower/lower.h"
#include "plan/layout/state_layout.h"

/* For each replica, the first one whose rank of a shard is on the same node: first [replicas]; seen [nodes] is scratch.
 */
static void find_first_on_nodes(const ms_plan *plan, int shard, int *first, int *seen) {
  for (int n = 0; n < plan->topology.nodes; n++) seen[n] = -1;
  for (int r = 0; r < ms_model_replicas(plan->model); r++) {
    int *of_node = &seen[plan->topology.node_of[ms_grid_sibling(plan->model, r, shard)]];
    if (*of_node < 0) *of_node = r;
    first[r] = *of_node;
  }
}

/* Between nodes the order of a sum follows from which of its ranks share a node. Two terms have the same sum in any
 * order. The ranks of a tensor dimension sum in one order (nodes.c). */
static int sums_in_one_order(const ms_plan *plan, int *one) {
  const int replicas = ms_model_replicas(plan->model);
  *one = 1;
  if (plan->topology.nodes == 1 || replicas < 3) return MS_OK;
  int *first = ms_calloc(2 * (int64_t)replicas + plan->topology.nodes, sizeof *first);
  if (!first) return MS_ENOMEM;
  find_first_on_nodes(plan, 0, first, first + 2 * replicas);
  for (int s = 1; s < ms_model_shards(plan->model) && *one; s++) {
    find_first_on_nodes(plan, s, first + replicas, first + 2 * replicas);
    *one = !memcmp(first, first + replicas, replicas * sizeof *first);
  }
  free(first);
  return MS_OK;
}

/* Every rank takes the totals of its replica's first shard. */
static int take_totals_of_first_shard(ms_plan *plan, int phase, ms_ref totals) {
  const int64_t n = ms_numel(&totals.info), all = n * ms_model_shards(plan->model);
  const ms_op_attrs overwrite = {0};
  int buffer;
  MS_TRY(ms_plan_buffer(plan, phase, MS_ARENA_GATHERED, MS_CAT_GATHERED, 4 * all, "totals of all shards", &buffer));
  const ms_plan_part part = {
      .count = n, .src = totals, .shared = ms_ref_vector(buffer, 0, MS_F32, all), .dst.buffer = -1};
  const ms_ref first = ms_ref_vector(buffer, 0, MS_F32, n);
  MS_TRY(ms_plan_collective(plan, phase, MS_STREAM_REDUCE, MS_COLL_ALL_GATHER, MS_DIM_SHARD, 0, -1, 1, &part));
  return ms_plan_kernel(plan, phase, MS_OP_accumulate, &overwrite, 1, &first, 1, &totals, "step totals", 0);
}

int ms_lower_totals(ms_plan *plan, int phase, ms_ref totals, int over_replicas) {
  const ms_model *model = plan->model;
  ms_plan_part part = {.count = ms_numel(&totals.info), .src.buffer = -1, .shared = totals, .dst = totals};
  if (ms_model_shards(model) > 1)
    MS_TRY(ms_plan_collective(plan, phase, MS_STREAM_REDUCE, MS_COLL_ALL_REDUCE, MS_DIM_SHARD, 0, -1, 1, &part));
  const int both = ms_model_shards(model) > 1 && plan->layout->replicas > 1;
  if (both) MS_TRY(ms_plan_take_replicas(plan, phase));
  if (both) return ms_plan_between_copies(plan, phase, MS_COLL_ALL_REDUCE, -1, 1, &part);
  if (ms_model_replicas(model) == 1 || !over_replicas) return MS_OK;
  MS_TRY(ms_plan_collective(plan, phase, MS_STREAM_REPLICATE, MS_COLL_ALL_REDUCE, MS_DIM_REPLICATE, 0, -1, 1, &part));
  int one_order;
  MS_TRY(sums_in_one_order(plan, &one_order));
  return one_order ? MS_OK : take_totals_of_first_shard(plan, phase, totals);
}
