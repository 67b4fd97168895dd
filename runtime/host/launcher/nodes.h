/* nodes.h - a launch that is one node of several: each node has a launcher of its own, and their ranks meet. */
#ifndef MS_HOST_NODES_H
#define MS_HOST_NODES_H

#include "host/launcher.h"

/* Reads the job's token before the ranks are forked, who inherit it in memory; the ranks of one node get a random one. Fails
** with MS_EINVAL when the rendezvous makes no sense, or other hosts can come there and there is no token. */
int ms_nodes_prepare(const ms_launch_config *config);
/* In a rank: RANK, WORLD_SIZE and what else says which rank of which node it is and where the ranks meet. */
void ms_nodes_set_variables(const ms_launch_config *config, int local_rank);
/* The rank that a launcher's local rank is among all nodes: the nodes' ranks follow each other. */
int ms_nodes_rank(const ms_launch_config *config, int local_rank);

#endif
