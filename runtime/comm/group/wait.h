/* wait.h - the one loop in which a rank waits for others: it sleeps on its doorbell, and ends at the deadline, when the
** job was aborted, when a rank that it waits for has left, or when ranks wait for each other.
*/
#ifndef MS_COMM_GROUP_WAIT_H
#define MS_COMM_GROUP_WAIT_H

#include "comm/group/world.h"

/* A wait in turns: test the condition, take a turn, test again. Zero-filled before the first turn. */
typedef struct ms_wait {
  double started; /* later by the time in which the process was stopped */
  double turned_at;
  double looked_at; /* when the ranks were last looked at for a deadlock */
  uint64_t stuck;   /* what they were seen in then, if in one */
  double left_at;   /* when a rank waited for was first seen to have left the world; 0: none was */
} ms_wait;

/* What a rank waits for. */
typedef struct ms_wait_for {
  const char *kind, *label; /* "all_gather", "layers.0": for messages; label may be NULL */
  ms_recorder_ring *ring;   /* records whom it sleeps for; NULL: not recorded */
  /* Finds the world ranks that have not come; none: the wait is over. May fail. */
  int (*find)(void *context, ms_rank_set *missing);
  void *context;
  int recovers; /* of ms_world_recover: Ctrl-C and what ranks gave up for do not end it */
} ms_wait_for;

/* Waits until `find` finds nobody. Fails with MS_ETIMEOUT after the world's deadline, naming kind, label, the missing
** ranks and who is behind; MS_EPEER when the job was aborted or a missing rank has left; MS_EMISMATCH when ranks wait for
** each other; MS_EINTERRUPT. */
int ms_world_wait(ms_world *world, const ms_wait_for *what);
/* One turn of it: sleeps once, unless nobody is missing. seen: the doorbell before the condition was tested. */
int ms_world_wait_turn(ms_world *world, ms_wait *wait, const ms_wait_for *what, unsigned seen);
/* Only what ends a wait for `missing`, without the sleep. rest: seconds until the deadline. */
int ms_world_watch(ms_world *world, ms_wait *wait, const ms_wait_for *what, const ms_rank_set *missing, double *rest);

#endif
