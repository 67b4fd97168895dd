/* comm_state.h - what a communicator holds, for the files that make it up: comm_open.c, comm.c. Internal to comm. */
#ifndef MS_COMM_COLLECTIVES_COMM_STATE_H
#define MS_COMM_COLLECTIVES_COMM_STATE_H

#include "comm/collectives/comm.h"
#include "comm/control/control.h"

/* What an operation waits for; the value is the step of the ticket. */
enum phase { IDLE = 0, ENTERED = 1, SHARED = 2, FINISHED = 3 };

struct ms_comm {
  ms_world *world;
  ms_control_group *group;
  ms_recorder *recorder;
  ms_recorder_ring *ring;
  int size, me; /* me: the group rank */
  int rank[MS_MAX_LOCAL_RANKS];
  const ms_coll *coll;
  unsigned epoch; /* of the world, when coll was started */
  enum phase phase;
  int arrived;   /* group ranks 0 .. arrived-1 have come to the current wait */
  int met;       /* all had come to the operation's first wait */
  uint64_t base; /* own ticket before the operation */
};

/* By which the flight recorder knows a group. */
uint32_t ms_comm_group_number(const ms_world *world, const ms_control_group *group);

#endif
