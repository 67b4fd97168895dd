/* replica_slices.h - the slices of a unit's chunks that the replicas divide among themselves.
 *
 * Replicas that share one copy of the state (ms_state_layout.replicas of them) each sum the gradients of a slice of
 * every unit's trainable chunks and update it. The chunks of a *sliced* unit (ms_unit_config.shard_over_replicate) are
 * divided further, among all replicas: masters and optimizer state exist only for a rank's own slice, and the replicas
 * gather the weights of the other slices after an update.
 *
 *   trainable elements of the chunks   |     node slice 0      |     node slice 1      |    2 replicas share a copy,
 *   slices                             |   0   |   1   |   2   |   3   |   4   |   5   |    3 copies
 *
 * Rank i of copy j has slice 3i + j: within a copy the sums leave rank i with node slice i, which the ranks i of all
 * copies divide among them. All slices have the same size, so the last one can reach beyond the elements.
 */
#ifndef MS_PLAN_REPLICA_SLICES_H
#define MS_PLAN_REPLICA_SLICES_H

#include "shard/model.h"

/* In all of these, replicas is the number of replicas that share one copy of the state. */

/* The number of copies of the state, which is 1 where all replicas share one. */
int ms_replica_copies(const ms_model *model, int replicas);
/* 1 when a unit's masters and optimizer state exist only for this rank's slice. */
int ms_unit_is_sliced(const ms_model *model, const ms_unit *unit, int replicas);
/* The replicas that share one copy of a unit's state, of those that can: a unit that is whole has a copy on each rank.
 */
int ms_unit_sharers(const ms_model *model, const ms_unit *unit, int replicas);
/* 1 when that is so of a parameter: a trainable one of such a unit. */
int ms_param_is_sliced(const ms_model *model, const ms_param *p, int replicas);
/* The dtype in which the replicas gather a sliced unit: that of its trainable parameters, or MS_F32 if they differ, or
 * if the shards gather codes, which are made of f32 masters. */
int ms_unit_chunk_dtype(const ms_unit *unit);
/* 1 when a sliced unit keeps its chunks in such a dtype, and f32 masters of the slice alone. 0: the chunks are the
 * masters. */
int ms_unit_has_weights(const ms_model *model, const ms_unit *unit, int replicas);
/* The elements [*first, *first + n) of a unit's trainable chunks whose gradients this rank holds and which it
 * updates. Returns n: all of them, or a slice. */
int64_t ms_unit_slice(const ms_model *model, const ms_unit *unit, int replicas, int64_t *first);
/* The same of the rank at another place of the replicate dimension. */
int64_t ms_unit_slice_of(const ms_model *model, const ms_unit *unit, int replicas, int place, int64_t *first);
/* Elements reserved per rank for such a slice; the same on all ranks. */
int64_t ms_unit_slice_capacity(const ms_model *model, const ms_unit *unit, int replicas);
/* The same for the elements that the sums within a node leave on this rank: its slice, unless the unit is sliced. */
int64_t ms_unit_node_slice(const ms_model *model, const ms_unit *unit, int replicas, int64_t *first);
int64_t ms_unit_node_slice_capacity(const ms_model *model, const ms_unit *unit, int replicas);
/* The elements [*first, *first + n) of a flattened parameter that are in this rank's slice of its unit. Returns n;
 * *place: where they begin in the slice, in elements. */
int64_t ms_param_slice(const ms_model *model, const ms_param *p, int replicas, int64_t *first, int64_t *place);
/* Elements reserved for the trainable chunks where all slices must fit; those of frozen parameters follow. */
int64_t ms_unit_chunk_capacity(const ms_model *model, const ms_unit *unit, int replicas);

/* Where element `local` of a unit's chunks is kept as an f32 master: bytes from the start of the unit's masters, which
 * are in the gathered layout if `shared`. In a sliced unit with weights, only elements of the rank's slice have one. */
int64_t ms_master_offset(const ms_model *model, const ms_unit *unit, int replicas, int shared, int s, int64_t local);
/* 1 when segment s of a unit is kept in its wire dtype, besides f32 masters: in the chunks of a sliced unit with
 * weights, or as a copy (ms_segment.copy). These are the unit's weights, which kernels or gathers read. */
int ms_segment_has_weights(const ms_model *model, const ms_unit *unit, int replicas, int s);
/* Where, and in which dtype, they have that element: bytes from their start. */
int64_t ms_weights_offset(const ms_model *model, const ms_unit *unit, int replicas, int s, int64_t local, int *dtype);
/* Sizes in bytes of a unit's masters that are not `shared`, and of its weights (0: it has none). */
int64_t ms_unit_master_bytes(const ms_model *model, const ms_unit *unit, int replicas);
int64_t ms_unit_weights_bytes(const ms_model *model, const ms_unit *unit, int replicas);

#endif
