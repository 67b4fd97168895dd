/* muon.h - who orthogonalises which matrix, which of them are exchanged together, and where the exchanges have them.
 *
 * Muon needs whole matrices, while every rank keeps chunks of them. So each matrix has an owner, a rank of the grid of
 * replicas, shards and tensor ranks, which receives the directions of all of it, orthogonalises them, and sends the
 * others theirs.
 *
 * Matrices are exchanged by buckets: those of one unit, or of as many neighbouring units as it takes for every rank to
 * have work. Within a bucket the owners are those of the longest-processing-time rule: matrices in the order of falling
 * work, each to the rank with the least so far, in this bucket and those before it.
 *
 * A matrix travels over one dimension after the other: replicas send slices of a chunk, shards the chunks of the part
 * that their rank of the tensor dimension has, and those the parts. In each exchange a rank has two buffers of a piece
 * for every rank of the dimension: `sent` and `received`. A matrix has the same place in both, and on the way back,
 * where results take the places of their directions in what was received, the two change roles. All pieces of a bucket
 * have the size of the longest one, so that ranks agree on it.
 */
#ifndef MS_PLAN_MUON_H
#define MS_PLAN_MUON_H

#include "plan/plan.h"

/* A range of elements of a flattened matrix, of the part of it that this rank of the tensor dimension has; local: where
 * they begin in the chunks of the unit. */
typedef struct ms_muon_range {
  int64_t first, count, local;
} ms_muon_range;

/* ---- owners (muon_owners.c) ---- */

/* Finds the owners of all parameters that take Muon and have a gradient, and their buckets. */
int ms_muon_find_owners(ms_plan *plan);
static inline int ms_muon_is_taken(const ms_plan *plan, int param) {
  return plan->muon_owner && plan->muon_owner[param] >= 0;
}
/* An owner's place along a dimension of the grid. */
int ms_muon_place(const ms_plan *plan, int param, int dim);
/* What the rank at a place of the shard dimension has of a parameter: its chunk. */
ms_muon_range ms_muon_chunk(const ms_plan *plan, int param, int shard);
/* The part of that which the one at a place of the replicate dimension updates: all of it, or its slice. */
ms_muon_range ms_muon_slice(const ms_plan *plan, int param, int replica, int shard);

/* ---- exchanges (muon_exchange.c) ---- */

/* A bucket's exchange over one dimension of the grid; without other ranks there is none. */
typedef struct ms_muon_exchange {
  int64_t piece;      /* elements */
  int sent, received; /* buffers of [ranks][piece] f32 */
} ms_muon_exchange;

typedef struct ms_muon_bucket {
  const int *param; /* its matrices */
  int params;
  ms_muon_exchange over[MS_GRID_DIMS];
} ms_muon_bucket;

/* Sets the sizes of the pieces. */
int ms_muon_measure(const ms_plan *plan, ms_muon_bucket *bucket);
/* What the rank at `of` in a dimension, and else where this one is, sends of a matrix: a slice, a chunk, a part. */
ms_muon_range ms_muon_sent(const ms_plan *plan, int param, int dim, int of);
/* Where that is in a buffer of the bucket's exchange over the dimension, in the piece exchanged with the rank at
 * `with`. */
ms_ref ms_muon_in_piece(const ms_plan *plan, const ms_muon_bucket *bucket, int dim, int buffer, int param, int with,
                        int of);

#endif
