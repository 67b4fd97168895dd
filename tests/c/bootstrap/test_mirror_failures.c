/* test_mirror_failures.c - a rank of several hosts that dies, stops, gives up or stalls is named on every host, soon
 * after it could be known; and ranks of several hosts recover together. */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/hosts.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/bootstrap/mirror/mirror.h"
#include "comm/diagnose/report.h"
#include "comm/group/wait.h"

enum { RANKS = 6, PER_HOST = 2 };
static const double TIMEOUT = 2;

/* What one rank does while the others wait for it. */
typedef struct misfortune {
  int rank;
  void (*suffer)(ms_world *world, struct misfortune *how);
  _Atomic double began;
  atomic_int pid, passed, ended; /* passed: ranks that left the barrier; ended: ranks whose wait has failed */
  int deferred;                  /* as in a phase that all ranks complete or none */
} misfortune;

static misfortune *shared;

static int suffer_or_wait(ms_world *world, void *context) {
  misfortune *how = context;
  int rc = MS_OK;
  /* Some ranks may still be in the last of these when they hear of a death. */
  for (int i = 0; i < 3 && !rc; i++) rc = ms_world_barrier(world);
  if (!rc && ms_world_rank(world) == how->rank) {
    atomic_store(&how->pid, (int)getpid());
    atomic_store(&how->began, ms_clock());
    how->suffer(world, how);
    return MS_OK;
  }
  if (!rc) rc = ms_world_barrier(world);
  atomic_fetch_add(&how->ended, 1);
  if (atomic_load(&how->ended) == RANKS - 1) kill(atomic_load(&how->pid), SIGKILL); /* a stopped one */
  /* All find it themselves, before they find that others have left. */
  for (double end = ms_clock() + 5; atomic_load(&how->ended) < RANKS - 1 && ms_clock() < end;) usleep(2000);
  return rc;
}

/* Every other rank ends with one of the statuses within `seconds`, and its message has these facts. */
static void assert_named(int rank, void (*suffer)(ms_world *, misfortune *), double seconds, const char *facts) {
  *shared = (misfortune){.rank = rank, .suffer = suffer};
  const ended *all = run_hosts(
      &(hosts){.size = RANKS, .per_host = PER_HOST, .timeout = TIMEOUT, .body = suffer_or_wait, .context = shared});
  for (int r = 0; r < RANKS; r++) {
    if (r == rank) continue;
    if (all[r].status != MS_EPEER && all[r].status != MS_ETIMEOUT)
      fail_msg("rank %d of %d: status %d: %s", r, rank, all[r].status, all[r].message);
    const char *lacks = message_lacks(all[r].message, facts);
    if (lacks) fail_msg("rank %d waited for rank %d; \"%s\" is not in: %s", r, rank, lacks, all[r].message);
    if (all[r].at > atomic_load(&shared->began) + seconds)
      fail_msg("rank %d took %g s to find rank %d", r, all[r].at - atomic_load(&shared->began), rank);
  }
}

static void die(ms_world *world, misfortune *how) {
  (void)world;
  (void)how;
  raise(SIGKILL);
}

static void H4_a_rank_that_is_killed_is_named_on_every_host(void **state) {
  (void)state;
  for (int rank = 0; rank < RANKS; rank++) {
    char facts[64];
    snprintf(facts, sizeof facts, "rank %d | died", rank);
    assert_named(rank, die, TIMEOUT + 2, facts);
  }
}

static void stop(ms_world *world, misfortune *how) {
  (void)world;
  (void)how;
  raise(SIGSTOP);
}

static void H4_a_rank_that_is_stopped_is_named_on_every_host(void **state) {
  (void)state;
  for (int rank = 1; rank < RANKS; rank += 2) {
    char facts[96];
    snprintf(facts, sizeof facts, "barrier | rank %d | %d | stopped | signal", rank, rank);
    assert_named(rank, stop, TIMEOUT + 2, facts);
  }
}

/* Through the lowest rank of a host the host hears of the others, through rank 0 all do. */
static void H4_a_stopped_rank_that_applies_posts_is_named_on_every_host(void **state) {
  (void)state;
  assert_named(2, stop, TIMEOUT + 2, "barrier | 2");
  assert_named(0, stop, TIMEOUT + 2, "barrier | 0");
}

static void stall(ms_world *world, misfortune *how) {
  ms_world_set_activity(world, "counting sheep");
  while (atomic_load(&how->ended) < RANKS - 1) usleep(2000);
}

static void H4_a_rank_that_stalls_is_described_on_every_host(void **state) {
  (void)state;
  assert_named(3, stall, TIMEOUT + 2, "rank 3 | outside | counting sheep | not entered | barrier");
  assert_named(4, stall, TIMEOUT + 2, "rank 4 | outside | counting sheep | not entered | barrier");
}

