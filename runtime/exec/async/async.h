/* async.h - states and execs on an asynchronous device (a GPU): its streams, its communicators, what was given to them
** and has not ended yet.
**
** The host enqueues whole phases and goes on. It waits where it reads (the norm, an evaluation's loss, parameters), and
** where it would run too far ahead. Every wait goes through ms_async_wait, which watches collectives meanwhile: it
** writes in the flight recorder when the device comes to one and leaves it, and fails as a wait on the CPU does when
** peers do not come.
*/
#ifndef MS_EXEC_ASYNC_ASYNC_H
#define MS_EXEC_ASYNC_ASYNC_H

#include "exec/exec.h"
#include "exec/profile.h"

/* How many phases can be under way. */
enum { MS_ASYNC_RUNS = 4 };
/* What a communicator, or what is under way, may take to end, in seconds: it is given up after that. */
enum { MS_ASYNC_CLOSE_SECONDS = 5 };

/* What a phase under way is told. */
typedef struct ms_async_args {
  ms_scalars scalars;
  int64_t run; /* the how many-th of the state */
} ms_async_args;

/* What a phase under way uses of pinned memory. */
typedef struct ms_async_words {
  ms_async_args args; /* to the device, before it */
  ms_fault fault;     /* from the device, after it */
} ms_async_words;

typedef struct ms_async_run {
  ms_device_event *begin, *end;
  ms_async_words *words;
} ms_async_run;

/* A collective that was given to a stream. In a graph no event of it can be asked for: there it writes the number of
** its run to pinned memory when it begins, and when it is done. */
typedef struct ms_async_coll {
  const ms_coll *coll;
  ms_comm *comm; /* the flight recorder's */
  ms_device_comm *by;
  ms_device_event *before, *after;
  const int64_t *marks; /* [2]; NULL: its events tell */
  int64_t run;
  ms_profile_event *profiled; /* NULL: it is not */
  int stream, entered;
  ms_wait wait;
} ms_async_coll;

/* A state's. */
typedef struct ms_async {
  struct ms_async_exec *execs; /* whose graphs use its communicators */
  ms_device_stream *stream[MS_STREAMS];
  ms_device_comm *all, *comm[MS_STREAMS]; /* all: the members; the others are parts of it. NULL where nobody is met */
  struct {
    int stream, ranks;
    ms_device_comm *comm;
  } * group; /* of neighbours, parts of comm */
  int groups, group_capacity;
  struct ms_async_window {
    int arena;
    ms_device_comm *comm;
    ms_device_window *opened;
  } * window; /* with each communicator, what it reads and writes; none unless the state asks for them */
  int windows, window_capacity;
  int open; /* the communicators are, since the world's epoch `epoch` */
  unsigned epoch;
  ms_device_event *fork, *join[MS_STREAMS];
  void *control;       /* device memory: args and fault */
  ms_async_args *args; /* in it */
  ms_fault *fault;     /* in it */
  void *words;         /* pinned, of all runs */
  ms_async_run run[MS_ASYNC_RUNS];
  int64_t begun, ended; /* runs */
  ms_async_coll *ring;  /* given to the device and not ended */
  int ring_size;
  int64_t issued, done; /* collectives */
  double moved_at;      /* when the device was last seen to go on */
} ms_async;

/* Of one exec. */
struct ms_async_exec {
  struct ms_async_exec *next; /* of its state's */
  struct {
    ms_exec_instr **order; /* [n] in program order */
    int n;
    int forks[MS_STREAMS], joins[MS_STREAMS]; /* no event of the plan orders its beginning, or its end, with compute */
    ms_move *convert;       /* [parts of all collectives]: from or to the shared buffer; n 0: the library does it */
    int64_t *marks;         /* pinned, [2 a collective]; NULL: it is not captured */
    ms_device_graph *graph; /* captured from it; NULL: not yet */
    int warm;               /* it has run once: what libraries make when they are first called is there */
  } phase[MS_PHASES];
  ms_device_event **event; /* [events of the largest phase] */
  int events;
  char *staged;            /* inputs as the host wrote them */
  char *pinned;            /* the same, once for each run that can be under way */
  int64_t staged_bytes;    /* of one */
  int64_t *staged_at;      /* [inputs] */
  char *output;            /* copies of named outputs */
  int64_t *output_at;      /* [outputs] */
  ms_device_event **timer; /* two an instruction of a profiled phase */
  int timers, timer_capacity;
  uint64_t zero_at; /* when the zero of a profiled phase's timers came, as ms_recorder_now */
  int captures;     /* phases are captured and replayed */
};

/* ---- states: state.c ---- */

/* Streams, events and control words; nothing where the device is not asynchronous. */
int ms_async_open(ms_state *state);
/* Waits for what is under way, unless it failed, and frees everything; the state's execs are gone. */
void ms_async_close(ms_state *state);
/* Opens the communicators, at the first call and after each recovery. Collective over the members. */
int ms_async_connect(ms_state *state);
/* Ends the communicators with whatever is under way, and graphs that were captured with them. */
void ms_async_disconnect(ms_state *state);
int ms_async_open_group(ms_state *state, int stream, int ranks);
ms_device_comm *ms_async_comm(const ms_state *state, int stream, int ranks);
/* Until the communicator has nothing under way on the host's side. */
int ms_async_comm_ready(ms_state *state, ms_device_comm *comm);
/* Before an arena's memory goes; nothing where it is not registered. */
void ms_async_close_windows(ms_state *state, int arena);
/* Forgets what an exec has captured. */
void ms_async_exec_drop_graphs(const ms_state *state, struct ms_async_exec *async);

/* ---- waiting: queue.c ---- */

/* Room in the ring for the collectives of MS_ASYNC_RUNS phases with so many each. */
int ms_async_reserve(ms_state *state, int colls);
/* Until an event has come. */
int ms_async_wait(const ms_state *state, ms_device_event *event);
/* Gives what is under way some time to end, without asking for peers: for clean-up, in any order and also after the
** world is left. */
void ms_async_settle(const ms_state *state);
/* Until everything that was given to the device has ended. */
int ms_async_drain(const ms_state *state);
/* The next place of the ring, once it is free. */
int ms_async_take_coll(ms_state *state, ms_async_coll **pending);
/* The next run, once its words are free. */
int ms_async_take_run(ms_state *state, ms_async_run **run);

/* ---- execs: bind.c; run.c is their runner ---- */

int ms_async_exec_new(ms_exec *exec);
void ms_async_exec_free(ms_exec *exec);
/* Phases are captured and replayed from now on, or not any more. */
int ms_async_exec_set_graph(ms_exec *exec, int on);
/* What conversions read and write; after ms_exec_rebind has resolved everything else. */
void ms_async_exec_rebind(ms_exec *exec);

#endif
