/* test_world.c - joining, meeting, shared regions, and every way in which a wait ends without its peers. */
#include "comm/group/world.h"

#include "tests/c/support/check.h"
#include "tests/c/support/ranks/ranks.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/collectives/comm.h"
#include "comm/bootstrap/join.h"
#include "comm/group/table.h"
#include "comm/diagnose/launcher_view.h"

/* ---- joining ---- */

static void clear_variables(void) {
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  unsetenv("MOONSHARD_JOB_FD");
  unsetenv("MOONSHARD_TIMEOUT");
}

static void a_world_of_one_needs_no_launcher(void **state) {
  (void)state;
  ms_world *world;
  int mine = 7, all = 0;
  clear_variables();
  assert_int_equal(ms_world_join(NULL, &world), MS_OK);
  assert_int_equal(ms_world_rank(world), 0);
  assert_int_equal(ms_world_size(world), 1);
  assert_int_equal(ms_world_barrier(world), MS_OK);
  assert_int_equal(ms_world_all_gather_bytes(world, &mine, sizeof mine, &all), MS_OK);
  assert_int_equal(all, 7);
  ms_world_abort(world, "nobody listens");
  assert_int_equal(ms_world_check(world), MS_OK);
  ms_comm *comm;
  assert_fails(ms_comm_open(world, 1, &(int){0}, 0, &comm), MS_EINVAL, "2");
  ms_free(world);
  ms_free(NULL);
}

static int look_at_nodes(ms_world *world, void *context) {
  (void)context;
  ms_world_info info;
  MS_TRY(ms_world_describe(world, &info, sizeof info));
  EXPECT(info.nodes == 1, "%d nodes", info.nodes);
  EXPECT(info.size == 3 && info.node_ranks[0] == 3, "%d ranks on node 0", info.node_ranks[0]);
  EXPECT(info.node_of[2] == 0, "the node of rank 2");
  EXPECT(info.local_rank == info.rank, "local rank %d", info.local_rank);
  EXPECT(info.node_name[0][0] != '\0', "a host without a name");
  return MS_OK;
}

static void L1_ranks_of_one_launcher_are_one_node(void **state) {
  (void)state;
  run_ranks_as_processes(3, look_at_nodes, NULL);
}

static void environment_variables_are_checked(void **state) {
  (void)state;
  ms_world *world;
  clear_variables();
  setenv("RANK", "1", 1);
  setenv("WORLD_SIZE", "4", 1);
  assert_fails(ms_world_join(NULL, &world), MS_EINVAL, "rank 1 of 4");
  setenv("WORLD_SIZE", "four", 1);
  assert_fails(ms_world_join(NULL, &world), MS_EINVAL, "WORLD_SIZE=\"four\"");
  setenv("WORLD_SIZE", "4", 1);
  setenv("MOONSHARD_JOB_FD", "200", 1);
  assert_fails(ms_world_join(NULL, &world), MS_EINVAL, "control segment");
  int fd = memfd_create("other", MFD_CLOEXEC);
  char text[16];
  assert_int_equal(ftruncate(fd, sizeof(ms_control)), 0);
  snprintf(text, sizeof text, "%d", fd);
  setenv("MOONSHARD_JOB_FD", text, 1);
  assert_fails(ms_world_join(NULL, &world), MS_EINVAL, "control segment");
  close(fd);
  assert_int_equal(ms_job_create(2, 2, 0, &fd), MS_OK);
  snprintf(text, sizeof text, "%d", fd);
  setenv("MOONSHARD_JOB_FD", text, 1);
  assert_fails(ms_world_join(NULL, &world), MS_EINVAL, "2 ranks");
  setenv("WORLD_SIZE", "2", 1);
  setenv("RANK", "2", 1);
  assert_fails(ms_world_join(NULL, &world), MS_EINVAL, "RANK=\"2\"");
  close(fd);
  clear_variables();
  setenv("MOONSHARD_TIMEOUT", "-3", 1);
  assert_fails(ms_world_join(NULL, &world), MS_EINVAL, "MOONSHARD_TIMEOUT");
  clear_variables();
  assert_fails(ms_job_create(0, 0, 0, &fd), MS_EINVAL, "1 | 4096");
  assert_fails(ms_job_create(4097, 8, 0, &fd), MS_EINVAL, "not 4097");
  assert_fails(ms_job_create(65, 65, 0, &fd), MS_EINVAL, "64 | not 65");
  assert_fails(ms_job_create(4, 5, 0, &fd), MS_EINVAL, "4 | not 5");
}

