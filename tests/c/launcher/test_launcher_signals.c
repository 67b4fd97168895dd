/* test_launcher_signals.c - a run that is asked to end, stopped, continued, or whose launcher is killed. */
#include "tests/c/support/ranks/launched.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/interrupt.h"

/* Ranks that are not ended sleep for 100 s, and deadlines are further away; a busy machine ends others within this. */
enum { MUCH_LATER = 50 };

static int wait_for_ever(void *context) {
  (void)context;
  ms_world *world;
  ms_interrupt_install();
  if (join(&world)) return 2;
  int rc = ms_world_barrier(world);
  be_ready();
  while (!rc) {
    usleep(1000);
    rc = ms_world_check(world);
  }
  ms_free(world);
  return rc == MS_EINTERRUPT ? 130 : STATUS_FAILED_RUN;
}

static int ignore_everything(void *context) {
  (void)context;
  ms_world *world;
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  if (join(&world)) return 2;
  be_ready();
  sleep(100);
  return 0;
}

static void L5_nothing_outlives_a_launcher_that_is_killed(void **state) {
  (void)state;
  launch_and_signal(wait_for_ever, 0, (int[]){SIGKILL}, 1);
  assert_int_equal(result.status, 1000 + SIGKILL);
  assert_true(result.seconds < MUCH_LATER);
}

static void L5_an_interrupt_ends_a_run_cleanly(void **state) {
  (void)state;
  launch_and_signal(wait_for_ever, 0, (int[]){SIGINT}, 1);
  assert_int_equal(result.status, 130);
  assert_has(result.err, "moonshard: | interrupted\n");
  assert_true(result.seconds < MUCH_LATER);
}

static void L5_a_second_interrupt_kills(void **state) {
  (void)state;
  launch_and_signal(ignore_everything, 60, (int[]){SIGINT, SIGINT}, 2);
  assert_int_equal(result.status, 130);
  assert_line_has(result.err, "moonshard: | interrupted twice | ranks 0, 1, 2");
  assert_true(result.seconds < MUCH_LATER);
}

static void L7_an_ignored_interrupt_is_enforced_and_reported(void **state) {
  (void)state;
  launch_and_signal(ignore_everything, 0.5, (int[]){SIGINT}, 1);
  assert_int_equal(result.status, 130);
  assert_line_has(result.err, "moonshard: | interrupted | ranks 0, 1, 2 | 0.5 s | killed");
  assert_true(result.seconds >= 0.5);
}

/* The terminal sends the signal to launcher and ranks alike. */
static void L7_ctrl_c_at_a_terminal_ends_a_run_cleanly(void **state) {
  (void)state;
  int screen;
  ms_launch_config config = {.ranks = 3, .rank_main = wait_for_ever};
  pid_t pid = start_at_terminal(&config, 80, &screen);
  wait_until_ready(3);
  double began = ms_clock();
  assert_int_equal(write(screen, "\3", 1), 1);
  finish_at_terminal(pid, screen, began);
  assert_int_equal(result.status, 130);
  assert_has(result.out, "interrupted\r\n");
  assert_true(result.seconds < MUCH_LATER);
}

/* Prints a line that is not finished, as the display of progress does. */
static int leave_a_line_open(void *context) {
  printf("step 3");
  fflush(stdout);
  return ignore_everything(context);
}

static void L7_the_report_begins_on_a_line_of_its_own(void **state) {
  (void)state;
  int screen;
  ms_launch_config config = {.ranks = 1, .rank_main = leave_a_line_open, .grace = 0.2};
  pid_t pid = start_at_terminal(&config, 80, &screen);
  wait_until_ready(1);
  kill(pid, SIGINT);
  finish_at_terminal(pid, screen, ms_clock());
  assert_int_equal(result.status, 130);
  assert_has(result.out, "step 3\r\nmoonshard: | interrupted | rank 0");
}

static void L7_a_long_wait_names_the_ranks_that_still_run(void **state) {
  (void)state;
  ms_wait_scale = 0.2;
  launch_and_signal(ignore_everything, 1, (int[]){SIGINT}, 1);
  ms_wait_scale = 1;
  assert_int_equal(result.status, 130);
  assert_has(result.err, "moonshard: | ranks 0, 1, 2 | 1 s | Ctrl-C");
}

static void assert_state(int stopped) {
  for (int rank = 0; rank < 3; rank++) {
    for (int i = 0; i < 5000 && (state_of(board->pid[rank]) == 'T') != stopped; i++) usleep(1000);
    assert_int_equal(state_of(board->pid[rank]) == 'T', stopped);
  }
}

