/* fake_hosts.c - worlds of threads whose topology says that they are on several hosts. */
#include "tests/c/support/ranks/fake_hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/group/world_state.h"

const fake_hosts all_fake_hosts[] = {
    {"2x1", 2, {0, 1}},
    {"2x2", 4, {0, 0, 1, 1}},
    {"3x1", 3, {0, 1, 2}},
    {"4x1", 4, {0, 1, 2, 3}},
    {"2x3", 6, {0, 0, 0, 1, 1, 1}},
    {"1+3", 4, {0, 1, 1, 1}},
    {"3+1+2", 6, {2, 2, 2, 0, 1, 1}},
    {"2x2, in turns", 4, {0, 1, 0, 1}},
};

const int n_fake_hosts = sizeof all_fake_hosts / sizeof *all_fake_hosts;

typedef struct on_hosts {
  const fake_hosts *hosts;
  const ms_transport_api *api;
  rank_body *body;
  void *context;
} on_hosts;

static int move_to_hosts(ms_world *world, const fake_hosts *hosts) {
  int nodes = 0;
  for (int r = 0; r < hosts->ranks; r++)
    if (hosts->node[r] >= nodes) nodes = hosts->node[r] + 1;
  ms_topology_free(&world->topology);
  MS_TRY(ms_topology_make(hosts->ranks, nodes, hosts->node, &world->topology));
  world->node_name = ms_calloc(nodes, MS_HOST_NAME);
  if (!world->node_name) return MS_ENOMEM;
  for (int node = 0; node < nodes; node++) snprintf(world->node_name[node], MS_HOST_NAME, "host%d", node);
  return MS_OK;
}

static int run_on_hosts(ms_world *world, void *context) {
  const on_hosts *run = context;
  MS_TRY(move_to_hosts(world, run->hosts));
  const char *token = run->api == &ms_transport_ucx ? "known-to-all-of-them" : ""; /* tcp does without one */
  if (run->api) MS_TRY(ms_progress_open(world, run->api, token, "test"));
  int rc = run->body(world, run->context);
  if (rc) ms_error_prefix("%s hosts over %s", run->hosts->name, run->api ? run->api->name : "nothing");
  return rc;
}

void run_ranks_on_hosts(const fake_hosts *hosts, const ms_transport_api *api, rank_body *body, void *context) {
  on_hosts run = {hosts, api, body, context};
  run_ranks_as_threads(hosts->ranks, run_on_hosts, &run);
}

int recover_on_hosts(ms_world *world) {
  const int nodes = world->topology.nodes;
  world->topology.nodes = 1;
  int rc = ms_world_recover(world);
  world->topology.nodes = nodes;
  return rc;
}

ms_transport_counts await_counts(ms_world *world, int64_t sent, int64_t received) {
  ms_transport_counts counts = {0};
  for (int i = 0; i < 500; i++) {
    ms_progress_wake(world->progress);
    counts = ms_progress_counts(world->progress);
    if (counts.sent == sent && counts.received == received) break;
    usleep(10000);
  }
  return counts;
}
