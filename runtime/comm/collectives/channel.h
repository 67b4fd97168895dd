/* channel.h - the table of functions through which a communicator's operations reach the other ranks. Communicators
 * (comm.c) know only this table; shared_memory.c implements it within a host, hosts.c between hosts. NCCL belongs to
 * the device (ms_device_api), which runs whole collectives.
 *
 * A channel is one ordered sequence of operations among `size` ranks. No function blocks: an operation is started, and
 * tested until it is done. The implementation itself finds out which ranks share memory with this one and which are on
 * other hosts: it has the world, which knows the nodes, and the buffers of an operation as ms_coll_part describes them.
 * One thread at a time uses a channel. An implementation records its operations in the ring: ms_channel_entered when
 * this rank enters one, then ms_recorder_met and ms_recorder_left.
 */
#ifndef MS_COMM_COLLECTIVES_CHANNEL_H
#define MS_COMM_COLLECTIVES_CHANNEL_H

#include "comm/collectives/comm.h"

/* Defined by each implementation. */
typedef struct ms_channel ms_channel;

typedef struct ms_channel_config {
  ms_world *world;
  int size, me;           /* me: the group rank */
  const int *rank;        /* [size]: world ranks in group order; lives as long as the channel */
  ms_group_entry *entry;  /* entry of these ranks and this channel in the control segment */
  ms_recorder_ring *ring; /* an implementation with tickets that others can read sets the ring's target */
} ms_channel_config;

/* Progress of an operation. */
enum ms_progress {
  MS_PROGRESS_WAITS = 0, /* some ranks have not entered it */
  MS_PROGRESS_MET = 1,   /* all have entered it */
  MS_PROGRESS_DONE = 2   /* this rank's part is done, and its buffers are free again */
};

typedef struct ms_channel_api {
  const char *name;
  /* How many operations can be started before the first of them is done, at most MS_COMM_QUEUE. The channel begins each
   * when the one before it is done. */
  int depth;
  int (*open)(const ms_channel_config *config, ms_channel **channel);
  /* Starts an operation; fewer than `depth` are not done. coll lives until the operation is done or aborted. */
  int (*start)(ms_channel *channel, const ms_coll *coll);
  /* Advances as far as possible without waiting, and tells how far the oldest operation is, until it has told that it
   * is done. missing: can be NULL; receives the world ranks that the operation waits for if it is not done; none while
   * their bytes are moving by themselves. Fails with MS_EMISMATCH when ranks entered different operations. */
  int (*test)(ms_channel *channel, enum ms_progress *progress, ms_rank_set *missing);
  /* Gives up the operations that were started: this rank does not touch their buffers any more. */
  void (*abort)(ms_channel *channel);
  /* Requires that nothing is in flight. */
  void (*close)(ms_channel *channel);
} ms_channel_api;

/* Records that this rank enters an operation. sequence: its number, the same on all ranks that take part, from 1. */
void ms_channel_entered(const ms_channel_config *config, const ms_coll *coll, uint64_t sequence);

extern const ms_channel_api ms_channel_shared_memory;
/* Among ranks of several hosts (hosts.c); needs ms_progress_open. */
extern const ms_channel_api ms_channel_hosts;

/* Like ms_comm_open, over the caller's channels. */
int ms_comm_open_over(const ms_channel_api *api, ms_world *world, int n, const int *ranks, int channel, ms_comm **comm);

#endif
