/* test_process_group.c - ranks that meet, exchange and share memory: all of the world, and two halves of it side by
 * side; and those that do not agree whom to meet. */
#include "comm/group/group.h"
#include "comm/regions/region.h"

#include "tests/c/support/check.h"
#include "tests/c/support/ranks/ranks.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/control/control.h"

/* All of an odd world; of an even one the ranks that are even, or odd, the last first. */
static int open_group_of_half(ms_world *world, ms_group *group) {
  int ranks[MS_MAX_LOCAL_RANKS], size = ms_world_size(world), me = ms_world_rank(world);
  if (size % 2) return ms_group_open(world, size, NULL, "all", group);
  for (int i = 0; i < size / 2; i++) ranks[i] = size - 2 - 2 * i + me % 2;
  return ms_group_open(world, size / 2, ranks, "half", group);
}

/* ---- exchange ---- */

static int exchange_often(ms_world *world, void *context) {
  (void)context;
  ms_group group;
  MS_TRY(open_group_of_half(world, &group));
  unsigned seed = (unsigned)group.rank[group.me] + 1;
  int all[MS_MAX_LOCAL_RANKS];
  for (int round = 0; round < 500; round++) {
    if ((unsigned)rand_r(&seed) % 64 == 0) usleep(200);
    if (round % 3 == 0) MS_TRY(ms_group_barrier(&group));
    int mine = 1000 * group.rank[group.me] + round;
    MS_TRY(ms_group_all_gather_bytes(&group, &mine, sizeof mine, all));
    mine = -1;
    for (int i = 0; i < group.size; i++)
      EXPECT(all[i] == 1000 * group.rank[i] + round, "rank %d said %d in round %d", group.rank[i], all[i], round);
  }
  char bytes[5000];
  EXPECT_FAILS(ms_group_all_gather_bytes(&group, bytes, 5000, bytes), MS_EINVAL, "4096");
  ms_group_close(&group);
  return MS_OK;
}

static void halves_of_the_world_exchange_side_by_side(void **state) {
  (void)state;
  for (int ranks = 1; ranks <= 6; ranks++) {
    run_ranks_as_threads(ranks, exchange_often, NULL);
    run_ranks_as_processes(ranks, exchange_often, NULL);
  }
}

static int exchange_long_texts(ms_world *world, void *context) {
  (void)context;
  static const int lengths[] = {0, 1, 4095, 4096, 1 << 20, 5000};
  int me = ms_world_rank(world), rc = MS_OK;
  char **texts = NULL;
  char *mine = calloc((1 << 20) + 2, 1);
  ms_group group = {0};
  EXPECT(mine, "no memory");
  MS_GOTO(open_group_of_half(world, &group));
  memset(mine, 'a' + me, (size_t)lengths[me]);
  MS_GOTO(ms_group_all_gather_text(&group, mine, &texts));
  for (int i = 0; i < group.size; i++) {
    int r = group.rank[i];
    size_t length = strlen(texts[i]);
    if (length != (size_t)lengths[r] || (length && (texts[i][0] != 'a' + r || texts[i][length - 1] != 'a' + r)))
      rc = MS_FAIL(MS_EINTERNAL, "the text of rank %d came with %zu bytes", r, length);
  }
  ms_group_free_texts(&group, texts);
fail:
  ms_group_close(&group);
  free(mine);
  return rc;
}

static void texts_of_any_length_are_exchanged(void **state) {
  (void)state;
  run_ranks_as_threads(1, exchange_long_texts, NULL);
  run_ranks_as_threads(5, exchange_long_texts, NULL);
  run_ranks_as_threads(6, exchange_long_texts, NULL);
}

static int exchange_too_long_a_text(ms_world *world, void *context) {
  (void)context;
  char **texts, *mine = malloc((1 << 20) + 2);
  ms_group group;
  EXPECT(mine, "no memory");
  memset(mine, 'x', (1 << 20) + 1);
  mine[(1 << 20) + 1] = 0;
  int rc = open_group_of_half(world, &group);
  if (!rc) rc = ms_group_all_gather_text(&group, mine, &texts);
  ms_group_close(&group);
  free(mine);
  EXPECT_FAILS(rc, MS_EINVAL, "1048576");
  return MS_OK;
}

