/* owners.h - which rank owns a matrix, which matrices are exchanged together, and where the exchanges have them.
 *
 * Some optimizers (Muon) need whole matrices, while every rank keeps chunks of them. So each matrix has an owner, a
 * rank of the grid of replicas, shards and tensor ranks, which receives what the others have made of their elements
 * (for Muon: directions), computes with all of it, and sends the others their parts of the result.
 *
 * A parameter can be a stack of matrices (experts, heads), of which an owner has neighbours: the stack is cut into as
 * many runs of whole matrices as there are ranks, or fewer. Where the ranks of tensor divide it, each of them must have
 * as much of every run, one part after the other: matrices that they divide along an axis before the rows, or of one
 * matrix along its rows, are one run.
 *
 * Matrices are exchanged by buckets: those of one unit, or of as many neighbouring units as it takes for every rank to
 * have work. Within a bucket the owners are those of the longest-processing-time rule: matrices in the order of falling
 * work, each to the rank with the least so far, in this bucket and those before it.
 *
 * A matrix travels over one dimension after the other: replicas send slices of a chunk, shards the chunks of the part
 * that their rank of the tensor dimension has, and those the parts. In each exchange a rank has two buffers of a piece
 * for every rank of the dimension: `sent` and `received`. A matrix has the same place in both, and on the way back,
 * where results take the places of what was received, the two change roles. All pieces of a bucket
 * have the size of the longest one, so that ranks agree on it.
 */
#ifndef MS_PLAN_OWNERS_H
#define MS_PLAN_OWNERS_H

#include "plan/plan.h"

/* Matrices of a parameter, one after the other, that have one owner. Elements are those of the part of the parameter
 * that a rank of the tensor dimension has. */
typedef struct ms_owned {
  int param, owner; /* owner: index in the grid */
  int64_t matrices;
  int64_t first, count; /* elements of the part */
  double flops;         /* of its owner */
} ms_owned;

/* A range of the elements of what has an owner, from its first; local: where they begin in the chunks of the unit. */
typedef struct ms_owned_range {
  int64_t first, count, local;
} ms_owned_range;

/* ---- owners (owners.c) ---- */

/* Finds the owners of all parameters that have a gradient and an optimizer with owners, and their buckets. */
int ms_find_owners(ms_plan *plan);
/* The length of ms_plan.owned. */
static inline int ms_owned_count(const ms_plan *plan) {
  return plan->owned_buckets ? plan->owned_bucket[plan->owned_buckets] : 0;
}
/* What its owner has: [rows,columns], or [matrices,rows,columns]. */
ms_value_info ms_owned_shape(const ms_plan *plan, const ms_owned *o);
/* An owner's place along a dimension of the grid. */
int ms_owner_place(const ms_plan *plan, const ms_owned *o, int dim);
/* What the rank at a place of the shard dimension has of it: of its chunk. */
ms_owned_range ms_owned_chunk(const ms_plan *plan, const ms_owned *o, int shard);
/* What the rank at a place of the replicate dimension updates of it: all, or its slice. */
ms_owned_range ms_owned_slice(const ms_plan *plan, const ms_owned *o, int replica, int shard);

/* ---- exchanges (owner_exchange.c) ---- */

/* A bucket's exchange over one dimension of the grid; without other ranks there is none. */
typedef struct ms_owner_exchange {
  int64_t piece;      /* elements */
  int sent, received; /* buffers of [ranks][piece] f32 */
} ms_owner_exchange;

typedef struct ms_owner_bucket {
  const ms_owned *owned;
  int n;
  ms_owner_exchange over[MS_GRID_DIMS];
} ms_owner_bucket;

/* Sets the sizes of the pieces. */
int ms_owner_measure(const ms_plan *plan, ms_owner_bucket *bucket);
/* What the rank at `of` in a dimension, and else where this one is, sends of a matrix: a slice, a chunk, a part. */
ms_owned_range ms_owner_sent(const ms_plan *plan, const ms_owned *o, int dim, int of);
/* Where that is in a buffer of the bucket's exchange over the dimension, in the piece exchanged with the rank at
 * `with`. */
ms_ref ms_owner_in_piece(const ms_plan *plan, const ms_owner_bucket *bucket, int dim, int buffer, const ms_owned *o,
                         int with, int of);

#endif
