/* exec.h - running a plan: a rank's state, phases, profiles, and access to parameters and optimizer state.
 *
 * A part of moonshard.h, which explains the conventions. The Lua layer parses the text between the two ffi marks: it
 * contains no preprocessor directives, and no function returns a 64-bit value.
 */
#ifndef MOONSHARD_EXEC_H
#define MOONSHARD_EXEC_H

#include <moonshard/base.h>
#include <moonshard/plan.h>
#include <moonshard/world.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ffi:begin */

/* ---- state ------------------------------------------------------------------------------------------------------ */

/* After ms_free its memory is returned once the execs and saves of the state are released, too. */
typedef struct ms_state ms_state;
typedef struct ms_exec ms_exec;

/* Allocates this rank's part of parameters, gradients and optimizer state. Parameters get their initial values from the
 * model's seed, the rest zeros. Collective; from here on that means: for all ranks of the model's mesh. The ranks
 * compare their meshes, models and optimizers; MS_EMISMATCH if they differ. The k-th state of a rank belongs to the
 * k-th of the others. MS_ENOMEM: this rank would map more memory than the machine has, or than a control group allows.
 * draw 0: reserves memory, but writes none of it. All parameters are 0 until ms_state_restart writes the initial
 * values. Pages are committed when they are first written, so there is time to ask whether the host has room for the
 * state and for a plan (ms_state_memory). */
MS_API int ms_state_new(ms_world *world, const ms_model *model, const ms_plan_config *config, int draw,
                        ms_state **state);

/* The memory of a state, in bytes. The last six are of its device, and 0 on the CPU. */
typedef struct ms_state_memory_info {
  /* The size of the state's arenas, as this rank counts them. Binding a plan that needs more enlarges them; with one
   * plan they are its peak_bytes. */
  int64_t arena_bytes;
  int64_t growth;        /* by which binding the plan would enlarge the host's memory use, this rank's share */
  int64_t total, free;   /* of the device, now */
  int64_t arenas;        /* of all states of this process, with a few control words */
  int64_t context;       /* in use by any process when this process had created its context */
  int64_t communicators; /* allocated while communicators were opened */
  int64_t pinned;        /* host memory that stages inputs and outputs */
} ms_state_memory_info;
/* plan: what growth is asked of; can be NULL. */
MS_API int ms_state_memory(const ms_state *state, const ms_plan *plan, ms_state_memory_info *info, int size);
/* Gathers `bytes` bytes, at most 4096, from every rank that trains this model: all is [ranks][bytes], in the order of
 * ms_mesh_ranks. Collective. */
MS_API int ms_state_all_gather_bytes(ms_state *state, const void *mine, int bytes, void *all);

/* ---- execution -------------------------------------------------------------------------------------------------- */

typedef struct ms_step_inputs {
  int struct_size;   /* set by ms_config_default */
  int micro_batches; /* how many phases FIRST, NEXT and LAST the step has, at most 2^24; gradients are divided by it;
                        default 1 */
  double lr;         /* learning rate of this step, 0 (default) or more */
  double muon_lr;    /* that of parameters that take Muon; default 0 */
  int64_t step;      /* from 1 (default), at which averages begin, to 2^53 */
  uint64_t seed;     /* of dropout; must differ from step to step; default 0 */
  /* Which rows of the global batch this micro-batch has: row i of it is row first_row + i * row_step (default 0 and 1).
   * Dropout depends on them. */
  int64_t first_row, row_step;
} ms_step_inputs;

typedef struct ms_step_outputs {
  double loss;      /* NORM: mean over micro-batches and ranks, or the ranks of this replica if a unit has a fragment;
                       EVALUATE: mean over ranks; with weights, see ms_graph_set_loss */
  double grad_norm; /* NORM: norm of the mean gradient, before clipping; of units with a fragment, this replica's */
  double divisor;   /* what the sums were divided by: the number of losses, or the sum of their weights */
  double divisor_of_synced; /* the same for gradients of units without a fragment, if others have one; else divisor */
  double norms_of_groups[MS_MAX_NORM_GROUPS]; /* NORM: grad_norm of each of the plan's norm_groups */
  double max_logit; /* NORM: the largest attention score of the step, of a plan with logit_clips; else 0 */
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
  /* The part of wait_seconds in which kernels waited for a collective along each mesh dimension; on cuda 0. */
  double waited_for[MS_MAX_MESH_DIMS];
  /* What collectives over each mesh dimension have moved, as in ms_plan_traffic. */
  ms_traffic traffic[MS_MAX_MESH_DIMS];
  /* How many collectives the host has given to an asynchronous device's library, and how long that took it; a captured
   * phase counts once. Zeros on the CPU. */
  int64_t issued;
  double issue_seconds;
  /* How many kernels and collectives the host has launched on an asynchronous device, kernels that run together as one,
   * and how long that took it; without those of captured phases. Zeros on the CPU. */
  int64_t launches;
  double launch_seconds;
  int64_t host_bytes; /* memory that the exec and its plan take outside the arenas, without what libraries keep */
} ms_exec_counters;

