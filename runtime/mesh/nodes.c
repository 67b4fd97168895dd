/* nodes.c - whether the groups of a dimension fit the hosts.
**
** A shard group that reaches over hosts is paid for in every collective, so one expects it to reach over all of them alike.
** Where hosts hold different numbers of ranks, groups of one size start at different places of each host, and some of them
** straddle a border that nobody meant.
*/
#include "base/error.h"
#include "base/text.h"
#include "mesh/mesh.h"

static int counts_differ(int nodes, const int *counts) {
  for (int node = 1; node < nodes; node++)
    if (counts[node] != counts[0]) return 1;
  return 0;
}

/* Largest size that divides the ranks of every node. */
static int common_divisor(int nodes, const int *counts) {
  int divisor = counts[0];
  for (int node = 1; node < nodes; node++)
    for (int rest = counts[node]; rest;) {
      int smaller = divisor % rest;
      divisor = rest;
      rest = smaller;
    }
  return divisor;
}

static int node_of(int rank, const int *counts) {
  int node = 0;
  for (int end = counts[0]; rank >= end; end += counts[node]) node++;
  return node;
}

/* The first rank whose group along dim is not on one node; -1: there is none. */
static int find_straddler(const ms_mesh *mesh, int dim, const int *counts, int *ranks) {
  for (int rank = 0; rank < mesh->root->world; rank++) {
    if (!ms_mesh_contains(mesh, rank) || ms_mesh_group(mesh, dim, rank, ranks)) continue;
    for (int i = 1; i < mesh->size[dim]; i++)
      if (node_of(ranks[i], counts) != node_of(ranks[0], counts)) return rank;
  }
  return -1;
}

static int report(const ms_mesh *mesh, int dim, int nodes, const int *counts, const int *group) {
  ms_text list = {0};
  for (int node = 0; node < nodes; node++)
    ms_text_append(&list, "%snode %d has %d rank%s", node ? ", " : "", node, counts[node],
                   counts[node] == 1 ? "" : "s");
  int rc = ms_text_status(&list), divisor = common_divisor(nodes, counts);
  if (!rc)
    rc = MS_FAIL(
        MS_EINVAL,
        "mesh %s: dimension %s of size %d reaches over nodes with different numbers of ranks (%s): ranks %d and "
        "%d of one group are on nodes %d and %d; start as many ranks on every node, or make the size a divisor "
        "of %d",
        mesh->label, ms_mesh_name(mesh, dim), mesh->size[dim], list.data, group[0], group[mesh->size[dim] - 1],
        node_of(group[0], counts), node_of(group[mesh->size[dim] - 1], counts), divisor);
  ms_text_free(&list);
  return rc;
}

int ms_mesh_check_nodes(const ms_mesh *mesh, int dim, int nodes, const int *counts) {
  int total = 0, ranks[MS_MAX_WORLD];
  MS_TRY(ms_mesh_check_dim(mesh, dim));
  for (int node = 0; node < nodes; node++) {
    if (counts[node] < 1)
      return MS_FAIL(MS_EINVAL, "node %d has %d ranks: it must have at least 1", node, counts[node]);
    total += counts[node];
  }
  if (total != mesh->root->world)
    return MS_FAIL(MS_EINVAL, "the nodes have %d ranks together, but mesh %s is over a world of %d", total, mesh->label,
                   mesh->root->world);
  if (!counts_differ(nodes, counts) || mesh->size[dim] == mesh->root->size) return MS_OK;
  int rank = find_straddler(mesh, dim, counts, ranks);
  return rank < 0 ? MS_OK : report(mesh, dim, nodes, counts, ranks);
}