static void a_config_can_ask_for_a_world_of_one_and_sets_the_timeout(void **state) {
  (void)state;
  ms_world_config config;
  ms_world *world;
  clear_variables();
  setenv("RANK", "1", 1);
  setenv("WORLD_SIZE", "4", 1);
  must(ms_config_default("ms_world_config", &config, sizeof config));
  config.alone = 1;
  must(ms_world_join(&config, &world));
  assert_int_equal(ms_world_size(world), 1);
  assert_true(ms_world_timeout(world) > 60);
  ms_free(world);
  config.timeout = 7;
  must(ms_world_join(&config, &world));
  assert_true(ms_world_timeout(world) == 7);
  ms_free(world);
  config.timeout = -1;
  assert_fails(ms_world_join(&config, &world), MS_EINVAL, "timeout | -1");
  config.struct_size = 0;
  assert_fails(ms_world_join(&config, &world), MS_EINVAL, "ms_world_config | ms_config_default");
  clear_variables();
}

/* ---- meeting ---- */

static int exchange_often(ms_world *world, void *context) {
  (void)context;
  int me = ms_world_rank(world), ranks = ms_world_size(world);
  unsigned seed = (unsigned)me + 1;
  int all[MS_MAX_LOCAL_RANKS];
  for (int round = 0; round < 1000; round++) {
    if ((unsigned)rand_r(&seed) % 64 == 0) usleep(200);
    if (round % 3 == 0) MS_TRY(ms_world_barrier(world));
    int mine = 1000 * me + round;
    MS_TRY(ms_world_all_gather_bytes(world, &mine, sizeof mine, all));
    mine = -1;
    for (int r = 0; r < ranks; r++) EXPECT(all[r] == 1000 * r + round, "rank %d said %d in round %d", r, all[r], round);
  }
  char bytes[5000];
  EXPECT_FAILS(ms_world_all_gather_bytes(world, bytes, 5000, bytes), MS_EINVAL, "4096");
  return MS_OK;
}

static void exchange_gives_every_rank_every_value(void **state) {
  (void)state;
  for (int ranks = 1; ranks <= 5; ranks++) {
    run_ranks_as_threads(ranks, exchange_often, NULL);
    run_ranks_as_processes(ranks, exchange_often, NULL);
  }
}

/* ---- waits that end without their peers ---- */

/* Rank 1 does not come; the others say so. */
static int wait_for_rank_1(ms_world *world, void *context) {
  int *still_waiting = context, me = ms_world_rank(world);
  ms_comm *comm;
  float x = 0;
  void *shared[3] = {&x, &x, &x};
  ms_world_set_timeout(world, 0.3);
  EXPECT(ms_world_timeout(world) == 0.3, "the timeout was not set");
  if (me != 1) {
    double began = ms_clock();
    MS_TRY(ms_comm_open(world, 3, (int[]){2, 1, 0}, 4, &comm));
    ms_coll_part part = {.count = 1, .shared = shared, .src = &x};
    ms_coll coll = {.kind = MS_COLL_ALL_GATHER, .parts = 1, .part = &part, .label = "layers.3"};
    MS_TRY(ms_comm_start(comm, &coll));
    EXPECT_FAILS(ms_comm_wait(comm), MS_ETIMEOUT,
                 me ? "all_gather layers.3 | rank 2 | 0.3 s | rank 1"
                    : "all_gather layers.3 | rank 0 | 0.3 s | rank 1");
    EXPECT(ms_clock() - began > 0.29 && ms_clock() - began < 60, "after %g s", ms_clock() - began);
    ms_comm_close(comm);
    __atomic_fetch_sub(still_waiting, 1, __ATOMIC_SEQ_CST);
  }
  while (__atomic_load_n(still_waiting, __ATOMIC_SEQ_CST)) usleep(1000);
  return MS_OK;
}

static void L4_a_wait_past_its_deadline_names_what_and_who(void **state) {
  (void)state;
  int *still_waiting = share_memory(sizeof *still_waiting);
  *still_waiting = 2;
  run_ranks_as_threads(3, wait_for_rank_1, still_waiting);
  *still_waiting = 2;
  run_ranks_as_processes(3, wait_for_rank_1, still_waiting);
  unshare_memory(still_waiting, sizeof *still_waiting);
}

static int give_up_in_rank_2(ms_world *world, void *context) {
  (void)context;
  if (ms_world_rank(world) == 2) {
    usleep(50000);
    ms_world_abort(world, "the file ran out");
    ms_world_abort(world, "a second reason does not count");
    return MS_OK;
  }
  EXPECT_FAILS(ms_world_barrier(world), MS_EPEER, "rank 2 | the file ran out");
  return MS_OK;
}

static void L5_giving_up_ends_the_waits_of_others_with_the_reason(void **state) {
  (void)state;
  run_ranks_as_threads(4, give_up_in_rank_2, NULL);
  run_ranks_as_processes(4, give_up_in_rank_2, NULL);
}

