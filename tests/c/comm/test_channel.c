/* test_channel.c - a second implementation of channels, to show that the table is enough: the threads of one process
 * hand each other the addresses of what they send, through memory of the test instead of the control segment's tickets.
 */
#include "comm/collectives/channel.h"

#include "tests/c/support/check.h"
#include "tests/c/support/ranks/ranks.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 3, COUNT = 100, ROUNDS = 20 };

/* What the ranks of the test share: how many operations each has entered and finished, and what it entered last. */
typedef struct post {
  _Atomic uint64_t entered, finished;
  _Atomic(const ms_coll *) coll;
} post;

static post posts[RANKS];
static _Atomic int opened, aborted, closed;

struct ms_channel {
  ms_channel_config config;
  const ms_coll *coll; /* NULL: nothing is in flight */
  uint64_t count;
};

static int open_loop(const ms_channel_config *config, ms_channel **channel) {
  *channel = calloc(1, sizeof **channel);
  if (!*channel) return MS_ENOMEM;
  (*channel)->config = *config;
  opened++;
  return MS_OK;
}

static int start_loop(ms_channel *channel, const ms_coll *coll) {
  post *mine = &posts[channel->config.me];
  channel->coll = coll;
  channel->count++;
  ms_channel_entered(&channel->config, coll, channel->count);
  atomic_store(&mine->coll, coll);
  atomic_store(&mine->entered, channel->count);
  ms_world_ring(channel->config.world, channel->config.rank, channel->config.size);
  return MS_OK;
}

/* An all-reduce of one part of f32: the sum of what the ranks give as src. */
static void sum_up(const ms_channel *channel) {
  const ms_coll_part *part = channel->coll->part;
  float *sum = part->dst;
  for (int64_t i = 0; i < part->count; i++) sum[i] = 0;
  for (int p = 0; p < channel->config.size; p++) {
    const float *source = atomic_load(&posts[p].coll)->part->shared[p];
    for (int64_t i = 0; i < part->count; i++) sum[i] += source[i];
  }
}

static void find_missing(const ms_channel *channel, int finished, ms_rank_set *missing) {
  *missing = (ms_rank_set){{0}};
  for (int p = 0; p < channel->config.size; p++)
    if (atomic_load(finished ? &posts[p].finished : &posts[p].entered) < channel->count)
      ms_rank_set_add(missing, channel->config.rank[p]);
}

static int test_loop(ms_channel *channel, enum ms_progress *progress, ms_rank_set *missing) {
  post *mine = &posts[channel->config.me];
  ms_rank_set absent;
  *progress = MS_PROGRESS_WAITS;
  find_missing(channel, 0, &absent);
  if (ms_rank_set_is_empty(&absent)) {
    if (atomic_load(&mine->finished) < channel->count) {
      if (channel->coll->kind == MS_COLL_ALL_REDUCE) sum_up(channel);
      atomic_store(&mine->finished, channel->count);
      ms_world_ring(channel->config.world, channel->config.rank, channel->config.size);
    }
    find_missing(channel, 1, &absent);
    *progress = ms_rank_set_is_empty(&absent) ? MS_PROGRESS_DONE : MS_PROGRESS_MET;
  }
  if (*progress != MS_PROGRESS_WAITS) ms_recorder_met(channel->config.ring);
  if (*progress == MS_PROGRESS_DONE) {
    channel->coll = NULL;
    ms_recorder_left(channel->config.ring);
  } else if (missing) *missing = absent;
  return MS_OK;
}

static void abort_loop(ms_channel *channel) {
  channel->coll = NULL;
  aborted++;
}

static void close_loop(ms_channel *channel) {
  free(channel);
  closed++;
}

static const ms_channel_api loop = {.name = "loop",
                                    .depth = 1,
                                    .open = open_loop,
                                    .start = start_loop,
                                    .test = test_loop,
                                    .abort = abort_loop,
                                    .close = close_loop};

static void reset(void) {
  memset(posts, 0, sizeof posts);
  opened = aborted = closed = 0;
}

static int open_loop_comm(ms_world *world, ms_comm **comm) {
  return ms_comm_open_over(&loop, world, RANKS, (int[RANKS]){0, 1, 2}, 0, comm);
}

static int reduce_over_loop(ms_world *world, void *context) {
  static float given[RANKS][COUNT];
  (void)context;
  float sum[COUNT];
  int me = ms_world_rank(world);
  void *shared[RANKS];
  ms_comm *comm;
  MS_TRY(open_loop_comm(world, &comm));
  for (int p = 0; p < RANKS; p++) shared[p] = given[p];
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < COUNT; i++) given[me][i] = (float)(100 * me + i + round);
    ms_coll_part part = {.count = COUNT, .src_dtype = MS_F32, .dst_dtype = MS_F32, .shared = shared, .dst = sum};
    ms_coll coll = {.kind = MS_COLL_ALL_REDUCE, .parts = 1, .part = &part, .label = "layers.0"};
    MS_TRY(ms_comm_start(comm, &coll));
    MS_TRY(ms_comm_wait(comm));
    for (int i = 0; i < COUNT; i++)
      EXPECT(sum[i] == (float)(300 + 3 * (i + round)), "element %d of round %d is %g", i, round, (double)sum[i]);
    const ms_recorder_record *record = ms_recorder_last(ms_comm_ring(comm));
    EXPECT(record->sequence == (uint64_t)round + 1 && record->met && record->left, "round %d is not recorded", round);
  }
  ms_comm_close(comm);
  return MS_OK;
}

static void communicators_work_over_other_channels(void **state) {
  (void)state;
  reset();
  run_ranks_as_threads(RANKS, reduce_over_loop, NULL);
  assert_int_equal(opened, RANKS);
  assert_int_equal(closed, RANKS);
  assert_int_equal(aborted, 0);
}

static _Atomic int still_waiting;

/* Rank 2 comes when the others have given up: the deadline and its report are the communicator's, whatever the channel.
 */
static int wait_for_rank_2(ms_world *world, void *context) {
  (void)context;
  ms_comm *comm;
  ms_coll barrier = {.kind = MS_COLL_BARRIER, .label = "layers.0"};
  MS_TRY(open_loop_comm(world, &comm));
  ms_world_set_timeout(world, 0.3);
  if (ms_world_rank(world) < 2) {
    MS_TRY(ms_comm_start(comm, &barrier));
    EXPECT_FAILS(ms_comm_wait(comm), MS_ETIMEOUT, "barrier layers.0 | 0.3 s | rank 2");
    still_waiting--;
  }
  while (still_waiting) usleep(1000);
  ms_comm_close(comm);
  return MS_OK;
}

static void an_operation_in_flight_is_aborted_when_its_communicator_closes(void **state) {
  (void)state;
  reset();
  still_waiting = 2;
  run_ranks_as_threads(RANKS, wait_for_rank_2, NULL);
  assert_int_equal(aborted, 2);
  assert_int_equal(closed, RANKS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(communicators_work_over_other_channels),
      TEST(an_operation_in_flight_is_aborted_when_its_communicator_closes),
  };
  return cmocka_run_group_tests_name("channel", tests, NULL, NULL);
}
