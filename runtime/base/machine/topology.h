/* topology.h - the node of each rank, which determines what ranks can share.
 *
 * Ranks of one node can map memory together; nodes are connected only by links. Plans, meshes and worlds receive a
 * topology and never guess one from the number of ranks. Nodes can have different numbers of ranks, in any order.
 */
#ifndef MS_BASE_TOPOLOGY_H
#define MS_BASE_TOPOLOGY_H

typedef struct ms_topology {
  int ranks, nodes;
  int *node_of;    /* [ranks] */
  int *node_ranks; /* [nodes] ranks per node */
} ms_topology;

/* Copies node_of, [ranks] with values 0 to nodes - 1; NULL or no nodes: all ranks are on one node. The caller frees
 * the topology, after an error too. */
int ms_topology_make(int ranks, int nodes, const int *node_of, ms_topology *topology);
void ms_topology_free(ms_topology *topology);
/* 1 if all nodes have the same number of ranks. */
int ms_topology_is_even(const ms_topology *topology);
/* The largest number of ranks on a node. */
int ms_topology_max_ranks(const ms_topology *topology);
/* The index in ranks [n] of the first rank that is on a different node than ranks[0]; n if all are on one node. */
int ms_topology_border(const ms_topology *topology, const int *ranks, int n);

#endif
