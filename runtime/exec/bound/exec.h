/* exec.h - a plan bound to a state: per stream, a compact list of instructions whose pointers are resolved.
 *
 * bind.c makes it. A runner executes the streams of a phase: inline.c on the calling thread, threads.c with one thread
 * per stream, async/ on an asynchronous device. A hook after each kernel lets nonfinite.c inspect values. A run looks
 * nothing up by name and allocates nothing.
 */
#ifndef MS_EXEC_EXEC_H
#define MS_EXEC_EXEC_H

#include <stdatomic.h>

#include "base/clock.h"
#include "comm/recorder/flight_recorder.h"
#include "exec/bound/inject_delay.h"
#include "exec/state/state.h"

typedef struct ms_exec_instr {
  int kind;                               /* enum ms_instr_kind */
  int event;                              /* RECORD, WAIT */
  int recorder;                           /* WAIT: the stream that records the event */
  int label;                              /* KERNEL: its scope, as a flight recorder number */
  int source;                             /* index in the plan's phase: scope, direction and shapes for reports */
  int (*run)(const ms_kernel_call *call); /* KERNEL */
  ms_kernel_call *call;                   /* KERNEL */
  const ms_coll *coll;                    /* COLLECTIVE; JOIN: what it waits for, without parts */
  ms_comm *comm;                          /* COLLECTIVE, JOIN: the communicator that runs it */
  double bytes;                           /* COLLECTIVE: bytes sent and received by this rank */
  ms_traffic moved;                       /* COLLECTIVE: the same, inside its node and between nodes */
  int mesh_dim;                           /* COLLECTIVE: the mesh dimension it runs along */
  int in_flight;                          /* COLLECTIVE: its phase can end before it */
  double also_bytes; /* COLLECTIVE that also sums over replicas: the bytes of that all_reduce; else 0 */
  int also_dim;      /* and its mesh dimension */
} ms_exec_instr;

typedef struct ms_exec_stream {
  ms_exec_instr *instr;
  int n;
} ms_exec_stream;

typedef struct ms_exec_phase {
  ms_exec_stream stream[MS_NAMED_STREAMS];
  ms_kernel_call *call; /* [kernels] */
  ms_coll *coll;        /* [collectives] */
  ms_coll_part *part;   /* [parts]: of all collectives, in their order */
  void **shared;        /* [shares]: for each part, one address per rank of its group */
  int kernels, colls, parts, shares;
  int activity; /* "phase first", as a flight recorder number */
} ms_exec_phase;

/* A stream's position in the running phase, and counts for that run. Written by the stream's thread only.
 *
 * A stream can run ahead: [at, ahead) are instructions that are not complete, of which the collectives were started,
 * all on one communicator, and the waits are over. */
typedef struct ms_exec_cursor {
  int at;          /* index of the first instruction that is not complete */
  int ahead;       /* index of the next instruction to look at; used for collectives only */
  int in_flight;   /* collectives in [at, ahead) */
  ms_comm *comm;   /* that of the collective that was started last */
  ms_wait wait;    /* for the peers of the oldest collective in flight */
  double ready_at; /* when an injected delay before the collective at `ahead` ends, as ms_clock; 0: no delay */
  int64_t instructions, collectives;
  double comm_bytes[MS_MAX_MESH_DIMS];
  ms_traffic traffic[MS_MAX_MESH_DIMS];
  double kernel_seconds, wait_seconds, collective_seconds;
  double waited_for[MS_MAX_MESH_DIMS]; /* of wait_seconds */
} ms_exec_cursor;

typedef struct ms_exec_threads ms_exec_threads;
typedef struct ms_exec_finder ms_exec_finder;

enum { MS_NORM_NUMBERS = 4 }; /* of the plan's norm */
/* The plan's norms by number: norm, norm_of_synced, and those of norms_of_groups. buffer -1: it has none such. */
enum { MS_NORM_OF_SYNCED = 1, MS_NORM_OF_GROUP = 2, MS_NORMS = MS_NORM_OF_GROUP + MS_MAX_NORM_GROUPS };
ms_ref ms_exec_norm_at(const ms_plan *plan, int which);
/* After NORM, and after EVALUATE: what the host reads (results.c). outputs can be NULL. MS_ENONFINITE where the loss or
 * the norm is. */
int ms_exec_report_norm(const ms_exec *exec, ms_step_outputs *outputs);
int ms_exec_report_evaluation(const ms_exec *exec, ms_step_outputs *outputs);

/* How an exec runs its phases. Every member but run can be NULL: without input, output and norm, the host reads and
 * writes the plan's buffers directly; without the others, there is nothing to do. */
typedef struct ms_runner {
  int (*open)(ms_exec *exec);    /* called when instructions are sorted, before pointers are resolved */
  void (*close)(ms_exec *exec);  /* also called when open failed */
  void (*rebind)(ms_exec *exec); /* called each time that pointers were resolved */
  int (*run)(ms_exec *exec, int phase);
  void *(*input)(ms_exec *exec, int input); /* where the host writes an input */
  const void *(*output)(ms_exec *exec,
                        int output); /* where the host reads an output; returns NULL on error, or if absent */
  const float *(*norm)(const ms_exec *exec, int which); /* after NORM: [MS_NORM_NUMBERS] of one of its norms */
  int (*set_graph)(ms_exec *exec, int on);              /* NULL: the runner captures no graphs */
  int (*reserve_profile)(ms_exec *exec, int phase);     /* called before a profiled run */
} ms_runner;
extern const ms_runner ms_inline_runner, ms_threads_runner, ms_async_runner;