static void give_up(ms_world *world, misfortune *how) {
  ms_world_abort(world, "the loss is nan");
  while (atomic_load(&how->ended) < RANKS - 1) usleep(2000);
}

static void H4_a_rank_that_gives_up_is_quoted_on_every_host(void **state) {
  (void)state;
  assert_named(5, give_up, 1, "rank 5 gave up: the loss is nan");
  assert_named(0, give_up, 1, "rank 0 gave up: the loss is nan");
}

/* Rank 0 passes on what rank 2 says last, and is stopped until the end of rank 2's connection was seen. It passes on
 * that rank 2 entered the barrier, too, so that it may be stopped only when rank 1 has left that. */
static int hear_late_why(ms_world *world, void *context) {
  misfortune *how = context;
  if (ms_world_rank(world) == 0) atomic_store(&how->pid, (int)getpid());
  MS_TRY(ms_world_barrier(world));
  atomic_fetch_add(&how->passed, 1);
  while (atomic_load(&how->passed) < 3) usleep(1000);
  const int forwarder = atomic_load(&how->pid);
  if (ms_world_rank(world) == 2) {
    kill(forwarder, SIGSTOP);
    while (!ms_report_is_stopped(forwarder)) usleep(1000);
    ms_world_abort(world, "the loss is nan");
    atomic_store(&how->began, 1);
    while (!atomic_load(&how->ended)) usleep(1000);
    kill(forwarder, SIGCONT);
  } else if (ms_world_rank(world) == 1) {
    while (atomic_load(&how->began) == 0) usleep(1000);
    if (how->deferred) ms_interrupt_defer(1);
    int rc = MS_FAIL(MS_EPEER, "the connection between rank 1 and rank 2 failed");
    atomic_store(&how->ended, 1);
    rc = ms_world_collect_cause(world);
    if (how->deferred) ms_interrupt_defer(0);
    atomic_store(&how->ended, 2);
    EXPECT_FAILS(rc, MS_EPEER, "rank 2 gave up: the loss is nan");
  }
  while (atomic_load(&how->ended) < 2) usleep(1000);
  return MS_OK;
}

static void H4_a_rank_that_gave_up_is_quoted_although_its_connection_ended_first(void **state) {
  (void)state;
  for (int deferred = 0; deferred < 2; deferred++) {
    *shared = (misfortune){.deferred = deferred};
    expect_hosts(&(hosts){.size = 3, .per_host = 1, .body = hear_late_why, .context = shared});
  }
}

static void note_and_leave(ms_world *world, misfortune *how) {
  (void)how;
  ms_world_note_failure(world, "ENOENT of a file");
  usleep(100000);
}

static void H4_a_failure_that_a_rank_noted_is_quoted_on_every_host(void **state) {
  (void)state;
  assert_named(3, note_and_leave, 2, "rank 3 left | rank 3 failed | ENOENT of a file");
}

/* ---- posts that make no sense ---- */

enum { RANDOM_POSTS = 3000 };

/* Random payloads of every kind, some of which begin as valid ones do: the ticket of the world's group, the place of
 * rank 3, a group with rank 3. Small numbers are frequent, so that lengths and counts are often plausible. */
static void post_at_random(ms_world *world, misfortune *how) {
  unsigned seed = 7;
  uint8_t payload[2048];
  for (int i = 0; i < RANDOM_POSTS; i++) {
    int kind = 1 + rand_r(&seed) % MS_POST_LOOK;
    for (size_t at = 0; at < sizeof payload; at++)
      payload[at] = (uint8_t)(rand_r(&seed) % 4 ? 0 : rand_r(&seed) % (rand_r(&seed) % 4 ? 8 : 256));
    ms_mirror_writer valid = {.used = 0};
    if (kind == MS_POST_TICKET) ms_mirror_put64(&valid, world->everyone.entry->key);
    if (kind == MS_POST_TICKET || kind == MS_POST_RECORDS) ms_mirror_put32(&valid, 3);
    if (kind == MS_POST_GROUP) {
      ms_mirror_put32(&valid, 5);
      ms_mirror_put_bytes(&valid, (uint16_t[]){3, 1, (uint16_t)(rand_r(&seed) % RANKS)}, 6);
    }
    if (rand_r(&seed) % 2) memcpy(payload, valid.data, valid.used);
    ms_store_post(world->store, kind, payload, (size_t)rand_r(&seed) % sizeof payload);
  }
  while (atomic_load(&how->ended) < RANKS - 1) usleep(2000);
}

/* A ticket needs more than three bytes. */
static void post_a_short_ticket(ms_world *world, misfortune *how) {
  ms_store_post(world->store, MS_POST_TICKET, (uint8_t[]){1, 2, 3}, 3);
  while (atomic_load(&how->ended) < RANKS - 1) usleep(2000);
}

