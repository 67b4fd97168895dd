/* moonshard.h - the one public header of Moonshard.
 *
 * Moonshard trains models whose parameters, gradients and optimizer state are sharded over a mesh of devices.
 * The order of calls in a program:
 *
 *   ms_world_join        this process takes its place among the ranks (one rank when nothing launched it)
 *   ms_mesh_new          the ranks laid out in named dimensions, e.g. replicate=2 x shard=2
 *   ms_model_*           parameters (name, shape, initial law) and the units they are gathered in
 *   ms_model_shard       which bytes of which parameter this rank owns
 *   ms_graph_*           the computation, op by op, down to a scalar loss
 *   ms_plan_compile      the whole step as a static, verified list of instructions; needs no device
 *   ms_state_new         parameters, gradients and optimizer state of this rank, initialised
 *   ms_exec_new, ms_exec_run   run a phase of the plan: first, next, last, norm, update, evaluate
 *
 * Conventions: every function that can fail returns an int status (MS_OK is 0) and leaves a record that
 * ms_error_message() returns; outputs come last; names of parameters are dotted ("layers.3.attn.wq.weight"); shapes
 * are in elements, row-major, outermost dimension first; counts of elements and bytes are int64_t. Objects in memory
 * are made by ..._new and released by ..._free; files are opened and closed; a world is joined and left.
 *
 * A config struct is filled by ms_..._config_default(&config, sizeof config) before anything is set in it. Its first
 * field keeps that size, so a program works with a newer library: fields that it does not know have their defaults.
 * With an older library it works as long as it sets nothing that the library does not know, which is MS_EUNSUPPORTED.
 * A struct that was not filled is MS_EINVAL.
 *
 * Handles may be released in any order, and again. What works with another one keeps it (a plan its model), and what
 * works on one that was released can only be released too (an exec on its state; states, profiles and saves on their
 * world): any other call with it is MS_EINVAL. So is a call with NULL, with a handle that was released, or with one of
 * another kind; a function without a status leaves the record as well, and returns 0, or -1 where 0 is an answer, NULL
 * or "". NULL for a pointer that must lead somewhere, and a number out of range, are MS_EINVAL too: what may be NULL
 * is described with the function.
 *
 * Threads. A handle, and those that work with it, are used by one thread at a time; handles that have nothing to do
 * with each other by any threads at once. Errors are recorded per thread. Functions described as collective are called
 * by all ranks of the world, or of the model's mesh, in the same order; one thread of a rank at a time calls them.
 * They wait for peers, at most as long as ms_world_set_timeout says (MS_ETIMEOUT), and return early when a peer dies
 * or gives up (MS_EPEER) and after Ctrl-C (MS_EINTERRUPT) where the program has called ms_interrupt_install. The
 * deadline bounds waiting, not computing; functions that wait for a thread of their own (ms_token_reader_take) take a
 * deadline of their own. All others return without waiting for anybody, but for the disk. Kernels run on the calling
 * thread and on a team of the engine's own threads (ms_plan_config.threads); OpenMP's settings of the calling thread
 * (omp_set_num_threads) are after every call what they were before it. Signal handlers are installed by
 * ms_interrupt_install and ms_world_catch_termination alone.
 *
 * A whole program: it trains a small network, sharded over all ranks that a launcher starts (or one), and checks every
 * status.
 *
 *   #include <moonshard.h>
 *   #include <stdio.h>
 *   #include <string.h>
 *
 *   #define TRY(call) do { if ((call) != MS_OK) goto end; } while (0)
 *
 *   int main(void) {
 *     static const float x[4][3] = {{0, 0, 1}, {0, 1, 1}, {1, 0, 1}, {1, 1, 1}};
 *     static const int32_t y[4] = {0, 1, 1, 0};
 *     static const int64_t x_dims[2] = {4, 3}, y_dims[1] = {4}, w1_dims[2] = {16, 3}, w2_dims[2] = {2, 16};
 *     static const int all_ranks[1] = {-1};
 *     ms_world *world = NULL; ms_mesh *mesh = NULL; ms_model *model = NULL; ms_graph *graph = NULL;
 *     ms_plan *plan = NULL; ms_state *state = NULL; ms_exec *exec = NULL;
 *     ms_unit_config unit; ms_param_config param; ms_plan_config config; ms_attrs transposed;
 *     ms_step_inputs step = {0.03, 0, 1, 0, {0, 1}};
 *     ms_step_outputs result = {0, 0, 0};
 *     int u, w1, w2, a[2], b[2], loss[3];
 *     TRY(ms_world_join(&world));
 *     TRY(ms_mesh_new(MS_DEVICE_CPU, 1, all_ranks, NULL, ms_world_size(world), &mesh));
 *     TRY(ms_model_new(7, &model));
 *     ms_unit_config_default(&unit, sizeof unit);
 *     ms_param_config_default(&param, sizeof param);
 *     param.init_b = 0.7;
 *     TRY(ms_model_add_unit(model, "root", &unit, &u));
 *     TRY(ms_model_add_param(model, u, "fc1.weight", 2, w1_dims, &param, &w1));
 *     TRY(ms_model_add_param(model, u, "fc2.weight", 2, w2_dims, &param, &w2));
 *     TRY(ms_model_shard(model, mesh, ms_world_rank(world), -1, 0));
 *     TRY(ms_graph_new(model, &graph));
 *     TRY(ms_op_defaults("matmul", &transposed));
 *     transposed.i[1] = 1;
 *     TRY(ms_graph_input(graph, "x", MS_F32, 2, x_dims, &a[0]));
 *     TRY(ms_graph_param(graph, w1, &a[1]));
 *     TRY(ms_graph_op(graph, "matmul", 2, a, &transposed, &b[0]));
 *     TRY(ms_graph_op(graph, "tanh", 1, b, NULL, &a[0]));
 *     TRY(ms_graph_param(graph, w2, &a[1]));
 *     TRY(ms_graph_op(graph, "matmul", 2, a, &transposed, &b[0]));
 *     TRY(ms_graph_input(graph, "y", MS_I32, 1, y_dims, &b[1]));
 *     TRY(ms_graph_op(graph, "cross_entropy", 2, b, NULL, loss));
 *     TRY(ms_graph_set_loss(graph, loss[0]));
 *     ms_plan_config_default(&config, sizeof config);
 *     TRY(ms_plan_compile(graph, &config, &plan));
 *     TRY(ms_state_new(world, model, &config, &state));
 *     TRY(ms_exec_new(state, plan, &exec));
 *     memcpy(ms_exec_input(exec, "x"), x, sizeof x);
 *     memcpy(ms_exec_input(exec, "y"), y, sizeof y);
 *     for (step.step = 1; step.step <= 200; step.step++) {
 *       TRY(ms_exec_run(exec, MS_PHASE_FIRST, &step, NULL));
 *       TRY(ms_exec_run(exec, MS_PHASE_NORM, &step, &result));
 *       TRY(ms_exec_run(exec, MS_PHASE_UPDATE, &step, NULL));
 *     }
 *     if (ms_world_rank(world) == 0) printf("loss %.4f on %d ranks\n", result.loss, ms_world_size(world));
 *     TRY(ms_world_finish(world));
 *   end:
 *     if (ms_error_code()) fprintf(stderr, "%s: %s\n", ms_status_name(ms_error_code()), ms_error_message());
 *     ms_exec_free(exec), ms_state_free(state), ms_plan_free(plan), ms_graph_free(graph), ms_model_free(model);
 *     ms_mesh_free(mesh), ms_world_leave(world);
 *     return ms_error_code() != MS_OK || result.loss > 0.1;
 *   }
 *
 * What lies between the two ffi marks is what the Lua layer parses: no preprocessor, no 64-bit results.
 */
#ifndef MOONSHARD_H
#define MOONSHARD_H

#include <stdint.h>

#if defined(__GNUC__)
  #define MS_API __attribute__((visibility("default")))
#else
  #define MS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ffi:begin */

enum { MS_ABI_VERSION = 2, MS_MAX_DIMS = 6, MS_MAX_MESH_DIMS = 6, MS_MAX_INPUTS = 8, MS_MAX_OUTPUTS = 4 };
/* The most ranks that a job can have, and one host. */
enum { MS_MAX_RANKS = 4096, MS_MAX_LOCAL_RANKS = 64 };

/* ---- status and errors ------------------------------------------------------------------------------------------ */