static void a_text_over_the_limit_is_refused(void **state) {
  (void)state;
  run_ranks_as_threads(1, exchange_too_long_a_text, NULL);
}

/* ---- regions ---- */

static long resident_kib(void) {
  char line[128];
  long kib = -1;
  FILE *file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "RssShmem: %ld", &kib) == 1) break;
  if (file) fclose(file);
  return kib;
}

static int use_regions(ms_world *world, void *context) {
  (void)context;
  enum { REGIONS = 3, BYTES = 1 << 20 };
  ms_group group;
  ms_region region[REGIONS], none;
  MS_TRY(open_group_of_half(world, &group));
  for (int i = 0; i < REGIONS; i++) MS_TRY(ms_region_map(&group, BYTES + 12345, &region[i]));
  MS_TRY(ms_region_map(&group, 0, &none));
  EXPECT(!none.base, "an empty region has an address");
  for (int i = 0; i < REGIONS; i++) {
    int *word = region[i].base;
    EXPECT(word[100 * group.me] == 0, "a region is not zero-filled");
    word[100 * group.me] = 10 * group.rank[group.me] + i + 1;
  }
  MS_TRY(ms_group_barrier(&group));
  for (int i = 0; i < REGIONS; i++)
    for (int k = 0; k < group.size; k++)
      EXPECT(((int *)region[i].base)[100 * k] == 10 * group.rank[k] + i + 1,
             "region %d does not show what rank %d wrote", i, group.rank[k]);
  /* 64 MiB of which one page is touched costs one page. */
  ms_region sparse;
  long before = resident_kib();
  MS_TRY(ms_region_map(&group, 64 << 20, &sparse));
  if (group.me == 0) ((char *)sparse.base)[40 << 20] = 1;
  MS_TRY(ms_group_barrier(&group));
  EXPECT(resident_kib() - before < 64, "an untouched region is resident: %ld KiB", resident_kib() - before);
  ms_region_unmap(&sparse);
  for (int i = 0; i < REGIONS; i++) ms_region_unmap(&region[i]);
  ms_group_close(&group);
  return MS_OK;
}

static void regions_are_the_same_memory_in_every_member(void **state) {
  (void)state;
  for (int ranks = 1; ranks <= 4; ranks++) run_ranks_as_processes(ranks, use_regions, NULL);
}

static int disagree_on_a_region(ms_world *world, void *context) {
  (void)context;
  ms_region region;
  ms_group group;
  size_t bytes = ms_world_rank(world) == 1 ? 8192 : 4096;
  MS_TRY(open_group_of_half(world, &group));
  int rc = ms_region_map(&group, bytes, &region);
  ms_group_close(&group);
  if (!rc) return ms_world_rank(world) % 2 ? MS_FAIL(MS_EINTERNAL, "no error") : MS_OK; /* the even ranks agree */
  EXPECT_FAILS(rc, MS_EMISMATCH,
               ms_world_size(world) % 2 ? "rank 1 | 8192 | rank 0 | 4096" : "rank 1 | 8192 | rank 3 | 4096");
  return MS_OK;
}

static void D10_an_error_names_ranks_that_disagree_on_a_region(void **state) {
  (void)state;
  run_ranks_as_processes(3, disagree_on_a_region, NULL);
  run_ranks_as_processes(4, disagree_on_a_region, NULL);
}

static int count_descriptors(void) {
  int n = 0;
  DIR *folder = opendir("/proc/self/fd");
  if (!folder) return -1;
  while (readdir(folder)) n++;
  closedir(folder);
  return n;
}

static int open_and_close_regions(ms_world *world, void *context) {
  (void)context;
  ms_group group;
  MS_TRY(open_group_of_half(world, &group));
  int before = count_descriptors();
  for (int i = 0; i < 50; i++) {
    ms_region region;
    MS_TRY(ms_region_map(&group, 4096, &region));
    ms_region_unmap(&region);
  }
  EXPECT(count_descriptors() == before, "%d descriptors before, %d after", before, count_descriptors());
  ms_group_close(&group);
  return MS_OK;
}