/* Binds a plan to a state: enlarges the arenas, opens communicators, and compares the plans of all ranks. Collective.
 */
MS_API int ms_exec_new(ms_state *state, const ms_plan *plan, ms_exec **exec);
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
 * where ranks learn that no rank reads the old weights any more. inputs can be NULL: the defaults; and so can outputs,
 * of `size` bytes, which NORM and EVALUATE fill, NORM also with MS_ENONFINITE. On an asynchronous device only NORM and
 * EVALUATE wait for the result, and errors of earlier phases (a token outside the vocabulary) are returned there. NORM
 * returns MS_ENONFINITE before anything is updated. Collective. */
MS_API int ms_exec_run(ms_exec *exec, int phase, const ms_step_inputs *inputs, ms_step_outputs *outputs, int size);
/* After MS_ENONFINITE: runs FIRST again on the same inputs, checks what every instruction writes, and returns a message
 * that names the first op or parameter with a NaN or an infinity. Collective. */
MS_API int ms_exec_find_nonfinite(ms_exec *exec, const ms_step_inputs *inputs, const char **message);
MS_API int ms_exec_counts(const ms_exec *exec, ms_exec_counters *counters, int size);

/* ---- profiles --------------------------------------------------------------------------------------------------- */

typedef struct ms_profile ms_profile;

/* Records what this rank does from now on: its barriers and all-gathers of bytes, and the execs that it is set for. */
MS_API int ms_profile_new(ms_world *world, ms_profile **profile);
/* Records the phases that exec runs from now on; profile NULL: no longer. */
MS_API void ms_exec_set_profile(ms_exec *exec, ms_profile *profile);
/* Records what the program did from `began` (seconds of CLOCK_MONOTONIC) until now: "step 12", "data". */
MS_API int ms_profile_mark(ms_profile *profile, const char *name, double began);
/* Writes the records of all ranks to one file in Chrome's trace format (JSON). Collective. */
MS_API int ms_profile_write(ms_profile *profile, const char *path);

/* A kernel or collective that ran. Times are seconds of CLOCK_MONOTONIC. */
typedef struct ms_profile_item {
  int phase, instruction; /* its number in ms_plan_dump */
  int stream, collective; /* collective 0: a kernel */
  int run;                /* which run of a phase it is part of, counted from 1 */
  const char *name;       /* op, or collective: "all_gather" */
  double begin, end;
  double met;          /* collective: when all ranks had entered it; kernel: begin */
  double bytes;        /* a kernel's as the op table counts them; a collective's sent and received */
  double inside, wire; /* collective: bytes of that from ranks of this node, 0 if they were read in place; to other
                          nodes, or from them if that is more */
} ms_profile_item;
/* This rank's kernels and collectives, stream by stream in the order in which they ran. rows is [capacity], `size`
 * bytes each, and gets the first ones; *n is their total number. A profile of several plans does not say to which one
 * an instruction belongs. */
MS_API int ms_profile_items(const ms_profile *profile, ms_profile_item *rows, int size, int capacity, int *n);

/* ---- parameters and optimizer state ----------------------------------------------------------------------------- */

/* The tensors that a state has for each parameter. EXP_AVG and EXP_AVG_SQ: the moments of Adam and AdamW; Lion has only
 * EXP_AVG, SGD and Muon only MOMENTUM, which is the same tensor by another name. In units with a fragment
 * (ms_unit_config.fragment), which are the only ones with SYNCED to OUTER_SUM: the weights after the last sync, the
 * outer optimizer's momentum, and with ms_plan_config.outer_delay the sum over the replicas that was sent and not yet
 * applied. These are the same on all replicas; between syncs all others there are not.
 *
 * STORED: of a parameter that is kept as codes (ms_param_config.storage_dtype), these and their scales as they are
 * kept, to save and load them bit for bit. Its "elements" are 32-bit words, which take the place of f32 values. As
 * PARAM such a parameter reads as what its codes mean, and is written by quantising, whole: from the first owned
 * element on, in order.
 *
 * ROW_VAR, COL_VAR: of a parameter with two axes or more, Adafactor's averages of squares of gradients, [..., rows] and
 * [..., columns] for [..., rows, columns]; VARIANCE: of one with fewer, an average for each element. Their "elements"
 * are these averages, and every rank owns all of them: all must write the same. */
