/* world_state.h - what a world holds, for the files that make it up: join.c, world.c. Internal to comm. */
#ifndef MS_COMM_GROUP_WORLD_STATE_H
#define MS_COMM_GROUP_WORLD_STATE_H

#include "base/handle.h"
#include "comm/control/control.h"
#include "comm/bootstrap/rendezvous.h"

struct ms_world {
  ms_handle handle;
  int rank, size, fd; /* fd: of the control segment, held open so that `moonshard ps` finds it; -1: there is none */
  int row;            /* this rank's row in job's tables: its place among the ranks of its node */
  int spin;           /* every rank has a core of its own */
  int maps;           /* this world mapped job, and unmaps it */
  int owns_fd;        /* it is not the launcher's, which stays open for the process */
  ms_meeting meeting; /* of ranks that no launcher forked together; zero-filled otherwise */
  char host[MS_WIRE_NAME];
  double timeout;
  ms_control *control; /* NULL: a world of one */
  ms_recorder *recorder;
  ms_recorder_ring *ring;            /* of barrier and all-gather of bytes */
  int barrier_text, all_gather_text; /* activities, in the flight recorder's numbers */
};

/* The rank that has a row in the job's tables. */
int ms_world_rank_of_row(const ms_world *world, int row);

#endif
