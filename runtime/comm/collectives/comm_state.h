/* comm_state.h - the state of a communicator, shared by comm.c and device_run.c. Internal to collectives. */
#ifndef MS_COMM_COLLECTIVES_COMM_STATE_H
#define MS_COMM_COLLECTIVES_COMM_STATE_H

#include "comm/collectives/tickets.h"
#include "comm/collectives/channel.h"

struct ms_comm {
  ms_world *world;
  ms_recorder *recorder;
  ms_recorder_ring *ring;
  int size, me; /* me: the group rank */
  int rank[MS_MAX_LOCAL_RANKS];
  const ms_channel_api *api;
  ms_channel *channel;
  ms_tickets tickets; /* of collectives that run on a device */
  const ms_coll *coll;
  unsigned epoch; /* the world's epoch when coll was started */
  int in_flight;  /* coll was started and is not done */
  int met;        /* all ranks have entered coll, and this is recorded */
};

/* Records that this rank enters coll, operation number `sequence` of its group. */
void ms_comm_record(ms_comm *comm, const ms_coll *coll, uint64_t sequence);

#endif
