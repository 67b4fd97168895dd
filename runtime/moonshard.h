/* moonshard.h - the public header of Moonshard, and its manual.
 *
 * Moonshard trains models whose parameters, gradients and optimizer state are sharded over a mesh of devices. A
 * program makes its calls in this order:
 *
 *   ms_world_join        joins this process to the other ranks (a world of one rank if nothing launched it)
 *   ms_mesh_new          arranges the ranks in named dimensions, e.g. replicate=2 x shard=2
 *   ms_model_*           declares parameters (name, shape, initial distribution) and the units that gather them
 *   ms_model_shard       decides which part of each parameter this rank owns
 *   ms_graph_*           records the computation, op by op, down to a scalar loss
 *   ms_plan_compile      compiles the whole step to a static, verified list of instructions; needs no device
 *   ms_state_new         allocates and initialises this rank's parameters, gradients and optimizer state
 *   ms_exec_new, ms_exec_run   bind the plan to the state, and run its phases: first, next, last, norm, update,
 * evaluate
 *
 * Conventions. A function that can fail returns an int status, enum ms_status, where MS_OK is 0; on failure it leaves
 * a record that ms_error_message() reads. Outputs are the last arguments. Parameter names are dotted
 * ("layers.3.attn.wq.weight"). Shapes are in elements, row-major, outermost dimension first. Bytes, and counts of
 * elements, are int64_t. "[n]" in a comment is the length of an array.
 *
 * Verbs. Objects in memory are made by ..._new and released by ..._free; files are opened and closed (a writer is
 * created, then finished or aborted); a world is joined and left. ..._set_... stores a setting, a noun returns a value
 * (ms_mesh_size), ..._describe fills a struct about one item of a list, and ..._read and ..._write copy data between
 * the caller's memory and a file or a state.
 *
 * Config structs. Call ms_..._config_default(&config, sizeof config) before you set fields. It stores that size in the
 * first field, so that a program works with a newer library: fields that the program does not know get their defaults.
 * With an older library it works as long as it leaves fields that the library does not know at their defaults; other
 * values are MS_EUNSUPPORTED. A struct that was not initialised is MS_EINVAL.
 *
 * Handles. Handles can be released in any order, and more than once. An object keeps the objects that it was made from
 * (a plan keeps its model). Some objects work on another one: an exec and a save on their state; states, profiles and
 * saves on their world. Once that one is released, they can only be released, too. Any other call with them is
 * MS_EINVAL, and so is a call with a handle that is NULL, was released, or is of another kind. Functions that return no
 * status leave the record as well and return 0, NULL or "", or -1 where 0 is a valid answer. A NULL pointer and a
 * number out of range are MS_EINVAL, unless the function's comment allows them.
 *
 * Threads. Only one thread at a time may use a handle, or handles that work with each other. Different threads may use
 * unrelated handles at once. Errors are recorded per thread. All ranks of the world, or of the model's mesh, must call
 * the functions marked "Collective", in the same order, with one thread per rank at a time. These wait for other ranks,
 * at most for the timeout (ms_world_set_timeout; MS_ETIMEOUT). They return early if another rank dies or gives up
 * (MS_EPEER), and after Ctrl-C (MS_EINTERRUPT) if the program has called ms_interrupt_install. The timeout bounds
 * waiting, not computing. ms_token_reader_take, which waits for the reader's thread, takes a deadline of its own. All
 * other functions wait only for the disk. Kernels run on the calling thread and on the engine's own threads
 * (ms_plan_config.threads). No call changes the OpenMP settings of the calling thread (omp_set_num_threads). Only
 * ms_interrupt_install and ms_world_catch_termination install signal handlers.
 *
 * A complete program. It trains a small network, sharded over all ranks that a launcher starts (or on one), and checks
 * every status:
 *
 *   #include <moonshard.h>
 *   #include <stdio.h>
 *   #include <string.h>
 *   #define TRY(call) do { if ((call) != MS_OK) goto end; } while (0)
 *
 *   int main(void) {
 *     static const float x[4][3] = {{0, 0, 1}, {0, 1, 1}, {1, 0, 1}, {1, 1, 1}};
 *     static const int32_t y[4] = {0, 1, 1, 1}; static const int all_ranks[1] = {-1};
 *     static const int64_t x_dims[2] = {4, 3}, y_dims[1] = {4}, w_dims[2] = {2, 3};
 *     ms_world *world = NULL; ms_mesh *mesh = NULL; ms_model *model = NULL; ms_graph *graph = NULL;
 *     ms_plan *plan = NULL; ms_state *state = NULL; ms_exec *exec = NULL;
 *     ms_unit_config unit; ms_param_config param; ms_plan_config config; ms_attrs attrs;
 *     ms_step_inputs step = {0.1, 1, 1, 0, {0, 1}}; ms_step_outputs result = {0, 0, 0};
 *     int u, w, in[2], logits[2], loss[3];
 *     TRY(ms_world_join(&world));
 *     TRY(ms_mesh_new(MS_DEVICE_CPU, 1, all_ranks, NULL, ms_world_size(world), &mesh));
 *     ms_unit_config_default(&unit, sizeof unit), ms_param_config_default(&param, sizeof param);
 *     TRY(ms_model_new(7, &model)); TRY(ms_model_add_unit(model, "root", &unit, &u));
 *     TRY(ms_model_add_param(model, u, "fc.weight", 2, w_dims, &param, &w));
 *     TRY(ms_model_shard(model, mesh, ms_world_rank(world), -1, 0));
 *     TRY(ms_graph_new(model, &graph));
 *     TRY(ms_graph_input(graph, "x", MS_F32, 2, x_dims, &in[0])); TRY(ms_graph_param(graph, w, &in[1]));
 *     TRY(ms_op_defaults("matmul", &attrs)); attrs.i[1] = 1;
 *     TRY(ms_graph_op(graph, "matmul", 2, in, &attrs, &logits[0]));
 *     TRY(ms_graph_input(graph, "y", MS_I32, 1, y_dims, &logits[1]));
 *     TRY(ms_graph_op(graph, "cross_entropy", 2, logits, NULL, loss)); TRY(ms_graph_set_loss(graph, loss[0]));
 *     ms_plan_config_default(&config, sizeof config); TRY(ms_plan_compile(graph, &config, &plan));
 *     TRY(ms_state_new(world, model, &config, &state)); TRY(ms_exec_new(state, plan, &exec));
 *     memcpy(ms_exec_input(exec, "x"), x, sizeof x), memcpy(ms_exec_input(exec, "y"), y, sizeof y);
 *     for (; step.step <= 200; step.step++) {
 *       TRY(ms_exec_run(exec, MS_PHASE_FIRST, &step, NULL)); TRY(ms_exec_run(exec, MS_PHASE_NORM, &step, &result));
 *       TRY(ms_exec_run(exec, MS_PHASE_UPDATE, &step, NULL));
 *     }
 *     if (ms_world_rank(world) == 0) printf("loss %.4f on %d ranks\n", result.loss, ms_world_size(world));
 *     TRY(ms_world_finish(world));
 *   end:
 *     if (ms_error_code()) fprintf(stderr, "%s\n", ms_error_message());
 *     ms_exec_free(exec), ms_state_free(state), ms_plan_free(plan), ms_graph_free(graph), ms_model_free(model);
 *     ms_mesh_free(mesh), ms_world_leave(world);
 *     return ms_error_code() != MS_OK || result.loss > 0.1;
 *   }
 *
 * The Lua layer parses the text between the two ffi marks: it contains no preprocessor directives, and no function
 * returns a 64-bit value.
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
  MS_EINVAL = 1, /* an invalid argument, or a call in the wrong state */
  MS_ESHAPE = 2, /* shapes that do not match */
  MS_EDTYPE = 3, /* element types that do not match, or are not supported here */
  MS_ENAME = 4,  /* an unknown name, or one that is already used */
  MS_ERULE = 5,  /* a rule with a bad pattern, or one that matches nothing */
  MS_ENOMEM = 6,
  MS_EIO = 7,          /* a file operation or a system call failed */
  MS_EUNSUPPORTED = 8, /* valid, but not supported by this build or device */
  MS_EPEER = 9,        /* another rank died or gave up */
  MS_ETIMEOUT = 10,    /* a wait reached its deadline */
  MS_EMISMATCH = 11,   /* ranks disagree */
  MS_ENONFINITE = 12,  /* the loss or the gradient norm is NaN or infinite */
  MS_ERACE = 13,       /* the verifier rejected a plan */
  MS_EINTERRUPT = 14,  /* Ctrl-C */
  MS_EINTERNAL = 15,
  MS_EDEVICE = 16 /* a GPU, its driver or one of its libraries failed */
};

