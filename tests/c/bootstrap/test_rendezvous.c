/* test_rendezvous.c - worlds of processes that no launcher of ours made: on one node and on several. */
#include "tests/c/support/ranks/callers.h"
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/collectives/comm.h"
#include "comm/control/control.h"
#include "comm/group/world_state.h"
#include "comm/group/group.h"
#include "comm/regions/region.h"

static caller ranks[8];

enum { MAX = 6 };

/* What ranks tell the test, each in its own row. */
typedef struct told {
  int status;
  double seconds;
  char message[2048];
} told;

/* How many ranks on how many nodes, and what each does once it has joined. */
typedef struct launch {
  int size, per_node; /* per_node 0: nodes are not distinguished */
  int told_local;     /* LOCAL_WORLD_SIZE; 0: not set */
  int present;        /* ranks that come at all; 0: all */
  double timeout;     /* of ms_world_config; 0: not set */
  int (*body)(ms_world *world);
} launch;

static told *board;

static void set_number(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

static _Noreturn void become_rank(const launch *how, int rank, int port) {
  ms_world *world = NULL;
  ms_world_config config;
  told *mine = &board[rank];
  set_number("RANK", rank);
  set_number("WORLD_SIZE", how->size);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  set_number("MASTER_PORT", port);
  setenv("MOONSHARD_TIMEOUT", "20", 0);
  if (how->per_node) set_number("MOONSHARD_NODE", rank / how->per_node);
  if (how->told_local) set_number("LOCAL_WORLD_SIZE", how->told_local);
  double began = ms_clock();
  ms_error_clear();
  mine->status = ms_config_default("ms_world_config", &config, sizeof config);
  config.timeout = how->timeout;
  if (!mine->status) mine->status = ms_world_join(&config, &world);
  mine->seconds = ms_clock() - began;
  if (!mine->status) mine->status = how->body(world);
  if (mine->status) snprintf(mine->message, sizeof mine->message, "%s", ms_error_message());
  if (mine->status && world) ms_world_abort(world, mine->message);
  ms_free(world);
  _exit(0);
}

/* Runs the ranks to their end. */
static void run_world(const launch *how) {
  pid_t pid[MAX];
  int port = find_port(), present = how->present ? how->present : how->size;
  memset(board, 0, MAX * sizeof *board);
  fflush(NULL);
  for (int rank = present - 1; rank >= 0; rank--) {
    pid[rank] = fork();
    assert_true(pid[rank] >= 0);
    if (pid[rank] == 0) become_rank(how, rank, port);
  }
  for (int rank = 0; rank < present; rank++) waitpid(pid[rank], NULL, 0);
}

static void expect_success(const launch *how) {
  run_world(how);
  for (int rank = 0; rank < how->size; rank++)
    if (board[rank].status) fail_msg("rank %d: %s", rank, board[rank].message);
}

static int communicate(ms_world *world) {
  int rank = ms_world_rank(world), size = ms_world_size(world), all[MAX];
  ms_region region;
  ms_group group;
  EXPECT(world->topology.nodes == 1 && world->topology.node_ranks[0] == size, "nodes");
  EXPECT(ms_world_local_rank(world) == rank, "local rank %d", ms_world_local_rank(world));
  MS_TRY(ms_world_all_gather_bytes(world, &rank, sizeof rank, all));
  for (int i = 0; i < size; i++) EXPECT(all[i] == i, "exchange");
  MS_TRY(ms_group_open(world, size, NULL, "all", &group));
  MS_TRY(ms_region_map(&group, 4096, &region));
  ((int *)region.base)[rank] = rank + 1;
  MS_TRY(ms_world_barrier(world));
  for (int i = 0; i < size; i++) EXPECT(((int *)region.base)[i] == i + 1, "shared memory");
  MS_TRY(ms_world_barrier(world));
  ms_region_unmap(&region);
  ms_group_close(&group);
  return MS_OK;
}

static void L1_ranks_of_one_node_share_memory(void **state) {
  (void)state;
  expect_success(&(launch){.size = 2, .body = communicate});
  expect_success(&(launch){.size = 6, .body = communicate});
  expect_success(&(launch){.size = 5, .told_local = 5, .body = communicate});
  expect_success(&(launch){.size = 4, .told_local = 2, .body = communicate}); /* two launchers on one host */
}

static int count_names_in_shm(void) {
  int n = 0;
  FILE *list = popen("ls -A /dev/shm /tmp | grep -c moonshard-job", "r");
  if (!list || fscanf(list, "%d", &n) != 1) n = -1;
  if (list) pclose(list);
  return n;
}

static int leave_no_name(ms_world *world) {
  EXPECT(count_names_in_shm() == 0, "shared memory has a name");
  return ms_world_barrier(world);
}

static void L5_shared_memory_has_no_name(void **state) {
  (void)state;
  expect_success(&(launch){.size = 2, .body = leave_no_name});
}

static int look_at_two_nodes(ms_world *world) {
  int rank = ms_world_rank(world), all[MAX];
  ms_group group;
  ms_region region;
  ms_comm *comm;
  EXPECT(ms_world_size(world) == 5 && ms_world_nodes(world) == 2, "size and nodes");
  EXPECT(world->topology.node_ranks[0] == 3 && world->topology.node_ranks[1] == 2, "ranks of nodes");
  EXPECT(ms_world_node_of(world, 2) == 0 && ms_world_node_of(world, 3) == 1, "node_of");
  EXPECT(ms_world_local_rank(world) == rank % 3, "local rank %d of rank %d", ms_world_local_rank(world), rank);
  MS_TRY(ms_world_barrier(world));
  MS_TRY(ms_world_all_gather_bytes(world, &rank, sizeof rank, all));
  for (int i = 0; i < 5; i++) EXPECT(all[i] == i, "exchange");
  MS_TRY(ms_group_open(world, 5, NULL, "all", &group));
  EXPECT_FAILS(ms_region_map(&group, 4096, &region), MS_EUNSUPPORTED, "5 ranks | 2 hosts | ranks 0-2");
  ms_group_close(&group);
  MS_TRY(ms_comm_open(world, 5, (int[]){0, 1, 2, 3, 4}, 0, &comm));
  MS_TRY(ms_comm_start(comm, &(ms_coll){.kind = MS_COLL_BARRIER}));
  MS_TRY(ms_comm_wait(comm));
  ms_comm_close(comm);
  MS_TRY(ms_world_finish(world));
  return MS_OK;
}

static void L1_ranks_of_several_nodes_know_them_and_share_no_memory(void **state) {
  (void)state;
  expect_success(&(launch){.size = 5, .per_node = 3, .body = look_at_two_nodes});
}

static int wait_for_failure(ms_world *world, const char *facts) {
  double end = ms_clock() + 20;
  int rc;
  while (!(rc = ms_world_check(world)) && ms_clock() < end) ms_world_sleep(world, ms_world_doorbell(world), 0.05);
  EXPECT(rc == MS_EPEER, "nothing was heard");
  const char *lacks = message_lacks(ms_error_message(), facts);
  if (lacks) return ms_error_prefix("expected \"%s\" in", lacks);
  ms_error_clear();
  return MS_OK;
}

static int give_up_on_one_node(ms_world *world) {
  if (ms_world_rank(world) != 3) return wait_for_failure(world, "rank 3 | out of ideas");
  ms_world_abort(world, "out of ideas");
  return MS_OK;
}

static void L5_giving_up_is_heard_on_every_node(void **state) {
  (void)state;
  expect_success(&(launch){.size = 4, .per_node = 2, .body = give_up_on_one_node});
}

static void L2_ranks_that_are_said_to_be_on_one_host_and_are_not(void **state) {
  (void)state;
  launch how = {.size = 2, .per_node = 1, .told_local = 2, .body = communicate};
  char url[64];
  snprintf(url, sizeof url, "tcp://127.0.0.1:%d", find_port());
  setenv("MOONSHARD_RENDEZVOUS", url, 1);
  run_world(&how);
  unsetenv("MOONSHARD_RENDEZVOUS");
  for (int rank = 0; rank < 2; rank++) {
    assert_int_equal(board[rank].status, MS_EMISMATCH);
    assert_has(board[rank].message, "2 ranks | host");
    assert_has(board[rank].message, "container");
  }
}

static int die_in_rank_1(ms_world *world) {
  MS_TRY(ms_world_barrier(world));
  if (ms_world_rank(world) == 1) raise(SIGKILL);
  EXPECT_FAILS(ms_world_barrier(world), MS_EPEER, "rank 1 | connection | process");
  return MS_OK;
}

static int die_in_rank_0(ms_world *world) {
  MS_TRY(ms_world_barrier(world));
  if (ms_world_rank(world) == 0) raise(SIGKILL);
  EXPECT_FAILS(ms_world_barrier(world), MS_EPEER, "rank 0 | connection");
  return MS_OK;
}

static void L5_a_death_ends_the_waits_of_others_without_a_launcher(void **state) {
  (void)state;
  expect_success(&(launch){.size = 3, .body = die_in_rank_1});
  expect_success(&(launch){.size = 3, .body = die_in_rank_0});
}

/* exit() without leaving is an end in order: who does not wait for that rank hears nothing. */
static int exit_early_in_rank_1(ms_world *world) {
  MS_TRY(ms_world_barrier(world));
  if (ms_world_rank(world) == 1) exit(0);
  usleep(200000);
  MS_TRY(ms_world_check(world));
  EXPECT_FAILS(ms_world_barrier(world), MS_EPEER, "rank 1");
  return MS_OK;
}

static void L5_a_normal_exit_is_not_a_death(void **state) {
  (void)state;
  expect_success(&(launch){.size = 3, .body = exit_early_in_rank_1});
}

static void L4_an_incomplete_world_names_the_missing_ranks(void **state) {
  (void)state;
  launch how = {.size = 5, .present = 3, .body = communicate};
  setenv("MOONSHARD_TIMEOUT", "0.5", 1);
  run_world(&how);
  unsetenv("MOONSHARD_TIMEOUT");
  for (int rank = 0; rank < 3; rank++) {
    assert_int_equal(board[rank].status, MS_ETIMEOUT);
    assert_has(board[rank].message, "ranks 3-4 of 5 | 0.5 s");
  }
  how.timeout = 0.25; /* before the environment's */
  run_world(&how);
  for (int rank = 0; rank < 3; rank++) {
    assert_int_equal(board[rank].status, MS_ETIMEOUT);
    assert_has(board[rank].message, "ranks 3-4 of 5 | 0.25 s");
  }
}

static void L7_an_interrupt_ends_a_rendezvous(void **state) {
  (void)state;
  launch how = {.size = 2, .body = communicate};
  int status, port = find_port();
  memset(board, 0, MAX * sizeof *board);
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    ms_interrupt_install();
    become_rank(&how, 0, port);
  }
  close(connect_raw(port)); /* it listens, so its handler is installed */
  kill(pid, SIGINT);
  waitpid(pid, &status, 0);
  assert_int_equal(board[0].status, MS_EINTERRUPT);
}

