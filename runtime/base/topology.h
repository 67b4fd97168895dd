/* topology.h - on which node each rank is, and so what ranks share.
**
** The ranks of a node can map memory together; between nodes there are only links. Plans, meshes and worlds are given a
** topology and never guess one from a number of ranks. Nodes may have different numbers of ranks, in any order.
*/
#ifndef MS_BASE_TOPOLOGY_H
#define MS_BASE_TOPOLOGY_H

typedef struct ms_topology {
  int ranks, nodes;
  int *node_of;    /* [ranks] */
  int *node_ranks; /* [nodes] how many each has */
} ms_topology;

/* Copies node_of, [ranks] of 0 to nodes - 1; NULL, or no nodes: all ranks are on one. Free it when done, after an error
** too. */
int ms_topology_make(int ranks, int nodes, const int *node_of, ms_topology *topology);
void ms_topology_free(ms_topology *topology);
/* 1 when all nodes have the same number of ranks. */
int ms_topology_is_even(const ms_topology *topology);
/* Ranks of the node that has most. */
int ms_topology_most_ranks(const ms_topology *topology);
/* The first of `ranks` [n] that is on another node than ranks[0], as its place in the list; n: all are on one. */
int ms_topology_border(const ms_topology *topology, const int *ranks, int n);

#endif