/* Each thread has a record of its latest failed call: code, message and place, which always belong together. The code
 * is the status that the call returned. A successful call does not change the record, even if it tried something that
 * failed; only ms_error_clear empties it. So check the status first, and read the record only after a failure. The
 * texts are valid until the thread's next failure. */
MS_API int ms_error_code(void);
MS_API const char *ms_error_message(void); /* what is wrong, and what would be right; never NULL */
MS_API const char *ms_error_where(void);   /* "file.c:123", the C source line that raised the error */
MS_API void ms_error_clear(void);
/* The name of a status: "MS_EINVAL". */
MS_API const char *ms_status_name(int status);
/* MS_ABI_VERSION of the library. The version increases when a program that was compiled with an older header would
 * break: a function or field disappears, moves or changes its meaning, or a struct that the library fills
 * (ms_plan_summary) grows. New functions, enumerators, and fields at the end of a config struct do not increase it.
 * libmoonshard.so.N has version N, so the dynamic linker keeps versions apart; programs that load the library
 * themselves compare this number with MS_ABI_VERSION. */
MS_API int ms_abi_version(void);
MS_API const char *ms_version(void);

/* ---- element types ---------------------------------------------------------------------------------------------- */

enum ms_dtype { MS_F32 = 0, MS_BF16 = 1, MS_I32 = 2, MS_U8 = 3, MS_DTYPES = 4 };

/* The properties of an element type. */
typedef struct ms_dtype_info {
  const char *name, *long_name; /* "bf16", and PyTorch's name, "bfloat16" */
  const char *c_type;           /* in memory; a bf16 is the upper half of an f32, stored in a uint16_t */
  int size;                     /* bytes of one element */
  int is_float;                 /* 0: integers */
  double lowest, largest;       /* finite values */
} ms_dtype_info;

MS_API int ms_dtype_describe(int dtype, ms_dtype_info *info); /* MS_EDTYPE if there is no such type */
MS_API const char *ms_dtype_name(int dtype);                  /* "f32", "bf16", "i32", "u8" */
MS_API int ms_dtype_size(int dtype);                          /* bytes of one element; 0 if there is no such type */
MS_API int ms_dtype_parse(const char *name, int *dtype);      /* a name to its number */

/* ---- devices ---------------------------------------------------------------------------------------------------- */

/* Where kernels run and tensors are stored. CUDA needs libmoonshard_cuda.so in the folder of the engine's library; the
 * first call that needs it loads it, and calls that need it are MS_EUNSUPPORTED if it is missing. Rank i of a host uses
 * GPU i. */
enum ms_device_kind { MS_DEVICE_CPU = 0, MS_DEVICE_CUDA = 1 };

/* How NCCL moves bytes between GPUs that can access each other's memory. Both options allocate communicated buffers
 * with NCCL and register them with every communicator (windows; NCCL 2.27 or later), which avoids copies of small
 * messages. COPY_ENGINES includes WINDOWS, and all-gathers then use copy engines instead of multiprocessors (NCCL 2.28
 * or later). */
enum ms_nccl_option { MS_NCCL_WINDOWS = 1, MS_NCCL_COPY_ENGINES = 2 };

typedef struct ms_device_info {
  char name[256];
  int major, minor; /* compute capability */
  int processors;   /* streaming multiprocessors */
  int64_t memory_bytes;
  int peer[64]; /* [i] 1: it can read the memory of GPU i directly */
} ms_device_info;

/* The number of GPUs that this process can use, and the properties of one of them. device: enum ms_device_kind. */
MS_API int ms_device_count(int device, int *count);
MS_API int ms_device_describe(int device, int index, ms_device_info *info);
/* Libraries of a device. The last two stand for the version of NCCL if it supports the option of enum ms_nccl_option.
 */
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
/* Writes the version of a library as text, "" if it is not found; version is [bytes]. */
MS_API int ms_device_library(int device, int library, char *version, int bytes);

/* The next note that a program should show its user once: something works, but not as well as it could, because a
 * library is missing, for example. NULL if there is none. Binding a plan can add notes. The text stays valid. */
MS_API const char *ms_note_next(void);

/* ---- hashing ---------------------------------------------------------------------------------------------------- */

/* Hashes bytes, so that ranks can compare their inputs; hash is [2], the high 32 bits first. Not cryptographic. */
MS_API void ms_hash(const void *data, int64_t bytes, uint32_t *hash);

/* ---- world: the ranks ------------------------------------------------------------------------------------------- */

typedef struct ms_world ms_world;

/* Joins the world that the environment describes: as a rank of `moonshard run`, torchrun, mpirun, mpiexec or srun; as a
 * rank that was started by hand (RANK, WORLD_SIZE, and MASTER_ADDR with MASTER_PORT, or MOONSHARD_RENDEZVOUS); or as a
 * world of one rank. MS_ETIMEOUT names the ranks that did not arrive. MS_EMISMATCH: the world refused this rank.
 * MS_EINVAL: the variables of two launchers contradict each other, or those of a world of several ranks contain no
 * meeting point. Opens /dev/null as any of the standard descriptors 0 to 2 that is closed; otherwise the shared memory
 * of the ranks would get that number, and output of the program would overwrite it. */
MS_API int ms_world_join(ms_world **world);
/* Joins a world of this rank only, whatever launched the process: for work without other ranks. */
MS_API int ms_world_join_alone(ms_world **world);
/* Leaves without communicating. NULL, and a world that was left before, are allowed. */
MS_API void ms_world_leave(ms_world *world);
MS_API int ms_world_rank(const ms_world *world);
MS_API int ms_world_size(const ms_world *world);
/* Nodes are hosts: ranks of one node share memory. Nodes have numbers from 0 on, in the order of their lowest ranks. */
MS_API int ms_world_nodes(const ms_world *world);
MS_API int ms_world_node_ranks(const ms_world *world, int node); /* number of its ranks; 0 if there is no such node */
MS_API int ms_world_node_of(const ms_world *world, int rank);    /* the node of a rank; -1 if there is no such rank */
MS_API const char *ms_world_node_name(const ms_world *world, int node); /* host name; "" if there is no such node */
MS_API int ms_world_local_rank(const ms_world *world); /* the index of this rank among the ranks of its node */
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
 * such text is kept, and quoted if ranks disagree later. */
MS_API void ms_world_note_failure(ms_world *world, const char *why);
/* Makes a clean start after a failure. Waits until every rank has called it, whatever they were doing, and then
 * discards unfinished collectives, the effect of ms_world_abort, and the state of failed phases. States keep their
 * parameters; gradients start again with the next FIRST. If a rank waits in a collective for a rank that is in this
 * function, the waiting rank fails with MS_EMISMATCH. MS_EPEER: a rank has died; MS_ETIMEOUT: not all ranks arrived
 * before the timeout. Ignores Ctrl-C. Collective. */
MS_API int ms_world_recover(ms_world *world);
/* Sets the seconds after which waiting for another rank is an error: 300 by default, or MOONSHARD_TIMEOUT. Values
 * that are not above 0 are ignored, and recorded as MS_EINVAL. */
MS_API void ms_world_set_timeout(ms_world *world, double seconds);

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
 * process. */
MS_API void ms_world_catch_termination(ms_world *world);
/* The same, but only while another rank of this host has called ms_world_catch_termination: for a rank that saves
 * nothing itself and should end together with those that do. Otherwise SIGTERM still ends this process. */
