/* test_mirror.c - ranks of several hosts wait for each other, gather bytes, open groups and recover. */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/collectives/comm.h"
#include "comm/group/group.h"
#include "comm/regions/region.h"

static void dawdle(unsigned *seed) {
  if ((unsigned)rand_r(seed) % 64 == 0) usleep((unsigned)rand_r(seed) % 1000);
}

static int exchange(ms_world *world, int value) {
  int mine = 1000 * ms_world_rank(world) + value, all[MAX_HOST_RANKS];
  MS_TRY(ms_world_all_gather_bytes(world, &mine, sizeof mine, all));
  for (int r = 0; r < ms_world_size(world); r++)
    EXPECT(all[r] == 1000 * r + value, "round %d: rank %d sent %d", value, r, all[r]);
  return MS_OK;
}

/* ---- barriers and exchanges ---- */

static int exchange_often(ms_world *world, void *context) {
  const int *rounds = context;
  unsigned seed = (unsigned)ms_world_rank(world) + 1;
  char long_one[MS_GROUP_SLOT], *all = malloc((size_t)ms_world_size(world) * sizeof long_one);
  int rc = all ? MS_OK : MS_ENOMEM;
  for (int round = 0; round < *rounds && !rc; round++) {
    dawdle(&seed);
    if (round % 3 == 0) rc = ms_world_barrier(world);
    if (!rc) rc = exchange(world, round);
    if (rc || round % 10) continue;
    memset(long_one, round / 10 + ms_world_rank(world), sizeof long_one);
    rc = ms_world_all_gather_bytes(world, long_one, sizeof long_one, all);
    for (int r = 0; r < ms_world_size(world) && !rc; r++)
      for (size_t i = 0; i < sizeof long_one && !rc; i += 4095)
        if (all[(size_t)r * sizeof long_one + i] != (char)(round / 10 + r))
          rc = MS_FAIL(MS_EINTERNAL, "round %d: byte %zu of rank %d", round, i, r);
  }
  free(all);
  if (!rc) rc = ms_world_finish(world);
  return rc;
}

static void H4_every_rank_of_every_host_gets_every_value(void **state) {
  (void)state;
  expect_hosts(&(hosts){.size = 2, .per_host = 1, .body = exchange_often, .context = &(int){1000}});
  expect_hosts(&(hosts){.size = 4, .per_host = 2, .body = exchange_often, .context = &(int){1000}});
  expect_hosts(&(hosts){.size = 5, .per_host = 2, .body = exchange_often, .context = &(int){1000}});
}

/* The end of a run: every rank leaves as soon as it may, often. */
static int finish_only(ms_world *world, void *context) {
  (void)context;
  MS_TRY(exchange(world, 1));
  return ms_world_finish(world);
}

static void H4_ranks_that_leave_at_the_end_are_missed_by_none(void **state) {
  (void)state;
  for (int i = 0; i < 20; i++) expect_hosts(&(hosts){.size = 6, .per_host = 2, .body = finish_only});
}

static int leave_early(ms_world *world, void *context) {
  const int *first = context;
  MS_TRY(exchange(world, 1));
  if (ms_world_rank(world) == *first) return MS_OK;
  usleep(300000);
  EXPECT_FAILS(ms_world_barrier(world), MS_EPEER, *first ? "rank 2 left | barrier" : "rank 0 | left");
  return MS_OK;
}

/* The lowest rank of a host, which applied what others posted; and rank 0, whose store the others need. */
static void H4_a_rank_that_leaves_early_is_named(void **state) {
  (void)state;
  expect_hosts(&(hosts){.size = 4, .per_host = 2, .body = leave_early, .context = &(int){2}});
  expect_hosts(&(hosts){.size = 4, .per_host = 2, .body = leave_early, .context = &(int){0}});
}

/* After the lowest rank of a host has left, the next one applies what others post. */
static int take_over(ms_world *world, void *context) {
  int rank = ms_world_rank(world), n = 0, ranks[MAX_HOST_RANKS];
  ms_group group;
  (void)context;
  for (int r = 0; r < ms_world_size(world); r++)
    if (r != 2) ranks[n++] = r;
  MS_TRY(exchange(world, 1));
  if (rank == 2) return MS_OK;
  MS_TRY(ms_group_open(world, n, ranks, "without rank 2", &group));
  for (int round = 0; round < 200; round++) {
    int all[MAX_HOST_RANKS], mine = 100 * round + rank;
    MS_TRY(ms_group_all_gather_bytes(&group, &mine, sizeof mine, all));
    for (int i = 0; i < n; i++) EXPECT(all[i] == 100 * round + ranks[i], "round %d: rank %d", round, ranks[i]);
  }
  ms_group_close(&group);
  return ms_world_finish(world);
}