enum ms_status {
  MS_OK = 0,
  MS_EINVAL = 1, /* an argument that makes no sense */
  MS_ESHAPE = 2, /* shapes that do not fit each other */
  MS_EDTYPE = 3, /* element types that do not fit */
  MS_ENAME = 4,  /* a name that is unknown, or taken */
  MS_ERULE = 5,  /* a rule: bad pattern, or matches nothing */
  MS_ENOMEM = 6,
  MS_EIO = 7,          /* a file or a system call */
  MS_EUNSUPPORTED = 8, /* understood, but not offered by this build or device */
  MS_EPEER = 9,        /* another rank died or gave up */
  MS_ETIMEOUT = 10,    /* a wait passed its deadline */
  MS_EMISMATCH = 11,   /* ranks disagree */
  MS_ENONFINITE = 12,  /* NaN or infinity in loss or gradient norm */
  MS_ERACE = 13,       /* the verifier refused a plan */
  MS_EINTERRUPT = 14,  /* Ctrl-C */
  MS_EINTERNAL = 15,
  MS_EDEVICE = 16 /* a GPU, its driver or a library of theirs */
};

/* Every thread has a record of the latest call of its own that failed: code, message and place, which always belong
 * together, and whose code is the status that the call returned. A call that succeeds leaves the record as it is, also
 * where it tried something that failed; only ms_error_clear empties it. So look at the status first, and at the record
 * only after a failure. The texts stay until the thread's next failure. */
MS_API int ms_error_code(void);
MS_API const char *ms_error_message(void); /* what, and what would be right; never NULL */
MS_API const char *ms_error_where(void);   /* "file.c:123" of the C source that raised it */
MS_API void ms_error_clear(void);
MS_API const char *ms_status_name(int status);
/* MS_ABI_VERSION of the library. It is raised when a program that was compiled with an older header would go wrong: a
 * function or a field goes, moves or changes its meaning, or a struct that the library fills (ms_plan_summary) grows.
 * New functions, new enumerators and new fields at the end of a config struct do not raise it. libmoonshard.so.N is of
 * version N, so the loader keeps versions apart; what loads the library by itself compares. */
MS_API int ms_abi_version(void);
MS_API const char *ms_version(void);

/* ---- element types ---------------------------------------------------------------------------------------------- */

enum ms_dtype { MS_F32 = 0, MS_BF16 = 1, MS_I32 = 2, MS_U8 = 3, MS_DTYPES = 4 };

/* What there is to know of an element type. */
typedef struct ms_dtype_info {
  const char *name, *long_name; /* "bf16", and as PyTorch names it: "bfloat16" */
  const char *c_type;           /* of an element in memory: a bf16 is the upper half of an f32, in a uint16_t */
  int size;                     /* bytes of one element */
  int is_float;                 /* 0: whole numbers */
  double lowest, largest;       /* finite */
} ms_dtype_info;

MS_API int ms_dtype_describe(int dtype, ms_dtype_info *info); /* MS_EDTYPE when there is no such type */
MS_API const char *ms_dtype_name(int dtype);                  /* "f32", "bf16", "i32", "u8" */
MS_API int ms_dtype_size(int dtype);                          /* bytes of one element; 0 when there is no such type */
MS_API int ms_dtype_parse(const char *name, int *dtype);

/* ---- the op table ----------------------------------------------------------------------------------------------- */

/* Attributes of a node. What each slot means is told by the op's row: `attrs` = "name:slot=default ...",
 * where slot is i0..i7 (integers, flags, axes) or f0..f3 (reals). */
typedef struct ms_attrs {
  int64_t i[8];
  double f[4];
} ms_attrs;

typedef struct ms_op_info {
  const char *name;
  const char *attrs; /* e.g. "trans_a:i0=0 trans_b:i1=0" */
  const char *doc;   /* formula and shapes, one line */
  int min_inputs, max_inputs, outputs;
  int differentiable; /* 1: has a gradient */
  int internal;       /* 1: made by autodiff or rewrites, not meant for recipes */
} ms_op_info;

MS_API int ms_op_count(void);
MS_API int ms_op_describe(int op, ms_op_info *info);
MS_API int ms_op_find(const char *name); /* index, or -1 */

/* ---- devices ---------------------------------------------------------------------------------------------------- */

/* Where kernels run and tensors live. CUDA needs libmoonshard_cuda.so beside the engine, which is loaded when it is
 * first asked for; a process takes the GPU of its place among the ranks of its host. Without it what asks for CUDA is
 * MS_EUNSUPPORTED. */
enum ms_device_kind { MS_DEVICE_CPU = 0, MS_DEVICE_CUDA = 1 };

/* How NCCL moves bytes between GPUs that reach each other's memory. Both have what is communicated in NCCL's own
 * memory, registered with each communicator (windows, NCCL 2.27 or later), which spares copies of small messages.
 * COPY_ENGINES, which includes that, lets all-gathers be done by copy engines instead of multiprocessors (2.28 or
 * later). */
enum ms_nccl_option { MS_NCCL_WINDOWS = 1, MS_NCCL_COPY_ENGINES = 2 };

typedef struct ms_device_info {
  char name[256];
  int major, minor; /* compute capability */
  int processors;   /* streaming multiprocessors */
  int64_t memory_bytes;
  int peer[64]; /* 1: it reads the memory of that GPU directly */
} ms_device_info;

/* GPUs that this process may use. */
MS_API int ms_device_count(int device, int *count);
MS_API int ms_device_describe(int device, int index, ms_device_info *info);
/* A library of a device; the last two: NCCL where it has them (enum ms_nccl_option). */
enum ms_gpu_library {
  MS_LIBRARY_DRIVER = 0,
  MS_LIBRARY_RUNTIME = 1,
  MS_LIBRARY_CUBLASLT = 2,
  MS_LIBRARY_CUDNN = 3,
  MS_LIBRARY_NCCL = 4,
  MS_LIBRARY_NCCL_WINDOWS = 5,
  MS_LIBRARY_NCCL_COPY_ENGINES = 6,
  MS_LIBRARIES = 7
};
/* Its version as text; "" where it is not found. version is [bytes]. */
MS_API int ms_device_library(int device, int library, char *version, int bytes);

/* The next thing that a user should be told once: that something works, but not as well as it could (a library that a
 * device's kernels would be faster with is not found). NULL: nothing. Binding a plan may add some. The text stays. */
MS_API const char *ms_note_next(void);

/* ---- world: the ranks ------------------------------------------------------------------------------------------- */

typedef struct ms_world ms_world;

/* Joins the world that the environment describes: a rank of `moonshard run`, torchrun, mpirun, mpiexec or srun, one
 * that was started by hand (RANK, WORLD_SIZE and MASTER_ADDR, MASTER_PORT or MOONSHARD_RENDEZVOUS), or a world of one.
 * Fails with MS_ETIMEOUT naming the ranks that have not come, MS_EMISMATCH when this rank is refused, MS_EINVAL when
 * launchers contradict each other or nothing says where to meet. Standard descriptors (0 to 2) that are closed become
 * /dev/null, or what a program prints would go into the ranks' shared memory. */
MS_API int ms_world_join(ms_world **world);
/* A world of one, whatever launched this process: for work in which no other rank takes part. */
MS_API int ms_world_join_alone(ms_world **world);
/* Leaves without communicating. Safe to call twice and on NULL. What works on the world can only be
 * released after it. */
MS_API void ms_world_leave(ms_world *world);
MS_API int ms_world_rank(const ms_world *world);
MS_API int ms_world_size(const ms_world *world);
/* Nodes are hosts: ranks of one node share memory. 0 .. ms_world_nodes - 1, in the order of their lowest ranks. A
 * node's name is its host's, "" when there is no such node. */
MS_API int ms_world_nodes(const ms_world *world);
MS_API int ms_world_node_ranks(const ms_world *world,
                               int node);                     /* how many ranks it has; 0 when there is no such node */
MS_API int ms_world_node_of(const ms_world *world, int rank); /* the node of a rank; -1 when there is no such rank */
MS_API const char *ms_world_node_name(const ms_world *world, int node);
MS_API int ms_world_local_rank(const ms_world *world); /* this rank's place among the ranks of its node */
/* Waits for every rank; collective. */
MS_API int ms_world_barrier(ms_world *world);
/* The program of this rank is through: waits until every rank's is, or has left. A rank that never gets
 * there is named. */