static void L5_a_stop_stops_the_ranks_too_and_they_go_on_with_the_launcher(void **state) {
  (void)state;
  int out, err, status;
  ms_launch_config config = {.ranks = 3, .rank_main = wait_for_ever};
  pid_t pid = start(&config, &out, &err);
  wait_until_ready(3);
  kill(pid, SIGTSTP);
  assert_state(1);
  assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
  assert_true(WIFSTOPPED(status));
  kill(pid, SIGCONT);
  assert_state(0);
  kill(pid, SIGINT);
  finish(pid, out, err, ms_clock());
  assert_int_equal(result.status, 130);
}

/* Ranks wait for rank 0, which waits for the test, and are patient for two seconds. */
static int wait_for_rank_0(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  ms_world_set_timeout(world, 2);
  be_ready();
  while (ms_world_rank(world) == 0 && __atomic_load_n(&board->ready, __ATOMIC_SEQ_CST) < 100) usleep(1000);
  return leave(world, ms_world_barrier(world));
}

static void L5_time_in_which_a_run_is_stopped_does_not_count(void **state) {
  (void)state;
  int out, err;
  ms_launch_config config = {.ranks = 3, .rank_main = wait_for_rank_0};
  pid_t pid = start(&config, &out, &err);
  wait_until_ready(3);
  kill(pid, SIGTSTP);
  assert_state(1);
  usleep(2500000);
  kill(pid, SIGCONT);
  assert_state(0);
  usleep(300000);
  __atomic_store_n(&board->ready, 100, __ATOMIC_SEQ_CST);
  finish(pid, out, err, ms_clock());
  assert_string_equal(result.err, "");
  assert_int_equal(result.status, 0);
}

static int end_when_seen(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  be_ready();
  for (int i = 0; i < 10000 && __atomic_load_n(&board->ready, __ATOMIC_SEQ_CST) < 100; i++) usleep(1000);
  return leave(world, MS_OK);
}

static void L5_a_hang_up_that_is_ignored_does_not_end_a_run(void **state) {
  (void)state;
  int out, err;
  ms_launch_config config = {.ranks = 3, .rank_main = end_when_seen};
  struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
  sigaction(SIGHUP, &ignore, &before);
  pid_t pid = start(&config, &out, &err);
  sigaction(SIGHUP, &before, NULL);
  wait_until_ready(3);
  kill(pid, SIGHUP);
  usleep(50000);
  __atomic_store_n(&board->ready, 100, __ATOMIC_SEQ_CST);
  finish(pid, out, err, ms_clock());
  assert_int_equal(result.status, 0);
}

static int print_much(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  for (int i = 0; i < 10000; i++) printf("line %d of a rank that is not read any more\n", i);
  return leave(world, ms_world_barrier(world));
}

/* Its ranks get to their end, which they would report otherwise, but what they printed is lost. */
static void L5_a_reader_that_goes_away_does_not_end_a_run(void **state) {
  (void)state;
  int out, err;
  ms_launch_config config = {.ranks = 2, .rank_main = print_much, .log_all = 1};
  pid_t pid = start(&config, &out, &err);
  close(out);
  finish(pid, open("/dev/null", O_RDONLY), err, ms_clock());
  assert_int_equal(result.status, STATUS_FAILED_RUN);
  assert_has(result.err, "standard output: | reader");
  assert_null(strstr(result.err, "rank"));
}

static void L5_a_termination_is_passed_on_and_then_enforced(void **state) {
  (void)state;
  launch_and_signal(wait_for_ever, 0, (int[]){SIGTERM}, 1);
  assert_int_equal(result.status, 128 + SIGTERM);
  assert_string_equal(result.err, "moonshard: terminated\n");
  memset(board, 0, sizeof *board);
  launch_and_signal(ignore_everything, 1, (int[]){SIGTERM}, 1);
  assert_int_equal(result.status, 128 + SIGTERM);
  assert_true(result.seconds < MUCH_LATER);
}

/* As timeout(1) does: to the process, and to the group that it is in. */
static void L7_a_termination_that_comes_twice_at_once_is_one(void **state) {
  (void)state;
  launch_and_signal(wait_for_ever, 0, (int[]){SIGTERM, SIGTERM}, 2);
  assert_int_equal(result.status, 128 + SIGTERM);
  assert_string_equal(result.err, "moonshard: terminated\n");
}

/* Rank 1 dies of the signal; the others wait until they have heard of that, and then for their own. */
static int be_signalled_first(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  if (ms_world_barrier(world)) return leave(world, MS_EPEER);
  if (ms_world_rank(world) == 1) raise(SIGTERM);
  while (!ms_world_check(world)) usleep(1000);
  be_ready();
  sleep(100);
  return 0;
}