MS_API void ms_world_heed_termination(ms_world *world);
/* 1 once this rank has received SIGTERM, or another rank of its host has seen its own. Ranks can see it at different
 * times, so they must agree before they act on it. */
MS_API int ms_world_terminating(ms_world *world);

/* ---- mesh ------------------------------------------------------------------------------------------------------- */

typedef struct ms_mesh ms_mesh;

/* A mesh over all ranks of a world of `world` ranks, in row-major order. sizes is [ndim]; one of them can be -1, and is
 * computed. Their product must be `world`. names is [ndim], or NULL if ndim is 1. device: enum ms_device_kind. */
MS_API int ms_mesh_new(int device, int ndim, const int *sizes, const char *const *names, int world, ms_mesh **mesh);
/* A mesh over chosen ranks: ranks is [n], row-major, all different, from 0 to world - 1. */
MS_API int ms_mesh_new_from_ranks(int device, int ndim, const int *sizes, const char *const *names, int n,
                                  const int *ranks, int world, ms_mesh **mesh);
MS_API void ms_mesh_free(ms_mesh *mesh);
MS_API int ms_mesh_ndim(const ms_mesh *mesh);
MS_API int ms_mesh_world(const ms_mesh *mesh); /* the size of the world that it was made for */
MS_API int ms_mesh_size(const ms_mesh *mesh, int dim);
MS_API int ms_mesh_count(const ms_mesh *mesh);                 /* product of the sizes */
MS_API const char *ms_mesh_name(const ms_mesh *mesh, int dim); /* "" if the dimension has no name */
MS_API int ms_mesh_dim(const ms_mesh *mesh, const char *name, int *dim);
MS_API int ms_mesh_contains(const ms_mesh *mesh, int rank); /* 1: the rank is in the mesh */
/* The coordinates of a rank; coordinate is [ndim]. */
MS_API int ms_mesh_coordinate(const ms_mesh *mesh, int rank, int *coordinate);
/* The ranks that differ from `rank` at most in the coordinate of dim; ranks is [size(dim)], in order. */
MS_API int ms_mesh_group(const ms_mesh *mesh, int dim, int rank, int *ranks);
/* The number of ranks in the mesh that this mesh was sliced from; its own if it is not a slice. */
MS_API int ms_mesh_root_size(const ms_mesh *mesh);
/* A slice has copies, one for each coordinate along the dimensions that it leaves out. Returns how many there are along
 * one of these, `name`; 1 if there is no such dimension. */
MS_API int ms_mesh_copies(const ms_mesh *mesh, const char *name);
/* All groups of a dimension in all copies, one after another; ranks is [root_size]. */
MS_API int ms_mesh_all_groups(const ms_mesh *mesh, int dim, int *ranks);
/* The ranks of the mesh, or of the copy of a slice that contains `rank`, row-major; ranks is [count]. */
MS_API int ms_mesh_ranks(const ms_mesh *mesh, int rank, int *ranks);
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

/* ---- rules ------------------------------------------------------------------------------------------------------ */

typedef struct ms_rules ms_rules;

/* An ordered list of patterns for names; the first match decides. policy: what errors call the list. */
MS_API int ms_rules_new(const char *policy, ms_rules **rules);
MS_API void ms_rules_free(ms_rules *rules);
/* is_regex 1: a PCRE2 pattern that can match anywhere in a name (anchor it with ^ and $); 0: a name, or the first parts
 * of a dotted name. where: "recipe.lua:12", quoted in errors. optional 1: the rule may match no name. */
MS_API int ms_rules_add(ms_rules *rules, const char *pattern, int is_regex, int optional, const char *where);
/* Applies the rules to n names: decided is [n], the index of the rule that wins, or -1. MS_ERULE if a rule that is not
 * optional matches no name. A rule that matches but never wins causes a warning. */
MS_API int ms_rules_resolve(ms_rules *rules, int n, const char *const *names, int *decided);
/* The i-th warning of the last resolve; NULL after the last one. */
MS_API const char *ms_rules_warning(const ms_rules *rules, int i);

/* ---- model: parameters and units -------------------------------------------------------------------------------- */

typedef struct ms_model ms_model;

enum ms_init { MS_INIT_ZEROS = 0, MS_INIT_ONES = 1, MS_INIT_NORMAL = 2, MS_INIT_UNIFORM = 3, MS_INIT_CONSTANT = 4 };
/* ROWS: each parameter is split into whole rows. RAGGED: all parameters of a unit are split together, at any element.
 */
enum ms_layout { MS_LAYOUT_ROWS = 0, MS_LAYOUT_RAGGED = 1 };
/* Whether a unit's gathered weights are freed after forward. DEFAULT: ALWAYS, except that the root unit
 * (ms_unit_config.root) and the last unit of forward KEEP theirs, because backward would gather them again at once; in
 * a stage of a pipeline (ms_plan_config.pipeline_stage) all units KEEP theirs, because every micro-batch would gather
 * them again. */
enum ms_reshard { MS_RESHARD_KEEP = 0, MS_RESHARD_ALWAYS = 1, MS_RESHARD_DEFAULT = 2 };

typedef struct ms_param_config {
  int struct_size;       /* set by ms_param_config_default */
  int init;              /* enum ms_init; default: normal(0, 0.02) */
  double init_a, init_b; /* normal: mean, deviation; uniform: low, high; constant: value, unused */
  int frozen;            /* 1: no gradient and no optimizer state; default 0 */
  int param_dtype;       /* the dtype that kernels read: MS_F32, MS_BF16, or -1 (default): the unit's param_dtype */
  double lr_scale;       /* factor of the learning rate; default 1 */
  double weight_decay;   /* decoupled for AdamW, added to the gradient for SGD (as in PyTorch); default 0 */
} ms_param_config;

typedef struct ms_unit_config {
  int struct_size;  /* set by ms_unit_config_default */
  int param_dtype;  /* the dtype that kernels read: MS_F32 (default) or MS_BF16. Master weights are always f32. */
  int reduce_dtype; /* the dtype in which gradients are sent between ranks: MS_F32 (default) or MS_BF16 */
  int layout;       /* enum ms_layout; default ROWS */
  int reshard;      /* enum ms_reshard; default DEFAULT */
  /* With MS_RESHARD_ALWAYS: keep a shard of 1/reshard_size from forward to backward, and gather for backward in groups
   * of that many neighbours of the shard group. A divisor of the group's size; 0 (default) or that size: the whole
   * group. */
  int reshard_size;
  int root; /* 1: the model's root unit, which has the parameters that no other unit has; default 0 */
} ms_unit_config;

MS_API int ms_model_new(uint64_t seed, ms_model **model);
MS_API void ms_model_free(ms_model *model);
MS_API void ms_unit_config_default(ms_unit_config *config, int size);
MS_API void ms_param_config_default(ms_param_config *config, int size);
/* A unit is gathered as a whole; *unit is its index, from 0. Each parameter belongs to one unit. */
MS_API int ms_model_add_unit(ms_model *model, const char *name, const ms_unit_config *config, int *unit);
MS_API int ms_model_add_param(ms_model *model, int unit, const char *name, int ndim, const int64_t *dims,
                              const ms_param_config *config, int *param);
MS_API int ms_model_params(const ms_model *model); /* how many there are */
MS_API int ms_model_units(const ms_model *model);
/* Decides what rank `rank` of the mesh owns. replicate_dim and shard_dim: dimensions of the mesh, or -1; all other
 * dimensions must have size 1. If the mesh is a slice, each copy trains a model of its own: collectives, comparisons
 * and means involve only the ranks of ms_mesh_ranks. Needs no device and no other rank. */
MS_API int ms_model_shard(ms_model *model, const ms_mesh *mesh, int rank, int replicate_dim, int shard_dim);
/* The elements [first, first + count) of a flattened parameter that this rank owns; after ms_model_shard. */
MS_API int ms_model_owned(const ms_model *model, int param, int64_t *first, int64_t *count);
/* These change settings for plans compiled from now on, over the same state; earlier plans keep theirs. After an error,
 * nothing has changed. reshard and reshard_size are [units], as in ms_unit_config; reshard_size can be NULL: zeros. */