MS_API int ms_world_finish(ms_world *world);
/* Every rank's `bytes` bytes to every rank: all is [world][bytes]; at most 4096 bytes a rank; collective. */
MS_API int ms_world_all_gather_bytes(ms_world *world, const void *mine, int bytes, void *all);
/* Tells the others that this rank gives up, and why. They fail with MS_EPEER at their next wait. */
MS_API void ms_world_abort(ms_world *world, const char *why);
/* Something that the ranks do together failed on this rank, whose program may catch that and go on. The first such text
 * is kept, and quoted when ranks disagree later. */
MS_API void ms_world_note_failure(ms_world *world, const char *why);
/* A clean start after a failure: waits until every rank has called it, whatever they were doing, and then forgets what
 * was under way: collectives left half-way, ms_world_abort, phases that failed. States keep their parameters; gradients
 * are those of the next FIRST. A rank that waits in a collective for one that is here fails with MS_EMISMATCH. Fails
 * with MS_EPEER when a rank has died, MS_ETIMEOUT after the deadline; ignores Ctrl-C. Collective. */
MS_API int ms_world_recover(ms_world *world);
/* Seconds until a wait for a peer is an error (default 300, or MOONSHARD_TIMEOUT). */
MS_API void ms_world_set_timeout(ms_world *world, double seconds);

/* For reports and `moonshard ps`: the steps done so far and their speed; and what the program does while it is outside
 * of the engine ("data"), NULL when that ends: ranks that meet in a barrier or an all-gather of bytes must say the same
 * of it then, or ** nothing. Both store a few words and cannot fail. */
MS_API void ms_world_set_progress(ms_world *world, int64_t step, double tokens_per_s);
MS_API void ms_world_set_activity(ms_world *world, const char *what);

/* Ctrl-C: installs a handler; the flag is 1 once SIGINT came. Compiled Lua loops poll it. Installing
 * again clears it. */
MS_API void ms_interrupt_install(void);
MS_API int ms_interrupted(void);
/* Sets or clears the flag; may be called in a handler of your own. */
MS_API void ms_interrupt_set(int on);
/* +1 begins and -1 ends a stretch in which ms_interrupted() tells 0, and in which a rank's ms_world_abort fails a wait
 * only if it is waited for: for collectives that all ranks must complete, or none, because what they change would
 * differ between ranks otherwise. No rank completes them unless all have begun; the first must not come after anything
 * that one rank alone can fail at. Keep it short. */
MS_API void ms_interrupt_defer(int change);

/* SIGTERM, which clusters send some time before they kill: from here on it does not end this process but sets a flag,
 * and a launcher of ours waits longer for this run's ranks to end. A second one, more than two seconds later, ends the
 * process. */
MS_API void ms_world_catch_termination(ms_world *world);
/* The same for a rank that saves nothing itself, as soon as another one of its host saves: it should end with the
 * others. While none does, SIGTERM ends it as ever. */
MS_API void ms_world_heed_termination(ms_world *world);
/* 1 once SIGTERM came to this rank, or another rank of its host has seen that it came there. Ranks may see it at
 * different times: what they do about it they must agree on. */
MS_API int ms_world_terminating(ms_world *world);

/* ---- mesh ------------------------------------------------------------------------------------------------------- */

typedef struct ms_mesh ms_mesh;

/* A mesh of `world` ranks in row-major order. One size may be -1 and is inferred. names may be NULL when ndim is 1.
 * device: enum ms_device_kind. The product of the sizes must equal world. */
MS_API int ms_mesh_new(int device, int ndim, const int *sizes, const char *const *names, int world, ms_mesh **mesh);
/* The same over ranks chosen by hand: ranks is [n], row-major, each from 0 to world - 1 and there once. Other ranks of
 * the world have no place in it. */
MS_API int ms_mesh_new_from_ranks(int device, int ndim, const int *sizes, const char *const *names, int n,
                                  const int *ranks, int world, ms_mesh **mesh);
MS_API void ms_mesh_free(ms_mesh *mesh);
MS_API int ms_mesh_ndim(const ms_mesh *mesh);
MS_API int ms_mesh_world(const ms_mesh *mesh);
MS_API int ms_mesh_size(const ms_mesh *mesh, int dim);
MS_API int ms_mesh_count(const ms_mesh *mesh);                 /* product of the sizes */
MS_API const char *ms_mesh_name(const ms_mesh *mesh, int dim); /* "" when the dimension has no name */
MS_API int ms_mesh_dim(const ms_mesh *mesh, const char *name, int *dim);
MS_API int ms_mesh_contains(const ms_mesh *mesh, int rank); /* 1: the rank has a place in the mesh */
/* Coordinate of a rank: coordinate is [ndim]. */
MS_API int ms_mesh_coordinate(const ms_mesh *mesh, int rank, int *coordinate);
/* The ranks that share all coordinates of `rank` but the one of dim; ranks is [size(dim)], in order. */
MS_API int ms_mesh_group(const ms_mesh *mesh, int dim, int rank, int *ranks);
/* Ranks of the mesh that this one was sliced from, itself if it was not: of all copies of a slice together. */
MS_API int ms_mesh_root_size(const ms_mesh *mesh);
/* Copies of a slice along a dimension that it was sliced out of: how many of them stand along the dimension `name` of
 * the mesh it comes from, which does not run within it. 1 when there is no such dimension. */
MS_API int ms_mesh_copies(const ms_mesh *mesh, const char *name);
/* Every group of a dimension in all copies, one after another; ranks is [root_size]. */
MS_API int ms_mesh_all_groups(const ms_mesh *mesh, int dim, int *ranks);
/* The ranks of the (sub)mesh that holds `rank`, row-major; ranks is [count]. */
MS_API int ms_mesh_ranks(const ms_mesh *mesh, int rank, int *ranks);
/* The submesh of some dimensions, by name, in the mesh's order. Names given by flatten and unflatten count. To every
 * rank it is the submesh that the rank is in. */
MS_API int ms_mesh_slice(const ms_mesh *mesh, int ndim, const char *const *names, ms_mesh **slice);
/* All dimensions as one. MS_ENAME when the name stands for other dimensions already, here or in a mesh that this one
 * was sliced from. */
MS_API int ms_mesh_flatten(ms_mesh *mesh, const char *name, ms_mesh **flat);
/* One dimension as n, in its place. One size may be -1 and is inferred. Names as for flatten. */
MS_API int ms_mesh_unflatten(ms_mesh *mesh, int dim, int n, const int *sizes, const char *const *names,
                             ms_mesh **unflat);
/* Whether the groups of a dimension fit hosts ("nodes"): where nodes have different numbers of ranks, a group must lie
 * inside one node or be the whole mesh. node_of is [ranks of the world], 0 to nodes - 1; names is [nodes], or NULL.
 * MS_EINVAL names the nodes and their numbers of ranks. */
MS_API int ms_mesh_check_nodes(const ms_mesh *mesh, int dim, int nodes, const int *node_of, const char *const *names);

/* ---- rules ------------------------------------------------------------------------------------------------------ */

typedef struct ms_rules ms_rules;

/* An ordered list of patterns over names; the first that matches decides. policy: its name in errors. */
MS_API int ms_rules_new(const char *policy, ms_rules **rules);
MS_API void ms_rules_free(ms_rules *rules);
/* is_regex 1: a PCRE2 pattern that searches (anchor with ^ and $); 0: an exact name or a dotted prefix of one.
 * where: "recipe.lua:12", shown in errors. optional 1: matching nothing is no error. */
MS_API int ms_rules_add(ms_rules *rules, const char *pattern, int is_regex, int optional, const char *where);
/* Decides every name: decided is [n], the index of the rule that wins, or -1. Fails with MS_ERULE when a rule that
 * is not optional matches no name at all. Rules that match but never win are told by ms_rules_warning. */
MS_API int ms_rules_resolve(ms_rules *rules, int n, const char *const *names, int *decided);
/* The i-th warning of the last resolve (a shadowed rule), or NULL. */
MS_API const char *ms_rules_warning(const ms_rules *rules, int i);

/* ---- model: parameters and units -------------------------------------------------------------------------------- */

typedef struct ms_model ms_model;

enum ms_init { MS_INIT_ZEROS = 0, MS_INIT_ONES = 1, MS_INIT_NORMAL = 2, MS_INIT_UNIFORM = 3, MS_INIT_CONSTANT = 4 };
enum ms_layout { MS_LAYOUT_ROWS = 0, MS_LAYOUT_RAGGED = 1 };
/* DEFAULT: ALWAYS, but KEEP for the root unit (ms_unit_config.root) and the one that runs last in forward, which would
 * be gathered again at once; KEEP for all in a stage of a pipeline (ms_plan_config.pipeline_stage), where every
 * micro-batch would gather again. */
