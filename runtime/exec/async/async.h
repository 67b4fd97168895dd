/* async.h - states and execs on an asynchronous device (a GPU): its streams and communicators, and the work that was
 * enqueued and has not finished.
 *
 * The host enqueues whole phases and continues. It waits where it reads a result (the norm, an evaluation's loss,
 * parameters) and when MS_ASYNC_RUNS phases are already in flight. Every wait also watches the collectives in flight:
 * it notes in the flight recorder when the device enters and leaves each one, and fails, like a wait on the CPU, when
 * peers do not arrive. Everything here is called by the thread that runs the exec.
 */
#ifndef MS_EXEC_ASYNC_ASYNC_H
#define MS_EXEC_ASYNC_ASYNC_H

#include "exec/bound/exec.h"
#include "exec/profile/profile.h"

/* The most phases in flight at a time. */
enum { MS_ASYNC_RUNS = 4 };
/* Seconds to wait for a communicator, or for work in flight, to end during clean-up; after that it is abandoned. */
enum { MS_ASYNC_CLOSE_SECONDS = 5 };

/* How a host thread waits for a device. It spins for a while: a sleep of 20 us takes 70, and while it sleeps after the
 * device has finished, the device idles. A thread without a core to itself sleeps early, because it would keep the core
 * from others; and so does one that waits so long that a nap costs nothing in comparison. Returns the seconds to
 * sleep after waiting for `waited` seconds, 0 to spin (queue.c). */
double ms_async_nap(double waited, int has_core);

/* The arguments of one run of a phase, which its kernels read in device memory. */
typedef struct ms_async_args {
  ms_scalars scalars;
  int64_t run; /* counts the state's runs, from 1 */
} ms_async_args;

/* Pinned host memory. The results are of the last run that the host waited for, and are read before the next such run.
 */
typedef struct ms_async_words {
  ms_async_args args[MS_ASYNC_RUNS];     /* of each run in flight, copied to the device before it */
  ms_fault fault;                        /* copied from the device at the end of such a run */
  float norm[MS_NORMS][MS_NORM_NUMBERS]; /* at the end of NORM, from the plan's norms */
} ms_async_words;

typedef struct ms_async_run {
  ms_device_event *end;
} ms_async_run;

/* A collective that was enqueued on a stream. Inside a graph its events cannot be queried: there the stream writes the
 * number of the run to pinned memory (`marks`) when the collective begins, and again when it ends. */
typedef struct ms_async_coll {
  const ms_coll *coll; /* NULL: finished, the entry is free */
  ms_comm *comm;       /* whose flight recorder ring gets the entry */
  ms_device_comm *by;
  ms_device_event *before, *after;
  const int64_t *marks; /* [2]: begun, ended; NULL: query `before` and `after` instead */
  int64_t run;
  ms_profile_event *profiled; /* NULL: not profiled */
  int stream, entered;        /* entered: the device has begun it */
  ms_wait wait;
} ms_async_coll;

/* One per state, which owns it. */
typedef struct ms_async {
  struct ms_async_exec *execs; /* the state's execs: their captured graphs use its communicators */
  ms_device_stream *stream[MS_NAMED_STREAMS];
  ms_device_comm *all,
      *comm[MS_NAMED_STREAMS]; /* all: the process group's; comm[s]: split from it, NULL without peers */
  struct {
    int stream, ranks, stride;
    const ms_comm *of; /* of the same ranks, on the host */
    ms_device_comm *comm;
  } * group; /* smaller groups, split from comm[stream] */
  int groups, group_capacity;
  struct ms_async_window {
    int arena;
    ms_device_comm *comm;
    ms_device_window *opened;
  } * window; /* arenas registered with communicators; none unless the state's NCCL options ask for windows */
  int windows, window_capacity;
  int open;       /* the communicators are open */
  unsigned epoch; /* the world's epoch when they were opened */
  ms_device_event *fork, *join[MS_NAMED_STREAMS];
  void *control;       /* device memory that holds args and fault */
  ms_async_args *args; /* in control */
  ms_fault *fault;     /* in control */
  ms_scalars sent;     /* the scalars in args */
  ms_async_words *words;
  ms_async_run run[MS_ASYNC_RUNS];
  int64_t begun, ended; /* counts of runs; begun - ended are in flight */
  ms_async_coll *ring;  /* [ring_size]: collectives in flight */
  int ring_size;
  int64_t issued, done; /* counts of collectives; issued - done are in the ring */
  double moved_at;      /* when the device last made progress */
  int64_t naps;         /* how often the host has slept while it waited for the device */
} ms_async;

