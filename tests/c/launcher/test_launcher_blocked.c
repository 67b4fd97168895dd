/* test_launcher_blocked.c - output without a reader, or without room on its disk: the launcher hears signals, sees
 * deaths, and loses nothing of what a slow reader takes in the end.
 */
#include "tests/c/support/ranks/launched.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"

/* More than pipes and the launcher's buffers hold. */
enum { LINES = 30000, LINE_BYTES = 64 };

static void print_lines(int n) {
  for (int i = 0; i < n; i++) printf("%*d\n", LINE_BYTES - 1, i);
}

static int print_for_ever(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  be_ready();
  for (;;) print_lines(LINES);
}

static int print_and_die(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  be_ready();
  if (ms_world_rank(world) == 0)
    for (;;) print_lines(LINES);
  usleep(300000);
  raise(SIGKILL);
  return 0;
}

static int print_a_lot(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  print_lines(LINES);
  return leave(world, ms_world_barrier(world));
}

/* A launcher that waits for its reader does so for ever; one that does not ends within seconds, if the machine has time
 * for it. */
enum { HANGS_S = 60 };

/* The launcher ends although its output is not read. */
static void assert_ends(pid_t pid) {
  double began = ms_clock();
  while (ms_clock() < began + HANGS_S)
    if (is_gone(pid)) return;
  kill(pid, SIGKILL);
  fail_msg("the launcher still runs after %d s", HANGS_S);
}

static void end_by(pid_t pid, int number, int out, int err) {
  double began = ms_clock();
  kill(pid, number);
  assert_ends(pid);
  finish(pid, out, err, began);
}

static void L5_a_blocked_pipe_does_not_keep_the_launcher_from_signals(void **state) {
  (void)state;
  int out, err;
  ms_launch_config config = {.ranks = 2, .rank_main = print_for_ever, .log_all = 1};
  pid_t pid = start(&config, &out, &err);
  wait_until_ready(2);
  usleep(300000);
  end_by(pid, SIGTERM, out, err);
  assert_int_equal(result.status, 143);
  assert_has(result.err, "moonshard: | terminated\n");
}

static void L5_a_stopped_terminal_does_not_keep_the_launcher_from_signals(void **state) {
  (void)state;
  int screen;
  ms_launch_config config = {.ranks = 2, .rank_main = print_for_ever, .log_all = 1};
  pid_t pid = start_at_terminal(&config, 80, &screen);
  assert_int_equal(write(screen, "\23", 1), 1); /* Ctrl-S */
  wait_until_ready(2);
  usleep(300000);
  double began = ms_clock();
  kill(pid, SIGTERM);
  assert_ends(pid);
  finish_at_terminal(pid, screen, began);
  assert_int_equal(result.status, 143);
}

static void L5_a_death_is_reported_while_output_is_blocked(void **state) {
  (void)state;
  int out, err;
  ms_launch_config config = {.ranks = 2, .rank_main = print_and_die, .log_all = 1};
  ms_wait_scale = 0.2;
  pid_t pid = start(&config, &out, &err);
  wait_until_ready(2);
  double began = ms_clock();
  assert_ends(pid);
  finish(pid, out, err, began);
  ms_wait_scale = 1;
  assert_int_equal(result.status, STATUS_FAILED_RUN);
  assert_has(result.err, "moonshard: | rank 1 | signal 9 | Killed");
}

static void L5_a_slow_reader_gets_every_line(void **state) {
  (void)state;
  static char text[65536];
  int out, err, lines = 0;
  ms_launch_config config = {.ranks = 2, .rank_main = print_a_lot, .log_all = 1};
  pid_t pid = start(&config, &out, &err);
  double began = ms_clock();
  usleep(300000);
  for (ssize_t n; (n = read(out, text, sizeof text)) > 0;)
    for (ssize_t i = 0; i < n; i++) lines += text[i] == '\n';
  finish(pid, out, err, began);
  assert_int_equal(result.status, 0);
  assert_int_equal(lines, 2 * LINES);
}

/* More than a pipe holds, and less than pipes and the launcher do. */
static int print_some(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  print_lines(3000);
  be_ready();
  return leave(world, MS_OK);
}

