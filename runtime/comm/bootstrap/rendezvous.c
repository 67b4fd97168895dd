/* rendezvous.c - forms a world with three gathers: the ranks' identities, the makers of the control segments, and
 * whether every rank has mapped its segment. */
#include "comm/bootstrap/rendezvous.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/build_id.h"
#include "base/env.h"
#include "base/error.h"
#include "base/machine/cores.h"
#include "comm/bootstrap/host_id.h"
#include "comm/bootstrap/token.h"

/* A rank's identity. All ranks run the same build on the same kind of machine, so the struct is sent as stored; the
 * build comes first, so that ranks of another build are recognised whatever follows. */
typedef struct member {
  char build[MS_BUILD_ID];
  uint8_t host[MS_HOST_ID];
  int32_t pid, local_size, inherits;
  char name[MS_WIRE_NAME];
  cpu_set_t cores; /* cores that the rank can run on */
} member;

/* Second gather: the descriptor of the control segment, from the first rank of each node. Third gather: fd is
 * unused. */
typedef struct report {
  int32_t status, fd;
  char text[256]; /* of an error */
} report;

_Static_assert(sizeof(member) <= MS_STORE_ROUND && sizeof(report) <= MS_STORE_ROUND, "a gather holds a member");

typedef struct attempt {
  const ms_task *task;
  ms_rendezvous_result *result;
  member *all;      /* [size] */
  int first, local; /* of this rank's node: its lowest rank and number of ranks */
} attempt;

/* ---- nodes ---- */

static int fill_member(const ms_task *task, const ms_control *inherited, member *mine) {
  *mine = (member){.pid = (int32_t)getpid(), .local_size = task->local_size, .inherits = inherited != NULL};
  snprintf(mine->build, sizeof mine->build, "%s", ms_build_id);
  ms_host_name(mine->name, sizeof mine->name);
  if (sched_getaffinity(0, sizeof mine->cores, &mine->cores)) CPU_ZERO(&mine->cores);
  return ms_host_id(mine->host);
}

static int same_host(const member *a, const member *b) { return !memcmp(a->host, b->host, sizeof a->host); }

static int check_builds(const attempt *a) {
  char first[MS_WIRE_NAME], other[MS_WIRE_NAME];
  for (int rank = 1; rank < a->task->size; rank++) {
    if (!strncmp(a->all[rank].build, a->all[0].build, MS_BUILD_ID)) continue;
    ms_wire_get_text((const uint8_t *)a->all[0].name, MS_WIRE_NAME, first, sizeof first);
    ms_wire_get_text((const uint8_t *)a->all[rank].name, MS_WIRE_NAME, other, sizeof other);
    return MS_FAIL(MS_EMISMATCH,
                   "rank 0 on %s runs \"%.*s\", but rank %d on %s runs \"%.*s\": builds can compute other bits, also "
                   "those of one version, so install the same one on all hosts",
                   first, MS_BUILD_ID - 1, a->all[0].build, rank, other, MS_BUILD_ID - 1, a->all[rank].build);
  }
  return MS_OK;
}

/* Nodes are numbered in the order of their lowest ranks. */
static int number_nodes(attempt *a) {
  ms_rendezvous_result *result = a->result;
  const int size = a->task->size;
  int rc = MS_OK, nodes = 0, mine, *lowest; /* lowest: [nodes], the first rank of each */
  int *node_of = ms_calloc(2 * (int64_t)size, sizeof *node_of);
  if (!node_of) return MS_ENOMEM;
  lowest = node_of + size;
  for (int rank = 0; rank < size; rank++) {
    int node = 0;
    while (node < nodes && !same_host(&a->all[rank], &a->all[lowest[node]])) node++;
    if (node == nodes) lowest[nodes++] = rank;
    node_of[rank] = node;
  }
  MS_GOTO(ms_topology_make(size, nodes, node_of, &result->topology));
  mine = node_of[a->task->rank];
  a->first = lowest[mine];
  a->local = result->topology.node_ranks[mine];
fail:
  free(node_of);
  return rc;
}

static int name_nodes(attempt *a) {
  ms_rendezvous_result *result = a->result;
  result->node_name = ms_calloc(result->topology.nodes, sizeof *result->node_name);
  if (!result->node_name) return MS_ENOMEM;
  for (int rank = a->task->size - 1; rank >= 0; rank--)
    ms_wire_get_text((const uint8_t *)a->all[rank].name, MS_WIRE_NAME,
                     result->node_name[result->topology.node_of[rank]], sizeof *result->node_name);
  return MS_OK;
}

/* Checks that the ranks found on this node match what its launcher said, so that ranks of one host that cannot share
 * memory fail here rather than later. */
static int check_node(const attempt *a, const ms_control *inherited) {
  const char *host = a->all[a->task->rank].name;
  if (a->task->local_size > a->local)
    return MS_FAIL(
        MS_EMISMATCH,
        "according to its launcher rank %d has %d ranks on its host (%s), but %d of them can share memory there; do "
        "they run in separate containers?",
        a->task->rank, a->task->local_size, host, a->local);
  for (int rank = 0; rank < a->task->size; rank++)
    if (same_host(&a->all[rank], &a->all[a->task->rank]) && a->all[rank].inherits != (inherited != NULL))
      return MS_FAIL(MS_EMISMATCH, "of ranks %d and %d on %s, only one was started by `moonshard run --nodes`",
                     a->task->rank, rank, host);
  if (inherited && inherited->local != a->local)
    return MS_FAIL(
        MS_EMISMATCH,
        "on %s %d ranks connected, but the launcher of rank %d started %d: do two nodes have the same --node-rank?",
        host, a->local, a->task->rank, inherited->local);
  return MS_OK;
}

