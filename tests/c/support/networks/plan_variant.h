/* plan_variant.h - plans of the small network of mlp.h on meshes and with policies of every kind, for tests of the
 * verifier.
 */
#ifndef MS_TESTS_PLAN_VARIANT_H
#define MS_TESTS_PLAN_VARIANT_H

#include "tests/c/support/networks/planned.h"

/* What a plan is made of: one of the lines below. */
typedef struct variant {
  const char *what;
  int replicate, shard, prefetch, sync;
  int own_copies; /* no shared masters: f32 weights are gathered like all others */
  int stays;      /* weights are not resharded after backward */
  int dtype, reshard, groups;
  int recompute, frozen_block, frozen_weights, f32_biases, ragged, eval_only;
  int fragment, outer_parts, outer_delay; /* of the blocks */
  int tensor;                             /* with sequence parallelism; 0: no such dimension */
  int quantised;                          /* replicate_dtype; 0: none */
  int shards_quantised, per_node;         /* shard_dtype; ranks of each node; 0: none, one node */
  int muon, sliced;                       /* shard_over_replicate */
} variant;

static inline mlp_config network(const variant *v) {
  mlp_config c = mlp_default(v->replicate, v->shard, 0);
  c.blocks = 2;
  c.block.param_dtype = c.root.param_dtype = v->dtype;
  c.block.reshard = c.root.reshard = v->reshard;
  c.block.layout = c.root.layout = v->ragged ? MS_LAYOUT_RAGGED : MS_LAYOUT_ROWS;
  c.block.reshard_size = v->groups;
  c.recompute = v->recompute;
  c.frozen_block = v->frozen_block - 1;
  c.frozen_weights = v->frozen_weights;
  c.block.fragment = v->fragment;
  c.block.replicate_dtype = c.root.replicate_dtype = v->quantised;
  c.block.shard_dtype = c.root.shard_dtype = v->shards_quantised;
  c.f32_biases = v->f32_biases;
  c.muon = v->muon;
  c.block.shard_over_replicate = c.root.shard_over_replicate = v->sliced;
  if (v->tensor) c.tensor = v->tensor, c.world *= v->tensor, c.sequence_parallel = 1;
  return c;
}

static inline ms_plan_config settings(const variant *v) {
  ms_plan_config config = planned_config();
  config.prefetch = v->prefetch;
  config.sync = v->sync;
  config.reshard_after_backward = !v->stays;
  config.shared_masters = !v->own_copies;
  config.train = !v->eval_only;
  config.outer_fragment = v->outer_parts ? v->fragment : 0;
  config.outer_parts = v->outer_parts;
  config.outer_delay = v->outer_delay;
  config.outer_momentum = 0.9;
  return config;
}

static inline planned plan_of(const variant *v) {
  enum { MAX = 16 };
  mlp_config c = network(v);
  ms_plan_config config = settings(v);
  int node_of[MAX];
  assert_true(c.world <= MAX);
  for (int rank = 0; rank < c.world && v->per_node; rank++) node_of[rank] = rank / v->per_node;
  config.nodes = v->per_node ? 1 + node_of[c.world - 1] : 0;
  config.node_of = v->per_node ? node_of : NULL;
  return plan_with(&c, &config);
}

enum { KEEP = MS_RESHARD_KEEP, ALWAYS = MS_RESHARD_ALWAYS };

#endif