enum ms_reshard { MS_RESHARD_KEEP = 0, MS_RESHARD_ALWAYS = 1, MS_RESHARD_DEFAULT = 2 };

typedef struct ms_param_config {
  int struct_size;       /* ms_param_config_default sets it */
  int init;              /* enum ms_init */
  double init_a, init_b; /* normal: mean, deviation; uniform: low, high; constant: value */
  int frozen;            /* 1: no gradient, no optimizer state */
  int param_dtype;       /* what kernels read it in: MS_F32, MS_BF16, or -1: its unit's param_dtype */
  double lr_scale;       /* multiplies the learning rate; 1 */
  double weight_decay;   /* decoupled for AdamW, added to the gradient for SGD (as PyTorch does); 0 */
} ms_param_config;

typedef struct ms_unit_config {
  int struct_size;  /* ms_unit_config_default sets it */
  int param_dtype;  /* what kernels read: MS_F32 or MS_BF16. Master weights are always f32. */
  int reduce_dtype; /* what gradients are summed over ranks in */
  int layout;       /* enum ms_layout */
  int reshard;      /* enum ms_reshard: free the gathered weights after forward? */
  /* With MS_RESHARD_ALWAYS: keep a shard of 1/reshard_size from forward to backward, and gather for backward in groups
   * of so many neighbours of the shard group. A divisor of its size; 0 or the size itself: the whole group. */
  int reshard_size;
  int root; /* 1: the model's root unit, of the parameters that no other unit has; 0 (default) */
} ms_unit_config;

MS_API int ms_model_new(uint64_t seed, ms_model **model);
MS_API void ms_model_free(ms_model *model);
/* Fills the documented defaults: f32, f32, rows, default, 0 / normal(0, 0.02), trainable, the unit's dtype, 1, 0. */
MS_API void ms_unit_config_default(ms_unit_config *config, int size);
MS_API void ms_param_config_default(ms_param_config *config, int size);
/* A unit is gathered as one. Returns its index, 0 first. Every parameter belongs to exactly one unit. */
MS_API int ms_model_add_unit(ms_model *model, const char *name, const ms_unit_config *config, int *unit);
MS_API int ms_model_add_param(ms_model *model, int unit, const char *name, int ndim, const int64_t *dims,
                              const ms_param_config *config, int *param);
MS_API int ms_model_params(const ms_model *model);
MS_API int ms_model_units(const ms_model *model);
/* Elements [first, first + count) of a parameter, flattened, that this rank owns; after ms_model_shard. */
MS_API int ms_model_owned(const ms_model *model, int param, int64_t *first, int64_t *count);
/* Fixes what rank `rank` of the mesh owns. shard_dim and replicate_dim: dimensions of the mesh, or -1 for none; every
 * other dimension must have size 1. Of a slice, the ranks of each copy train apart from the other copies: collectives,
 * comparison and means are among the ranks of ms_mesh_ranks alone. Needs no device and no other rank. */
MS_API int ms_model_shard(ms_model *model, const ms_mesh *mesh, int rank, int replicate_dim, int shard_dim);
/* Other rules for plans compiled from now on, over the same state; plans made before keep theirs. reshard and
 * reshard_size are [units], as in ms_unit_config; reshard_size NULL: zeros. lr_scale and weight_decay are [params]; the
 * parameters of a `ragged` segment must agree on both, or it is MS_EUNSUPPORTED. On an error nothing has changed. */
MS_API int ms_model_set_reshard(ms_model *model, const int *reshard, const int *reshard_size);
/* How many units are gathered ahead while `unit` is the latest that has started: -1, as ms_plan_config says, or 0, 1,
 * ...; or which units, in order (n >= 0), in forward (backward 0) or backward (1); n -1: by number again. A unit that
 * nobody gathers ahead is gathered when it is needed. */
MS_API int ms_model_set_prefetch(ms_model *model, int unit, int depth);
MS_API int ms_model_set_prefetch_order(ms_model *model, int unit, int backward, int n, const int *units);
MS_API int ms_model_set_groups(ms_model *model, const double *lr_scale, const double *weight_decay);
/* Elements [first, first + count) of a parameter of that name as its law (enum ms_init, a, b) draws them; out is
 * [count]. A function of its arguments alone, so any part of a tensor can be drawn anywhere (Philox4x32-10). */
MS_API int ms_initial_values(uint64_t seed, const char *name, int init, double a, double b, int64_t first,
                             int64_t count, float *out);

/* ---- graph ------------------------------------------------------------------------------------------------------ */

typedef struct ms_graph ms_graph;

typedef struct ms_value_info {
  int dtype, ndim;
  int64_t dims[6];
} ms_value_info;

/* A graph over the parameters of a model. Values are ints >= 0. */
MS_API int ms_graph_new(const ms_model *model, ms_graph **graph);
MS_API void ms_graph_free(ms_graph *graph);
/* Module path given to the nodes made from here on ("layers.3.attn"); "" for none. */
MS_API int ms_graph_set_scope(ms_graph *graph, const char *path);
/* Activation checkpointing. Nodes made from here on belong to recompute region `region` (0: to none, what they make is
 * kept for backward). Of what a region makes, only what leaves it is kept; backward makes the rest again. ops: the
 * names, with spaces between, of the ops that are made again while all others are kept; NULL: every op. */
MS_API int ms_graph_set_recompute(ms_graph *graph, int region, const char *ops);
/* What a step reads from outside, bound by name at run time (tokens, targets, ...). */
MS_API int ms_graph_input(ms_graph *graph, const char *name, int dtype, int ndim, const int64_t *dims, int *value);
/* How many rows of the batch an input has along its first axis, each of size / rows indices: sizes[0] unless told; 0:
 * it is the same for all rows and ranks. What comes of an input has its rows as far as ops keep them apart, and dropout
 * draws by them: the same for a row of the global batch wherever it is computed. What has no rows has one mask
 * everywhere. */
MS_API int ms_graph_set_input_rows(ms_graph *graph, int value, int64_t rows);
/* The unsharded parameter in its unit's param_dtype. The same parameter gives the same value. */
MS_API int ms_graph_param(ms_graph *graph, int param, int *value);
/* A node of the op table; outputs is [ms_op_info.outputs]. attrs NULL: the row's defaults. */
MS_API int ms_graph_op(ms_graph *graph, const char *op, int n_inputs, const int *inputs, const ms_attrs *attrs,
                       int *outputs);
/* The row's default attributes. */
MS_API int ms_op_defaults(const char *op, ms_attrs *attrs);
MS_API int ms_graph_describe(const ms_graph *graph, int value, ms_value_info *info);
/* The scalar f32 value to differentiate. Without one, the plan has only the evaluate phase. */
MS_API int ms_graph_set_loss(ms_graph *graph, int value);
/* Names what the loss counts among those of all ranks and micro-batches: an f32 scalar, not negative, which gradients
 * do not go through. The step's loss, and that whose gradient it takes, is then sum(weight loss) / sum(weight), and 0
 * where all weights are. Without one each counts the same. */
MS_API int ms_graph_set_loss_weight(ms_graph *graph, int value);
/* A value to keep readable after a phase, by name. */
MS_API int ms_graph_output(ms_graph *graph, const char *name, int value);

/* ---- plan ------------------------------------------------------------------------------------------------------- */

typedef struct ms_plan ms_plan;

enum ms_phase {
  MS_PHASE_FIRST = 0,    /* forward and backward of the first micro-batch: gradients are written */
  MS_PHASE_NEXT = 1,     /* of every further micro-batch: gradients are added */
  MS_PHASE_LAST = 2,     /* instead of NEXT for the last one, in a plan whose gradients wait for it: see ms_sync */
  MS_PHASE_NORM = 3,     /* loss and gradient norm over the mesh */
  MS_PHASE_UPDATE = 4,   /* clip and optimizer */
  MS_PHASE_EVALUATE = 5, /* forward only */
  MS_PHASES = 6
};

/* When gradients are summed over ranks. What waits is kept, and later summed, in f32. */
enum ms_sync {
  MS_SYNC_EVERY = 0, /* in every micro-batch: least memory */
  MS_SYNC_SHARD = 1, /* over the shards in every micro-batch, over the replicas in the last */
  MS_SYNC_LAST = 2   /* in the last micro-batch alone: unsharded gradients are kept till then */
};

