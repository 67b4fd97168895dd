/* state.h - everything that lives as long as training: the STATE arena, the transient arenas of phases, and the
 * communicators.
 *
 * The transient arenas belong to the state because its execs run one at a time and can share them. They grow when a
 * plan that needs more is bound. Their addresses then change, and so does `generation`, by which execs that were bound
 * before notice it.
 */
#ifndef MS_EXEC_STATE_H
#define MS_EXEC_STATE_H

#include "base/handle.h"
#include "comm/group/group.h"
#include "comm/regions/region.h"
#include "device/device.h"
#include "exec/state/progress.h"
#include "exec/state/resident.h"
#include "plan/plan.h"
#include "plan/layout/state_layout.h"

/* The gathers that the last UPDATE left in flight, all on one communicator (in_flight.c). */
typedef struct ms_in_flight {
  ms_comm *comm;
  int begun, ended, joined; /* joined: by FIRST, in the order in which they began */
  int ended_here;           /* the last join saw one end */
  unsigned epoch;           /* 1 + the world's epoch in which they began */
  unsigned whole; /* 1 + the epoch for which all ranks know that weights are whole, or arrive; 0: the state has
                   * no plan that leaves gathers in flight */
} ms_in_flight;

/* What an asynchronous device does for a state (exec/async). */
typedef struct ms_state_queue {
  /* Waits until everything that was enqueued has finished. */
  int (*drain)(const ms_state *state);
  /* Before an arena's memory is released. */
  void (*close_windows)(ms_state *state, int arena);
  /* The device's communicator of the ranks of a host's, `ranks` of them, `stride` places apart on the stream. */
  int (*open_group)(ms_state *state, int stream, int ranks, int stride, const ms_comm *of);
} ms_state_queue;

struct ms_state {
  ms_handle handle;
  ms_world *world;
  ms_group process_group; /* the ranks that train this model */
  ms_group *host;         /* those of them on this host: process_group, or ranks_here (host_memory.c) */
  ms_group ranks_here;    /* opened only if there are others */
  ms_group *replica;      /* those whose parameters this rank's belong to: process_group, or own_replica */
  ms_group own_replica;   /* opened only where local steps make replicas differ */
  ms_group *replica_here; /* those of `replica` on this host: host, own_replica, or part_here (host_memory.c) */
  ms_group part_here;     /* opened only if own_replica is on several hosts */
  /* The copies that the ranks of this host use, of gathered weights and masters [0], of state that replicas share [1],
   * and of sliced units' chunks [2]: how many, and the index of each rank's, [host->size]. */
  struct {
    int n, *block;
  } copies[3];
  const ms_model *model;
  ms_device *device; /* holds the arenas */
  int nccl;          /* enum ms_nccl_option */
  int sm_carveout;   /* of its config; its plans have the same */
  ms_state_layout layout;
  /* The whole mapping of each arena: [blocks * stride], or [stride] where it is private. */
  ms_region arena[MS_ARENAS];
  int blocks[MS_ARENAS]; /* blocks mapped together, noted when mapped as the model can be freed first; 0: private */
  int64_t arena_bytes[MS_ARENAS]; /* size of this rank's block, as plans requested it */
  int64_t stride[MS_ARENAS];      /* bytes from one block to the next */
  int generation;                 /* changes when an arena moves */
  int64_t mapped;                 /* counts the regions mapped */
  struct ms_state_group {
    int stream;
    ms_comm *comm;
  } * group; /* communicators of other groups than a whole dimension */
  int groups, group_capacity;
  ms_comm *comm[MS_NAMED_STREAMS]; /* one per stream; NULL for compute, and for a dimension of size 1 */
  struct ms_async *async;          /* streams etc. of an asynchronous device; NULL: the host computes */
  const ms_state_queue *queue;     /* what works with them; NULL like `async` */
  ms_step_progress progress;       /* how far it is in its step */
  ms_in_flight in_flight;
  ms_resident resident;
  int *grid; /* the model's ranks, replica by replica, each in the order of its shards: the order of collectives that
              * include replicas */
  struct ms_unfinished *
      *unfinished; /* [params], or NULL: quantised parameters whose writes are not finished (stored.c) */
  struct ms_open_moment *open_moments; /* [params][MS_MOMENTS], or NULL: moments written in part (moments.c) */
  void *view;                          /* ms_state_view's last copy; the state owns it */
  int64_t view_bytes;
};

/* ---- arenas.c ---- */

/* Maps an arena of `bytes` and then releases its old memory, so a failure leaves everything unchanged. Collective where
 * peers map it too. */
int ms_state_map_arena(ms_state *state, int arena, int64_t bytes);
void ms_state_free_arena(ms_state *state, int arena);
/* Grows every transient arena to at least bytes[arena] ([MS_ARENAS]); persistent arenas are left alone. Collective,
 * with the same sizes on all ranks. */
int ms_state_reserve(ms_state *state, const int64_t *bytes);
/* The bytes of its arenas that this rank counts. */
int64_t ms_state_arena_bytes(const ms_state *state);
/* By how many bytes a plan would enlarge them. */
int64_t ms_state_growth(const ms_state *state, const ms_plan *plan);

/* ---- in_flight.c ---- */

/* Starts a gather that stays in flight; *begun: 0 if there is no room yet, as earlier ones have not ended. */
int ms_state_begin_in_flight(ms_state *state, ms_comm *comm, const ms_coll *coll, int *begun);
/* *joined: the next one, in the order in which they began, has ended, or none is in flight. Never blocks. */
int ms_state_join(ms_state *state, int *joined);
/* Waits for all of them. Call it before anything writes parameters. */
int ms_state_settle(ms_state *state);
/* The same for another state of the world, if it has any in flight. */
int ms_state_settle_others(ms_state *state);
/* Before the memory that they use goes: waits for them, or gives them up if they fail. */
void ms_state_end_in_flight(ms_state *state);
/* Notes that a plan of this state leaves gathers in flight; all ranks do. */
void ms_state_gathers_in_flight(ms_state *state);

/* ---- arenas.c, again ---- */

/* *view: bytes of an arena that the host can read: the arena itself in host memory, else a copy that is valid until the
 * next view. */
int ms_state_view(ms_state *state, void *at, int64_t bytes, void **view);
/* Copy bytes from and to an arena, after all work in flight has finished. */
int ms_state_copy_out(const ms_state *state, void *host, const void *at, int64_t bytes);
int ms_state_copy_in(ms_state *state, void *at, const void *host, int64_t bytes);
/* First byte of this rank's block of an arena. */
char *ms_state_block(const ms_state *state, int arena);
/* First byte of the block of a world rank, as mapped in this process; of the arena where it is private; NULL for a rank
 * of another host. */
char *ms_state_peer_block(const ms_state *state, int arena, int rank);
/* ---- comms.c ---- */

/* The ranks that together hold this rank's copy of the state, replica by replica: [*n]. */
const int *ms_state_copy_holders(const ms_state *state, int *n);
/* *comm: the communicator of a collective on a stream, opened at its first use; the state owns it. Collective over the
 * ranks of the collective. */
int ms_state_open_comm(ms_state *state, const ms_plan *plan, const ms_plan_coll *coll, int stream, ms_comm **comm);
/* *comm: of the ranks that together hold this rank's copy of the state, or of a group of the state's; for host memory,
 * outside plans. Opened at first use; the state owns it. Collective over these ranks, at least 2. */
int ms_state_open_copy(ms_state *state, ms_comm **comm);
int ms_state_open_group(ms_state *state, const ms_group *group, ms_comm **comm);

#endif
