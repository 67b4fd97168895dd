/* planned.h - plans of the small network of mlp.h, and what is counted in them. */
#ifndef MS_TESTS_PLANNED_H
#define MS_TESTS_PLANNED_H

#include "plan/plan.h"
#include "tests/c/support/networks/mlp.h"

typedef struct planned {
  mlp net;
  ms_plan *plan;
} planned;

/* A mesh, and how its ranks have the network and the state. */
typedef struct mesh_case {
  int replicate, shard, tensor;
  int own_copies, sliced; /* of the state; shard_over_replicate */
  int small;              /* 1: the last rank has nothing of any matrix */
} mesh_case;

static inline int ranks_of(const mesh_case *k) { return k->replicate * k->shard * k->tensor; }

static inline mlp_config mlp_on_mesh(const mesh_case *k, int rank, int ragged) {
  mlp_config c = mlp_default(k->replicate, k->shard, rank);
  if (k->small) c.width = c.hidden = 3;
  c.tensor = k->tensor;
  c.world = ranks_of(k);
  c.block.layout = c.root.layout = ragged ? MS_LAYOUT_RAGGED : MS_LAYOUT_ROWS;
  c.block.shard_over_replicate = c.root.shard_over_replicate = k->sliced;
  return c;
}

/* What tests start from: every phase but last. */
static inline ms_plan_config planned_config(void) {
  ms_plan_config config;
  must(ms_config_default("ms_plan_config", &config, sizeof config));
  config.accumulate = 1;
  config.max_norm = 1;
  config.threads = 1;
  return config;
}

static inline planned plan_with(const mlp_config *c, const ms_plan_config *config) {
  planned p = {.net = mlp_make(c)};
  must(ms_plan_compile(p.net.graph, config, &p.plan));
  return p;
}

static inline void drop(planned *p) {
  ms_free(p->plan);
  mlp_free(&p->net);
}

static inline int count(const ms_plan *plan, int phase, int kind, int backward_only) {
  int n = 0, in_backward = 0;
  for (int i = 0; i < plan->phase[phase].n; i++) {
    const ms_instr *instr = &plan->phase[phase].instr[i];
    in_backward |= instr->kind == MS_INSTR_KERNEL && instr->backward;
    if (instr->kind != MS_INSTR_COLLECTIVE || instr->coll->unit < 0 || (backward_only && !in_backward)) continue;
    const int sums_replicas = instr->coll->kind == MS_COLL_REDUCE_SCATTER && instr->coll->replicas > 0;
    n += instr->coll->kind == kind || (kind == MS_COLL_ALL_REDUCE && sums_replicas);
  }
  return n;
}

#endif
