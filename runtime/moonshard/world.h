/* world.h - the ranks that train together, signals that they receive, and meshes of ranks.
 *
 * A part of moonshard.h, which explains the conventions. The Lua layer parses the text between the two ffi marks: it
 * contains no preprocessor directives, and no function returns a 64-bit value.
 */
#ifndef MOONSHARD_WORLD_H
#define MOONSHARD_WORLD_H

#include <moonshard/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ffi:begin */

/* ---- world: the ranks ------------------------------------------------------------------------------------------- */

typedef struct ms_world ms_world;

typedef struct ms_world_config {
  int struct_size; /* set by ms_config_default */
  int alone;       /* 1: a world of this rank only, whatever launched the process; default 0 */
  double timeout;  /* seconds after which waiting for another rank is an error, also while ranks join; 0 (default):
                      MOONSHARD_TIMEOUT, or 300 */
} ms_world_config;

/* Joins the world that the environment describes: as a rank of `moonshard run`, torchrun, mpirun, mpiexec or srun; as a
 * rank that was started by hand (RANK, WORLD_SIZE, and MASTER_ADDR with MASTER_PORT, or MOONSHARD_RENDEZVOUS); or as a
 * world of one rank. config NULL: the defaults. MS_ETIMEOUT names the ranks that did not arrive. MS_EMISMATCH: the
 * world refused this rank. MS_EINVAL: the variables of two launchers contradict each other, or those of a world of
 * several ranks contain no meeting point. Opens /dev/null as any of the standard descriptors 0 to 2 that is closed;
 * otherwise the shared memory of the ranks would get that number, and output of the program would overwrite it. */
MS_API int ms_world_join(const ms_world_config *config, ms_world **world);

enum { MS_ENTRY_BYTES = 200, MS_HOST_NAME = 64 };
/* Nodes are hosts: ranks of one node share memory. Nodes have numbers from 0 on, in the order of their lowest ranks.
 * The world owns the lists, which do not change. */
typedef struct ms_world_info {
  int rank, size;                        /* of this process, from 0; how many there are */
  int nodes;                             /* how many there are */
  int local_rank;                        /* the index of this rank among the ranks of its node */
  const int *node_of;                    /* [size] the node of each rank */
  const int *node_ranks;                 /* [nodes] how many ranks each has */
  const char (*node_name)[MS_HOST_NAME]; /* [nodes] host names */
  /* The bytes of collectives that this rank has sent to and received from other nodes until now, as its transport
   * counts them; 0 if it has none. They include, for each operation, a message of MS_ENTRY_BYTES to and from each rank
   * with which this one exchanges bytes. The counts of an operation that has just ended can be a moment late. */
  int64_t sent, received;
} ms_world_info;
MS_API int ms_world_describe(const ms_world *world, ms_world_info *info, int size);
/* Waits for every rank. Collective. */
MS_API int ms_world_barrier(ms_world *world);
/* Ends the work of this rank: waits until every rank has called it or left. A rank that does neither before the timeout
 * is named in the error. Collective. */
MS_API int ms_world_finish(ms_world *world);
/* Gathers `bytes` bytes from every rank, at most 4096 each: all is [world size][bytes]. Collective. */
MS_API int ms_world_all_gather_bytes(ms_world *world, const void *mine, int bytes, void *all);
/* Tells all ranks that this one gives up, and why. Their next wait fails with MS_EPEER. */
MS_API void ms_world_abort(ms_world *world, const char *why);
/* Records that a collective operation failed on this rank, in case the program catches the error and goes on. The first
 * such text is kept, and quoted if ranks disagree later. Phases are MS_EMISMATCH from then on unless it failed on all
 * their ranks: those it did not fail on are an operation ahead, or behind. why NULL: another rank's failure is the
 * cause. */
MS_API void ms_world_note_failure(ms_world *world, const char *why);
/* Makes a clean start after a failure. Waits until every rank has called it, whatever they were doing, and then
 * discards unfinished collectives, the effect of ms_world_abort, and the state of failed phases. States keep their
 * parameters; gradients start again with the next FIRST. If a rank waits in a collective for a rank that is in this
 * function, the waiting rank fails with MS_EMISMATCH. MS_EPEER: a rank has died; MS_ETIMEOUT: not all ranks arrived
 * before the timeout. Ignores Ctrl-C. Collective. */
MS_API int ms_world_recover(ms_world *world);
/* How ranks of different hosts move bytes. */
enum ms_transport_fact {
  MS_TRANSPORT_CHOSEN =
      0, /* what MOONSHARD_TRANSPORT, or auto, takes here, and why: "tcp: this host has no RDMA device" */
  MS_TRANSPORT_UCX = 1,  /* the version of UCX: "1.13.1" */
  MS_TRANSPORT_NAMES = 2 /* what MOONSHARD_TRANSPORT can be: "auto, tcp, ucx or mpi" */
};
/* Writes a fact about this host; text is [bytes]. Loads UCX if need be. Fails with MS_EINVAL if MOONSHARD_TRANSPORT
 * names no transport, and with MS_EUNSUPPORTED if UCX, or the transport, is not there; the message says what to do. */
MS_API int ms_transport_describe(int fact, char *text, int bytes);

