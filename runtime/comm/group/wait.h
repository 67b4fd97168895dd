/* wait.h - the only loop in which a rank waits for others. It sleeps on the rank's doorbell, and ends at the deadline,
 * when the job is aborted, when a missing rank has left, or when ranks wait for each other.
 */
#ifndef MS_COMM_GROUP_WAIT_H
#define MS_COMM_GROUP_WAIT_H

#include "comm/group/world.h"

/* What a failing wait or comparison needs to know: which ranks are behind, which wait for each other, what a rank
 * entered. The floor above (comm/diagnose) reads the answers from the flight recorders, and passes this table to each
 * world when a rank joins. */
typedef struct ms_diagnosis {
  /* The suffix for the error of rank `me` that waited for `missing`: "; rank 1 is outside the engine ...". */
  void (*behind)(const ms_control *control, int me, const ms_rank_set *missing, char *text, size_t bytes);
  /* The ranks that wait for each other, so that none of them can ever continue. A rank that is about to wake up can be
   * among them: they are certainly deadlocked when *state, a hash of where they are, is the same in two calls. */
  ms_rank_set (*deadlock)(const ms_control *control, uint64_t *state);
  /* "phase evaluate of step 3", for the record with this sequence number in a group's ring; "" when it is
   * overwritten. */
  void (*entered)(const ms_control *control, int rank, uint32_t group, uint64_t sequence, char *text, size_t bytes);
  /* "all_gather layers.3 (phase first of step 5)", for what another rank says that it entered. */
  void (*describe)(const char *kind, const char *label, const char *activity, int64_t step, char *text, size_t bytes);
  /* The process of a rank, if a signal has stopped it (on another host: when that last reported); otherwise 0. */
  int (*stopped)(const ms_control *control, int rank);
  /* The noted failure of a rank whose program caught it and continued; "" when there is none. */
  void (*noted)(const ms_control *control, char *text, size_t bytes);
} ms_diagnosis;

/* A wait in turns: test the condition, take a turn, test again. Zero-filled before the first turn. Times are of
 * ms_clock. */
typedef struct ms_wait {
  double started; /* start of the wait, moved forward by the time for which the process was stopped */
  double turned_at;
  double looked_at;      /* last check for a deadlock */
  uint64_t stuck;        /* state of the deadlock seen in that check; 0: none */
  double left_at;        /* when a missing rank was first seen to have left the world; 0: never */
  double ends_at;        /* when a rank of another host that gave up ends the wait; 0: none has */
  double states_read_at; /* last look at the states of the missing ranks' processes */
  double stopped_at;     /* when a missing rank was first seen to be stopped by a signal; 0: none is */
} ms_wait;

/* What a rank waits for. */
typedef struct ms_wait_for {
  const char *kind, *label; /* "all_gather", "layers.0": for messages; label can be NULL */
  ms_recorder_ring *ring;   /* records the ranks that it sleeps for; NULL: not recorded */
  /* Finds the missing world ranks; an empty set ends the wait. Can fail. */
  int (*find)(void *context, ms_rank_set *missing);
  void *context;
  /* Ctrl-C and ranks that gave up do not end the wait: in ms_world_recover, and in groups that outlast what was given
   * up. */
  int recovers;
} ms_wait_for;

/* Waits until `find` finds no missing rank. Fails with MS_ETIMEOUT after the world's deadline, naming kind, label, the
 * missing ranks and the ranks that are behind; MS_EPEER when the job was aborted or a missing rank has left;
 * MS_EMISMATCH when ranks wait for each other; MS_EINTERRUPT. */
int ms_world_wait(ms_world *world, const ms_wait_for *what);
/* One turn of the loop: sleeps once, unless no rank is missing. seen: the doorbell before the condition was tested. */
int ms_world_wait_turn(ms_world *world, ms_wait *wait, const ms_wait_for *what, unsigned seen);
/* The recorded failure is that of a connection, which ends with its process; why the process gave up comes by another
 * way, through the store, and can be later. Hears the other hosts, for about a second at most, and returns what they
 * say; else the failure. */
int ms_world_collect_cause(ms_world *world);
/* Checks only what ends a wait for `missing`, without sleeping. rest: seconds until the deadline. */
int ms_world_watch(ms_world *world, ms_wait *wait, const ms_wait_for *what, const ms_rank_set *missing, double *rest);

#endif
