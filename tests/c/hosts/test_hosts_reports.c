/* test_hosts_reports.c - what ranks of several hosts report about each other when a collective between hosts does not
 * complete: the rank that is behind, the ranks that disagree, the ranks that wait for each other; as on one host. The
 * ranks are processes, each host has a segment of its own.
 */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/hosts.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/collectives/comm.h"
#include "comm/collectives/hosts/progress_thread.h"
#include "comm/group/world_state.h"

enum { MAX = 6, COUNT = 1000 };
static const double TIMEOUT = 2;

/* What one rank does while the others wait for it, in memory that all map. */
typedef struct misfortune {
  int rank;
  void (*suffer)(ms_world *world, struct misfortune *how);
  atomic_int pid, ended; /* ended: ranks whose wait has failed */
  float source[MAX][COUNT];
} misfortune;

static misfortune *shared;

static int open_ranks(ms_world *world, int n, const int *ranks, int channel, ms_comm **comm) {
  if (!world->progress) MS_TRY(ms_progress_open(world, &ms_transport_tcp, "", "test"));
  return ms_comm_open(world, n, ranks, channel, comm);
}

static int open_everyone(ms_world *world, ms_comm **comm) {
  static const int everyone[MAX] = {0, 1, 2, 3, 4, 5};
  return open_ranks(world, ms_world_size(world), everyone, 0, comm);
}

/* Sums ones, in place. */
static int reduce(ms_world *world, ms_comm *comm, misfortune *how) {
  /* An operation whose wait failed is in flight until its communicator is closed. */
  static void *sources[MAX];
  static ms_coll_part part;
  static ms_coll coll;
  const int me = ms_world_rank(world), n = ms_world_size(world);
  for (int r = 0; r < n; r++)
    if (ms_world_node_of(world, r) == ms_world_node_of(world, me)) sources[r] = how->source[r];
  for (int i = 0; i < COUNT; i++) how->source[me][i] = 1;
  part = (ms_coll_part){
      .count = COUNT, .src_dtype = MS_F32, .dst_dtype = MS_F32, .shared = sources, .dst = how->source[me]};
  coll = (ms_coll){.kind = MS_COLL_ALL_REDUCE, .parts = 1, .part = &part, .label = "layers.0"};
  MS_TRY(ms_comm_start(comm, &coll));
  MS_TRY(ms_comm_wait(comm));
  for (int i = 0; i < COUNT; i++) EXPECT(how->source[me][i] == (float)n, "element %d", i);
  return MS_OK;
}

/* Returns when the waits of `count` ranks have ended, or after some seconds. */
static void await_ended(misfortune *how, int count) {
  for (double end = ms_clock() + 8; atomic_load(&how->ended) < count && ms_clock() < end;) usleep(2000);
}

/* ---- a rank that does not enter ---- */

static int suffer_or_wait(ms_world *world, void *context) {
  misfortune *how = context;
  const int others = ms_world_size(world) - 1;
  ms_comm *comm;
  MS_TRY(open_everyone(world, &comm));
  for (int i = 0; i < 3; i++) MS_TRY(reduce(world, comm, how));
  if (ms_world_rank(world) == how->rank) {
    atomic_store(&how->pid, (int)getpid());
    how->suffer(world, how);
    ms_comm_close(comm);
    return MS_OK;
  }
  int rc = reduce(world, comm, how);
  atomic_fetch_add(&how->ended, 1);
  if (atomic_load(&how->ended) == others) kill(atomic_load(&how->pid), SIGKILL); /* a stopped one */
  await_ended(how, others);                                                      /* all find it themselves */
  ms_comm_close(comm);
  return rc;
}

static void assert_named(int size, int rank, void (*suffer)(ms_world *, misfortune *), const char *facts) {
  *shared = (misfortune){.rank = rank, .suffer = suffer};
  const ended *all =
      run_hosts(&(hosts){.size = size, .per_host = 2, .timeout = TIMEOUT, .body = suffer_or_wait, .context = shared});
  for (int r = 0; r < size; r++) {
    if (r == rank) continue;
    const char *lacks = message_lacks(all[r].message, facts);
    if (all[r].status != MS_ETIMEOUT || lacks)
      fail_msg("rank %d waited for rank %d; status %d, \"%s\" is not in: %s", r, rank, all[r].status,
               lacks ? lacks : "", all[r].message);
  }
}

static void stall(ms_world *world, misfortune *how) {
  ms_world_set_activity(world, "counting sheep");
  await_ended(how, ms_world_size(world) - 1);
}

static void H4_a_rank_that_does_not_enter_a_collective_is_named_on_every_host(void **state) {
  (void)state;
  for (int rank = 0; rank < 4; rank++) {
    char facts[160];
    snprintf(facts, sizeof facts,
             "all_reduce layers.0 | 2 s for rank %d on | ; rank %d has been outside | counting sheep | has not entered "
             "all_reduce layers.0 (",
             rank, rank);
    assert_named(4, rank, stall, facts);
    if (rank == 1) assert_named(6, rank, stall, facts);
  }
}

static void stop(ms_world *world, misfortune *how) {
  (void)world;
  (void)how;
  raise(SIGSTOP);
}

static void H4_a_rank_that_is_stopped_is_named_in_collectives_on_every_host(void **state) {
  (void)state;
  assert_named(4, 3, stop, "all_reduce layers.0 | 2 s for rank 3 on | ; rank 3 | stopped");
  assert_named(6, 5, stop, "all_reduce layers.0 | 2 s for rank 5 on | ; rank 5 | stopped");
}

