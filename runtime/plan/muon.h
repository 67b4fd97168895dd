/* muon.h - who orthogonalises which matrix, and which elements each rank contributes.
 *
 * Muon needs whole matrices, while every rank keeps chunks of them. So each matrix has an owner, a rank of the grid of
 * replicas and shards, which receives the directions of all of it, orthogonalises them, and sends the others theirs.
 * The owners are those of the longest-processing-time rule: matrices in the order of falling work, each to the rank
 * with the least so far.
 */
#ifndef MS_PLAN_MUON_H
#define MS_PLAN_MUON_H

#include "plan/plan.h"

/* A range of elements of a flattened matrix; local: where they begin in the chunks of the unit. */
typedef struct ms_muon_range {
  int64_t first, count, local;
} ms_muon_range;

/* Finds the owners of all parameters that take Muon and have a gradient. */
int ms_muon_find_owners(ms_plan *plan);
static inline int ms_muon_is_taken(const ms_plan *plan, int param) {
  return plan->muon_owner && plan->muon_owner[param] >= 0;
}
int ms_muon_any(const ms_plan *plan);
/* An owner's places along the dimensions. */
static inline int ms_muon_replica(const ms_plan *plan, int param) {
  return plan->muon_owner[param] / ms_model_shards(plan->model);
}
static inline int ms_muon_shard(const ms_plan *plan, int param) {
  return plan->muon_owner[param] % ms_model_shards(plan->model);
}
/* What the rank at a place of the shard dimension has of a parameter: its chunk. */
ms_muon_range ms_muon_chunk(const ms_plan *plan, int param, int shard);
/* The part of that which the one at a place of the replicate dimension updates: all of it, or its slice. */
ms_muon_range ms_muon_slice(const ms_plan *plan, int param, int replica, int shard);

#endif
