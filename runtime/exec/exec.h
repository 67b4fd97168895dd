/* exec.h - a plan bound to a state: per stream, a compact list of instructions whose pointers are resolved.
**
** bind.c makes it. A runner takes the streams of a phase to their ends: inline.c on the calling thread, threads.c with
** a thread a stream, async/ on an asynchronous device. What looks at values (nonfinite.c) hangs in after each kernel.
** Running looks nothing up by name and allocates nothing.
*/
#ifndef MS_EXEC_EXEC_H
#define MS_EXEC_EXEC_H

#include <stdatomic.h>

#include "base/clock.h"
#include "comm/recorder/flight_recorder.h"
#include "exec/inject_delay.h"
#include "exec/state.h"

typedef struct ms_exec_instr {
  int kind;                               /* enum ms_instr_kind */
  int event;                              /* RECORD, WAIT */
  int recorder;                           /* WAIT: the stream that records the event */
  int label;                              /* KERNEL: its scope, in the flight recorder's numbers */
  int source;                             /* index in the plan's phase: scope, direction and shapes for reports */
  int (*run)(const ms_kernel_call *call); /* KERNEL */
  ms_kernel_call *call;                   /* KERNEL */
  const ms_coll *coll;                    /* COLLECTIVE */
  ms_comm *comm;                          /* COLLECTIVE: among whom */
  double bytes;                           /* COLLECTIVE: sent and received */
  int mesh_dim;                           /* COLLECTIVE: it runs along */
  double also_bytes; /* COLLECTIVE: of the all_reduce over the replicas that it is too; 0: it is none */
  int also_dim;
} ms_exec_instr;

typedef struct ms_exec_stream {
  ms_exec_instr *instr;
  int n;
} ms_exec_stream;

typedef struct ms_exec_phase {
  ms_exec_stream stream[MS_STREAMS];
  ms_kernel_call *call; /* [kernels] */
  ms_coll *coll;        /* [collectives] */
  ms_coll_part *part;   /* of all collectives, one after another */
  void **shared;        /* of all parts, one entry a rank of the group */
  int kernels, colls, parts, shares;
  int activity; /* "phase first", in the flight recorder's numbers */
} ms_exec_phase;

/* Where a stream stands in the phase under way, and what it did in it. */
typedef struct ms_exec_cursor {
  int at;
  int in_flight;   /* the collective at the head was started */
  ms_wait wait;    /* for the peers of that collective */
  double ready_at; /* an injected delay holds the collective at the head until then; 0: none */
  int64_t instructions, collectives;
  double comm_bytes[MS_MAX_MESH_DIMS];
  double kernel_seconds, wait_seconds, collective_seconds;
} ms_exec_cursor;

typedef struct ms_exec_threads ms_exec_threads;
typedef struct ms_exec_finder ms_exec_finder;

/* How the phases of an exec run. NULL: nothing is to be done then, but for inputs and outputs, which the host
** reaches where the plan has them. */
typedef struct ms_runner {
  int (*open)(ms_exec *exec);    /* instructions are sorted, pointers not resolved yet */
  void (*close)(ms_exec *exec);  /* also after an open that failed */
  void (*rebind)(ms_exec *exec); /* pointers have been resolved, perhaps again */
  int (*run)(ms_exec *exec, int phase);
  void *(*input)(ms_exec *exec, int input);         /* where the host writes it */
  const void *(*output)(ms_exec *exec, int output); /* where the host reads it; NULL: an error, or none */
  int (*set_graph)(ms_exec *exec, int on);          /* NULL: it captures no graphs */
  int (*reserve_profile)(ms_exec *exec, int phase); /* before a run that is profiled */
} ms_runner;
extern const ms_runner ms_inline_runner, ms_threads_runner, ms_async_runner;

struct ms_exec {
  ms_handle handle;
  ms_state *state;
  ms_recorder *recorder;
  const ms_plan *plan;
  ms_exec_phase phase[MS_PHASES];
  int generation; /* of the state's arenas, when the pointers were resolved */
  ms_scalars scalars;
  _Atomic uint32_t *event; /* [events of the largest phase]: recorded when equal to epoch */
  uint32_t epoch;          /* counts the phases run */
  ms_exec_cursor cursor[MS_STREAMS];
  int graph_phase; /* the last of FIRST, NEXT and EVALUATE that ran: named outputs are where it put them */
  ms_exec_counters counters;
  ms_delays delays;
  int forward_ended; /* the delay after forward was taken in this run */
  const ms_runner *runner;
  struct ms_async_exec *async; /* the asynchronous runner's (async/async.h); else NULL */
  ms_exec_threads *threads;    /* the threads runner's; else NULL */
  ms_profile *profile;         /* records what runs, while it is set (profile.c) */
  /* Looks at what a kernel has just written, while it is set; on the compute stream's thread. */
  int (*after_kernel)(ms_exec *exec, int phase, const ms_exec_instr *instr);
  ms_exec_finder *finder; /* after_kernel's, while it looks for the first value that is not finite (nonfinite.c) */
  char report[1024];      /* what it found */
};

/* Sorts the plan's instructions by stream; ms_exec_rebind then gives them pointers (bind.c). */
int ms_exec_sort(ms_exec *exec);
void ms_exec_unsort(ms_exec *exec);
/* Resolves all pointers again when the state's arenas have moved (bind.c). */
void ms_exec_rebind(ms_exec *exec);
/* The bytes of a ref in this process; NULL for a ref without a buffer (bind.c). */
void *ms_exec_pointer(const ms_exec *exec, const ms_ref *ref);
/* What comes before every run: scalars, pointers, cursors at the start, a new epoch (bind.c). */
void ms_exec_begin(ms_exec *exec, const ms_step_inputs *inputs);

/* What runners share (runner.c). Where the host writes an input. */
void *ms_exec_input_at(ms_exec *exec, int input);
/* The delay that was injected before the collective at the head of a stream has passed; its first call begins it. */
int ms_exec_may_start(ms_exec *exec, int stream);
/* A kernel is next: for reports, and for the delay after forward. now: when it begins. */
void ms_exec_enter_kernel(ms_exec *exec, int phase, const ms_exec_instr *instr, double now);
/* Calls it: it has run then, or on an asynchronous device was enqueued. */
int ms_exec_call_kernel(const ms_exec *exec, int phase, const ms_exec_instr *instr);
/* Both on the host, where it also goes into the profile, and what it wrote to after_kernel. */
int ms_exec_run_kernel(ms_exec *exec, int phase, const ms_exec_instr *instr, double now);
void ms_exec_count_collective(ms_exec_cursor *cursor, const ms_exec_instr *instr);
/* Adds the time since `since` to a counter; returns now. */
static inline double ms_exec_charge(double since, double *seconds) {
  double now = ms_clock();
  *seconds += now - since;
  return now;
}

/* "nan", "inf" or "-inf": printf tells the sign of a NaN, which means nothing (nonfinite.c). */
const char *ms_nonfinite_name(double value);

#endif
