/* topology.c - checking and counting the nodes of a topology. */
#include "base/machine/topology.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "moonshard.h"

static int count_ranks(ms_topology *t) {
  for (int rank = 0; rank < t->ranks; rank++) {
    const int node = t->node_of[rank];
    if (node < 0 || node >= t->nodes)
      return MS_FAIL(MS_EINVAL, "rank %d is on node %d: nodes are 0 to %d", rank, node, t->nodes - 1);
    t->node_ranks[node]++;
  }
  return MS_OK;
}

int ms_topology_make(int ranks, int nodes, const int *node_of, ms_topology *t) {
  const int given = nodes > 0 && node_of;
  *t = (ms_topology){.ranks = ranks, .nodes = given ? nodes : 1};
  t->node_of = ms_calloc(ranks, sizeof *t->node_of);
  t->node_ranks = ms_calloc(t->nodes, sizeof *t->node_ranks);
  if (!t->node_of || !t->node_ranks) return MS_ENOMEM;
  if (given) memcpy(t->node_of, node_of, (size_t)ranks * sizeof *node_of);
  return count_ranks(t);
}

void ms_topology_free(ms_topology *t) {
  free(t->node_of);
  free(t->node_ranks);
  *t = (ms_topology){0};
}

int ms_topology_is_even(const ms_topology *t) {
  for (int node = 1; node < t->nodes; node++)
    if (t->node_ranks[node] != t->node_ranks[0]) return 0;
  return 1;
}

int ms_topology_max_ranks(const ms_topology *t) {
  int most = 0;
  for (int node = 0; node < t->nodes; node++)
    if (t->node_ranks[node] > most) most = t->node_ranks[node];
  return most;
}

int ms_topology_border(const ms_topology *t, const int *ranks, int n) {
  int i = 1;
  while (i < n && t->node_of[ranks[i]] == t->node_of[ranks[0]]) i++;
  return i < n ? i : n;
}