/* Report to `moonshard ps`, and to errors of other ranks: how many steps are done and how fast they are, and what the
 * program does outside the engine ("data"; NULL when that ends). Ranks that meet in a barrier or an all-gather of bytes
 * must have set the same activity. Both only store a few words. */
MS_API void ms_world_set_progress(ms_world *world, int64_t step, double tokens_per_s);
MS_API void ms_world_set_activity(ms_world *world, const char *what);

/* ---- signals ---------------------------------------------------------------------------------------------------- */

/* Installs a handler for Ctrl-C (SIGINT), which sets a flag, and clears the flag. */
MS_API void ms_interrupt_install(void);
/* The flag. Compiled Lua loops poll it. */
MS_API int ms_interrupted(void);
/* Sets or clears the flag; can be called in a signal handler. */
MS_API void ms_interrupt_set(int on);
/* +1 begins and -1 ends a section that Ctrl-C does not interrupt: ms_interrupted() returns 0 in it, and another rank's
 * ms_world_abort ends a wait only if it is the rank that is waited for. Use it for collectives that all ranks or none
 * must complete, because ranks would differ otherwise. No rank completes them before all have entered. Nothing that can
 * fail on a single rank may come before the first of them. Keep the section short. */
MS_API void ms_interrupt_defer(int change);

/* From this call on, SIGTERM, which clusters send some time before SIGKILL, sets a flag instead of ending this process,
 * and `moonshard run` gives the ranks more time to end. A second SIGTERM, more than two seconds later, ends the
 * process. saves 0: only while another rank of this host has made the call with saves 1, for a rank that saves nothing
 * itself and should end together with those that do; otherwise SIGTERM still ends this process. */
MS_API void ms_world_catch_termination(ms_world *world, int saves);
/* 1 once this rank has received SIGTERM, or another rank of its host has seen its own. Ranks can see it at different
 * times, so they must agree before they act on it. */
MS_API int ms_world_terminating(ms_world *world);

/* ---- mesh ------------------------------------------------------------------------------------------------------- */

typedef struct ms_mesh ms_mesh;

/* A mesh over ranks of a world of `world` ranks, in row-major order. ranks is [n], all different, from 0 to world - 1;
 * NULL, with n 0: all ranks. sizes is [ndim]; one of them can be -1, and is computed. Their product must be the number
 * of ranks. names is [ndim], or NULL if ndim is 1. device: enum ms_device_kind. */
MS_API int ms_mesh_new(int device, int ndim, const int *sizes, const char *const *names, int world, int n,
                       const int *ranks, ms_mesh **mesh);
/* The mesh owns the names. */
typedef struct ms_mesh_info {
  int ndim;
  int size[MS_MAX_MESH_DIMS];         /* [ndim] */
  const char *name[MS_MAX_MESH_DIMS]; /* [ndim]; "" if the dimension has no name */
  int count;                          /* of its ranks, in a slice of those of one copy: the product of the sizes */
  int root_count;                     /* of the ranks of the mesh that it was sliced from; its own if it is no slice */
  int world;                          /* the size of the world that it was made for */
} ms_mesh_info;
MS_API int ms_mesh_describe(const ms_mesh *mesh, ms_mesh_info *info, int size);
/* The coordinates of a rank; coordinate is [ndim]. MS_EINVAL if the rank is not in the mesh. */
MS_API int ms_mesh_coordinate(const ms_mesh *mesh, int rank, int *coordinate);
/* Lists ranks. dim -1: those of the mesh, or of the copy of a slice that contains `rank`, row-major; ranks is [count].
 * A dimension: those that differ from `rank` at most in its coordinate, in order; ranks is [size of dim]. rank -1: all
 * groups of the dimension in all copies, one after another; ranks is [root_count]. */
MS_API int ms_mesh_ranks(const ms_mesh *mesh, int dim, int rank, int *ranks);
/* A slice has copies, one for each coordinate along the dimensions that it leaves out. Returns how many there are along
 * one of these, `name`; 1 if there is no such dimension. */
MS_API int ms_mesh_copies(const ms_mesh *mesh, const char *name);
/* The slice that has some of the dimensions, by name, in the mesh's order. Names from flatten and unflatten are
 * allowed. Each rank works with the copy that it is in. */
MS_API int ms_mesh_slice(const ms_mesh *mesh, int ndim, const char *const *names, ms_mesh **slice);
/* Joins all dimensions to one. MS_ENAME if the name already belongs to other dimensions, in this mesh or in one that it
 * was sliced from. */
MS_API int ms_mesh_flatten(ms_mesh *mesh, const char *name, ms_mesh **flat);
/* Replaces one dimension by n. sizes and names are [n]; one size can be -1, and is computed. MS_ENAME as for flatten.
 */
MS_API int ms_mesh_unflatten(ms_mesh *mesh, int dim, int n, const int *sizes, const char *const *names,
                             ms_mesh **unflat);
/* Checks that the groups of a dimension fit the nodes: if nodes have different numbers of ranks, each group must be on
 * one node, or be the whole mesh. node_of is [ranks of the world], values 0 to nodes - 1; names is [nodes], or NULL.
 * MS_EINVAL names the nodes and their numbers of ranks. */
MS_API int ms_mesh_check_nodes(const ms_mesh *mesh, int dim, int nodes, const int *node_of, const char *const *names);

/* ffi:end */

#ifdef __cplusplus
}
#endif
#endif