/* ---- the control segment ---- */

/* Number of cores that any rank of the node can run on: launchers often give each rank its own. */
static int count_cores(const attempt *a) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int rank = 0; rank < a->task->size; rank++)
    if (same_host(&a->all[rank], &a->all[a->first])) CPU_OR(&cores, &cores, &a->all[rank].cores);
  return CPU_COUNT(&cores);
}

static int make_segment(attempt *a) {
  MS_TRY(ms_job_create(a->task->size, a->local, count_cores(a), &a->result->fd));
  return ms_control_map(a->result->fd, &a->result->control);
}

static int map_segment(attempt *a, int fd_there) {
  MS_TRY(ms_memory_open(a->task->rank, a->first, a->all[a->first].pid, fd_there, &a->result->fd));
  return ms_control_map(a->result->fd, &a->result->control);
}

/* Gathers every rank's status, so that all fail when one does, with its text. */
static int gather_reports(attempt *a, int rc, report *all) {
  report mine = {.status = rc, .fd = a->result->fd};
  if (rc) snprintf(mine.text, sizeof mine.text, "%s", ms_error_message());
  MS_TRY(ms_store_gather(a->result->store, &mine, sizeof mine, all));
  for (int rank = 0; rank < a->task->size; rank++)
    if (all[rank].status)
      return MS_FAIL(all[rank].status, "rank %d: %.*s", rank, (int)sizeof all[rank].text - 1, all[rank].text);
  return MS_OK;
}

static int share_segment(attempt *a, ms_control *inherited) {
  int rc = check_node(a, inherited);
  report *all = ms_calloc(a->task->size, sizeof *all);
  if (!all) return MS_ENOMEM;
  if (!rc && !inherited && a->first == a->task->rank) rc = make_segment(a);
  MS_GOTO(gather_reports(a, rc, all));
  if (inherited) a->result->control = inherited;
  else if (a->first != a->task->rank) rc = map_segment(a, all[a->first].fd);
  MS_GOTO(gather_reports(a, rc, all));
fail:
  free(all);
  return rc;
}

/* The ranks of a node share the cores of all their masks, as far as a quota or a batch system allows; a rank that its
 * launcher bound to fewer cores uses only those. */
static int take_threads(const attempt *a) {
  ms_cores cores;
  ms_grant grant;
  MS_TRY(ms_grant_read(&grant));
  ms_cores_read("", &cores);
  int all = count_cores(a), mine = ms_threads_each(&cores, grant.rank, 1);
  if (ms_cores_usable(&cores) < cores.n) all = ms_cores_usable(&cores);
  if (grant.node && grant.node < all) all = grant.node;
  int share = grant.rank ? grant.rank : all / a->local;
  ms_thread_count_decide(share < 1 ? 1 : share < mine ? share : mine);
  return MS_OK;
}

/* ---- meeting ---- */

static int come_together(attempt *a, const ms_store_config *config, ms_control *inherited) {
  ms_rendezvous_result *result = a->result;
  member mine;
  MS_TRY(fill_member(a->task, inherited, &mine));
  a->all = ms_calloc(a->task->size, sizeof *a->all);
  if (!a->all) return MS_ENOMEM;
  MS_TRY(ms_store_open(config, &result->store));
  MS_TRY(ms_store_gather(result->store, &mine, sizeof mine, a->all));
  MS_TRY(check_builds(a));
  MS_TRY(number_nodes(a));
  if (result->topology.nodes > 1) MS_TRY(ms_store_set_node(result->store, result->topology.node_of[a->task->rank]));
  MS_TRY(name_nodes(a));
  MS_TRY(share_segment(a, inherited));
  return inherited ? MS_OK : take_threads(a);
}

int ms_rendezvous(const ms_task *task, double timeout, ms_control *inherited, ms_rendezvous_result *result) {
  const char *token;
  MS_TRY(ms_token_of_job(task->token, &token));
  MS_TRY(ms_token_check(&task->place, token));
  ms_store_config config = {.place = &task->place,
                            .job = task->job,
                            .token = token,
                            .rank = task->rank,
                            .size = task->size,
                            .timeout = timeout,
                            .ended = inherited ? &inherited->aborted : NULL};
  *result = (ms_rendezvous_result){.fd = -1};
  attempt a = {.task = task, .result = result};
  int rc = come_together(&a, &config, inherited);
  if (rc) {
    int row, blame;
    const char *why = inherited ? ms_control_aborted(inherited, &row, &blame) : NULL;
    if (why) rc = MS_FAIL(MS_EPEER, "%s", why); /* the other ranks get the reason, too */
    if (result->store) ms_store_abort(result->store, ms_error_message());
    if (result->control && result->control != inherited) ms_control_unmap(result->control);
    if (result->fd >= 0) close(result->fd);
    ms_store_close(result->store);
    ms_topology_free(&result->topology);
    free(result->node_name);
  }
  free(a.all);
  return rc;
}