static void regions_keep_no_descriptor(void **state) {
  (void)state;
  run_ranks_as_processes(3, open_and_close_regions, NULL);
  run_ranks_as_processes(4, open_and_close_regions, NULL);
}

/* ---- who meets whom ---- */

static int count_channels(ms_world *world) {
  int used = 0;
  for (int i = 1; i < MS_GROUP_ENTRIES; i++) /* the first is the world's */
    used += atomic_load(&ms_group_entry_at(ms_world_control(world), i)->state) != MS_GROUP_FREE;
  return used;
}

/* A world of many hosts: its segment has a row, a flight recorder and tickets for each rank, and costs only what is
 * used. */
static void H8_a_control_segment_has_room_for_4096_ranks(void **state) {
  (void)state;
  enum { ALL = MS_MAX_RANKS, LAST = ALL - 1 };
  int fd, *ranks = malloc(sizeof *ranks * ALL);
  struct stat info;
  ms_control *control;
  ms_group_entry *world, *half;
  assert_non_null(ranks);
  for (int i = 0; i < ALL; i++) ranks[i] = i;
  assert_int_equal(ms_job_create(ALL, 8, 0, &fd), MS_OK);
  assert_int_equal(ms_control_map(fd, &control), MS_OK);
  assert_int_equal(ms_group_entry_find(control, ALL, ranks, MS_GROUP_CHANNEL, &world), MS_OK);
  assert_int_equal(ms_group_entry_find(control, ALL / 2, ranks + ALL / 2, MS_GROUP_CHANNEL, &half), MS_OK);
  assert_int_equal(ms_group_number(control, world), MS_RECORDER_WORLD);
  assert_int_equal(ms_group_ranks(control, half)[ALL / 2 - 1], LAST);
  atomic_store(&world->ticket[LAST].count, 7);
  atomic_store(&half->ticket[ALL / 2 - 1].count, 9);
  assert_int_equal(ms_group_ranks(control, world)[LAST], LAST); /* tickets and ranks do not overlap */
  assert_int_equal(ms_group_ranks(control, half)[0], ALL / 2);
  for (int turn = 0; turn < 2; turn++)
    memset(ms_group_slot(control, half, turn, ALL / 2 - 1), 'a' + turn, MS_GROUP_SLOT);
  assert_int_equal(*ms_group_slot(control, half, 0, ALL / 2 - 1), 'a');
  atomic_store(&ms_recorder_in(control, LAST)->doing, 1);
  atomic_store(&ms_group_announcement_of(control, LAST)->number, 3);
  assert_int_equal(atomic_load(&control->rank[LAST].pid), 0);
  int size;
  assert_ptr_equal(ms_group_by_number(control, ms_group_number(control, half), &size), half);
  assert_int_equal(size, ALL / 2);
  ms_group_table_reset(control, LAST);
  assert_int_equal(atomic_load(&world->ticket[LAST].count), 0);
  assert_int_equal(atomic_load(&half->ticket[ALL / 2 - 1].count), 0);
  assert_int_equal(fstat(fd, &info), 0);
  assert_true(info.st_blocks * 512 < 4 << 20); /* resident: the pages that were touched */
  ms_control_unmap(control);
  close(fd);
  free(ranks);
}

static int count_what_members_cost(ms_world *world, void *context) {
  (void)context;
  int me = ms_world_rank(world), pair[] = {me / 2 * 2, me / 2 * 2 + 1};
  ms_group all, alone, two, again;
  MS_TRY(ms_group_open(world, 4, NULL, "all", &all));
  MS_TRY(ms_group_open(world, 1, &me, "alone", &alone));
  MS_TRY(ms_group_barrier(&alone));
  MS_TRY(ms_world_barrier(world));
  EXPECT(count_channels(world) == 0, "%d channels for all and for one", count_channels(world));
  MS_TRY(ms_world_barrier(world));
  MS_TRY(ms_group_open(world, 2, pair, "pair", &two));
  MS_TRY(ms_group_barrier(&two));
  MS_TRY(ms_group_open(world, 2, pair, "pair", &again));
  MS_TRY(ms_world_barrier(world));
  EXPECT(count_channels(world) == 2, "%d channels for two pairs, opened twice", count_channels(world));
  ms_group_close(&two);
  ms_group_close(&again);
  ms_group_close(&alone);
  ms_group_close(&all);
  return MS_OK;
}