static void H4_a_host_goes_on_without_its_lowest_rank(void **state) {
  (void)state;
  expect_hosts(&(hosts){.size = 6, .per_host = 2, .body = take_over});
}

/* ---- groups ---- */

/* Pairs and columns of a 2x3 mesh over 3 hosts of 2: groups inside a host and across hosts. */
static int open_groups(ms_world *world, void *context) {
  int rank = ms_world_rank(world), size = ms_world_size(world), columns[MAX_HOST_RANKS], n = 0;
  ms_group row, column, everyone;
  ms_region region;
  char text[9000], **texts;
  (void)context;
  for (int r = rank % 2; r < size; r += 2) columns[n++] = r;
  MS_TRY(ms_group_open(world, size, NULL, "all", &everyone));
  MS_TRY(ms_group_open(world, 2, (int[]){rank / 2 * 2, rank / 2 * 2 + 1}, "row", &row));
  MS_TRY(ms_group_open(world, n, columns, "column", &column));
  EXPECT(everyone.spans && column.spans && !row.spans, "which groups span hosts");
  for (int round = 0; round < 100; round++) {
    MS_TRY(ms_group_barrier(round % 2 ? &row : &column));
    MS_TRY(ms_group_barrier(&everyone));
  }
  memset(text, 'a' + rank, sizeof text - 1);
  text[1000 * (rank + 1)] = '\0';
  MS_TRY(ms_group_all_gather_text(&column, text, &texts));
  for (int i = 0; i < n; i++)
    EXPECT(strlen(texts[i]) == 1000 * (size_t)(columns[i] + 1) && texts[i][999] == 'a' + columns[i], "text %d", i);
  ms_group_free_texts(&column, texts);
  MS_TRY(ms_region_map(&row, 4096, &region));
  ms_region_unmap(&region);
  EXPECT_FAILS(ms_region_map(&column, 4096, &region), MS_EUNSUPPORTED, "memory | 3 hosts | 6 ranks");
  ms_group_close(&column);
  ms_group_close(&row);
  ms_group_close(&everyone);
  return ms_world_finish(world);
}

static void H4_groups_open_inside_hosts_and_across(void **state) {
  (void)state;
  expect_hosts(&(hosts){.size = 6, .per_host = 2, .body = open_groups});
}

static int open_different_groups(ms_world *world, void *context) {
  int rank = ms_world_rank(world);
  ms_group group;
  (void)context;
  if (rank == 3) EXPECT_FAILS(ms_group_open(world, 2, (int[]){2, 3}, "pairs", &group), MS_EMISMATCH, "rank 2 | rank 3");
  else EXPECT_FAILS(ms_group_open(world, 4, NULL, "all", &group), MS_EMISMATCH, "different meshes | \"all | \"pairs");
  return MS_OK;
}

static void H7_different_meshes_on_two_hosts_are_named(void **state) {
  (void)state;
  expect_hosts(&(hosts){.size = 4, .per_host = 2, .body = open_different_groups});
}

static int enter_different_operations(ms_world *world, void *context) {
  int mine = 0, all[4];
  (void)context;
  MS_TRY(exchange(world, 1));
  if (ms_world_rank(world) == 2)
    EXPECT_FAILS(ms_world_barrier(world), MS_EMISMATCH, "rank 2 entered barrier | rank 0 entered all_gather_bytes");
  else
    EXPECT_FAILS(ms_world_all_gather_bytes(world, &mine, sizeof mine, all), MS_EMISMATCH,
                 "entered all_gather_bytes | but rank 2 entered barrier");
  return MS_OK;
}

static void H7_different_operations_on_two_hosts_are_named(void **state) {
  (void)state;
  expect_hosts(&(hosts){.size = 4, .per_host = 2, .body = enter_different_operations});
}

/* Ranks 0 and 2 wait for each other in two groups, long before the deadline. */
static int wait_for_each_other(ms_world *world, void *context) {
  int rank = ms_world_rank(world);
  ms_group a, b;
  (void)context;
  MS_TRY(ms_group_open(world, 4, (int[]){0, 2, 1, 3}, "a", &a));
  MS_TRY(ms_group_open(world, 4, (int[]){0, 2, 3, 1}, "b", &b));
  double began = ms_clock();
  /* One finds it, or all; the others hear it from the one that did. */
  int rc = ms_group_barrier(rank < 2 ? &a : &b);
  if (rc == MS_EMISMATCH) ms_world_abort(world, ms_error_message());
  EXPECT(rc == MS_EMISMATCH || rc == MS_EPEER, "%s", ms_error_message());
  const char *lacks = message_lacks(ms_error_message(), "never continue | ranks 0-3 wait for each other");
  if (lacks) return ms_error_prefix("expected \"%s\" in", lacks);
  ms_error_clear();
  EXPECT(ms_clock() - began < 10, "after %g s", ms_clock() - began);
  ms_group_close(&a);
  ms_group_close(&b);
  return MS_OK;
}