/* The floor is 100 ms for 8 ranks; the best of several, since other processes may have the cores. */
static void L1_eight_ranks_meet_fast(void **state) {
  (void)state;
  double best = 1e9;
  for (int attempt = 0; attempt < 20 && best > 0.1; attempt++) {
    int port = find_port();
    double began = ms_clock();
    for (int rank = 0; rank < 8; rank++) {
      prepare_caller(&ranks[rank], port, rank, 8);
      start_caller(&ranks[rank]);
    }
    for (int rank = 0; rank < 8; rank++) join_caller(&ranks[rank]);
    double seconds = ms_clock() - began;
    assert_gathered(ranks, 8);
    close_callers(ranks, 8);
    if (seconds < best) best = seconds;
  }
  if (best > 0.1) fail_msg("8 ranks took %g s at best", best);
}

static int share_board(void **state) {
  (void)state;
  board = share_memory(MAX * sizeof *board);
  static const char *const names[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MOONSHARD_JOB_FD"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
  return 0;
}

static int unshare_board(void **state) {
  (void)state;
  unshare_memory(board, MAX * sizeof *board);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(L1_ranks_of_one_node_share_memory),
      TEST(L5_shared_memory_has_no_name),
      TEST(L1_ranks_of_several_nodes_know_them_and_share_no_memory),
      TEST(L5_giving_up_is_heard_on_every_node),
      TEST(L2_ranks_that_are_said_to_be_on_one_host_and_are_not),
      TEST(L5_a_death_ends_the_waits_of_others_without_a_launcher),
      TEST(L5_a_normal_exit_is_not_a_death),
      TEST(L4_an_incomplete_world_names_the_missing_ranks),
      TEST(L7_an_interrupt_ends_a_rendezvous),
      TEST(L1_eight_ranks_meet_fast),
  };
  return cmocka_run_group_tests_name("rendezvous", tests, share_board, unshare_board);
}