MS_API int ms_model_set_reshard(ms_model *model, const int *reshard, const int *reshard_size);
/* How many units are gathered ahead while `unit` is the latest one that has started: 0, 1, ..., or -1: as
 * ms_plan_config says. */
MS_API int ms_model_set_prefetch(ms_model *model, int unit, int depth);
/* Which units are gathered ahead there, in order: units is [n], for forward (backward 0) or backward (1); n -1: by
 * number again. A unit that no other unit gathers ahead is gathered when it is needed. */
MS_API int ms_model_set_prefetch_order(ms_model *model, int unit, int backward, int n, const int *units);
/* lr_scale and weight_decay are [params]. MS_EUNSUPPORTED if parameters of one segment of a `ragged` unit differ. */
MS_API int ms_model_set_groups(ms_model *model, const double *lr_scale, const double *weight_decay);
/* Computes the initial elements [first, first + count) of a parameter from its name and distribution (enum ms_init, a,
 * b); out is [count]. The values depend only on the arguments, so any part of a tensor can be computed anywhere
 * (Philox4x32-10). */
MS_API int ms_initial_values(uint64_t seed, const char *name, int init, double a, double b, int64_t first,
                             int64_t count, float *out);

/* ---- ops -------------------------------------------------------------------------------------------------------- */

/* Attributes of a node. The op's row gives the meaning of each slot: `attrs` is "name:slot=default ...", where a slot
 * is i0..i7 (integers, flags, axes) or f0..f3 (reals). */
typedef struct ms_attrs {
  int64_t i[8];
  double f[4];
} ms_attrs;

typedef struct ms_op_info {
  const char *name;
  const char *attrs; /* e.g. "trans_a:i0=0 trans_b:i1=0" */
  const char *doc;   /* formula and shapes, on one line */
  int min_inputs, max_inputs, outputs;
  int differentiable; /* 1: has a gradient */
  int internal;       /* 1: inserted by the compiler, not meant for programs */
} ms_op_info;

MS_API int ms_op_count(void);
MS_API int ms_op_describe(int op, ms_op_info *info);
MS_API int ms_op_find(const char *name);                    /* the op's index, or -1 */
MS_API int ms_op_defaults(const char *op, ms_attrs *attrs); /* the row's default attributes */

/* ---- graph ------------------------------------------------------------------------------------------------------ */

typedef struct ms_graph ms_graph;

typedef struct ms_value_info {
  int dtype, ndim;
  int64_t dims[MS_MAX_DIMS];
} ms_value_info;

/* A graph over the parameters of a model. Values of a graph are ints >= 0. */
MS_API int ms_graph_new(const ms_model *model, ms_graph **graph);
MS_API void ms_graph_free(ms_graph *graph);
/* Sets the module path of the nodes that follow ("layers.3.attn"); "" or NULL: none. */
MS_API int ms_graph_set_scope(ms_graph *graph, const char *path);
/* Activation checkpointing: nodes that follow belong to recompute region `region`; 0: none. Only values that leave the
 * region are kept for backward, which computes the others again. ops: the names, separated by spaces, of the ops to
 * compute again, while results of other ops are kept; NULL: all ops. */
MS_API int ms_graph_set_recompute(ms_graph *graph, int region, const char *ops);
/* An input that the program writes before each phase (tokens, targets, ...), by name. */
MS_API int ms_graph_input(ms_graph *graph, const char *name, int dtype, int ndim, const int64_t *dims, int *value);
/* How many rows of the batch an input has along its first axis, which each take size / rows indices. Default: the
 * axis's size; 0: none, the input is the same for all rows and ranks. Results have the rows of their inputs as long as
 * the ops keep rows separate. Dropout depends on the row's place in the global batch, so it does not depend on which
 * rank computes the row; a value without rows has the same mask everywhere. */
MS_API int ms_graph_set_input_rows(ms_graph *graph, int value, int64_t rows);
/* The unsharded parameter, in the dtype that kernels read. Calls with the same parameter return the same value. */
MS_API int ms_graph_param(ms_graph *graph, int param, int *value);
/* Adds a node; outputs is [ms_op_info.outputs]. attrs NULL: the row's defaults. */
MS_API int ms_graph_op(ms_graph *graph, const char *op, int n_inputs, const int *inputs, const ms_attrs *attrs,
                       int *outputs);
MS_API int ms_graph_describe(const ms_graph *graph, int value, ms_value_info *info);
/* Sets the f32 scalar to differentiate. A graph without a loss has only the phase evaluate. */
MS_API int ms_graph_set_loss(ms_graph *graph, int value);
/* Sets the weight of this micro-batch's loss among those of all ranks and micro-batches: an f32 scalar, not negative,
 * without a gradient. The loss of a step, which is differentiated, is then sum(weight * loss) / sum(weight), or 0 if
 * all weights are 0. Without a weight, all losses count equally. */
MS_API int ms_graph_set_loss_weight(ms_graph *graph, int value);
/* Makes a value readable after a phase, by name (ms_exec_output). */
MS_API int ms_graph_output(ms_graph *graph, const char *name, int value);

/* ---- plan ------------------------------------------------------------------------------------------------------- */

typedef struct ms_plan ms_plan;

enum ms_phase {
  MS_PHASE_FIRST = 0,    /* forward and backward of the first micro-batch: gradients are written */
  MS_PHASE_NEXT = 1,     /* forward and backward of each further micro-batch: gradients are added */
  MS_PHASE_LAST = 2,     /* replaces NEXT for the last micro-batch if ms_plan_config.sync is not EVERY */
  MS_PHASE_NORM = 3,     /* loss and gradient norm over the mesh */
  MS_PHASE_UPDATE = 4,   /* clipping and optimizer */
  MS_PHASE_EVALUATE = 5, /* forward only */
  MS_PHASES = 6
};

/* In which micro-batches gradients are summed over ranks. Until then they are kept, and added up, in f32. */
enum ms_sync {
  MS_SYNC_EVERY = 0, /* in every one: least memory */
  MS_SYNC_SHARD = 1, /* over the shards in every one, over the replicas in the last one */
  MS_SYNC_LAST = 2   /* in the last one: unsharded gradients are kept until then */
};

/* What memory is used for. */
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
  int struct_size;          /* set by ms_plan_config_default */
  int optimizer;            /* enum ms_optimizer_kind */
  double beta1, beta2, eps; /* AdamW (Loshchilov & Hutter 2019): 0.9, 0.999, 1e-8 */
  /* The dtype in which AdamW keeps its two moments: MS_F32 (default), or MS_BF16, which takes half the bytes. With
   * bf16, every step computes in f32 and then rounds up or down at random, so that the mean is exact. Rounding to
   * nearest would lose every change below half a step of bf16 (1/512 of the moment), which beta2 = 0.999 produces. The
   * direction depends only on the model's seed, the parameter's name, the element and the parameter's number of
   * updates, so it is the same on every mesh and device. */
  int moment_dtype;
  double momentum, dampening; /* SGD, as in PyTorch */
  int nesterov;
  /* An exponential moving average of the weights, in f32: a = p in step 1, then a += (1 - d) (p - a) after every
   * update, with d = ema_decay, as torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn. 0 (default): none.
   * With ema_warmup, d = min(ema_decay, (1 + step) / (10 + step)), as in TensorFlow's ExponentialMovingAverage. */
  double ema_decay;
  int ema_warmup;
  double max_norm; /* clips by the global norm; 0: no clipping (the norm is still computed) */
  int prefetch;    /* how many units are gathered ahead: 0, 1 (default), 2, ... */
  int accumulate;  /* 1: compile the phase NEXT, too */
  int sync;        /* enum ms_sync; if not EVERY, a step is FIRST, NEXT ..., LAST, at least FIRST and LAST */
  /* 1 (default): a unit's gathered weights are freed after its backward. 0: they are kept for the next micro-batch, and
   * so from forward to backward, too: NEXT and LAST gather nothing. */
  int reshard_after_backward;
  int pipeline_stage; /* 1: the model is one stage of a pipeline (see enum ms_reshard); default 0 */
  int train;          /* 0: only evaluate */
  int fuse;           /* 1 (default): fuse ops */
  /* The threads per rank that kernels use. 0: OMP_NUM_THREADS, or else an equal share of the host's cores. */
  int threads;
  /* 1 (default): on the CPU, the ranks of a host share memory instead of copying. The f32 masters of a unit that
   * kernels read in f32 are in memory that all ranks of the shard group map, and kernels read them there: its
   * all-gathers move no bytes, and it needs no gathered copy. Replicas share one copy of masters and optimizer state,
   * and of gathered weights if there is more than one shard; each replica counts and updates an equal part. Ranks on
   * different nodes (node_of) share nothing. 0: all units are gathered, and each replica has its own copy. */
  int shared_masters;
  /* The topology: node_of is [ranks of the world], the node of each rank, 0 to nodes - 1; it is read during the call.
   * Nodes can have different numbers of ranks, in any order. 0 and NULL (default): all ranks are on one node, which has
   * at most MS_MAX_LOCAL_RANKS. The topology only decides which ranks can share memory. Replicas share a copy per node,
   * and sum gradients within nodes first, then between them. This version can plan for several nodes but not run such
   * plans: ms_state_new is MS_EUNSUPPORTED. */
  int nodes;
  const int *node_of;
  int device; /* enum ms_device_kind; the same for a state and its plans */
  int nccl;   /* for a state on cuda: flags of enum ms_nccl_option, 0 by default; MS_EUNSUPPORTED if the NCCL of this
                 machine lacks one */
} ms_plan_config;

