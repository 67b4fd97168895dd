/* priced_cluster.h - a described cluster of round numbers, on which times can be worked out by hand, and plans for it.
 */
#ifndef MS_TESTS_PRICED_CLUSTER_H
#define MS_TESTS_PRICED_CLUSTER_H

#include "price/price.h"
#include "tests/c/support/check.h"
#include "tests/c/support/networks/planned.h"

/* A node of eight ranks: 1 TFLOP/s, 100 GB/s of memory, 10 GB/s between ranks and 4 GB/s between nodes. */
static inline ms_cluster cluster_of(int device) {
  ms_cluster c;
  must(ms_config_default("ms_cluster", &c, sizeof c));
  c.device = device;
  c.ranks_per_node = c.cores = 8;
  c.memory = 1e9;
  c.peak[MS_F32] = 1e12;
  c.memory_rate = 100e9;
  c.kernel_start = 1e-6;
  c.links = 1;
  c.link[0] = (struct ms_link){.algorithm = device == MS_DEVICE_CPU ? MS_LINK_HOSTS : MS_LINK_RING,
                               .kinds = MS_LINK_ALL_GATHER | MS_LINK_REDUCE_SCATTER | MS_LINK_ALL_REDUCE,
                               .start = 5e-6,
                               .start_between = 20e-6,
                               .step_inside = 1e-6,
                               .step_between = 4e-6,
                               .inside = 10e9,
                               .between = 4e9};
  must(ms_config_check("ms_cluster", &c, sizeof c));
  return c;
}

enum { MAX_RANKS = 8 };

/* A plan of replicate * shard ranks, at most MAX_RANKS, on `nodes` nodes in order. */
static inline planned plan_on(int replicate, int shard, int rank, int nodes) {
  int node_of[MAX_RANKS];
  const int ranks = replicate * shard;
  mlp_config c = mlp_default(replicate, shard, rank);
  ms_plan_config config = planned_config();
  for (int r = 0; r < ranks; r++) node_of[r] = r * nodes / ranks;
  c.block.reshard = MS_RESHARD_ALWAYS;
  config.shared_masters = 0;
  config.nodes = nodes;
  config.node_of = node_of;
  return plan_with(&c, &config);
}

#endif
