/* transport.h - how the operations of a communicator reach the other ranks. Communicators (comm.c) know only this table;
** shared_memory.c is the first implementation. NCCL's side is the device's (ms_device_api), which runs whole collectives.
**
** A channel is one ordered sequence of operations among `size` ranks. No function blocks: an operation is started, and
** tested until it is done. Which ranks share memory with this one, and which are on other hosts, is the transport's
** business: it gets the world, so it can ask for nodes, and the buffers of an operation as ms_coll_part describes them.
** One thread at a time uses a channel.
*/
#ifndef MS_COMM_COLLECTIVES_TRANSPORT_H
#define MS_COMM_COLLECTIVES_TRANSPORT_H

#include "comm/collectives/comm.h"

/* Of a transport: each has its own. */
typedef struct ms_channel ms_channel;

typedef struct ms_channel_config {
  ms_world *world;
  int size, me;           /* me: the group rank */
  const int *rank;        /* [size]: world ranks in group order; lives as long as the channel */
  ms_group_entry *entry;  /* of these ranks and channel in the control segment */
  ms_recorder_ring *ring; /* a transport whose tickets others can read sets its target */
} ms_channel_config;

/* How far an operation is. */
enum ms_progress {
  MS_PROGRESS_WAITS = 0, /* some ranks have not entered it */
  MS_PROGRESS_MET = 1,   /* all have */
  MS_PROGRESS_DONE = 2   /* this rank's part is done, and its buffers are its own again */
};

typedef struct ms_transport {
  const char *name;
  int (*open)(const ms_channel_config *config, ms_channel **channel);
  /* The number of the operation that would be started next, the same on all ranks that take part: 1 first. */
  uint64_t (*next)(const ms_channel *channel, const ms_coll *coll);
  /* coll lives until the operation is done or aborted. The previous one must be. */
  int (*start)(ms_channel *channel, const ms_coll *coll);
  /* Advances as far as possible without waiting. missing: where it is not NULL and the operation is not done, the world
  ** ranks that it waits for. Fails with MS_EMISMATCH where ranks entered different operations. */
  int (*test)(ms_channel *channel, enum ms_progress *progress, ms_rank_set *missing);
  /* Gives up the operation in flight, if there is one: from here on no buffer of it is touched by this rank. */
  void (*abort)(ms_channel *channel);
  /* Nothing is in flight. */
  void (*close)(ms_channel *channel);
} ms_transport;

extern const ms_transport ms_transport_shared_memory;

/* As ms_comm_open, over a transport of the caller's. */
int ms_comm_open_over(const ms_transport *transport, ms_world *world, int n, const int *ranks, int channel,
                      ms_comm **comm);

#endif
