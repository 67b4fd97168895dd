/* profile_clocks.c - relates the clocks of the hosts of a trace: how far each is ahead of that of rank 0's host.
 *
 * All ranks gather bytes some times, and note when they enter and leave. No rank leaves before all have entered, so on
 * a host whose clock is ahead by x: entered - x <= left on rank 0, and entered on rank 0 <= left - x. Each gather gives
 * two bounds of x. Half of their distance is the greatest possible error: at most half of the time from the last entry
 * to the last exit of the fastest gather, which is about a round trip of the network. The lowest rank of a host
 * measures for all of them, so ranks of one host remain exact among themselves.
 */
#include <stdlib.h>

#include "base/error.h"
#include "base/min.h"
#include "exec/profile/profile.h"

enum { ROUNDS = 16 };

typedef struct moment {
  int64_t entered, left; /* ns; left: the gather before */
} moment;

static int64_t now(void) { return (int64_t)ms_recorder_now(); }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* all: [ROUNDS + 1][ranks]; the last gather only carries the times of leaving. */
static int measure(ms_world *world, moment *all) {
  const int ranks = ms_world_size(world);
  int64_t left = 0;
  for (int round = 0; round <= ROUNDS; round++) {
    const moment mine = {.entered = now(), .left = left};
    MS_TRY(ms_world_all_gather_bytes(world, &mine, sizeof mine, all + (int64_t)round * ranks));
    left = now();
  }
  return MS_OK;
}

int ms_profile_lowest_of_node(const ms_world *world, int node) {
  int rank = 0;
  while (ms_world_node_of(world, rank) != node) rank++;
  return rank;
}

int ms_profile_align(ms_world *world, int64_t *ahead, int64_t *error) {
  *ahead = *error = 0;
  if (ms_world_nodes(world) == 1) return MS_OK;
  const int ranks = ms_world_size(world), node = ms_world_node_of(world, ms_world_rank(world));
  moment *all = ms_calloc((int64_t)(ROUNDS + 1) * ranks, sizeof *all);
  if (!all) return MS_ENOMEM;
  int rc = measure(world, all);
  const int here = ms_profile_lowest_of_node(world, node);
  int64_t low = INT64_MIN, high = INT64_MAX;
  for (int round = 0; !rc && here && round < ROUNDS; round++) {
    const moment *began = all + (int64_t)round * ranks, *ended = began + ranks;
    low = most(low, began[here].entered - ended[0].left);
    high = ms_min(high, ended[here].left - began[0].entered);
  }
  free(all);
  if (rc || !here) return rc;
  *error = (high - low + 1) / 2;
  *ahead = low + *error;
  return MS_OK;
}