struct ms_exec {
  ms_handle handle;
  ms_state *state;
  ms_recorder *recorder;
  const ms_plan *plan;
  ms_exec_phase phase[MS_PHASES];
  int generation; /* the state's generation when the pointers were resolved */
  ms_scalars scalars;
  _Atomic uint32_t *event; /* [events of the largest phase]: recorded when equal to epoch */
  uint32_t epoch;          /* counts the runs of phases */
  ms_exec_cursor cursor[MS_NAMED_STREAMS];
  int graph_phase; /* the last of FIRST, NEXT and EVALUATE that ran: it wrote the named outputs */
  ms_exec_counters counters;
  ms_delays delays;
  int leaves_in_flight; /* UPDATE leaves gathers in flight, and FIRST joins them */
  int forward_ended;    /* this run has taken its delay after forward */
  const ms_runner *runner;
  struct ms_async_exec *async; /* the asynchronous runner's (async/async.h); else NULL */
  ms_exec_threads *threads;    /* the threads runner's; else NULL */
  ms_profile *profile;         /* while set, records what runs (profile.c); the exec keeps a reference */
  /* While set, called on the compute stream's thread after each kernel, to inspect what it wrote. */
  int (*after_kernel)(ms_exec *exec, int phase, const ms_exec_instr *instr);
  ms_exec_finder *finder; /* after_kernel's data during the search for the first non-finite value (nonfinite.c) */
  char report[2048];      /* the result of that search, as text */
};

/* Sorts the plan's instructions by stream; ms_exec_rebind then resolves their pointers (bind.c). */
int ms_exec_sort(ms_exec *exec);
void ms_exec_unsort(ms_exec *exec);
/* Bytes of what ms_exec_sort has allocated. */
int64_t ms_exec_sorted_bytes(const ms_exec *exec);
/* Resolves all pointers again if the state's arenas have moved; allocates nothing (bind.c). */
void ms_exec_rebind(ms_exec *exec);
/* The address of a ref in this process (on the device, if it has its own memory); NULL without a buffer (bind.c). */
void *ms_exec_pointer(const ms_exec *exec, const ms_ref *ref);
/* Prepares a run: sets scalars, resolves pointers, resets cursors, begins a new epoch (bind.c). */
void ms_exec_begin(ms_exec *exec, const ms_step_inputs *inputs);

/* ---- shared by runners: runner.c ---- */

/* Copies a program's inputs over the defaults; fails if they were not initialised. */
int ms_exec_take_inputs(const ms_step_inputs *given, ms_step_inputs *own);
/* Refuses a phase that must not run now, and step inputs that an optimizer would turn into NaNs; then waits until
 * replicas have swapped their slices back. Every run of a phase begins with it. */
int ms_exec_admit(ms_exec *exec, int phase, const ms_step_inputs *inputs);

/* Where the host writes an input. */
void *ms_exec_input_at(ms_exec *exec, int input);
/* In the running phase. Acquires what was done before the event. */
static inline int ms_exec_is_recorded(const ms_exec *exec, int event) {
  return atomic_load_explicit(&exec->event[event], memory_order_acquire) == exec->epoch;
}
/* Starts the collectives of a stream that can be started now, in order, without waiting. */
int ms_exec_start_ahead(ms_exec *exec, int phase, int stream);
/* Notes the next kernel for reports, and takes the delay after forward. now: when the kernel begins, as ms_clock. */
void ms_exec_enter_kernel(ms_exec *exec, int phase, const ms_exec_instr *instr, double now);
/* Calls the kernel, which runs it or, on an asynchronous device, enqueues it. */
int ms_exec_call_kernel(const ms_exec *exec, int phase, const ms_exec_instr *instr);
/* Calls several of one kernel that can run together. */
int ms_exec_call_together(const ms_exec *exec, int phase, ms_exec_instr *const *instr, int n);
/* Both of the above on the host; also records the kernel in the profile and calls after_kernel. */
int ms_exec_run_kernel(ms_exec *exec, int phase, const ms_exec_instr *instr, double now);
void ms_exec_count_collective(ms_exec_cursor *cursor, const ms_exec_instr *instr);
/* 1 for a collective, and for the end of one that an earlier phase left in flight. */
static inline int ms_exec_moves(const ms_exec_instr *instr) {
  return instr->kind == MS_INSTR_COLLECTIVE || instr->kind == MS_INSTR_JOIN;
}
/* Tests the oldest collective in flight, which is at `at`; *done: it is complete, and counted. One that outlasts its
 * phase is complete for it as soon as it has started. */
int ms_exec_test_collective(ms_exec *exec, ms_exec_cursor *cursor, const ms_exec_instr *instr, int *done);
/* The mesh dimension of a stream's collectives; -1: compute has none. */
int ms_exec_dim(const ms_exec *exec, int stream);
/* Adds the time since `since` to a counter; returns now. */
static inline double ms_exec_charge(double since, double *seconds) {
  double now = ms_clock();
  *seconds += now - since;
  return now;
}

/* "nan", "inf" or "-inf"; printf would print the sign of a NaN, which is meaningless (nonfinite.c). */
const char *ms_nonfinite_name(double value);

#endif