enum ms_category {
  MS_CAT_PARAMETERS = 0,
  MS_CAT_OPTIMIZER = 1,
  MS_CAT_GRADIENTS = 2,
  MS_CAT_GATHERED = 3,
  MS_CAT_ACTIVATIONS = 4,
  MS_CAT_WORKSPACE = 5,
  MS_CAT_COMMUNICATION = 6,
  MS_CATEGORIES = 7
};

enum ms_optimizer_kind { MS_OPT_NONE = 0, MS_OPT_SGD = 1, MS_OPT_ADAMW = 2 };

typedef struct ms_plan_config {
  int struct_size;          /* ms_plan_config_default sets it */
  int optimizer;            /* enum ms_optimizer_kind */
  double beta1, beta2, eps; /* AdamW (Loshchilov & Hutter 2019): 0.9, 0.999, 1e-8 */
  /* What AdamW keeps its two moments in: MS_F32 (default), or MS_BF16, half of their bytes. Every step computes in f32
   * and then rounds them up or down at random, so that the mean of what is kept is what was computed: to nearest,
   * changes below half a step of bf16 (1/512 of a moment; beta2 = 0.999 makes such) would be lost for ever. Which way
   * is a function of the model's seed, the parameter's name, the element and how many updates the parameter has had, so
   * it is the same on every mesh and device. */
  int moment_dtype;
  double momentum, dampening; /* SGD as in PyTorch */
  int nesterov;
  /* An exponential moving average of the weights, kept in f32 beside the optimizer's state: a = p in step 1, then
   * a += (1 - d) (p - a) after every update, d = ema_decay. As torch.optim.swa_utils.AveragedModel with
   * get_ema_multi_avg_fn. 0 (default): none. With ema_warmup d = min(ema_decay, (1 + step) / (10 + step)), as
   * TensorFlow's ExponentialMovingAverage has it. */
  double ema_decay;
  int ema_warmup;
  double max_norm; /* clip by global norm; 0: no clipping (the norm is still computed) */
  int prefetch;    /* units gathered ahead: 0, 1 (default), 2, ... */
  int accumulate;  /* 1: compile the NEXT phase too */
  int sync;        /* enum ms_sync; other than EVERY, a step is FIRST, NEXT ..., LAST, at least FIRST and LAST */
  /* 1 (default): a unit's gathered weights are freed after its backward. 0: they stay from one micro-batch to the next,
   * and so from forward to backward too: NEXT and LAST gather nothing. */
  int reshard_after_backward;
  int pipeline_stage; /* 1: the model is one stage of a pipeline; 0 (default). See enum ms_reshard */
  int train;          /* 0: evaluate only */
  int fuse;           /* 1 (default): graph rewrites on */
  /* Threads per rank that kernels are prepared for. 0: OMP_NUM_THREADS, else an equal share of the host's cores. */
  int threads;
  /* 1 (default): on the CPU, ranks of a host share what they would otherwise copy. The f32 masters of a unit that is
   * read in f32 lie in memory that all its shard group's ranks map, and kernels read them there: its all-gathers move
   * nothing, and it needs no gathered copy. Replicas keep one copy of masters and optimizer state, and with more than
   * one shard of gathered weights; each counts, and updates, an equal part. Ranks on different nodes share nothing
   * (node_of). 0: units are gathered all alike, and every replica has its own. */
  int shared_masters;
  /* The topology: on which of `nodes` nodes each rank of the world is, [world], read while a call runs. Nodes may have
   * different numbers of ranks, in any order. 0 and NULL (default): all ranks are on one node, which takes up to 64. It
   * decides which ranks can map memory together, nothing else. Replicas of which some are on one node keep a copy
   * there, and sum gradients first within nodes, then between them: such a plan states what the ranks would need and
   * send; ms_state_new refuses it (MS_EUNSUPPORTED) in this version. */
  int nodes;
  const int *node_of;
  int device; /* enum ms_device_kind; of a state and of the plans that are bound to it */
  int nccl; /* of a state on cuda: 0 (default), or enum ms_nccl_option or-ed; MS_EUNSUPPORTED if the NCCL that is found
               has not got it */
} ms_plan_config;

typedef struct ms_plan_summary {
  int instructions;
  int collectives[6]; /* by phase */
  int64_t bytes[7];   /* the peak's bytes by category: what the arenas hold for each, once */
  /* The most bytes of each category in use at once. Each has an instruction of its own where that is, and buffers of
   * one category lie where another leaves room, so these add up to more than the peak. */
  int64_t fullest[7];
  int64_t peak_bytes; /* total of all arenas */
  uint64_t fingerprint;
  double flops;         /* of one micro-batch, forward and backward, recomputation not counted */
  double comm_bytes[6]; /* by mesh dimension: sent and received by this rank in FIRST + LAST + NORM + UPDATE */
  double compile_ms;
} ms_plan_summary;

MS_API void ms_plan_config_default(ms_plan_config *config, int size);
/* Compiles for the rank given to ms_model_shard. Fails with MS_ERACE if the verifier refuses the result. */
MS_API int ms_plan_compile(const ms_graph *graph, const ms_plan_config *config, ms_plan **plan);
MS_API void ms_plan_free(ms_plan *plan);
MS_API int ms_plan_summarize(const ms_plan *plan, ms_plan_summary *summary);
/* A pass of the compiler: how long it took, and what there was of the plan before it and behind it. Nodes are those of
 * the graphs of training and evaluation; bytes are those of all buffers, each by itself, until they are laid out, and
 * the peak from then on. */
enum { MS_PLAN_PASSES = 12 };
typedef struct ms_plan_pass {
  const char *name; /* "lower" */
  int cached;       /* 1: what it makes was kept from an earlier plan of the same graph */
  double ms;
  int nodes[2], instructions[2], events[2], buffers[2];
  int64_t bytes[2];
} ms_plan_pass;
/* The passes that made a plan, in order: at most `capacity`; *n: how many there are. */
MS_API int ms_plan_passes(const ms_plan *plan, int capacity, ms_plan_pass *list, int *n);
/* The plan as text, or as one JSON object. The text belongs to the plan and lives until the next call or free. */
MS_API int ms_plan_dump(ms_plan *plan, int json, const char **text);

/* What a unit costs this rank: in one phase, and in state. */
typedef struct ms_unit_cost {
  int gathers, gathers_again;                   /* all_gathers of its weights; those of them after the phase's first */
  int64_t gathered_bytes, gathered_again_bytes; /* received in them */
  double reduced_bytes;                         /* sent and received while its gradients are summed over ranks */
  int64_t kept_bytes;                           /* gathered weights, or a shard of them, that stay for backward */
  int64_t ahead_bytes;                          /* later units' weights, gathered while this one computes: the most */
  int64_t parameter_bytes, gradient_bytes, optimizer_bytes;
} ms_unit_cost;
/* MS_EINVAL when the plan has no such phase (enum ms_phase) or the model no such unit. */
MS_API int ms_plan_unit_cost(const ms_plan *plan, int phase, int unit, ms_unit_cost *cost);
/* Bytes of activations that a module's forward keeps for backward, those of modules inside of it included; "": all. */
MS_API int ms_plan_kept_activations(const ms_plan *plan, const char *module, int64_t *bytes);

/* A collective beside which this rank has nothing to compute: no kernel that events leave free to run while it does.
 * Texts belong to the plan. */
typedef struct ms_exposed {
  int instruction; /* as ms_plan_dump counts them */
  int unit;        /* -1: the step's totals */
  int backward;    /* 1: it starts after the first kernel of the backward pass */
  const char *kind, *scope;
  double bytes; /* as ms_unit_cost counts them */
} ms_exposed;
/* The exposed collectives of a phase in program order: n is how many there are, list has the first `capacity`. */
MS_API int ms_plan_exposed(const ms_plan *plan, int phase, int capacity, ms_exposed *list, int *n);

/* The first instruction at which most bytes are in use. Arenas can be larger: they have gaps, and they are fullest at
 * different instructions. Texts belong to the plan. */
typedef struct ms_peak {
  int phase, instruction, backward; /* instruction: as ms_plan_dump counts them */
  const char *op, *scope;           /* scope: the module, or the unit of a collective */
  int64_t bytes[7], total_bytes;    /* in use there, by category */
  /* No places of buffers could need less: state, and of a rank's own memory, of what its group gathers, and of what
   * smaller groups do, each the most that is in use at one instruction. Gradient chunks are there always; until they
   * are written, activations that are not larger than all of them may lie there, and count beyond them alone. */
  int64_t least_bytes;
  int buffers; /* of gradient chunks and those that are not state: how many are in use there */
} ms_peak;
typedef struct ms_peak_buffer {
  int category; /* enum ms_category */
  int64_t bytes;
  const char *label, *scope; /* label: its op or unit; scope: what wrote it first */
} ms_peak_buffer;
/* buffer: [capacity], gets the first ones of peak->buffers. */
MS_API int ms_plan_peak_use(const ms_plan *plan, ms_peak *peak, int capacity, ms_peak_buffer *buffer);