static int leave_in_rank_0(ms_world *world, void *context) {
  (void)context;
  MS_TRY(ms_world_barrier(world));
  if (ms_world_rank(world) == 0) return MS_OK;
  EXPECT_FAILS(ms_world_barrier(world), MS_EPEER, "barrier | rank 0");
  return MS_OK;
}

static void L5_a_rank_that_left_is_not_waited_for(void **state) {
  (void)state;
  run_ranks_as_threads(2, leave_in_rank_0, NULL);
  run_ranks_as_processes(2, leave_in_rank_0, NULL);
}

/* At its end a program waits for the others, but not for those that have left it, and for none twice. */
static int finish_without_rank_0(ms_world *world, void *context) {
  (void)context;
  MS_TRY(ms_world_barrier(world));
  MS_TRY(ms_world_barrier(world));
  if (ms_world_rank(world) == 0) return MS_OK;
  if (ms_world_rank(world) == 1) usleep(50000);
  double began = ms_clock();
  MS_TRY(ms_world_finish(world));
  EXPECT(ms_clock() - began < 30, "it took %g s", ms_clock() - began);
  return MS_OK;
}

static void L6_a_program_ends_with_those_that_are_there(void **state) {
  (void)state;
  run_ranks_as_threads(3, finish_without_rank_0, NULL);
  run_ranks_as_processes(3, finish_without_rank_0, NULL);
}

/* Rank 0 gives up and has left before the others reach the end of the run, one after the other. */
static int finish_after_rank_0_gave_up(ms_world *world, void *context) {
  (void)context;
  MS_TRY(ms_world_barrier(world));
  if (ms_world_rank(world) == 0) {
    ms_world_abort(world, "no such file");
    return MS_OK;
  }
  usleep(50000 * (unsigned)ms_world_rank(world));
  EXPECT_FAILS(ms_world_finish(world), MS_EPEER, "rank 0 | no such file");
  return MS_OK;
}

static void L6_a_run_does_not_end_well_after_a_rank_gave_up(void **state) {
  (void)state;
  run_ranks_as_threads(3, finish_after_rank_0_gave_up, NULL);
  run_ranks_as_processes(3, finish_after_rank_0_gave_up, NULL);
}

static int wait_until_interrupted(ms_world *world, void *context) {
  (void)context;
  ms_interrupt_install();
  MS_TRY(ms_world_barrier(world));
  if (ms_world_rank(world) == 0) {
    usleep(50000);
    raise(SIGINT);
    EXPECT_FAILS(ms_world_check(world), MS_EINTERRUPT, "interrupted");
    ms_world_abort(world, "interrupted");
    return MS_OK;
  }
  EXPECT_FAILS(ms_world_barrier(world), MS_EPEER, "interrupted");
  return MS_OK;
}

static void L7_an_interrupt_ends_a_wait(void **state) {
  (void)state;
  run_ranks_as_processes(2, wait_until_interrupted, NULL);
}

/* The launcher's side of the same: its words come as they are. */
static void L5_the_launchers_reason_reaches_the_ranks(void **state) {
  (void)state;
  int fd, blamed;
  ms_control *control;
  ms_control_view *view;
  ms_world *world;
  assert_int_equal(ms_job_create(2, 2, 0, &fd), MS_OK);
  assert_int_equal(ms_control_map(fd, &control), MS_OK);
  assert_int_equal(ms_control_view_open(fd, &view), MS_OK);
  assert_int_equal(ms_world_attach(control, 0, &world), MS_OK);
  assert_null(ms_control_abort_reason(view, &blamed));
  assert_null(ms_control_rank_reason(view, 0));
  ms_control_abort(view, 1, "rank 1 died: signal 9");
  assert_fails(ms_world_barrier(world), MS_EPEER, "rank 1 | signal 9");
  ms_world_abort(world, "later");
  assert_string_equal(ms_control_abort_reason(view, &blamed), "rank 1 died: signal 9");
  assert_int_equal(blamed, 1);
  assert_string_equal(ms_control_rank_reason(view, 0), "later");
  ms_free(world);
  ms_control_view_close(view);
  ms_control_unmap(control);
  close(fd);
}