/* Communicated bytes are doubles, because an all-reduce over n ranks counts 2 (n - 1) / n of its buffer. */
typedef struct ms_plan_summary {
  int instructions;
  int collectives[MS_PHASES];
  int64_t bytes[MS_CATEGORIES]; /* what the arenas reserve for each category; adds up to peak_bytes */
  /* The most bytes of each category that are in use at once. Each can be at a different instruction, and categories
   * share memory, so these add up to more than peak_bytes. */
  int64_t fullest[MS_CATEGORIES];
  int64_t peak_bytes; /* of all arenas of this rank */
  uint64_t fingerprint;
  double flops;                        /* of one micro-batch, forward and backward, without recomputation */
  double comm_bytes[MS_MAX_MESH_DIMS]; /* sent and received by this rank in FIRST + LAST + NORM + UPDATE */
  double compile_ms;
} ms_plan_summary;

MS_API void ms_plan_config_default(ms_plan_config *config, int size);
/* Compiles a plan for the rank that was passed to ms_model_shard. MS_ERACE if the verifier rejects the result. */
MS_API int ms_plan_compile(const ms_graph *graph, const ms_plan_config *config, ms_plan **plan);
MS_API void ms_plan_free(ms_plan *plan);
MS_API int ms_plan_summarize(const ms_plan *plan, ms_plan_summary *summary);
/* A pass of the compiler: its time, and the plan's size before [0] and after [1] it. nodes: of the graphs for training
 * and evaluation. bytes: the sum of all buffers until they are laid out; then the peak. */
enum { MS_PLAN_PASSES = 12 };
typedef struct ms_plan_pass {
  const char *name; /* "lower" */
  int cached;       /* 1: the result was cached by an earlier plan of the same graph */
  double ms;
  int nodes[2], instructions[2], events[2], buffers[2];
  int64_t bytes[2];
} ms_plan_pass;
/* The passes that made a plan, in order: list gets the first `capacity`; *n is their total number. */
MS_API int ms_plan_passes(const ms_plan *plan, int capacity, ms_plan_pass *list, int *n);
/* The plan as text (json 0), or as one JSON object. The plan owns the text, which is valid until the next call. */
MS_API int ms_plan_dump(ms_plan *plan, int json, const char **text);

/* ---- plan: costs ------------------------------------------------------------------------------------------------ */

/* What a unit costs this rank, in one phase and in state. */
typedef struct ms_unit_cost {
  int gathers, gathers_again;                   /* all-gathers of its weights; those after the first of the phase */
  int64_t gathered_bytes, gathered_again_bytes; /* received by them */
  double reduced_bytes;                         /* sent and received to sum its gradients over ranks */
  int64_t kept_bytes;                           /* gathered weights, or a shard of them, kept for backward */
  int64_t ahead_bytes; /* the most bytes of later units' weights that are already gathered while it computes */
  int64_t parameter_bytes, gradient_bytes, optimizer_bytes;
} ms_unit_cost;
/* MS_EINVAL if the plan does not have the phase (enum ms_phase), or the model the unit. */
MS_API int ms_plan_unit_cost(const ms_plan *plan, int phase, int unit, ms_unit_cost *cost);
/* Bytes of activations that the forward pass of a module, and of the modules in it, keeps for backward; module "": of
 * all. */
MS_API int ms_plan_kept_activations(const ms_plan *plan, const char *module, int64_t *bytes);

/* An exposed collective: while it runs, events let no kernel of this rank compute. The plan owns the texts. */
typedef struct ms_exposed {
  int instruction; /* its number in ms_plan_dump */
  int unit;        /* -1: the totals of the step */
  int backward;    /* 1: it starts after the first kernel of the backward pass */
  const char *kind, *scope;
  double bytes; /* counted as in ms_unit_cost */
} ms_exposed;
/* The exposed collectives of a phase, in program order: list gets the first `capacity`; *n is their total number. */
MS_API int ms_plan_exposed(const ms_plan *plan, int phase, int capacity, ms_exposed *list, int *n);

/* The first instruction at which the most bytes are in use. The arenas can be larger, because there are gaps between
 * buffers, and arenas are fullest at different instructions. The plan owns the texts. */
typedef struct ms_peak {
  int phase, instruction, backward;          /* instruction: its number in ms_plan_dump */
  const char *op, *scope;                    /* scope: the module, or the unit of a collective */
  int64_t bytes[MS_CATEGORIES], total_bytes; /* in use there */
  /* A lower bound for any placement of the buffers: the state, plus the most that is in use at one instruction of each
   * kind of memory (the rank's own, its group's, that of smaller groups). Gradient chunks always exist; until they are
   * written, activations that are not larger than all of them together can use their memory. */
  int64_t least_bytes;
  int buffers; /* how many buffers are in use there, without state other than gradient chunks */
} ms_peak;
typedef struct ms_peak_buffer {
  int category; /* enum ms_category */
  int64_t bytes;
  const char *label, *scope; /* label: its op or unit; scope: the module or unit that wrote it first */
} ms_peak_buffer;
/* buffer gets the first `capacity` of peak->buffers. */
MS_API int ms_plan_peak_use(const ms_plan *plan, ms_peak *peak, int capacity, ms_peak_buffer *buffer);

/* ---- state ------------------------------------------------------------------------------------------------------ */

typedef struct ms_state ms_state;
typedef struct ms_exec ms_exec;

/* Allocates this rank's part of parameters, gradients and optimizer state. Parameters get their initial values from the
 * model's seed, the rest zeros. Collective; from here on that means: for all ranks of the model's mesh. The ranks
 * compare their meshes, models and optimizers; MS_EMISMATCH if they differ. The k-th state of a rank belongs to the
 * k-th of the others. MS_ENOMEM: this rank would map more memory than the machine has. */
MS_API int ms_state_new(ms_world *world, const ms_model *model, const ms_plan_config *config, ms_state **state);
/* The memory is returned once the execs and saves of the state are released, too. */
MS_API void ms_state_free(ms_state *state);
/* The bytes of the state's arenas that this rank counts. Binding a plan that needs more enlarges them; with one plan
 * they are its peak_bytes. */
MS_API int ms_state_arena_bytes(const ms_state *state, int64_t *bytes);
/* The bytes by which binding a plan would enlarge the host's memory use, this rank's share. */
MS_API int ms_state_growth(const ms_state *state, const ms_plan *plan, int64_t *bytes);