/* One per exec, which owns it. */
struct ms_async_exec {
  struct ms_async_exec *next; /* in the state's list */
  struct {
    ms_exec_instr **order; /* [n] in program order */
    int n;
    int *together; /* [n] how many instructions from this one on are one call of run_together; 1: it is alone */
    int forks[MS_NAMED_STREAMS]; /* no event of the plan orders the stream's beginning after compute: fork it */
    int joins[MS_NAMED_STREAMS]; /* no event of the plan makes compute wait for the stream's end: join it */
    ms_move *convert;       /* [parts of all collectives]: from or to the shared buffer; n = 0: no conversion needed */
    int64_t *marks;         /* pinned, [2 * collectives]; NULL: the phase is not captured */
    ms_device_graph *graph; /* captured from the phase; NULL: not captured yet */
    int warm;               /* the phase has run once, so libraries have made what they allocate on first use */
  } phase[MS_PHASES];
  ms_device_event **event; /* [events of the largest phase] */
  int events;
  char *staged;            /* inputs as the host wrote them, pageable */
  char *pinned;            /* copies of `staged`, one per run in flight: [MS_ASYNC_RUNS * staged_bytes] */
  int64_t staged_bytes;    /* of one copy */
  int64_t *staged_at;      /* [inputs]: offsets in it */
  char *output;            /* host copies of named outputs */
  int64_t *output_at;      /* [outputs]: offsets in output */
  ms_device_event **timer; /* two per instruction of a profiled phase, and the phase's zero */
  int timers, timer_capacity;
  uint64_t zero_at; /* host time of the timers' zero event, ns as ms_recorder_now */
  int captures;     /* phases are captured as graphs and replayed */
};

/* ---- states: state.c ---- */

/* Opens streams, events and control words; does nothing on a device that is not asynchronous. */
int ms_async_open(ms_state *state);
/* Waits for work in flight, at most MS_ASYNC_CLOSE_SECONDS, and frees everything. The state's execs must be
 * freed already. */
void ms_async_close(ms_state *state);
/* Opens the communicators at the first call and after each recovery. Collective over the process group. */
int ms_async_connect(ms_state *state);
/* Aborts the communicators with the collectives in flight, and drops the graphs that were captured with them. */
void ms_async_disconnect(ms_state *state);
/* The communicator of the ranks of one of the host on a stream, or the stream's own when no smaller one was opened. */
ms_device_comm *ms_async_comm(const ms_state *state, int stream, const ms_comm *of);
/* Waits until the communicator has nothing pending on the host side; fails with MS_ETIMEOUT after the world's
 * timeout. */
int ms_async_comm_ready(ms_state *state, ms_device_comm *comm);
/* Closes an arena's windows; call it before the arena's memory is released. */
void ms_async_close_windows(ms_state *state, int arena);
/* Frees the graphs that an exec has captured. */
void ms_async_exec_drop_graphs(const ms_state *state, struct ms_async_exec *async);

/* ---- waiting: queue.c ---- */

/* Makes room in the ring for MS_ASYNC_RUNS phases of `colls` collectives each. */
int ms_async_reserve(ms_state *state, int colls);
/* One turn of a wait for the device that began at `began`. seen: the doorbell before the condition was tested. */
void ms_async_turn(const ms_state *state, unsigned seen, double began);
/* Waits until the device has reached the event. */
int ms_async_wait(const ms_state *state, ms_device_event *event);
/* Waits for work in flight, at most MS_ASYNC_CLOSE_SECONDS, without checking peers and without raising an error. For
 * clean-up: safe in any order, and after the world was left. */
void ms_async_settle(const ms_state *state);
/* Waits until everything that was enqueued has finished. */
int ms_async_drain(const ms_state *state);
/* Takes the next entry of the ring; waits until it is free. */
int ms_async_take_coll(ms_state *state, ms_async_coll **pending);
/* Takes the next run; waits until its pinned words are free. */
int ms_async_take_run(ms_state *state, ms_async_run **run);

/* ---- execs: bind.c; run.c is their runner ---- */

int ms_async_exec_new(ms_exec *exec);
void ms_async_exec_free(ms_exec *exec);
/* on: capture phases as graphs and replay them from now on; 0: drop the graphs and enqueue instructions again. */
int ms_async_exec_set_graph(ms_exec *exec, int on);
/* Sets the addresses that conversions read and write; ms_exec_rebind calls it after it has resolved the others. */
void ms_async_exec_rebind(ms_exec *exec);

/* ---- times: timers.c ---- */

/* How many instructions from the i-th on are issued as one. What inspects values wants each kernel's own. */
static inline int ms_async_issued_at_once(const ms_exec *exec, int phase, int i) {
  return exec->after_kernel ? 1 : exec->async->phase[phase].together[i];
}
/* Before a profiled run: opens its events; begins its time. After it: fills in what its profile has appended. */
int ms_async_reserve_timers(ms_exec *exec, int phase);
int ms_async_start_timers(ms_exec *exec, int phase);
int ms_async_read_timers(ms_exec *exec, int phase);

#endif
