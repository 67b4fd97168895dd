/* state.h - what lives as long as training does: the STATE arena, the arenas that phases use, and the communicators.
**
** The transient arenas belong to the state because the execs of a state run one at a time and so can share them. They
** grow when a plan that needs more is bound; then their addresses change, and `generation` tells execs that were
** bound before.
*/
#ifndef MS_EXEC_STATE_H
#define MS_EXEC_STATE_H

#include "base/handle.h"
#include "comm/group/group.h"
#include "comm/regions/region.h"
#include "device/device.h"
#include "plan/plan.h"

struct ms_state {
  ms_handle handle;
  ms_world *world;
  ms_group process_group; /* the ranks that train this model */
  const ms_model *model;
  ms_device *device; /* that has the arenas */
  int nccl;          /* enum ms_nccl_option */
  ms_state_layout layout;
  /* mapped whole: COMM and GROUPED [members * stride], GATHERED and MASTERS [replicate_size * stride]; where
  ** replicas keep one copy GATHERED and MASTERS [stride], REPLICATED [shard_size * stride] */
  ms_region arena[MS_ARENAS];
  int blocks[MS_ARENAS];          /* mapped together, as the arena was made: the model may be freed first; 0: private */
  int64_t arena_bytes[MS_ARENAS]; /* this rank's block: what plans asked for */
  int64_t stride[MS_ARENAS];      /* bytes from one rank's or group's block to the next */
  int generation;                 /* counts the times that arenas moved */
  int64_t mapped;                 /* regions made so far */
  struct {
    int stream, ranks;
    ms_comm *comm;
  } * group; /* communicators of smaller groups */
  int groups, group_capacity;
  ms_comm *comm[MS_STREAMS]; /* one channel a stream; NULL for compute, and where the dimension has size 1 */
  struct ms_async *async;    /* what it has on an asynchronous device; NULL: the host works itself */
  int norm_ran_last;         /* as the last phase: no peer reads the weights any more */
  int ema_swapped;           /* averages are in the masters' place: see ms_state_swap_ema */
  int replicas_must_meet; /* this rank has put its slice of them back alone: replicas meet before anything reads them */
  void *view;             /* what ms_state_view copied last */
  int64_t view_bytes;
  unsigned interrupted; /* a phase failed half-way in the world's epoch interrupted - 1; 0: none did */
};

/* arenas.c: memory for an arena, in place of what it has, which goes only when the new is there: a failure leaves
** everything as it was. Collective where peers map it too. */
int ms_state_map_arena(ms_state *state, int arena, int64_t bytes);
void ms_state_free_arena(ms_state *state, int arena);
/* Makes every arena at least as large as `bytes` [MS_ARENAS] asks; those that live as long as it are left alone.
** Collective, equal on all ranks. */
int ms_state_reserve(ms_state *state, const int64_t *bytes);
/* Notes that a phase failed half-way: some rank may still be inside a collective, until all have recovered. */
void ms_state_set_interrupted(ms_state *state);
int ms_state_interrupted(const ms_state *state);
/* Bytes of an arena as the host can read them: the arena itself where the host may follow its pointers, else a copy
** that lasts until the next view. */
int ms_state_view(ms_state *state, void *at, int64_t bytes, void **view);
/* So many bytes of the host, the state's own, until the next view. */
int ms_state_room(ms_state *state, int64_t bytes, void **room);
/* Bytes from or to an arena. */
int ms_state_copy_out(const ms_state *state, void *host, const void *at, int64_t bytes);
int ms_state_copy_in(ms_state *state, void *at, const void *host, int64_t bytes);
/* The model's ranks, replica by replica, each in the order of its shards, as collectives with replicas have them:
** [members]. Returns how many. */
int ms_state_grid(const ms_state *state, int *ranks);
/* First byte of this rank's block of an arena. */
char *ms_state_block(const ms_state *state, int arena);
/* First byte of the block of a world rank in an arena that has one for each, as mapped here. */
char *ms_state_peer_block(const ms_state *state, int arena, int rank);
/* The mesh dimension along which a stream's collectives run: enum ms_plan_dim. */
static inline int ms_stream_dim(int stream) { return stream == MS_STREAM_REPLICATE ? MS_DIM_REPLICATE : MS_DIM_SHARD; }
/* This rank's group along a dimension of the plan. */
typedef struct ms_dim_group {
  int mesh_dim;     /* as the mesh numbers its dimensions */
  int size, place;  /* ranks of the group, and this one's place among them */
  int number;       /* of this group among those along the dimension */
  const int *ranks; /* [size], the model's */
} ms_dim_group;
static inline ms_dim_group ms_model_group(const ms_model *m, int dim) {
  if (dim == MS_DIM_SHARD)
    return (ms_dim_group){m->shard_dim, m->shard_size, m->shard_rank, m->replicate_rank, m->shard_group};
  return (ms_dim_group){m->replicate_dim, m->replicate_size, m->replicate_rank, m->shard_rank, m->replicate_group};
}
/* The communicator of a stream among `ranks` neighbours of its dimension's group, or, if they are more than that
** has, among all replicas; opened by ms_state_open_group or ms_state_open_replicas, unless they are the whole group. */
ms_comm *ms_state_comm(const ms_state *state, int stream, int ranks);
/* Makes sure that ms_state_comm finds it. Collective over the group. */
int ms_state_open_replicas(ms_state *state, int stream);
int ms_state_open_group(ms_state *state, const ms_plan *plan, int stream, int ranks);

#endif
