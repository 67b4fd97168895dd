/* nodes.h - a launch on one of several nodes: each node has its own launcher, and the ranks of all nodes form one
 * world. */
#ifndef MS_HOST_NODES_H
#define MS_HOST_NODES_H

#include "host/launcher.h"

/* Reads the job's token before the ranks are forked, so that they inherit it in memory; on a single node, makes a
 * random token. Fails with MS_EINVAL if the rendezvous is malformed, or if other hosts can reach it and there is no
 * token. */
int ms_nodes_prepare(const ms_launch_config *config);
/* In a rank: sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MOONSHARD_NODE and MOONSHARD_RENDEZVOUS. */
void ms_nodes_set_variables(const ms_launch_config *config, int local_rank);
/* The global rank of a local rank: node 0's ranks come first, then node 1's. */
int ms_nodes_rank(const ms_launch_config *config, int local_rank);

#endif