/* ---- state and execution ---------------------------------------------------------------------------------------- */

typedef struct ms_state ms_state;
typedef struct ms_exec ms_exec;

/* Index i of an axis is first + i step of the axis that it is a part of; step 0 means 1. */
typedef struct ms_axis_part {
  int64_t first, step;
} ms_axis_part;

typedef struct ms_step_inputs {
  double lr;         /* learning rate of this step */
  int64_t step;      /* 1 for the first: averages begin there */
  int micro_batches; /* how many FIRST, NEXT and LAST phases were run: gradients are divided by it */
  uint64_t seed;     /* of dropout, must differ from step to step */
  ms_axis_part rows; /* which rows of the step's global batch this micro-batch has: dropout is keyed by them */
} ms_step_inputs;

typedef struct ms_step_outputs {
  double loss;      /* after NORM: mean over micro-batches and ranks; after EVALUATE: mean over ranks; see
                       ms_graph_set_loss_weight */
  double grad_norm; /* after NORM: of the mean gradient, before clipping */
  double divisor;   /* of the sums that these are means of: how many losses, or the sum of their weights */
} ms_step_outputs;

typedef struct ms_exec_counters {
  int64_t collectives[6]; /* executed since ms_exec_new, by phase */
  double comm_bytes[6];   /* by mesh dimension */
  /* On cuda the host does not see how long a kernel or a collective takes: there the first and the third are of
   * profiled steps. */
  double kernel_seconds, wait_seconds, collective_seconds, total_seconds;
  int64_t instructions; /* executed */
  int64_t allocations;  /* made by the engine since the exec was bound: stays 0 */
} ms_exec_counters;

/* Parameters drawn from the model's seed, zeroed gradients and optimizer state. Collective, which means from here on:
 * over the ranks of the model's mesh. They compare their meshes, models and optimizers, and a difference is
 * MS_EMISMATCH. A rank's k-th state is made with the k-th of the others. MS_ENOMEM: this rank alone would map more than
 * the machine has. */
MS_API int ms_state_new(ms_world *world, const ms_model *model, const ms_plan_config *config, ms_state **state);
/* Its memory is given back once its execs and saves are released as well. */
MS_API void ms_state_free(ms_state *state);
/* Bytes of all its arenas on this rank. They grow when a plan that needs more is bound. */
MS_API int ms_state_arena_bytes(const ms_state *state, int64_t *bytes);

/* The memory of a device beside the arenas; all zeros on the CPU. Bytes. */
typedef struct ms_device_memory {
  int64_t total, free;   /* of the device, now */
  int64_t arenas;        /* of all states of this process, with a few control words */
  int64_t context;       /* in use, by whomever, when this process had made its context */
  int64_t communicators; /* taken while communicators were opened */
  int64_t pinned;        /* of the host: staging of inputs and outputs */
} ms_device_memory;
MS_API int ms_state_memory(const ms_state *state, ms_device_memory *memory);
/* Bytes that binding a plan to this state would add to the memory of the host, this rank's share. */
MS_API int ms_state_growth(const ms_state *state, const ms_plan *plan, int64_t *bytes);
/* Every rank's `bytes` bytes to every rank that trains this model: all is [ranks][bytes], in the order of
 * ms_mesh_ranks; at most 4096 bytes a rank. Collective over them. */
MS_API int ms_state_all_gather_bytes(ms_state *state, const void *mine, int bytes, void *all);
/* Binds a plan to a state: arenas, communicators, comparison of fingerprints over the ranks. Collective. */
MS_API int ms_exec_new(ms_state *state, const ms_plan *plan, ms_exec **exec);
MS_API void ms_exec_free(ms_exec *exec);
/* Where to write an input before a phase: dims and dtype as declared. NULL when there is no such input. On the CPU it
 * is the input itself, else memory of the host that the phase begins with copying; it may be written again as soon as
 * ms_exec_run has returned. */
MS_API void *ms_exec_input(ms_exec *exec, const char *name);
/* Where to read a named output after a phase. On the CPU it is the output itself, else a copy that is made now, once
 * the device has come to the end of the phase; NULL when that fails. */
MS_API const void *ms_exec_output(ms_exec *exec, const char *name);
/* On an asynchronous device, from its second run on, a phase is captured as a graph, and from then on replayed as
 * one piece of work. The numbers are the same. MS_EUNSUPPORTED on the CPU. */
MS_API int ms_exec_set_graph(ms_exec *exec, int on);
/* Runs one phase. outputs may be NULL. An asynchronous device is only given the phase, except that NORM and
 * EVALUATE wait for it: what a kernel of an earlier phase found wrong (a token outside of the vocabulary) fails there.
 * NORM fails with MS_ENONFINITE, with nothing updated. UPDATE must come right after a NORM: that is where ranks know of
 * each other that nobody reads the old weights any more. */
MS_API int ms_exec_run(ms_exec *exec, int phase, const ms_step_inputs *inputs, ms_step_outputs *outputs);
/* After MS_ENONFINITE: runs FIRST again on the inputs as they are, checking what every instruction writes; the message
 * names the first op or parameter that holds a NaN or an infinity. Collective. */
MS_API int ms_exec_find_nonfinite(ms_exec *exec, const ms_step_inputs *inputs, const char **message);
MS_API int ms_exec_counts(const ms_exec *exec, ms_exec_counters *counters);

/* ---- profiles --------------------------------------------------------------------------------------------------- */

typedef struct ms_profile ms_profile;

/* Records of this rank, from here on: of the execs that it is given to, and of its barriers and exchanges. */
MS_API int ms_profile_new(ms_world *world, ms_profile **profile);
MS_API void ms_profile_free(ms_profile *profile);
/* Phases that exec runs from here on are recorded in profile; NULL: they are not. */
MS_API void ms_exec_set_profile(ms_exec *exec, ms_profile *profile);
/* Something that the program itself did, from `began` (seconds of CLOCK_MONOTONIC) to now: "step 12", "data". */
MS_API int ms_profile_mark(ms_profile *profile, const char *name, double began);
/* Writes what all ranks recorded as one file of Chrome's trace format (JSON). Collective. */
MS_API int ms_profile_write(ms_profile *profile, const char *path);

/* ---- parameters ------------------------------------------------------------------------------------------------- */

/* What a state has of a parameter. The second and the third of an optimizer's: AdamW's moments; SGD keeps its momentum
 * alone. */
enum ms_tensor_kind {
  MS_TENSOR_PARAM = 0,
  MS_TENSOR_GRAD = 1,
  MS_TENSOR_EXP_AVG = 2,
  MS_TENSOR_MOMENTUM = 2,
  MS_TENSOR_EXP_AVG_SQ = 3,
  MS_TENSOR_EMA = 4,
  MS_TENSOR_KINDS = 5
};

/* The rows of a parameter (or its gradient, or optimizer state) that this rank owns, by element range of the flattened
 * parameter: [*first, *first + *count). data points to f32: on the CPU the rows themselves, else a copy that lasts
 * until the state is read again. what: enum ms_tensor_kind. Of gradients replicas that keep one copy of the rest
 * (ms_plan_config.shared_masters) own a slice each: the one that they update. */
MS_API int ms_state_shard(ms_state *state, int param, int what, int64_t *first, int64_t *count, float **data);
/* Elements [first, first + count) of a flattened parameter (or its gradient, ...), which this rank must own, from and
 * to memory of the host, f32, wherever the chunks live; the whole range or nothing. Not collective: peers may be
 * reading what ms_state_write changes, so all of them must have come to the end of a step, and know it of each other.
 * Replicas that keep one copy (ms_plan_config.shared_masters) own the same elements: all may write, if they write the
 * same values. */
MS_API int ms_state_read(const ms_state *state, int param, int what, int64_t first, int64_t count, float *out);
MS_API int ms_state_write(ms_state *state, int param, int what, int64_t first, int64_t count, const float *values);
/* The whole parameter (or gradient, ...) on every rank, f32; full is [numel]. Collective. Gradients as they were
 * summed, before division by ms_step_outputs.divisor. A rank with full NULL takes part and gets nothing. Ranks that ask
 * for different parameters at once fail with MS_EMISMATCH. */