/* A recipe's stray ffi write, or somebody's print into a descriptor that became the segment. */
static void L5_the_contents_of_the_control_segment_are_checked(void **state) {
  (void)state;
  int fd, blamed;
  ms_control *control;
  ms_control_view *view;
  ms_world *world;
  char text[4096];
  assert_int_equal(ms_job_create(2, 2, 0, &fd), MS_OK);
  assert_int_equal(ms_control_map(fd, &control), MS_OK);
  assert_int_equal(ms_control_view_open(fd, &view), MS_OK);
  assert_int_equal(ms_world_attach(control, 0, &world), MS_OK);
  for (int part = 0; part < 2; part++) {
    atomic_store(&control->aborted, part ? 0x7fff0001u : 0x0000fff0u);
    assert_has(ms_control_abort_reason(view, &blamed), "control segment | overwritten");
    assert_int_equal(blamed, -1);
  }
  atomic_store(&control->rank[1].told, 2);
  memset(control->rank[1].text, 'x', sizeof control->rank[1].text);
  assert_has(ms_control_rank_reason(view, 1), "control segment | overwritten");
  atomic_store(&control->rank[1].pid, (int32_t)getpid());
  memset(ms_recorder_in(control, 1), 0x7f, sizeof(ms_recorder));
  char *entries = (char *)ms_group_entry_at(control, 0);
  memset(entries, 0x7f, (size_t)((char *)ms_group_entry_at(control, MS_GROUP_ENTRIES) - entries));
  ms_control_stuck(view, text, sizeof text);
  assert_has(text, "rank");
  ms_control_death(view, 1, text, sizeof text);
  assert_has(text, "rank 1");
  ms_free(world);
  ms_control header, *again;
  assert_int_equal(pread(fd, &header, sizeof header, 0), sizeof header);
  header.size = MS_MAX_RANKS + 1;
  assert_int_equal(pwrite(fd, &header, sizeof header, 0), sizeof header);
  assert_fails(ms_control_map(fd, &again), MS_EINVAL, "control segment");
  header.size = 2;
  header.recorders_at += MS_CONTROL_PAGE;
  assert_int_equal(pwrite(fd, &header, sizeof header, 0), sizeof header);
  assert_fails(ms_control_map(fd, &again), MS_EINVAL, "control segment");
  ms_control_view_close(view);
  ms_control_unmap(control);
  close(fd);
}

/* `moonshard ps` of root looks at segments of others, who can do with them what they like. */
static void L5_a_copy_of_a_control_segment_needs_no_trust(void **state) {
  (void)state;
  int fd;
  ms_control *control, *copy, header;
  assert_int_equal(ms_job_create(2, 2, 0, &fd), MS_OK);
  assert_int_equal(ms_control_map(fd, &control), MS_OK);
  atomic_store(&control->rank[1].pid, 4711);
  assert_int_equal(ms_job_copy(fd, &copy), MS_OK);
  atomic_store(&control->rank[1].pid, 4712);
  ms_control_unmap(control);
  const off_t bytes = (off_t)copy->bytes;
  assert_int_equal(ftruncate(fd, MS_CONTROL_PAGE), 0); /* what is mapped would raise SIGBUS now */
  assert_int_equal(copy->rank[1].pid, 4711);
  assert_int_equal(ms_group_entry_at(copy, MS_GROUP_ENTRIES - 1)->size, 0);
  assert_string_equal(ms_recorder_text(ms_recorder_in(copy, 0), 1), "");
  header = *copy;
  ms_control_unmap(copy);
  assert_fails(ms_job_copy(fd, &copy), MS_EINVAL, "control segment"); /* shorter than it says */
  header.bytes = header.groups_at + MS_CONTROL_PAGE; /* it says so itself, but then its table of groups is cut */
  assert_int_equal(pwrite(fd, &header, sizeof header, 0), sizeof header);
  assert_int_equal(ftruncate(fd, (off_t)header.bytes), 0);
  assert_fails(ms_job_copy(fd, &copy), MS_EINVAL, "table of groups");
  assert_int_equal(ftruncate(fd, 0), 0);
  assert_fails(ms_job_copy(fd, &copy), MS_EINVAL, "control segment");
  assert_int_equal(ftruncate(fd, bytes), 0);
  assert_fails(ms_job_copy(fd, &copy), MS_EINVAL, "control segment"); /* zeros */
  close(fd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_world_of_one_needs_no_launcher),
      TEST(L1_ranks_of_one_launcher_are_one_node),
      TEST(environment_variables_are_checked),
      TEST(a_config_can_ask_for_a_world_of_one_and_sets_the_timeout),
      TEST(exchange_gives_every_rank_every_value),
      TEST(L4_a_wait_past_its_deadline_names_what_and_who),
      TEST(L5_giving_up_ends_the_waits_of_others_with_the_reason),
      TEST(L5_a_rank_that_left_is_not_waited_for),
      TEST(L6_a_program_ends_with_those_that_are_there),
      TEST(L6_a_run_does_not_end_well_after_a_rank_gave_up),
      TEST(L7_an_interrupt_ends_a_wait),
      TEST(L5_the_launchers_reason_reaches_the_ranks),
      TEST(L5_the_contents_of_the_control_segment_are_checked),
      TEST(L5_a_copy_of_a_control_segment_needs_no_trust),
  };
  return cmocka_run_group_tests_name("world", tests, NULL, NULL);
}
