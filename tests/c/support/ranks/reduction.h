/* reduction.h - all-reduces of ranks on fake hosts, for tests of what happens around them. */
#ifndef MS_TESTS_REDUCTION_H
#define MS_TESTS_REDUCTION_H

#include <unistd.h>

#include "base/clock.h"
#include "comm/collectives/hosts/hosts.h"
#include "comm/group/world_state.h"
#include "tests/c/support/ranks/endpoints_ucx.h"
#include "tests/c/support/ranks/fake_hosts.h"

enum { COUNT = 1 << 18, CHANNELS = 3 };

static const fake_hosts two_by_one = {"2x1", 2, {0, 1}}, two_by_two = {"2x2", 4, {0, 0, 1, 1}};

/* Sources of all channels; the ranks of a host map those of each other. */
static float source[CHANNELS][MAX_HOST_RANKS][COUNT];
/* How many ranks have come to a place that a test waits for. */
static _Atomic int reached;

/* An all-reduce of one rank. */
typedef struct reduction {
  ms_comm *comm;
  ms_coll coll;
  ms_coll_part part;
  void *shared[MAX_HOST_RANKS];
} reduction;

/* In place; rank r gives (r + 1) * (round + channel) + i. members: the group's world ranks. */
static inline void prepare(reduction *r, const ms_world *world, const int *members, int channel, int64_t count,
                           int round) {
  const int me = ms_world_rank(world), n = ms_comm_size(r->comm);
  for (int p = 0; p < n; p++) {
    int near = ms_world_node_of(world, members[p]) == ms_world_node_of(world, me);
    r->shared[p] = near ? source[channel][members[p]] : NULL;
  }
  for (int64_t i = 0; i < count; i++) source[channel][me][i] = (float)((me + 1) * (round + channel) + (int)(i % 1000));
  r->part = (ms_coll_part){
      .count = count, .src_dtype = MS_F32, .dst_dtype = MS_F32, .shared = r->shared, .dst = source[channel][me]};
  r->coll = (ms_coll){.kind = MS_COLL_ALL_REDUCE, .parts = 1, .part = &r->part, .label = "layers.0"};
}

static inline int check(const reduction *r, const int *members, int channel, int round) {
  int factor = 0, n = ms_comm_size(r->comm);
  const float *sum = r->part.dst;
  for (int p = 0; p < n; p++) factor += members[p] + 1;
  for (int64_t i = 0; i < r->part.count; i++) {
    float want = (float)(factor * (round + channel) + n * (int)(i % 1000));
    EXPECT(sum[i] == want, "channel %d, round %d, element %lld is %g, not %g", channel, round, (long long)i,
           (double)sum[i], (double)want);
  }
  return MS_OK;
}

static const int everyone[MAX_HOST_RANKS] = {0, 1, 2, 3, 4, 5};

static inline int reduce(reduction *r, const ms_world *world, int64_t count, int round) {
  prepare(r, world, everyone, 0, count, round);
  MS_TRY(ms_comm_start(r->comm, &r->coll));
  MS_TRY(ms_comm_wait(r->comm));
  return check(r, everyone, 0, round);
}

static inline int open_everyone(ms_world *world, int channel, ms_comm **comm) {
  return ms_comm_open(world, ms_world_size(world), everyone, channel, comm);
}

static inline void run_over_each(const fake_hosts *hosts, rank_body *body) {
  reached = 0;
  run_ranks_on_hosts(hosts, &threads_transport, body, NULL);
  reached = 0;
  run_ranks_on_hosts(hosts, &ms_transport_tcp, body, NULL);
  if (!has_ucx()) return;
  reached = 0;
  run_ranks_on_hosts(hosts, &ms_transport_ucx, body, NULL);
}

/* Waits until `count` ranks have come, at most 20 s. */
static inline void await_reached(int count) {
  for (double end = ms_clock() + 20; reached < count && ms_clock() < end;) usleep(1000);
}

#endif