MS_API int ms_state_gather(ms_state *state, int param, int what, float *full);
/* Elements [first, first + count) of it alone, at least one; out is [count], or NULL on a rank that only gives its
 * part. */
MS_API int ms_state_gather_range(ms_state *state, int param, int what, int64_t first, int64_t count, float *out);
/* Overwrites this rank's part of a parameter from the full f32 array. Collective: peers may be reading
 * the old values. */
MS_API int ms_state_write_full(ms_state *state, int param, const float *full);
/* The same from an array that rank `from` of the model's ranks has (their place in ms_mesh_ranks); full is NULL on
 * others. */
MS_API int ms_state_scatter(ms_state *state, int param, int from, const float *full);
/* How many updates a parameter has had: AdamW's bias corrections and SGD's first step go by it. An update leaves out
 * what has no gradient in its plan, because the loss does not depend on it: that stays as it is, with all that is kept
 * of it, and the count too. A state that goes on from a saved one is given the count with the rest; it is the same on
 * all ranks. Not collective. */
MS_API int ms_state_updates(const ms_state *state, int param, int64_t *updates);
MS_API int ms_state_set_updates(ms_state *state, int param, int64_t updates);
/* Averages (ema_decay) and parameters change places, so that evaluating, reading and exporting see the averages; a
 * second call puts them back, and until then nothing trains or is saved. Collective, since peers may be reading; with
 * `alone` this rank does not wait for them, for a rank whose work with the averages failed (replicas with one copy meet
 * when they run something next). Frozen parameters are their own averages. */
MS_API int ms_state_swap_ema(ms_state *state, int alone);
/* Begins the averages anew, as what the parameters are now. No peer may be reading them: see ms_state_write. */
MS_API int ms_state_restart_ema(ms_state *state);
/* A hash of bytes, to compare what ranks were given; hash: [2], two halves of 32 bits, the high one first. Not
 * cryptographic. */
MS_API void ms_hash(const void *data, int64_t bytes, uint32_t *hash);

/* ---- safetensors ------------------------------------------------------------------------------------------------ */

typedef struct ms_safetensors ms_safetensors;
typedef struct ms_safetensors_writer ms_safetensors_writer;

/* A tensor of a file; texts and dims live as long as the handle. What ms_safetensors_create reads of it: name, dtype,
 * ndim and dims. */
typedef struct ms_safetensors_tensor {
  const char *name;
  const char
      *dtype; /* as the format names it: BOOL U8 I8 I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64 F8_E4M3 F8_E5M2 ... */
  int bits;   /* of one element: 4, 6, 8, 16, 32 or 64 */
  int ndim;
  const int64_t *dims; /* [ndim]; any may be 0, and ndim too */
  int64_t elements;
  int64_t offset, bytes; /* where its data is in the file, in bytes */
  const char *file;      /* path of the file that holds it */
} ms_safetensors_tensor;

/* All of a regular file, and a zero behind it. MS_EINVAL when it is not there, or a folder, a pipe or a device: none is
 * waited for. The caller gives the text to ms_file_text_free. */
MS_API int ms_file_read_text(const char *path, char **text, int64_t *bytes);
MS_API void ms_file_text_free(char *text);

/* Opens one file, an index (a path that ends in ".index.json"), or a folder: its model.safetensors, the files that its
 * model.safetensors.index.json lists, or its only file of that kind. Reads headers and nothing else, and checks every
 * rule of the format: MS_EINVAL names file, tensor and field; MS_EIO is the system's refusal. */
MS_API int ms_safetensors_open(const char *path, ms_safetensors **file);
MS_API void ms_safetensors_close(ms_safetensors *file);
MS_API int ms_safetensors_count(const ms_safetensors *file);
/* The i-th tensor by name (bytes of UTF-8, ascending). */
MS_API int ms_safetensors_describe(const ms_safetensors *file, int i, ms_safetensors_tensor *tensor);
MS_API int ms_safetensors_find(const ms_safetensors *file, const char *name); /* index, or -1 */
/* The tensor's bytes in the mapped file, little-endian and row-major: only pages that are touched are read. Aligned as
 * the file has it. Never NULL for an index that is there. The file must not be cut shorter while it is open. */
MS_API const void *ms_safetensors_data(const ms_safetensors *file, int i);
/* Bytes [first, first + bytes) of a tensor into out. MS_EIO, not a signal, where the file was cut or the disk fails. */
MS_API int ms_safetensors_read(const ms_safetensors *file, int i, int64_t first, int64_t bytes, void *out);
/* A tensor's elements as a matrix: element [r, c] is element first + r * row_stride + c * column_stride of the tensor.
 * One of the strides is 1: row_stride 1 is a transposed view. */
typedef struct ms_safetensors_view {
  int64_t rows, columns, first, row_stride, column_stride;
} ms_safetensors_view;

/* Elements [first, first + count) of a view, row after row, as f32; view NULL: of the tensor as it lies. The tensor is
 * F32, BF16, F16 or F64 (else MS_EDTYPE). Nothing else of the file is read; bytes (may be NULL): how much that was. */
MS_API int ms_safetensors_read_f32(const ms_safetensors *file, int i, const ms_safetensors_view *view, int64_t first,
                                   int64_t count, float *out, int64_t *bytes);
/* XXH3 (64 bits) of a tensor's bytes, as 16 hexadecimal digits and a NUL. */
MS_API int ms_safetensors_checksum(const ms_safetensors *file, int i, char *hex);
/* The same of its bytes [first, first + bytes). */
MS_API int ms_safetensors_checksum_range(const ms_safetensors *file, int i, int64_t first, int64_t bytes, char *hex);
/* The i-th entry of __metadata__, file after file, the index's own first (there a value may be any JSON). MS_EINVAL
 * when there is no such entry. */
MS_API int ms_safetensors_metadata_count(const ms_safetensors *file);
MS_API int ms_safetensors_metadata(const ms_safetensors *file, int i, const char **key, const char **value,
                                   const char **path);

typedef struct ms_safetensors_config {
  int struct_size;                  /* ms_safetensors_config_default sets it */
  int metadata;                     /* how many entries __metadata__ gets; 0: there is none */
  const char *const *metadata_text; /* [2 * metadata]: key, value, key, value, ... */
  int atomic; /* 1 (default): written beside the path, which changes when all is there; 0: at the path itself */
  int sync;   /* 1: on disk (fsync of the file, and of its folder when atomic) before finish returns; 0 (default) */
  int direct; /* 1: data begin at a multiple of 4096 bytes, for writing past the page cache; of 8 by default (0) */
} ms_safetensors_config;

MS_API void ms_safetensors_config_default(ms_safetensors_config *config, int size);
/* Starts a file of n declared tensors: writes its header. config NULL: the defaults. Data are laid out as the reference
 * library does it, by alignment and then by name, so that each is aligned to its element. One thread at a time. */
MS_API int ms_safetensors_create(const char *path, int n, const ms_safetensors_tensor *tensors,
                                 const ms_safetensors_config *config, ms_safetensors_writer **writer);
/* Bytes [first, first + bytes) of the i-th declared tensor; in any order, each byte once. */
MS_API int ms_safetensors_write(ms_safetensors_writer *writer, int i, int64_t first, int64_t bytes, const void *data);
/* Elements [first, first + count) of a view of the i-th declared tensor from f32, rounded to its type. */
MS_API int ms_safetensors_write_f32(ms_safetensors_writer *writer, int i, const ms_safetensors_view *view,
                                    int64_t first, int64_t count, const float *data);
/* MS_EINVAL, naming a tensor, when bytes are missing. Releases the writer, also when it fails: nothing is left then. */
MS_API int ms_safetensors_finish(ms_safetensors_writer *writer);
/* Gives up and removes what was written; safe on NULL. */
MS_API void ms_safetensors_abort(ms_safetensors_writer *writer);

/* ---- token data ------------------------------------------------------------------------------------------------- */

typedef struct ms_tokens ms_tokens;
typedef struct ms_token_reader ms_token_reader;

/* What the files hold. Token files are llm.c's: 256 int32 (magic 20240520, version 1: tokens of 16 bits; magic
 * 20240801, version 7: tokens of 32 bits; then their number, or from 2^31 on -1 and the number as int64), and the
 * tokens. Of bytes, each is a token. */
enum ms_token_kind { MS_TOKEN_FILES = 0, MS_TOKEN_BYTES = 1 };

/* Maps the files as one stream of tokens, in this order. MS_EINVAL names the file and the field that is wrong
 * (truncated, longer than its tokens, of another format), or that it is not there; MS_EIO is the system's refusal. */
