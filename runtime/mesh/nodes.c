/* nodes.c - checks whether the groups of a dimension fit the nodes.
 *
 * A shard group that spans nodes is slow in every collective, so users expect all groups to span nodes in the same
 * way. If nodes have different numbers of ranks, groups of one size start at different offsets within the nodes, and
 * some straddle a border by accident.
 */
#include "base/error.h"
#include "base/text/text.h"
#include "base/machine/topology.h"
#include "mesh/mesh.h"

typedef struct nodes {
  const ms_topology *topology;
  const char *const *name;
} nodes;

/* The largest size that divides the number of ranks of every node. */
static int common_divisor(const nodes *nodes) {
  int divisor = nodes->topology->node_ranks[0];
  for (int node = 1; node < nodes->topology->nodes; node++)
    for (int rest = nodes->topology->node_ranks[node]; rest;) {
      int smaller = divisor % rest;
      divisor = rest;
      rest = smaller;
    }
  return divisor;
}

/* Fills group with the first one that spans nodes and returns the index at which another node begins in it, or -1. */
static int find_straddler(const ms_mesh *mesh, int dim, const nodes *nodes, int *group) {
  for (int rank = 0; rank < nodes->topology->ranks; rank++) {
    if (!ms_mesh_contains(mesh, rank) || ms_mesh_ranks(mesh, dim, rank, group)) continue;
    int border = ms_topology_border(nodes->topology, group, mesh->size[dim]);
    if (border < mesh->size[dim]) return border;
  }
  return -1;
}

/* 1 when group and nodes are runs of consecutive ranks. A smaller size helps only then: a group whose size divides
 * every node fits into one. */
static int runs_of_ranks(const nodes *nodes, const int *group, int size) {
  for (int i = 1; i < size; i++)
    if (group[i] != group[0] + i) return 0;
  for (int rank = 1; rank < nodes->topology->ranks; rank++)
    if (nodes->topology->node_of[rank] < nodes->topology->node_of[rank - 1]) return 0;
  return 1;
}

static void add_node(const nodes *nodes, int node, ms_text *text) {
  ms_text_append(text, "%snode %d", node ? ", " : "", node);
  if (nodes->name) ms_text_append(text, " (%s)", nodes->name[node]);
  const int ranks = nodes->topology->node_ranks[node];
  ms_text_append(text, " has %d rank%s", ranks, ranks == 1 ? "" : "s");
}

static int report(const ms_mesh *mesh, int dim, const nodes *nodes, const int *group, int border) {
  ms_text text = {0};
  int size = mesh->size[dim], divisor = common_divisor(nodes);
  ms_text_append(&text, "mesh %s: dimension %s of size %d spans nodes with different numbers of ranks (", mesh->label,
                 mesh->name[dim] ? mesh->name[dim] : "", size);
  for (int node = 0; node < nodes->topology->nodes; node++) add_node(nodes, node, &text);
  ms_text_append(&text,
                 "): ranks %d and %d of one group are on nodes %d and %d; start the same number of ranks on every node",
                 group[0], group[border], nodes->topology->node_of[group[0]], nodes->topology->node_of[group[border]]);
  if (divisor > 1 && runs_of_ranks(nodes, group, size))
    ms_text_append(&text, ", or make the size a divisor of %d", divisor);
  int rc = ms_text_status(&text);
  if (!rc) rc = MS_FAIL(MS_EINVAL, "%s", text.data);
  ms_text_free(&text);
  return rc;
}

int ms_mesh_check_nodes(const ms_mesh *mesh, int dim, int n, const int *node_of, const char *const *names) {
  MS_HANDLE(mesh, MESH);
  MS_GIVEN(node_of);
  ms_topology topology = {0};
  const nodes nodes = {.topology = &topology, .name = names};
  int rc, border, ranks[MS_MAX_WORLD];
  MS_TRY(ms_mesh_check_dim(mesh, dim));
  if (n < 1) return MS_FAIL(MS_EINVAL, "a mesh needs at least 1 node, not %d", n);
  MS_GOTO(ms_topology_make(mesh->root->world, n, node_of, &topology));
  if (ms_topology_is_even(&topology) || mesh->size[dim] == mesh->root->size) goto fail;
  border = find_straddler(mesh, dim, &nodes, ranks);
  if (border > 0) rc = report(mesh, dim, &nodes, ranks, border);
fail:
  ms_topology_free(&topology);
  return rc;
}