/* ---- ranks that disagree ---- */

static int enter_different_operations(ms_world *world, void *context) {
  static float result[2 * COUNT];
  misfortune *how = context;
  const int me = ms_world_rank(world);
  void *buffers[2] = {result, me ? result : NULL};
  ms_comm *comm;
  ms_coll_part part = {.count = COUNT / 2,
                       .src_dtype = MS_F32,
                       .dst_dtype = MS_F32,
                       .src = how->source[me],
                       .shared = buffers,
                       .dst = how->source[me]};
  ms_coll coll = {.kind = me ? MS_COLL_REDUCE_SCATTER : MS_COLL_ALL_GATHER,
                  .parts = 1,
                  .part = &part,
                  .label = me ? "layers.1" : "layers.0"};
  MS_TRY(open_everyone(world, &comm));
  if (me) ms_world_note_failure(world, "ENOENT of a file");
  MS_TRY(ms_world_barrier(world));
  MS_TRY(ms_comm_start(comm, &coll));
  EXPECT_FAILS(ms_comm_wait(comm), MS_EMISMATCH,
               me ? "rank 1 failed | ENOENT of a file | rank 1 entered reduce_scatter layers.1 (before | 1 parts | "
                    "500 elements | rank 0 entered all_gather layers.0 ("
                  : "rank 1 failed | ENOENT of a file | rank 0 entered all_gather layers.0 (before | 1 parts | "
                    "500 elements | rank 1 entered reduce_scatter layers.1 (");
  ms_comm_close(comm);
  return MS_OK;
}

static void H7_ranks_of_two_hosts_that_enter_different_collectives_are_named(void **state) {
  (void)state;
  *shared = (misfortune){0};
  expect_hosts(&(hosts){.size = 2, .per_host = 1, .body = enter_different_operations, .context = shared});
}

/* Each in a group of its own, long before the deadline. */
static int wait_for_each_other(ms_world *world, void *context) {
  const int rank = ms_world_rank(world), per_host = *(const int *)context;
  ms_comm *a, *b;
  ms_coll barrier = {.kind = MS_COLL_BARRIER, .label = "layers.0"};
  if (per_host == 2) {
    MS_TRY(open_ranks(world, 4, (int[]){0, 2, 1, 3}, 0, &a));
    MS_TRY(open_ranks(world, 4, (int[]){0, 2, 3, 1}, 0, &b));
  } else {
    MS_TRY(open_ranks(world, 3, (int[]){0, 1, 2}, 0, &a));
    MS_TRY(open_ranks(world, 3, (int[]){0, 2, 1}, 0, &b));
  }
  double began = ms_clock();
  ms_comm *mine = rank < 2 ? a : b;
  MS_TRY(ms_comm_start(mine, &barrier));
  /* One finds it, or all; the others hear it from the one that did. */
  int rc = ms_comm_wait(mine);
  if (rc == MS_EMISMATCH) ms_world_abort(world, ms_error_message());
  EXPECT(rc == MS_EMISMATCH || rc == MS_EPEER, "%s", ms_error_message());
  const char *lacks = message_lacks(ms_error_message(),
                                    per_host == 2 ? "barrier layers.0 | never continue | ranks 0-3 wait for each other"
                                                  : "barrier layers.0 | never continue | wait for each other");
  if (lacks) return ms_error_prefix("expected \"%s\" in", lacks);
  ms_error_clear();
  EXPECT(ms_clock() - began < 10, "after %g s", ms_clock() - began);
  ms_comm_close(a);
  ms_comm_close(b);
  return MS_OK;
}

static void H7_ranks_that_wait_for_each_other_in_collectives_of_two_hosts_are_named(void **state) {
  (void)state;
  expect_hosts(&(hosts){.size = 4, .per_host = 2, .body = wait_for_each_other, .context = &(int){2}});
  expect_hosts(&(hosts){.size = 3, .per_host = 1, .body = wait_for_each_other, .context = &(int){1}});
}

/* ---- ranks that are only late ---- */

/* A rank that is late often enough that all have asked about it is no error, also after a recovery, which resets all
 * tickets. */
static int be_late(ms_world *world, void *context) {
  misfortune *how = context;
  const int me = ms_world_rank(world);
  ms_comm *comm;
  MS_TRY(open_everyone(world, &comm));
  for (int round = 0; round < 4; round++) {
    if (me == 3 - round) usleep(1300000);
    MS_TRY(reduce(world, comm, how));
    if (round % 2) MS_TRY(ms_world_recover(world));
  }
  ms_comm_close(comm);
  return ms_world_finish(world);
}

static void H7_a_late_rank_of_another_host_is_no_error(void **state) {
  (void)state;
  *shared = (misfortune){0};
  expect_hosts(&(hosts){.size = 4, .per_host = 2, .body = be_late, .context = shared});
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H4_a_rank_that_does_not_enter_a_collective_is_named_on_every_host),
      TEST(H4_a_rank_that_is_stopped_is_named_in_collectives_on_every_host),
      TEST(H7_ranks_of_two_hosts_that_enter_different_collectives_are_named),
      TEST(H7_ranks_that_wait_for_each_other_in_collectives_of_two_hosts_are_named),
      TEST(H7_a_late_rank_of_another_host_is_no_error),
  };
  shared = share_memory(sizeof *shared);
  return cmocka_run_group_tests_name("hosts reports", tests, NULL, NULL);
}