MS_API int ms_tokens_open(int files, const char *const *paths, int kind, ms_tokens **tokens);
MS_API void ms_tokens_close(ms_tokens *tokens);
MS_API int ms_tokens_count(const ms_tokens *tokens, int64_t *count); /* of the stream */
/* Tokens [first, first + count) into out. MS_EIO where a file was cut shorter since it was opened. */
MS_API int ms_tokens_read(const ms_tokens *tokens, int64_t first, int64_t count, int32_t *out);

/* A thread that reads batches ahead: `rows` samples of `columns` tokens each; at most `slots` batches are asked for and
 * not taken. For one caller at a time. */
MS_API int ms_token_reader_new(ms_tokens *tokens, int rows, int columns, int slots, ms_token_reader **reader);
MS_API void ms_token_reader_free(ms_token_reader *reader);
/* first: [rows], where each sample begins. Returns at once; MS_EINVAL when no slot is free. */
MS_API int ms_token_reader_request(ms_token_reader *reader, const int64_t *first);
/* The oldest batch that was asked for: tokens [rows][columns], and targets, the same moved by one. Waits at most
 * `seconds` (MS_ETIMEOUT) and tells what reading failed with; MS_EINTERRUPT after Ctrl-C leaves the batch to be taken.
 */
MS_API int ms_token_reader_take(ms_token_reader *reader, double seconds, int32_t *tokens, int32_t *targets);
/* Drops what was asked for and not taken. Waits for it like a take. */
MS_API int ms_token_reader_discard(ms_token_reader *reader, double seconds);

/* ---- tokenizers ------------------------------------------------------------------------------------------------- */

typedef struct ms_tokenizer ms_tokenizer;

/* Reads a tokenizer.json, or the one in a folder: byte-level BPE with the pre-tokenizers of GPT-2 and Llama 3. What is
 * not supported is MS_EUNSUPPORTED, what is wrong MS_EINVAL; both name the field. */
MS_API int ms_tokenizer_open(const char *path, ms_tokenizer **tokenizer);
MS_API void ms_tokenizer_close(ms_tokenizer *tokenizer);
MS_API int ms_tokenizer_vocab(const ms_tokenizer *tokenizer); /* the largest id + 1 */
/* The id of a token as tokenizer.json writes it; -1 when there is none. */
MS_API int ms_tokenizer_find(const ms_tokenizer *tokenizer, const char *token);
/* The tokens of a text; added tokens in it stand for themselves, and none are put around it. ids belong to the
 * tokenizer until its next call. MS_EINVAL for text that is not UTF-8. One thread at a time. */
MS_API int ms_tokenizer_encode(ms_tokenizer *tokenizer, const char *text, int64_t bytes, const int32_t **ids,
                               int64_t *count);
/* The text of tokens, special ones too; a token may end within a character. Belongs to the tokenizer until its next
 * call. */
MS_API int ms_tokenizer_decode(ms_tokenizer *tokenizer, const int32_t *ids, int64_t count, const char **text,
                               int64_t *bytes);

typedef struct ms_tokenize_config {
  int struct_size; /* ms_tokenize_config_default sets it */
  int begin, end;  /* ids put before and after each file; -1 (default): none */
  int threads;     /* 0 (default): all cores that this process may use */
  int replace;     /* 1: what is not UTF-8 becomes U+FFFD; 0 (default): it is MS_EINVAL with its place */
} ms_tokenize_config;

typedef struct ms_tokenize_result {
  int64_t bytes, tokens; /* read, and written */
  int width;             /* bytes of a token: 2 where the vocabulary allows it, else 4 */
} ms_tokenize_result;

MS_API void ms_tokenize_config_default(ms_tokenize_config *config, int size);
/* Each text file is a document; its tokens follow those of the one before. `out` is a token file, which appears when
 * all is written, and not before. MS_EINTERRUPT after Ctrl-C. The tokens do not depend on the number of threads. */
MS_API int ms_tokenize_files(const ms_tokenizer *tokenizer, int files, const char *const *paths, const char *out,
                             const ms_tokenize_config *config, ms_tokenize_result *result);
/* ---- checkpoints ------------------------------------------------------------------------------------------------ */

/* A checkpoint is a folder: a safetensors file of each rank that writes, and manifest.json, which says what lies where
 * and has a checksum of every stretch of MS_CHECKPOINT_BLOCK bytes of a tensor. It is written into another folder, to
 * disk, the manifest last, and appears under its name by one rename. */
enum { MS_CHECKPOINT_BLOCK = 4194304 };

/* Some elements of a parameter, or of what the optimizer keeps of it, that this rank writes as a tensor of its own. */
typedef struct ms_save_piece {
  const char *name;      /* of the tensor in the file */
  const char *parameter; /* for the manifest: of the parameter, and what of it ("param", "exp_avg") */
  const char *kind;
  int param; /* as for ms_state_read, and enum ms_tensor_kind */
  int what;
  int64_t first, count; /* elements of the flattened parameter; count > 0 */
  int ndim;
  int64_t dims[6]; /* of the tensor; their product is count */
} ms_save_piece;

typedef struct ms_save_config {
  int struct_size;    /* ms_save_config_default sets it */
  const char *folder; /* to write into; it is there and empty */
  int writer;         /* this rank's number among those that write: its file is rank-00003.safetensors */
  int asynchronous;   /* 1: the state is copied, and a thread writes the copy while training goes on */
  /* Of the rank that commits, NULL or 0 on the others: */
  const char *target; /* what the folder is renamed to when all is on disk; must not be there */
  int writers;
  const char *head;           /* the manifest but for its list of files: a JSON object that is not empty */
  int retired;                /* checkpoints that are removed after that */
  const char *const *retires; /* [retired] */
} ms_save_config;

MS_API void ms_save_config_default(ms_save_config *config, int size); /* nothing is set */

typedef struct ms_save ms_save;
enum ms_save_stage { MS_SAVE_WRITTEN = 0, MS_SAVE_COMMITTED = 1 };

/* What this rank writes in every checkpoint of a state. */
MS_API int ms_save_new(ms_state *state, int n, const ms_save_piece *pieces, ms_save **save);
MS_API void ms_save_free(ms_save *save);
/* Not collective. Synchronous: returns when this rank's file is on disk. Asynchronous: when the copy was taken; the
 * rank that commits does so by itself once the files of all are there. The one before must have come to its end. */
MS_API int ms_save_start(ms_save *save, const ms_save_config *config);
/* Waits until this rank's file is on disk, or (on the rank that commits) until the checkpoint has its name. Synchronous
 * saves commit here, so all ranks must have told each other before that they have written. Fails as the writing failed,
 * with MS_ETIMEOUT when it stands still for as long as the world's deadline, or as any wait. */
MS_API int ms_save_wait(ms_save *save, int stage);
/* 1 while something is being written in the background. */
MS_API int ms_save_running(const ms_save *save);
/* Gives up what is under way. */
MS_API void ms_save_stop(ms_save *save);
/* Bytes that the copy takes: 0 before the first asynchronous save. */
MS_API int ms_save_snapshot_bytes(const ms_save *save, int64_t *bytes);
/* Makes a folder, and those on the way to it. fresh 1: it must not be there yet; 0: it may be, and is there after a
 * power cut too. */
MS_API int ms_checkpoint_make_folder(const char *path, int fresh);
/* Removes a checkpoint's folder; one without a manifest is left alone, unless its name begins with a dot. What is
 * removed loses its name first, so that no part of a checkpoint passes for one. */
MS_API int ms_checkpoint_remove(const char *path);
/* The text of a manifest, checked against the checksum at its end. The caller gives it to ms_file_text_free. */
MS_API int ms_checkpoint_read_manifest(const char *folder, char **text);
/* Reads elements [first, first + count) of a parameter, which this rank owns, from the i-th tensor of a file, which
 * holds [begin, ...) of it as F32. checksums: 16 hexadecimal digits for each MS_CHECKPOINT_BLOCK bytes of the tensor,
 * of which all that are touched are read whole and checked; NULL: neither. Adds the bytes read to *bytes. MS_EIO when a
 * checksum differs: what was read before is in the state by then. As for ms_state_write, no peer may be reading. */
MS_API int ms_state_load(ms_state *state, int param, int what, int64_t first, int64_t count, const ms_safetensors *file,
                         int i, int64_t begin, const char *checksums, int64_t *bytes);

/* ffi:end */

#ifdef __cplusplus
}
#endif
#endif