/* As those do that signal all processes of a run one by one. */
static void L7_a_termination_that_comes_to_a_rank_first_is_no_failure(void **state) {
  (void)state;
  int out, err;
  ms_launch_config config = {.ranks = 3, .rank_main = be_signalled_first, .grace = 60};
  pid_t pid = start(&config, &out, &err);
  wait_until_ready(2);
  kill(pid, SIGTERM);
  finish(pid, out, err, ms_clock());
  assert_int_equal(result.status, 128 + SIGTERM);
  assert_string_equal(result.err, "moonshard: terminated\n");
}

/* Saves as slowly as its context says, in ms; tells what it saved. */
static int save_when_asked(void *context) {
  ms_world *world;
  if (join(&world)) return 2;
  ms_world_catch_termination(world, 1);
  int rc = ms_world_barrier(world);
  be_ready();
  while (!rc && !ms_world_terminating(world)) {
    usleep(1000);
    rc = ms_world_check(world);
  }
  if (!rc) usleep(1000 * *(const useconds_t *)context);
  if (!rc) rc = ms_world_finish(world);
  if (rc) return leave(world, rc);
  ms_world_abort(world, "terminated after step 7");
  ms_free(world);
  return 143;
}

static void run_saving(useconds_t *milliseconds, double grace, int to_rank, int requests) {
  int out, err;
  ms_launch_config config = {.ranks = 3, .rank_main = save_when_asked, .context = milliseconds, .grace_to_save = grace};
  memset(board, 0, sizeof *board);
  ms_wait_scale = 0.2;
  pid_t pid = start(&config, &out, &err);
  wait_until_ready(3);
  double began = ms_clock();
  for (int i = 0; i < requests; i++) {
    if (i) usleep((useconds_t)(1.1e6 * ms_wait_scale * MS_SAME_REQUEST));
    kill(to_rank >= 0 ? board->pid[to_rank] : pid, SIGTERM);
  }
  finish(pid, out, err, began);
  ms_wait_scale = 1;
  assert_int_equal(result.status, 128 + SIGTERM);
}

static void L7_ranks_that_save_get_the_time_for_it(void **state) {
  (void)state;
  run_saving(&(useconds_t){1200}, 0, -1, 1); /* longer than the grace of a run that does not save */
  assert_string_equal(result.err, "moonshard: terminated after step 7\n");
}

static void L7_a_termination_of_one_rank_reaches_all(void **state) {
  (void)state;
  run_saving(&(useconds_t){10}, 0, 1, 1);
  assert_string_equal(result.err, "moonshard: terminated after step 7\n");
}

static void L7_a_second_termination_ends_a_save(void **state) {
  (void)state;
  run_saving(&(useconds_t){100000}, 60, -1, 2);
  assert_line_has(result.err, "moonshard: | terminated twice | ranks 0, 1, 2");
}

static void L7_a_save_that_takes_too_long_is_ended_and_reported(void **state) {
  (void)state;
  run_saving(&(useconds_t){100000}, 0.5, -1, 1);
  assert_has(result.err, "moonshard: | terminated | ranks 0, 1, 2 | 0.5 s | killed | \nmoonshard: rank 0 | engine");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      RUN_TEST(L5_nothing_outlives_a_launcher_that_is_killed),
      RUN_TEST(L5_an_interrupt_ends_a_run_cleanly),
      RUN_TEST(L5_a_second_interrupt_kills),
      RUN_TEST(L7_an_ignored_interrupt_is_enforced_and_reported),
      RUN_TEST(L7_ctrl_c_at_a_terminal_ends_a_run_cleanly),
      RUN_TEST(L7_the_report_begins_on_a_line_of_its_own),
      RUN_TEST(L7_a_long_wait_names_the_ranks_that_still_run),
      RUN_TEST(L5_a_stop_stops_the_ranks_too_and_they_go_on_with_the_launcher),
      RUN_TEST(L5_time_in_which_a_run_is_stopped_does_not_count),
      RUN_TEST(L5_a_hang_up_that_is_ignored_does_not_end_a_run),
      RUN_TEST(L5_a_reader_that_goes_away_does_not_end_a_run),
      RUN_TEST(L5_a_termination_is_passed_on_and_then_enforced),
      RUN_TEST(L7_a_termination_that_comes_twice_at_once_is_one),
      RUN_TEST(L7_a_termination_that_comes_to_a_rank_first_is_no_failure),
      RUN_TEST(L7_ranks_that_save_get_the_time_for_it),
      RUN_TEST(L7_a_termination_of_one_rank_reaches_all),
      RUN_TEST(L7_a_second_termination_ends_a_save),
      RUN_TEST(L7_a_save_that_takes_too_long_is_ended_and_reported),
  };
  return cmocka_run_group_tests_name("launcher signals", tests, NULL, NULL);
}