/* Memory of a device, in bytes; all 0 on the CPU. */
typedef struct ms_device_memory {
  int64_t total, free;   /* of the device, now */
  int64_t arenas;        /* of all states of this process, with a few control words */
  int64_t context;       /* in use by any process when this process had created its context */
  int64_t communicators; /* allocated while communicators were opened */
  int64_t pinned;        /* host memory that stages inputs and outputs */
} ms_device_memory;
MS_API int ms_state_memory(const ms_state *state, ms_device_memory *memory);
/* Gathers `bytes` bytes, at most 4096, from every rank that trains this model: all is [ranks][bytes], in the order of
 * ms_mesh_ranks. Collective. */
MS_API int ms_state_all_gather_bytes(ms_state *state, const void *mine, int bytes, void *all);

/* ---- execution -------------------------------------------------------------------------------------------------- */

/* The rows of a micro-batch: row i is row first + i * step of the step's global batch; step 0 means 1. */
typedef struct ms_axis_part {
  int64_t first, step;
} ms_axis_part;

typedef struct ms_step_inputs {
  double lr;         /* learning rate of this step, 0 or more */
  int64_t step;      /* from 1, at which averages begin, to 2^53 */
  int micro_batches; /* how many phases FIRST, NEXT and LAST the step has, at most 2^24; gradients are divided by it */
  uint64_t seed;     /* of dropout; must differ from step to step */
  ms_axis_part rows; /* which rows of the global batch this micro-batch has; dropout depends on them */
} ms_step_inputs;

typedef struct ms_step_outputs {
  double loss;      /* NORM: mean over micro-batches and ranks; EVALUATE: mean over ranks; with weights, see
                       ms_graph_set_loss_weight */
  double grad_norm; /* NORM: norm of the mean gradient, before clipping */
  double divisor;   /* what the sums were divided by: the number of losses, or the sum of their weights */
} ms_step_outputs;

/* What an exec has run since ms_exec_new. */
typedef struct ms_exec_counters {
  int64_t collectives[MS_PHASES];
  double comm_bytes[MS_MAX_MESH_DIMS]; /* as in ms_plan_summary */
  /* On cuda, kernel_seconds and collective_seconds count only profiled steps: otherwise the host does not see how long
   * kernels and collectives take. */
  double kernel_seconds, wait_seconds, collective_seconds, total_seconds;
  int64_t instructions;
  int64_t allocations; /* made by the engine while phases ran: stays 0 */
} ms_exec_counters;

/* Binds a plan to a state: enlarges the arenas, opens communicators, and compares the plans of all ranks. Collective.
 */
MS_API int ms_exec_new(ms_state *state, const ms_plan *plan, ms_exec **exec);
MS_API void ms_exec_free(ms_exec *exec);
/* Where to write an input before a phase, in its declared shape and dtype; NULL if there is no such input. On the CPU
 * it is the input itself; elsewhere it is host memory that the phase copies first. It can be overwritten as soon as
 * ms_exec_run returns. */
MS_API void *ms_exec_input(ms_exec *exec, const char *name);
/* Where to read a named output after a phase; NULL if there is no such output, or copying fails. On the CPU it is the
 * output itself; elsewhere it is a copy, made by this call after the device has finished the phase. */
MS_API const void *ms_exec_output(ms_exec *exec, const char *name);
/* on 1: an asynchronous device captures each phase as a graph in its second run, and replays it as one piece of work
 * from then on, with the same results. MS_EUNSUPPORTED on the CPU. */
MS_API int ms_exec_set_graph(ms_exec *exec, int on);
/* Runs one phase. A step is FIRST, NEXT as often as needed (or LAST), NORM, UPDATE; another order is MS_EINVAL: NEXT,
 * LAST and NORM need a FIRST since the latest UPDATE or failed phase, and UPDATE must follow directly after NORM,
 * where ranks learn that no rank reads the old weights any more. inputs can be NULL (step 1 with one micro-batch and a
 * learning rate of 0), and so can outputs. On an
 * asynchronous device only NORM and EVALUATE wait for the result, and errors of earlier phases (a token outside the
 * vocabulary) are returned there. NORM returns MS_ENONFINITE before anything is updated. Collective. */
MS_API int ms_exec_run(ms_exec *exec, int phase, const ms_step_inputs *inputs, ms_step_outputs *outputs);
/* After MS_ENONFINITE: runs FIRST again on the same inputs, checks what every instruction writes, and returns a message
 * that names the first op or parameter with a NaN or an infinity. Collective. */
MS_API int ms_exec_find_nonfinite(ms_exec *exec, const ms_step_inputs *inputs, const char **message);
MS_API int ms_exec_counts(const ms_exec *exec, ms_exec_counters *counters);

/* ---- profiles --------------------------------------------------------------------------------------------------- */

typedef struct ms_profile ms_profile;

/* Records what this rank does from now on: its barriers and all-gathers of bytes, and the execs that it is set for. */
MS_API int ms_profile_new(ms_world *world, ms_profile **profile);
MS_API void ms_profile_free(ms_profile *profile);
/* Records the phases that exec runs from now on; profile NULL: no longer. */
MS_API void ms_exec_set_profile(ms_exec *exec, ms_profile *profile);
/* Records what the program did from `began` (seconds of CLOCK_MONOTONIC) until now: "step 12", "data". */
MS_API int ms_profile_mark(ms_profile *profile, const char *name, double began);
/* Writes the records of all ranks to one file in Chrome's trace format (JSON). Collective. */
MS_API int ms_profile_write(ms_profile *profile, const char *path);

/* ---- parameters and optimizer state ----------------------------------------------------------------------------- */

/* The tensors that a state has for each parameter. EXP_AVG and EXP_AVG_SQ: AdamW's moments; SGD has only MOMENTUM. */
enum ms_tensor_kind {
  MS_TENSOR_PARAM = 0,
  MS_TENSOR_GRAD = 1,
  MS_TENSOR_EXP_AVG = 2,
  MS_TENSOR_MOMENTUM = 2,
  MS_TENSOR_EXP_AVG_SQ = 3,
  MS_TENSOR_EMA = 4,
  MS_TENSOR_KINDS = 5
};

/* In all of these, what is an enum ms_tensor_kind, elements are numbered in the flattened tensor, and values are f32 in
 * host memory, whatever the state's device and dtype.
 *
 * The elements [*first, *first + *count) that this rank owns. On the CPU *data points to them; elsewhere it points to a
 * copy that is valid until the next read of this state. Replicas that share one copy of the state
 * (ms_plan_config.shared_masters) each own only the slice of the gradients that they update. */
MS_API int ms_state_shard(ms_state *state, int param, int what, int64_t *first, int64_t *count, float **data);
/* Copy elements [first, first + count), all of which this rank must own. Not collective: other ranks can be reading
 * what ms_state_write changes, so all ranks must have finished a step, and know it of each other (ms_world_barrier).
 * Replicas that share one copy own the same elements: all can write if they write the same values. */
MS_API int ms_state_read(const ms_state *state, int param, int what, int64_t first, int64_t count, float *out);
MS_API int ms_state_write(ms_state *state, int param, int what, int64_t first, int64_t count, const float *values);
/* Gathers a whole tensor on every rank: full is [elements], or NULL on a rank that only contributes its part. Gradients
 * are sums: ms_step_outputs.divisor has not been applied. MS_EMISMATCH if ranks ask for different tensors.
 * Collective. */
MS_API int ms_state_gather(ms_state *state, int param, int what, float *full);
/* The same for elements [first, first + count), at least one; out is [count], or NULL. */
MS_API int ms_state_gather_range(ms_state *state, int param, int what, int64_t first, int64_t count, float *out);
/* Overwrites a parameter: each rank copies its part from the whole parameter. Collective, because other ranks can be
 * reading the old values. */
MS_API int ms_state_write_full(ms_state *state, int param, const float *full);
/* The same, but only one rank has the whole parameter: the one at index `from` of ms_mesh_ranks. full is NULL on the
 * others. */
MS_API int ms_state_scatter(ms_state *state, int param, int from, const float *full);
/* The number of updates that a parameter has had, the same on all ranks. AdamW's bias corrections and SGD's first step
 * depend on it. An update skips parameters that the loss does not depend on: neither they, nor their optimizer state,
 * nor this number change. Set it when you restore a saved state. Not collective. */
