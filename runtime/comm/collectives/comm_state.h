/* comm_state.h - what a communicator holds, for the files that make it up: comm.c, device_run.c. Internal to collectives. */
#ifndef MS_COMM_COLLECTIVES_COMM_STATE_H
#define MS_COMM_COLLECTIVES_COMM_STATE_H

#include "comm/collectives/tickets.h"
#include "comm/collectives/transport.h"

struct ms_comm {
  ms_world *world;
  ms_recorder *recorder;
  ms_recorder_ring *ring;
  int size, me; /* me: the group rank */
  int rank[MS_MAX_LOCAL_RANKS];
  const ms_transport *transport;
  ms_channel *channel;
  ms_tickets tickets; /* of collectives that a device runs */
  const ms_coll *coll;
  unsigned epoch; /* of the world, when coll was started */
  int in_flight;  /* coll was started and is not done */
  int met;        /* all have entered coll, and that is recorded */
};

/* Records that this rank enters coll, the operation `sequence` of its group. */
void ms_comm_record(ms_comm *comm, const ms_coll *coll, uint64_t sequence);

#endif