static void H7_ranks_of_two_hosts_that_wait_for_each_other_are_named(void **state) {
  (void)state;
  expect_hosts(&(hosts){.size = 4, .per_host = 2, .body = wait_for_each_other});
}

/* The same, but a post of a rank of each host, as its report says, has not come yet: it may be what they wait for. */
static int wait_for_late_posts(ms_world *world, void *context) {
  const int rank = ms_world_rank(world);
  ms_group a, b;
  (void)context;
  MS_TRY(ms_group_open(world, 4, (int[]){0, 2, 1, 3}, "a", &a));
  MS_TRY(ms_group_open(world, 4, (int[]){0, 2, 3, 1}, "b", &b));
  if (rank % 2) atomic_fetch_add(&ms_world_control(world)->rank[rank].posts, 1);
  const int rc = ms_group_barrier(rank < 2 ? &a : &b);
  EXPECT(rc == MS_ETIMEOUT || rc == MS_EPEER, "%s", ms_error_message());
  EXPECT(message_lacks(ms_error_message(), "never continue"), "%s", ms_error_message());
  ms_error_clear();
  ms_group_close(&a);
  ms_group_close(&b);
  return MS_OK;
}

static void H7_ranks_whose_posts_are_late_do_not_disagree(void **state) {
  (void)state;
  expect_hosts(&(hosts){.size = 4, .per_host = 2, .timeout = 3, .body = wait_for_late_posts});
}

/* ---- collectives of devices ---- */

enum { COLLECTIVES = 3 };

/* Each rank enters a collective on its device, the second one so late that the other asks for reports, and waits until
 * it knows that both have. differs: the last one is a part of something else on every rank. */
static int enter_on_devices(ms_world *world, void *context) {
  const int rank = ms_world_rank(world), *differs = context;
  static const ms_coll_part part = {.count = 4, .src_dtype = MS_F32, .dst_dtype = MS_F32};
  ms_coll coll = {.kind = MS_COLL_REDUCE_SCATTER, .parts = 1, .part = &part, .label = "layers.0"};
  ms_comm *comm = NULL;
  int rc = ms_comm_open(world, 2, (int[]){0, 1}, 0, &comm);
  for (int i = 1; i <= COLLECTIVES && !rc; i++) {
    ms_wait wait = {0};
    coll.part_of = (uint64_t)(i < COLLECTIVES || !*differs ? i : i + rank);
    if (rank) usleep(700000);
    ms_comm_entered(comm, &coll);
    while (wait.left_at == 0 && !rc) rc = ms_comm_watch(comm, &wait);
    if (!rc) rc = exchange(world, i); /* neither leaves before both have seen it */
    ms_comm_left(comm);
  }
  ms_comm_close(comm);
  return rc;
}

static void H7_collectives_of_devices_on_two_hosts_are_parts_of_one_run(void **state) {
  (void)state;
  expect_hosts(&(hosts){.size = 2, .per_host = 1, .body = enter_on_devices, .context = &(int){0}});
  const ended *end = run_hosts(&(hosts){.size = 2, .per_host = 1, .body = enter_on_devices, .context = &(int){1}});
  int named = 0;
  for (int r = 0; r < 2; r++) {
    assert_int_not_equal(end[r].status, MS_OK);
    named += !message_lacks(end[r].message, "ranks disagree | reduce_scatter layers.0 | other plans, phases or steps");
  }
  assert_true(named);
}

/* ---- many ranks ---- */

/* What sanitizers look at is the same each time. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { EXCHANGES = 2 };
#else
enum { EXCHANGES = 20 };
#endif

static void H8_65_ranks_on_13_hosts_exchange(void **state) {
  int times = EXCHANGES;
  (void)state;
  expect_hosts(&(hosts){.size = 65, .per_host = 5, .timeout = 60, .body = exchange_often, .context = &times});
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H4_every_rank_of_every_host_gets_every_value),
      TEST(H4_ranks_that_leave_at_the_end_are_missed_by_none),
      TEST(H4_a_rank_that_leaves_early_is_named),
      TEST(H4_a_host_goes_on_without_its_lowest_rank),
      TEST(H4_groups_open_inside_hosts_and_across),
      TEST(H7_different_meshes_on_two_hosts_are_named),
      TEST(H7_different_operations_on_two_hosts_are_named),
      TEST(H7_ranks_of_two_hosts_that_wait_for_each_other_are_named),
      TEST(H7_ranks_whose_posts_are_late_do_not_disagree),
      TEST(H7_collectives_of_devices_on_two_hosts_are_parts_of_one_run),
      TEST(H8_65_ranks_on_13_hosts_exchange),
  };
  return cmocka_run_group_tests_name("mirror", tests, NULL, NULL);
}