static void L5_a_signal_ends_the_wait_for_a_reader_when_all_ranks_have_ended(void **state) {
  (void)state;
  int out, err;
  ms_launch_config config = {.ranks = 1, .rank_main = print_some, .log_all = 1};
  pid_t pid = start(&config, &out, &err);
  wait_until_ready(1);
  assert_true(is_gone(board->pid[0]));
  usleep(100000);
  end_by(pid, SIGINT, out, err);
  assert_int_equal(result.status, 130);
  assert_has(result.err, "moonshard: | ranks | ended | printed | read");
}

/* Ends well although it was asked to end before, as a rank that has nothing more to do. */
static int print_some_when_asked(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  ms_world_catch_termination(world, 1);
  be_ready();
  while (!ms_world_terminating(world)) usleep(1000);
  print_lines(3000);
  return leave(world, MS_OK);
}

static void L5_output_that_is_given_up_after_a_signal_is_reported(void **state) {
  (void)state;
  int out, err;
  ms_launch_config config = {.ranks = 1, .rank_main = print_some_when_asked, .log_all = 1};
  ms_wait_scale = 0.2;
  pid_t pid = start(&config, &out, &err);
  wait_until_ready(1);
  end_by(pid, SIGTERM, out, err);
  ms_wait_scale = 1;
  assert_int_equal(result.status, 143);
  assert_has(result.err, "moonshard: | ranks | ended | printed | read");
}

/* ---- what ranks themselves print ---- */

static int block_in_print(void *context) {
  (void)context;
  ms_world *world;
  setenv("MOONSHARD_TIMEOUT", "1", 1);
  if (join(&world)) return 2;
  if (ms_world_rank(world) == 0) print_lines(LINES);
  return leave(world, ms_world_barrier(world));
}

static void L6_a_rank_that_is_blocked_in_print_is_reported(void **state) {
  (void)state;
  int out, err;
  ms_launch_config config = {.ranks = 2, .rank_main = block_in_print};
  ms_wait_scale = 0.2;
  pid_t pid = start(&config, &out, &err);
  double began = ms_clock();
  assert_ends(pid);
  finish(pid, out, err, began);
  ms_wait_scale = 1;
  assert_int_equal(result.status, STATUS_FAILED_RUN);
  assert_has(result.err, "rank 0 | engine");
  assert_has(result.err, "blocked | print");
}

static int print_and_be_killed(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  printf("the last words\n");
  raise(SIGKILL);
  return 0;
}

static void L5_output_before_a_kill_is_kept(void **state) {
  (void)state;
  launch_ranks(1, print_and_be_killed, NULL);
  assert_int_equal(result.status, STATUS_FAILED_RUN);
  assert_string_equal(result.out, "the last words\n");
}

/* ---- full disks ---- */

static void L5_a_log_file_on_a_full_disk_ends_the_run(void **state) {
  (void)state;
  char folder[] = "/tmp/moonshard-full-XXXXXX", path[128], part[256];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/rank-1.log", folder);
  assert_int_equal(symlink("/dev/full", path), 0);
  ms_launch_config config = {.ranks = 2, .rank_main = print_for_ever, .log_dir = folder, .grace = 0.2};
  int out, err;
  double began = ms_clock();
  pid_t pid = start(&config, &out, &err);
  assert_ends(pid);
  finish(pid, out, err, began);
  snprintf(part, sizeof part, "moonshard: | log file | %s: | No space left", path);
  assert_has(result.err, part);
  assert_int_equal(result.status, STATUS_FAILED_RUN);
  unlink(path);
  snprintf(path, sizeof path, "%s/rank-0.log", folder);
  unlink(path);
  rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      RUN_TEST(L5_a_blocked_pipe_does_not_keep_the_launcher_from_signals),
      RUN_TEST(L5_a_stopped_terminal_does_not_keep_the_launcher_from_signals),
      RUN_TEST(L5_a_death_is_reported_while_output_is_blocked),
      RUN_TEST(L5_a_slow_reader_gets_every_line),
      RUN_TEST(L5_a_signal_ends_the_wait_for_a_reader_when_all_ranks_have_ended),
      RUN_TEST(L5_output_that_is_given_up_after_a_signal_is_reported),
      RUN_TEST(L6_a_rank_that_is_blocked_in_print_is_reported),
      RUN_TEST(L5_output_before_a_kill_is_kept),
      RUN_TEST(L5_a_log_file_on_a_full_disk_ends_the_run),
  };
  return cmocka_run_group_tests_name("launcher, blocked output", tests, NULL, NULL);
}