enum ms_tensor_kind {
  MS_TENSOR_PARAM = 0,
  MS_TENSOR_GRAD = 1,
  MS_TENSOR_EXP_AVG = 2,
  MS_TENSOR_MOMENTUM = 2,
  MS_TENSOR_EXP_AVG_SQ = 3,
  MS_TENSOR_EMA = 4,
  MS_TENSOR_SYNCED = 5,
  MS_TENSOR_OUTER_MOMENTUM = 6,
  MS_TENSOR_OUTER_SUM = 7,
  MS_TENSOR_STORED = 8,
  MS_TENSOR_ROW_VAR = 9,
  MS_TENSOR_COL_VAR = 10,
  MS_TENSOR_VARIANCE = 11,
  MS_TENSOR_KINDS = 12
};

/* In all of these, what is an enum ms_tensor_kind, elements are numbered in the flattened tensor, and values are f32 in
 * host memory, whatever the state's device and dtype.
 *
 * What this rank has of a tensor: ms_tensor_info (moonshard/model.h). Replicas that share one copy of the state
 * (ms_plan_config.shared_masters) each own only the slice of the gradients that they update. Of units with
 * shard_over_replicate, each replica owns only its slice of every tensor. Waits for an asynchronous device, which
 * counts the updates. */
MS_API int ms_state_describe(const ms_state *state, int param, int what, ms_tensor_info *info, int size);
/* Copy elements [first, first + count), all of which this rank must own. Not collective: other ranks can be reading
 * what ms_state_write changes, so all ranks must have finished a step, and know it of each other (ms_world_barrier).
 * Replicas that share one copy own the same elements: all can write if they write the same values. In units with
 * shard_over_replicate, every replica must write all elements of a parameter that ms_model_describe gives,
 * as ms_state_write allows there, or its slice. After all writing, ms_state_finish_writes ends it. */
MS_API int ms_state_read(const ms_state *state, int param, int what, int64_t first, int64_t count, float *out);
MS_API int ms_state_write(ms_state *state, int param, int what, int64_t first, int64_t count, const float *values);
/* Ends the writing of elements, by ms_state_write or ms_state_load; functions that write whole parameters do so
 * themselves. Gives all replicas the parameters of which each has written its slice (shard_over_replicate). Of moments
 * in 8 bits of which only a part of some 256 elements was written, the others keep their values. Parameters that are
 * kept as codes get their scales, some of which need the mean over all ranks; MS_EINVAL says that a rank has not
 * written all that it owns of one. Weights that stay gathered (MS_RESHARD_RUN) will be gathered again. Without this
 * call no phase runs after writes of these three. Also forgets what rounding left of earlier gradients
 * (ms_unit_config.error_feedback). Collective. */
MS_API int ms_state_finish_writes(ms_state *state);
/* Gathers elements [first, first + count) of a tensor on every rank, at least one; count -1: all from `first` on. out
 * gets them, or is NULL on a rank that only contributes its part. Where replicas take local steps, they are those of
 * its replica. Gradients are sums: ms_step_outputs.divisor has not been applied. MS_EMISMATCH if ranks ask for
 * different elements. Collective. */
MS_API int ms_state_gather(ms_state *state, int param, int what, int64_t first, int64_t count, float *out);
/* Overwrites a parameter, of which each rank takes its part. from: the index in ms_mesh_ranks of the rank that has the
 * whole parameter, full, which is NULL on the others; -1: all ranks have it. Collective, because other ranks can be
 * reading the old values. */
MS_API int ms_state_scatter(ms_state *state, int param, int from, const float *full);
/* Sets the number of updates that a parameter has had (ms_tensor_info.updates), the same on all ranks, when you restore
 * a saved state. Bias corrections of Adam and AdamW, SGD's first step and Adafactor's decay depend on it. Not
 * collective. */
MS_API int ms_state_set_updates(ms_state *state, int param, int64_t updates);
/* Swaps the parameters and their averages (ms_plan_config.ema_decay), so that evaluating, reading and exporting use the
 * averages; a second call swaps back. Until then, training and saving are MS_EINVAL. The average of a frozen parameter
 * is the parameter. Collective, because other ranks can be reading; with `alone` 1 this rank does not wait for them,
 * which is meant for a rank whose work with the averages has failed (replicas that share one copy wait for each other
 * before their next phase). */
MS_API int ms_state_swap_ema(ms_state *state, int alone);
/* Gives a tensor of all parameters what training starts with. No other rank may be reading them: see ms_state_write.
 *
 * MS_TENSOR_PARAM: the initial values that the model's seed gives. Collective.
 * MS_TENSOR_EMA: averages start from the present parameters.
 * MS_TENSOR_SYNCED: the present parameters of units with a fragment become those of the last sync, and the outer
 * momentum and sums are cleared: local SGD starts from here. ms_state_new does so, and functions that overwrite whole
 * parameters do so for what they write, but for the momentum, which stays as that of the optimizer does. All replicas
 * must have the same parameters. */
MS_API int ms_state_restart(ms_state *state, int what);

/* ffi:end */

#ifdef __cplusplus
}
#endif
#endif