MS_API int ms_state_updates(const ms_state *state, int param, int64_t *updates);
MS_API int ms_state_set_updates(ms_state *state, int param, int64_t updates);
/* Swaps the parameters and their averages (ms_plan_config.ema_decay), so that evaluating, reading and exporting use the
 * averages; a second call swaps back. Until then, training and saving are MS_EINVAL. The average of a frozen parameter
 * is the parameter. Collective, because other ranks can be reading; with `alone` 1 this rank does not wait for them,
 * which is meant for a rank whose work with the averages has failed (replicas that share one copy wait for each other
 * before their next phase). */
MS_API int ms_state_swap_ema(ms_state *state, int alone);
/* Restarts the averages from the present parameters. No other rank may be reading them: see ms_state_write. */
MS_API int ms_state_restart_ema(ms_state *state);

/* ---- text files ------------------------------------------------------------------------------------------------- */

/* Reads a whole regular file, and appends a zero byte. MS_EINVAL if it does not exist or is a folder, a pipe or a
 * device; the call never waits for one. Release the text with ms_file_text_free. */
MS_API int ms_file_read_text(const char *path, char **text, int64_t *bytes);
MS_API void ms_file_text_free(char *text);

/* ---- safetensors ------------------------------------------------------------------------------------------------ */

typedef struct ms_safetensors ms_safetensors;
typedef struct ms_safetensors_writer ms_safetensors_writer;

/* A tensor of a file. The handle owns texts and dims. ms_safetensors_create reads name, dtype, ndim and dims. */
typedef struct ms_safetensors_tensor {
  const char *name;
  const char *dtype; /* in the format's spelling: BOOL U8 I8 I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64 F8_E4M3 ... */
  int bits;          /* of one element: 4, 6, 8, 16, 32 or 64 */
  int ndim;
  const int64_t *dims; /* [ndim]; ndim and each size can be 0 */
  int64_t elements;
  int64_t offset, bytes; /* the position of its data in the file, and its size */
  const char *file;      /* the path of the file that contains it */
} ms_safetensors_tensor;

/* Opens one file, an index (a path that ends in ".index.json"), or a folder: its model.safetensors, the files listed in
 * its model.safetensors.index.json, or its only safetensors file. Reads only headers, and checks every rule of the
 * format. MS_EINVAL names file, tensor and field; MS_EIO is an error of the system. */
MS_API int ms_safetensors_open(const char *path, ms_safetensors **file);
MS_API void ms_safetensors_close(ms_safetensors *file);
MS_API int ms_safetensors_count(const ms_safetensors *file);
/* Tensors are sorted by name (bytes of UTF-8, ascending). */
MS_API int ms_safetensors_describe(const ms_safetensors *file, int i, ms_safetensors_tensor *tensor);
MS_API int ms_safetensors_find(const ms_safetensors *file, const char *name); /* the tensor's index, or -1 */
/* A tensor's data in the mapped file, little-endian and row-major, aligned as in the file; not NULL for a valid index.
 * Only pages that are touched are read. The file must not be truncated while it is open. */
MS_API const void *ms_safetensors_data(const ms_safetensors *file, int i);
/* Copies bytes [first, first + bytes) of a tensor. MS_EIO, not a signal, if the file was truncated or the disk fails.
 */
MS_API int ms_safetensors_read(const ms_safetensors *file, int i, int64_t first, int64_t bytes, void *out);
/* A matrix view of a tensor: element [r, c] is element first + r * row_stride + c * column_stride of the tensor. One
 * stride must be 1; row_stride 1 is a transposed view. */
typedef struct ms_safetensors_view {
  int64_t rows, columns, first, row_stride, column_stride;
} ms_safetensors_view;

/* Reads elements [first, first + count) of a view, row by row, as f32; view NULL: the tensor itself. The tensor must be
 * F32, BF16, F16 or F64 (MS_EDTYPE). *bytes (can be NULL) is how many bytes of the file this read. */
MS_API int ms_safetensors_read_f32(const ms_safetensors *file, int i, const ms_safetensors_view *view, int64_t first,
                                   int64_t count, float *out, int64_t *bytes);
/* XXH3 (64 bits) of a tensor's bytes; hex is [17]: 16 hexadecimal digits and a zero byte. */
MS_API int ms_safetensors_checksum(const ms_safetensors *file, int i, char *hex);
/* The same for its bytes [first, first + bytes). */
MS_API int ms_safetensors_checksum_range(const ms_safetensors *file, int i, int64_t first, int64_t bytes, char *hex);
/* The entries of __metadata__: those of the index, whose values can be any JSON, then those of each file. MS_EINVAL if
 * there is no entry i. */
MS_API int ms_safetensors_metadata_count(const ms_safetensors *file);
MS_API int ms_safetensors_metadata(const ms_safetensors *file, int i, const char **key, const char **value,
                                   const char **path);

typedef struct ms_safetensors_config {
  int struct_size;                  /* set by ms_safetensors_config_default */
  int metadata;                     /* number of entries of __metadata__; 0 (default): none */
  const char *const *metadata_text; /* [2 * metadata]: key, value, key, value, ... */
  int atomic; /* 1 (default): the path changes only when the file is complete; 0: writes to the path itself */
  int sync;   /* 1: finish returns when the file (and its folder if atomic) is on disk (fsync); default 0 */
  int direct; /* 1: data start at a multiple of 4096 bytes, to bypass the page cache; 0 (default): of 8 bytes */
} ms_safetensors_config;

MS_API void ms_safetensors_config_default(ms_safetensors_config *config, int size);
/* Creates a file of n tensors, and writes its header. config can be NULL. Data are in the order of the reference
 * library, by alignment and then by name, so each tensor is aligned to its elements. */
MS_API int ms_safetensors_create(const char *path, int n, const ms_safetensors_tensor *tensors,
                                 const ms_safetensors_config *config, ms_safetensors_writer **writer);
/* Writes bytes [first, first + bytes) of the i-th declared tensor; in any order, but each byte once. */
MS_API int ms_safetensors_write(ms_safetensors_writer *writer, int i, int64_t first, int64_t bytes, const void *data);
/* Writes elements [first, first + count) of a view of the i-th declared tensor, rounding f32 to its type. */
MS_API int ms_safetensors_write_f32(ms_safetensors_writer *writer, int i, const ms_safetensors_view *view,
                                    int64_t first, int64_t count, const float *data);
/* Completes the file and releases the writer. On an error it removes the file and releases the writer, too; MS_EINVAL
 * names a tensor with missing bytes. */
MS_API int ms_safetensors_finish(ms_safetensors_writer *writer);
/* Removes what was written, and releases the writer. NULL is allowed. */
MS_API void ms_safetensors_abort(ms_safetensors_writer *writer);

/* ---- token data ------------------------------------------------------------------------------------------------- */

typedef struct ms_tokens ms_tokens;
typedef struct ms_token_reader ms_token_reader;

/* FILES: token files in the format of llm.c: a header of 256 int32 (magic 20240520 and version 1: 16-bit tokens; magic
 * 20240801 and version 7: 32-bit tokens; then the number of tokens, or from 2^31 on, -1 and the number as an int64),
 * followed by the tokens. BYTES: any files; each byte is a token. */
enum ms_token_kind { MS_TOKEN_FILES = 0, MS_TOKEN_BYTES = 1 };

/* Maps files as one stream of tokens, in this order. MS_EINVAL names a file that does not exist, or the field that is
 * wrong (too short, too long, another format); MS_EIO is an error of the system. */
MS_API int ms_tokens_open(int files, const char *const *paths, int kind, ms_tokens **tokens);
MS_API void ms_tokens_close(ms_tokens *tokens);
MS_API int ms_tokens_count(const ms_tokens *tokens, int64_t *count); /* of the whole stream */
/* Copies tokens [first, first + count). MS_EIO if a file was truncated after it was opened. */
MS_API int ms_tokens_read(const ms_tokens *tokens, int64_t first, int64_t count, int32_t *out);

/* Starts a thread that reads batches ahead, each of `rows` samples of `columns` tokens. At most `slots` batches can be
 * requested and not yet taken. */
