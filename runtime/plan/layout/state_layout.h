/* state_layout.h - where masters, gradients, moments and step scalars are in the arenas of the training state
 * (state_layout.c), and which ranks share a copy of them (nodes.c).
 */
#ifndef MS_PLAN_STATE_LAYOUT_H
#define MS_PLAN_STATE_LAYOUT_H

#include "base/machine/topology.h"
#include "plan/layout/slots.h"
#include "plan/plan.h"
#include "shard/param_group.h"

/* What a state keeps of the parameters that an optimizer updates. */
typedef struct ms_optimizer_state {
  int moments; /* how many for each element */
  int dtype;   /* in which they are (moment_layout.h) */
  int factors; /* 1: averages by row and by column (factors.h) */
} ms_optimizer_state;

/* Where each unit's slots are; all plans and states of one model use the same layout. */
struct ms_state_layout {
  struct {
    /* By enum ms_slot: the offset in its arena, -1: none; and its bytes.
     *
     * MASTER: this rank's chunks in STATE, REPLICATED or CHUNKS; if `shared`, the whole unit in MASTERS. In a sliced
     * unit with WEIGHTS: the rank's slice of the trainable ones, in STATE.
     * WEIGHTS: what kernels or gathers read instead of masters: the chunks of a sliced unit, in CHUNKS, or copies of
     * this rank's chunks (ms_unit_keeps_copies), in the arena of its optimizer state. */
    int64_t at[MS_SLOTS], bytes[MS_SLOTS];
    int shared;
  } * unit;
  /* What it keeps of parameters, by the optimizer that they choose (ms_param_chosen); nothing without training. */
  ms_optimizer_state optimizer[MS_OPTIMIZER_KINDS];
  int64_t squares;          /* f32 [units] sums of squares of the gradients; [2 units] if only some have a fragment:
                             * theirs, then the others' */
  int64_t loss_sum;         /* f32 [2]: sum of the step's losses, and of their weights */
  int64_t norm;             /* f32 [4], or [8] */
  int64_t updates;          /* f32 [params] updates so far per parameter; steps without a gradient for it do not
                             * count */
  int replicas;             /* number of replicas that share masters and optimizer state; 1: every replica has its
                             * own */
  int replicas_here;        /* number of replicas that share one copy of a sliced unit's chunks */
  int sliced;               /* number of units that are sliced (replica_slices.h) */
  int inner_shards;         /* number of neighbouring shards of a node that sum gradients in few bits before the nodes
                             * do; 1: all shards sum at once */
  int64_t bytes[MS_ARENAS]; /* sizes of the arenas STATE, MASTERS, REPLICATED and CHUNKS */
  int64_t peers[MS_ARENAS]; /* the share of them that other ranks count */
  int64_t category_bytes[MS_CATEGORIES];
};
int ms_state_layout_make(const ms_model *model, const ms_plan_config *config, ms_state_layout *layout);
void ms_state_layout_free(ms_state_layout *layout);
/* The arena that holds a unit's slot. */
static inline int ms_state_arena(const ms_model *model, const ms_state_layout *layout, int unit, int slot) {
  return ms_slots[slot].arena(model, layout, unit);
}

/* The number of neighbouring replicas that are on one node and therefore share one copy of masters and optimizer
 * state, and the work of updating it: the largest divisor of the number of replicas for which every such block is on
 * one node. 1 where each replica has its own copy. */
int ms_replicas_together(const ms_model *model, const ms_plan_config *config, const ms_topology *topology);
/* As ms_state_layout.inner_shards: the largest divisor of the number of shards for which every such block of neighbours
 * is on one node, and there are several. */
int ms_shards_inside(const ms_model *model, const ms_topology *topology);
/* 1 when there are several shards and the ranks of each shard group can map memory together. */
int ms_shards_together(const ms_model *model, const ms_plan_config *config, const ms_topology *topology);
/* The number of ranks of this rank's replicate group that are on its node and can map memory together. */
int ms_replicas_here(const ms_model *model, const ms_plan_config *config, const ms_topology *topology);

#endif