static void H4_a_post_that_makes_no_sense_ends_the_job_and_names_its_rank(void **state) {
  (void)state;
  *shared = (misfortune){.rank = 3, .suffer = post_a_short_ticket};
  const ended *all = run_hosts(
      &(hosts){.size = RANKS, .per_host = PER_HOST, .timeout = TIMEOUT, .body = suffer_or_wait, .context = shared});
  for (int r = 0; r < RANKS; r++)
    if (r / PER_HOST != 3 / PER_HOST) {
      assert_int_equal(all[r].status, MS_EPEER);
      assert_has(all[r].message, "rank 3 | invalid data");
    }
}

static void H4_random_posts_end_the_job_and_name_their_rank(void **state) {
  (void)state;
  *shared = (misfortune){.rank = 3, .suffer = post_at_random};
  const ended *all = run_hosts(
      &(hosts){.size = RANKS, .per_host = PER_HOST, .timeout = TIMEOUT, .body = suffer_or_wait, .context = shared});
  for (int r = 0; r < RANKS; r++) {
    if (r == 3) continue;
    /* A ticket can be valid by chance: then ranks disagree about what rank 3 entered. */
    assert_true(all[r].status == MS_EPEER || all[r].status == MS_EMISMATCH || all[r].status == MS_ETIMEOUT);
    if (r / PER_HOST != 3 / PER_HOST) assert_has(all[r].message, "rank 3");
  }
}

/* ---- recovery ---- */

enum { RECOVERIES = 12 };

static int exchange(ms_world *world, int round) {
  int mine = 100 * round + ms_world_rank(world), all[MAX_HOST_RANKS];
  MS_TRY(ms_world_all_gather_bytes(world, &mine, sizeof mine, all));
  for (int r = 0; r < ms_world_size(world); r++)
    EXPECT(all[r] == 100 * round + r, "round %d: rank %d sent %d", round, r, all[r]);
  return MS_OK;
}

/* In each round another rank gives up while the others wait for it, after an odd or even number of meetings. */
static int give_up_in_turn(ms_world *world, void *context) {
  int rank = ms_world_rank(world), size = ms_world_size(world);
  ms_group everyone;
  (void)context;
  MS_TRY(ms_group_open(world, size, NULL, "all", &everyone));
  for (int round = 0; round < RECOVERIES; round++) {
    for (int i = 0; i < round % 3; i++) MS_TRY(ms_group_barrier(&everyone));
    if (rank == round % size) ms_world_abort(world, "a mistake in a line");
    else EXPECT_FAILS(ms_world_barrier(world), MS_EPEER, "gave up: a mistake in a line");
    MS_TRY(ms_world_recover(world));
    MS_TRY(exchange(world, round));
    MS_TRY(ms_group_barrier(&everyone));
  }
  ms_group_close(&everyone);
  return ms_world_finish(world);
}

static void H4_ranks_of_several_hosts_recover_together(void **state) {
  (void)state;
  expect_hosts(&(hosts){.size = 2, .per_host = 1, .body = give_up_in_turn});
  expect_hosts(&(hosts){.size = 5, .per_host = 2, .body = give_up_in_turn});
}

/* A rank on another host that has gone on to recover is not waited for. */
static int recover_without_rank_0(ms_world *world, void *context) {
  (void)context;
  MS_TRY(exchange(world, 0));
  if (ms_world_rank(world) == 0)
    EXPECT_FAILS(ms_world_barrier(world), MS_EMISMATCH, "rank 0 | ranks 1-3 already finished");
  MS_TRY(ms_world_recover(world));
  MS_TRY(exchange(world, 1));
  return ms_world_finish(world);
}

static void H7_a_wait_for_ranks_that_recover_ends(void **state) {
  (void)state;
  expect_hosts(&(hosts){.size = 4, .per_host = 2, .body = recover_without_rank_0});
}

static int share(void **state) {
  (void)state;
  shared = share_memory(sizeof *shared);
  return 0;
}

static int unshare(void **state) {
  (void)state;
  unshare_memory(shared, sizeof *shared);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H4_a_rank_that_is_killed_is_named_on_every_host),
      TEST(H4_a_rank_that_is_stopped_is_named_on_every_host),
      TEST(H4_a_stopped_rank_that_applies_posts_is_named_on_every_host),
      TEST(H4_a_rank_that_stalls_is_described_on_every_host),
      TEST(H4_a_rank_that_gives_up_is_quoted_on_every_host),
      TEST(H4_a_rank_that_gave_up_is_quoted_although_its_connection_ended_first),
      TEST(H4_a_failure_that_a_rank_noted_is_quoted_on_every_host),
      TEST(H4_a_post_that_makes_no_sense_ends_the_job_and_names_its_rank),
      TEST(H4_random_posts_end_the_job_and_name_their_rank),
      TEST(H4_ranks_of_several_hosts_recover_together),
      TEST(H7_a_wait_for_ranks_that_recover_ends),
  };
  return cmocka_run_group_tests_name("mirror failures", tests, share, unshare);
}