MS_API int ms_token_reader_new(ms_tokens *tokens, int rows, int columns, int slots, ms_token_reader **reader);
MS_API void ms_token_reader_free(ms_token_reader *reader);
/* Requests a batch and returns at once. first is [rows]: where each sample begins. MS_EINVAL if no slot is free. */
MS_API int ms_token_reader_request(ms_token_reader *reader, const int64_t *first);
/* Takes the oldest requested batch: tokens is [rows][columns], and targets are the same shifted by one. Waits at most
 * `seconds` (MS_ETIMEOUT). If reading failed, returns that error. MS_EINTERRUPT after Ctrl-C; the batch can still be
 * taken. */
MS_API int ms_token_reader_take(ms_token_reader *reader, double seconds, int32_t *tokens, int32_t *targets);
/* Discards all batches that were requested and not taken. Waits for them as take does. */
MS_API int ms_token_reader_discard(ms_token_reader *reader, double seconds);

/* ---- tokenizers ------------------------------------------------------------------------------------------------- */

typedef struct ms_tokenizer ms_tokenizer;

/* Reads a tokenizer.json, or the one in a folder: byte-level BPE with the pre-tokenizers of GPT-2 and Llama 3.
 * MS_EUNSUPPORTED and MS_EINVAL name the field that is not supported, or wrong. */
MS_API int ms_tokenizer_open(const char *path, ms_tokenizer **tokenizer);
MS_API void ms_tokenizer_close(ms_tokenizer *tokenizer);
MS_API int ms_tokenizer_vocab(const ms_tokenizer *tokenizer); /* the largest id + 1 */
/* The id of a token in the spelling of tokenizer.json; -1 if there is none. */
MS_API int ms_tokenizer_find(const ms_tokenizer *tokenizer, const char *token);
/* The tokens of a text. Added (special) tokens that occur in the text become their ids; none are put around it. The
 * tokenizer owns ids, which are valid until its next call. MS_EINVAL for text that is not UTF-8. */
MS_API int ms_tokenizer_encode(ms_tokenizer *tokenizer, const char *text, int64_t bytes, const int32_t **ids,
                               int64_t *count);
/* The text of tokens, including special ones; it can end within a character. The tokenizer owns the text, which is
 * valid until its next call. */
MS_API int ms_tokenizer_decode(ms_tokenizer *tokenizer, const int32_t *ids, int64_t count, const char **text,
                               int64_t *bytes);

typedef struct ms_tokenize_config {
  int struct_size; /* set by ms_tokenize_config_default */
  int begin, end;  /* ids put before and after each file; -1 (default): none */
  int threads;     /* 0 (default): all cores that this process may use */
  int replace;     /* 1: invalid UTF-8 becomes U+FFFD; 0 (default): it is MS_EINVAL, which names the place */
} ms_tokenize_config;

typedef struct ms_tokenize_result {
  int64_t bytes, tokens; /* bytes read, tokens written */
  int width;             /* bytes per token: 2 if the vocabulary fits, else 4 */
} ms_tokenize_result;

MS_API void ms_tokenize_config_default(ms_tokenize_config *config, int size);
/* Writes the tokens of text files, one document each, to the token file `out`, which appears when it is complete. The
 * result does not depend on the number of threads. config can be NULL. MS_EINTERRUPT after Ctrl-C. */
MS_API int ms_tokenize_files(const ms_tokenizer *tokenizer, int files, const char *const *paths, const char *out,
                             const ms_tokenize_config *config, ms_tokenize_result *result);

/* ---- checkpoints ------------------------------------------------------------------------------------------------ */

/* A checkpoint is a folder: a safetensors file from each rank that writes, and manifest.json, which lists the tensors
 * and has a checksum for every block of MS_CHECKPOINT_BLOCK bytes of each. It is written to a temporary folder and
 * synced to disk, manifest last, and then renamed to its final name. */
enum { MS_CHECKPOINT_BLOCK = 4194304 };

/* Elements of a tensor of the state that this rank saves as a tensor of its file. */
typedef struct ms_save_piece {
  const char *name;      /* of the tensor in the file */
  const char *parameter; /* for the manifest: the parameter's name, and the kind of tensor ("param", "exp_avg") */
  const char *kind;
  int param; /* as in ms_state_read, and enum ms_tensor_kind */
  int what;
  int64_t first, count; /* elements of the flattened parameter; count > 0 */
  int ndim;
  int64_t dims[MS_MAX_DIMS]; /* of the tensor in the file; their product is count */
} ms_save_piece;

typedef struct ms_save_config {
  int struct_size;    /* set by ms_save_config_default */
  const char *folder; /* the temporary folder, which must exist and be empty */
  int writer;         /* the index of this rank among those that write: 3 writes rank-00003.safetensors */
  int asynchronous;   /* 1: copies the state, and a thread writes the copy while training continues */
  /* For the rank that commits; NULL or 0 on the others: */
  const char *target;         /* the final name, which must not exist */
  int writers;                /* how many ranks write */
  const char *head;           /* the manifest without its list of files: a JSON object that is not empty */
  int retired;                /* how many checkpoints to remove after the commit */
  const char *const *retires; /* [retired] their paths */
} ms_save_config;

MS_API void ms_save_config_default(ms_save_config *config, int size); /* sets all to 0 and NULL */

typedef struct ms_save ms_save;
enum ms_save_stage { MS_SAVE_WRITTEN = 0, MS_SAVE_COMMITTED = 1 };

/* Prepares saving: the pieces that this rank writes in every checkpoint of a state. */
MS_API int ms_save_new(ms_state *state, int n, const ms_save_piece *pieces, ms_save **save);
MS_API void ms_save_free(ms_save *save);
/* Starts a save; the previous one must have ended. Synchronous: returns when this rank's file is on disk. Asynchronous:
 * returns when the state is copied; the rank that commits does so in the background once all files exist. Not
 * collective. */
MS_API int ms_save_start(ms_save *save, const ms_save_config *config);
/* Waits until this rank's file is on disk (WRITTEN), or, on the rank that commits, until the checkpoint has its final
 * name (COMMITTED). Synchronous saves commit in this call, so all ranks must have told each other that they have
 * written. Returns the error if writing failed, or MS_ETIMEOUT if writing makes no progress for the world's timeout. */
MS_API int ms_save_wait(ms_save *save, int stage);
/* 1 while a save runs in the background. */
MS_API int ms_save_running(const ms_save *save);
/* Stops a save that is running; there will be no checkpoint. */
MS_API void ms_save_stop(ms_save *save);
/* The bytes of the copy: 0 before the first asynchronous save. */
MS_API int ms_save_snapshot_bytes(const ms_save *save, int64_t *bytes);
/* Makes a folder and its missing parents. fresh 1: the folder must not exist yet; 0: it may, and it is synced to disk.
 */
MS_API int ms_checkpoint_make_folder(const char *path, int fresh);
/* Removes a checkpoint's folder. Renames it first, so that a partly removed folder is never taken for a checkpoint.
 * Does not touch a folder without a manifest, unless its name begins with a dot. */
MS_API int ms_checkpoint_remove(const char *path);
/* Reads a manifest and verifies the checksum at its end. Release the text with ms_file_text_free. */
MS_API int ms_checkpoint_read_manifest(const char *folder, char **text);
/* Restores elements [first, first + count) of a tensor of the state, which this rank must own, from the i-th tensor of
 * a file, whose F32 elements are [begin, ...) of it. checksums: 16 hexadecimal digits for each block of the tensor (see
 * MS_CHECKPOINT_BLOCK); every block that is needed is read whole and verified. NULL: no verification. Adds the bytes
 * read to *bytes. MS_EIO if a checksum differs; the state can be partly overwritten by then. No other rank may be
 * reading: see ms_state_write. */
MS_API int ms_state_load(ms_state *state, int param, int what, int64_t first, int64_t count, const ms_safetensors *file,
                         int i, int64_t begin, const char *checksums, int64_t *bytes);

/* ffi:end */

#ifdef __cplusplus
}
#endif
#endif