static void D8_all_of_the_world_and_one_rank_have_no_channel_of_their_own(void **state) {
  (void)state;
  run_ranks_as_threads(4, count_what_members_cost, NULL);
}

/* Rank 0 wants 1, rank 1 wants 3 and rank 3 wants 1, rank 2 wants 0: 1 and 3 could go on for ever. */
static int want_others(ms_world *world, void *context) {
  static const int wanted[4][2] = {{0, 1}, {1, 3}, {0, 2}, {1, 3}};
  (void)context;
  ms_group group;
  int me = ms_world_rank(world), rc = ms_group_open(world, 2, wanted[me], "2 (shard)", &group);
  if (me % 2) {
    ms_group_close(&group);
    return rc;
  }
  EXPECT_FAILS(rc, MS_EMISMATCH,
               me == 0 ? "rank 0 | \"2 (shard), ranks 0, 1\" | rank 1 | \"2 (shard), ranks 1, 3\""
                       : "rank 0 | \"2 (shard), ranks 0, 1\" | rank 2 | \"2 (shard), ranks 0, 2\"");
  return MS_OK;
}

static void D10_an_error_names_ranks_with_different_groups(void **state) {
  (void)state;
  run_ranks_as_processes(4, want_others, NULL);
}

/* context: the mesh of rank 1; NULL: the same, with the ranks in another order. */
static int differ_on_rank_1(ms_world *world, void *context) {
  const char *label = context ? context : "1x3 (replicate, shard)";
  int is_one = ms_world_rank(world) == 1;
  ms_group group;
  int rc = ms_group_open(world, 3, is_one && !context ? (int[]){1, 0, 2} : (int[]){0, 1, 2},
                         is_one ? label : "1x3 (replicate, shard)", &group);
  EXPECT_FAILS(rc, MS_EMISMATCH,
               context ? "rank 1 | \"3x1 (replicate, shard), ranks 0, 1, 2\""
                       : "rank 1 | \"1x3 (replicate, shard), ranks 1, 0, 2\"");
  return MS_OK;
}

static void D10_an_error_names_ranks_with_another_order_or_shape(void **state) {
  (void)state;
  run_ranks_as_processes(3, differ_on_rank_1, NULL);
  run_ranks_as_processes(3, differ_on_rank_1, (void *)"3x1 (replicate, shard)");
}

static int never_come(ms_world *world, void *context) {
  (void)context;
  if (ms_world_rank(world) == 1) return MS_OK;
  ms_group group;
  EXPECT_FAILS(ms_group_open(world, 2, (int[]){0, 1}, "2 (shard)", &group), MS_EPEER,
               "mesh 2 (shard) | rank 1 | rank 0");
  return MS_OK;
}

static void D10_a_rank_that_never_comes_is_not_waited_for(void **state) {
  (void)state;
  run_ranks_as_processes(2, never_come, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(halves_of_the_world_exchange_side_by_side),
      TEST(texts_of_any_length_are_exchanged),
      TEST(a_text_over_the_limit_is_refused),
      TEST(regions_are_the_same_memory_in_every_member),
      TEST(D10_an_error_names_ranks_that_disagree_on_a_region),
      TEST(regions_keep_no_descriptor),
      TEST(D8_all_of_the_world_and_one_rank_have_no_channel_of_their_own),
      TEST(D10_an_error_names_ranks_with_different_groups),
      TEST(D10_an_error_names_ranks_with_another_order_or_shape),
      TEST(H8_a_control_segment_has_room_for_4096_ranks),
      TEST(D10_a_rank_that_never_comes_is_not_waited_for),
  };
  return cmocka_run_group_tests_name("process group", tests, NULL, NULL);
}
