/* nodes.c - whether the groups of a dimension fit the hosts.
**
** A shard group that reaches over hosts is paid for in every collective, so one expects it to reach over all of them
** alike. Where hosts hold different numbers of ranks, groups of one size start at different places of each host, and
** some of them straddle a border that nobody meant.
*/
#include <stdlib.h>

#include "base/error.h"
#include "base/text.h"
#include "mesh/mesh.h"

typedef struct nodes {
  int n, ranks;
  const int *of; /* [ranks] */
  const char *const *name;
  int *count; /* [n] */
} nodes;

static int counts_differ(const nodes *nodes) {
  for (int node = 1; node < nodes->n; node++)
    if (nodes->count[node] != nodes->count[0]) return 1;
  return 0;
}

/* Largest size that divides the ranks of every node. */
static int common_divisor(const nodes *nodes) {
  int divisor = nodes->count[0];
  for (int node = 1; node < nodes->n; node++)
    for (int rest = nodes->count[node]; rest;) {
      int smaller = divisor % rest;
      divisor = rest;
      rest = smaller;
    }
  return divisor;
}

/* Of one group: the place of the first rank that is on another node than rank 0 of it; -1: there is none. */
static int find_border(const nodes *nodes, const int *group, int size) {
  for (int i = 1; i < size; i++)
    if (nodes->of[group[i]] != nodes->of[group[0]]) return i;
  return -1;
}

/* Fills group with one that is not on one node; the place where another node begins in it, or -1. */
static int find_straddler(const ms_mesh *mesh, int dim, const nodes *nodes, int *group) {
  for (int rank = 0; rank < nodes->ranks; rank++) {
    if (!ms_mesh_contains(mesh, rank) || ms_mesh_group(mesh, dim, rank, group)) continue;
    int border = find_border(nodes, group, mesh->size[dim]);
    if (border > 0) return border;
  }
  return -1;
}

/* A smaller size helps where groups and nodes are runs of ranks: then a group that divides every node fits into one. */
static int runs_of_ranks(const nodes *nodes, const int *group, int size) {
  for (int i = 1; i < size; i++)
    if (group[i] != group[0] + i) return 0;
  for (int rank = 1; rank < nodes->ranks; rank++)
    if (nodes->of[rank] < nodes->of[rank - 1]) return 0;
  return 1;
}

static void add_node(const nodes *nodes, int node, ms_text *text) {
  ms_text_append(text, "%snode %d", node ? ", " : "", node);
  if (nodes->name) ms_text_append(text, " (%s)", nodes->name[node]);
  ms_text_append(text, " has %d rank%s", nodes->count[node], nodes->count[node] == 1 ? "" : "s");
}

static int report(const ms_mesh *mesh, int dim, const nodes *nodes, const int *group, int border) {
  ms_text text = {0};
  int size = mesh->size[dim], divisor = common_divisor(nodes);
  ms_text_append(&text, "mesh %s: dimension %s of size %d reaches over nodes with different numbers of ranks (",
                 mesh->label, ms_mesh_name(mesh, dim), size);
  for (int node = 0; node < nodes->n; node++) add_node(nodes, node, &text);
  ms_text_append(&text, "): ranks %d and %d of one group are on nodes %d and %d; start as many ranks on every node",
                 group[0], group[border], nodes->of[group[0]], nodes->of[group[border]]);
  if (divisor > 1 && runs_of_ranks(nodes, group, size))
    ms_text_append(&text, ", or make the size a divisor of %d", divisor);
  int rc = ms_text_status(&text);
  if (!rc) rc = MS_FAIL(MS_EINVAL, "%s", text.data);
  ms_text_free(&text);
  return rc;
}

static int count_ranks(const nodes *nodes) {
  for (int rank = 0; rank < nodes->ranks; rank++) {
    int node = nodes->of[rank];
    if (node < 0 || node >= nodes->n)
      return MS_FAIL(MS_EINVAL, "rank %d is on node %d: nodes are 0 to %d", rank, node, nodes->n - 1);
    nodes->count[node]++;
  }
  return MS_OK;
}

int ms_mesh_check_nodes(const ms_mesh *mesh, int dim, int n, const int *node_of, const char *const *names) {
  MS_HANDLE(mesh, MESH);
  int rc, border, ranks[MS_MAX_WORLD];
  MS_TRY(ms_mesh_check_dim(mesh, dim));
  if (n < 1) return MS_FAIL(MS_EINVAL, "a mesh is on at least 1 node, not on %d", n);
  nodes nodes = {.n = n, .ranks = mesh->root->world, .of = node_of, .name = names};
  nodes.count = ms_calloc(n, sizeof *nodes.count);
  if (!nodes.count) return MS_ENOMEM;
  MS_GOTO(count_ranks(&nodes));
  if (!counts_differ(&nodes) || mesh->size[dim] == mesh->root->size) goto fail;
  border = find_straddler(mesh, dim, &nodes, ranks);
  if (border > 0) rc = report(mesh, dim, &nodes, ranks, border);
fail:
  free(nodes.count);
  return rc;
}
