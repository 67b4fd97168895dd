/* test_launcher.c - how a run ends: exit statuses, deaths, stalls, interrupts, a killed launcher; and that nothing is left.
**
** Every run is made in a process of its own that calls ms_launch, so that signals can be sent to a launcher and its standard
** streams can be read.
*/
#include "tests/c/support/check.h"
#include "tests/c/support/ranks.h"

#include <fcntl.h>
#include <omp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/world.h"
#include "host/launcher.h"

enum { MOST_RANKS = 4, OUTPUT_BYTES = 65536, STATUS_FAILED_RUN = 3 };

/* What ranks tell the test. */
typedef struct blackboard {
  pid_t pid[MOST_RANKS];
  int cores[MOST_RANKS], first_core[MOST_RANKS], threads[MOST_RANKS];
  int ready;
} blackboard;

typedef struct outcome {
  int status; /* the launcher's exit status, or 1000 + signal */
  double seconds;
  char out[OUTPUT_BYTES], err[OUTPUT_BYTES];
} outcome;

static blackboard *board;

static int with_board(void **state) {
  board = share_memory(sizeof *board);
  return start_without_error(state);
}

static int without_board(void **state) {
  (void)state;
  unshare_memory(board, sizeof *board);
  return 0;
}

#define RUN_TEST(name) cmocka_unit_test_setup_teardown(name, with_board, without_board)

/* ---- what ranks do ---- */

static int join(ms_world **world) {
  if (ms_world_join(world)) return 2;
  board->pid[ms_world_rank(*world)] = getpid();
  return 0;
}

static int leave(ms_world *world, int rc) {
  if (rc) ms_world_abort(world, ms_error_message());
  ms_world_leave(world);
  return rc ? STATUS_FAILED_RUN : 0;
}

static int succeed(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  int rank = ms_world_rank(world);
  printf("rank %d of %d\nunfinished", rank, ms_world_size(world));
  fprintf(stderr, "warning of rank %d\n", rank);
  return leave(world, ms_world_barrier(world));
}

static int end_with_status_7(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  if (ms_world_rank(world) == 1) {
    fprintf(stderr, "something that only stderr knows\n");
    ms_world_leave(world);
    return 7;
  }
  return leave(world, ms_world_barrier(world));
}

static int die_by_signal(void *context) {
  ms_world *world;
  if (join(&world)) return 2;
  if (ms_world_rank(world) == 2) raise(*(int *)context);
  return leave(world, ms_world_barrier(world));
}

static int tell_bad_input(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  ms_world_abort(world, "toy.lua:3: unknown key 'dmi'");
  ms_world_leave(world);
  return 2;
}

static int tell_and_fail(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  if (ms_world_rank(world) == 3) {
    ms_world_abort(world, "loss is nan at step 7");
    return leave(world, MS_OK) + 3;
  }
  return leave(world, ms_world_barrier(world));
}

static int stall_in_rank_1(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  ms_world_set_timeout(world, 0.5);
  if (ms_world_rank(world) == 1) sleep(100);
  return leave(world, ms_world_barrier(world));
}

static int wait_for_ever(void *context) {
  (void)context;
  ms_world *world;
  ms_interrupt_install();
  if (join(&world)) return 2;
  int rc = ms_world_barrier(world);
  __atomic_fetch_add(&board->ready, 1, __ATOMIC_SEQ_CST);
  while (!rc) {
    usleep(1000);
    rc = ms_world_check(world);
  }
  ms_world_leave(world);
  return rc == MS_EINTERRUPT ? 130 : STATUS_FAILED_RUN;
}

/* Deaf to everything but SIGKILL. */
static int ignore_everything(void *context) {
  (void)context;
  ms_world *world;
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  if (join(&world)) return 2;
  __atomic_fetch_add(&board->ready, 1, __ATOMIC_SEQ_CST);
  sleep(100);
  return 0;
}

static int look_around(void *context) {
  (void)context;
  ms_world *world;
  cpu_set_t set;
  if (join(&world)) return 2;
  int rank = ms_world_rank(world), rc = MS_OK;
  sched_getaffinity(0, sizeof set, &set);
  board->cores[rank] = CPU_COUNT(&set);
  for (int core = CPU_SETSIZE - 1; core >= 0; core--)
    if (CPU_ISSET(core, &set)) board->first_core[rank] = core;
  board->threads[rank] = omp_get_max_threads();
  if (strcmp(getenv("LOCAL_RANK"), getenv("RANK")) || strcmp(getenv("LOCAL_WORLD_SIZE"), getenv("WORLD_SIZE")))
    rc = MS_FAIL(MS_EINTERNAL, "the local rank is not the rank");
  sigset_t mask;
  sigprocmask(SIG_BLOCK, NULL, &mask);
  if (sigismember(&mask, SIGINT) || sigismember(&mask, SIGCHLD))
    rc = MS_FAIL(MS_EINTERNAL, "a rank has signals blocked");
  int fd = ms_world_fd(world);
  if (!(fcntl(fd, F_GETFD) & FD_CLOEXEC))
    rc = MS_FAIL(MS_EINTERNAL, "programs that a rank starts would get its descriptor");
  return leave(world, rc);
}

/* ---- the harness ---- */

/* A process that launches, with its streams in pipes. */
static pid_t start(const ms_launch_config *config, int *out, int *err) {
  int out_pipe[2], err_pipe[2], status;
  assert_int_equal(pipe(out_pipe), 0);
  assert_int_equal(pipe(err_pipe), 0);
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    dup2(out_pipe[1], 1);
    dup2(err_pipe[1], 2);
    close(out_pipe[0]);
    close(out_pipe[1]);
    close(err_pipe[0]);
    close(err_pipe[1]);
    if (ms_launch(config, &status)) {
      fprintf(stderr, "cannot launch: %s\n", ms_error_message());
      _exit(99);
    }
    _exit(status);
  }
  close(out_pipe[1]);
  close(err_pipe[1]);
  *out = out_pipe[0];
  *err = err_pipe[0];
  return pid;
}

static void read_all(int fd, char *text) {
  size_t used = 0;
  ssize_t bytes;
  while ((bytes = read(fd, text + used, OUTPUT_BYTES - 1 - used)) > 0) used += (size_t)bytes;
  text[used] = '\0';
  close(fd);
}

/* A rank whose parent is gone may be a zombie for a moment, until the first process has seen its end. */
static void assert_no_rank_is_left(void) {
  for (int rank = 0; rank < MOST_RANKS; rank++) {
    pid_t pid = board->pid[rank];
    for (int i = 0; pid && i < 2000 && kill(pid, 0) == 0; i++) {
      char path[64], state = 'R';
      snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
      FILE *file = fopen(path, "r");
      if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'R';
      if (file) fclose(file);
      if (state == 'Z') break;
      if (i == 1999) fail_msg("rank %d (process %d) is still there", rank, (int)pid);
      usleep(1000);
    }
  }
}

/* Reads the streams to their ends, so every process that has them must end too. */
static void finish(pid_t pid, int out, int err, double began, outcome *result) {
  int status;
  read_all(out, result->out);
  read_all(err, result->err);
  waitpid(pid, &status, 0);
  result->seconds = ms_clock() - began;
  result->status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  assert_no_rank_is_left();
}

static outcome result; /* too large for a stack under sanitizers */

static void launch_config(const ms_launch_config *config) {
  int out, err;
  double began = ms_clock();
  pid_t pid = start(config, &out, &err);
  finish(pid, out, err, began, &result);
}

static void launch_ranks(int ranks, int (*rank_main)(void *), void *context) {
  ms_launch_config config = {.ranks = ranks, .rank_main = rank_main, .context = context};
  launch_config(&config);
}

static int count_lines(const char *text) {
  int n = 0;
  for (; *text; text++) n += *text == '\n';
  return n;
}

/* ---- tests ---- */

static void L5_rank_0_is_heard_and_the_others_are_not(void **state) {
  (void)state;
  launch_ranks(3, succeed, NULL);
  assert_int_equal(result.status, 0);
  assert_string_equal(result.out, "rank 0 of 3\nunfinished");
  assert_string_equal(result.err, "warning of rank 0\n");
}

static void L5_all_ranks_are_heard_with_a_prefix(void **state) {
  (void)state;
  ms_launch_config config = {.ranks = 2, .rank_main = succeed, .log_all = 1};
  launch_config(&config);
  assert_int_equal(result.status, 0);
  assert_int_equal(count_lines(result.out), 4);
  assert_contains(result.out, "[rank 0] rank 0 of 2\n");
  assert_contains(result.out, "[rank 0] unfinished\n");
  assert_contains(result.out, "[rank 1] rank 1 of 2\n");
  assert_contains(result.out, "[rank 1] unfinished\n");
  assert_contains(result.err, "[rank 0] warning of rank 0\n");
  assert_contains(result.err, "[rank 1] warning of rank 1\n");
}

static void L5_a_rank_that_exits_ends_the_run_with_its_status(void **state) {
  (void)state;
  launch_ranks(4, end_with_status_7, NULL);
  assert_int_equal(result.status, 7);
  assert_contains(result.err, "moonshard: rank 1 ended with exit status 7\n");
  assert_contains(result.err, "the end of rank 1's stderr:\nsomething that only stderr knows\n");
  assert_true(result.seconds < 5);
}

static void L5_a_rank_that_is_killed_ends_the_run(void **state) {
  (void)state;
  int number = SIGKILL;
  launch_ranks(4, die_by_signal, &number);
  assert_int_equal(result.status, 3);
  assert_string_equal(result.err, "moonshard: rank 2 died: killed by signal 9 (Killed)\n");
  assert_true(result.seconds < 5);
}

static void L5_bad_input_is_told_once_for_all_ranks(void **state) {
  (void)state;
  launch_ranks(4, tell_bad_input, NULL);
  assert_int_equal(result.status, 2);
  assert_string_equal(result.err, "moonshard: toy.lua:3: unknown key 'dmi'\n");
}

static void L5_the_first_rank_that_fails_is_told_with_its_last_error(void **state) {
  (void)state;
  launch_ranks(4, tell_and_fail, NULL);
  assert_int_equal(result.status, 3);
  assert_string_equal(result.err, "moonshard: rank 3 ended with exit status 3: loss is nan at step 7\n");
}

static void L5_a_stalled_rank_is_named_and_ended(void **state) {
  (void)state;
  ms_launch_config config = {.ranks = 3, .rank_main = stall_in_rank_1, .grace = 1};
  launch_config(&config);
  assert_int_equal(result.status, 3);
  assert_int_equal(count_lines(result.err), 1);
  assert_contains(result.err, "has waited 0.5 s for rank 1");
  assert_true(result.seconds < 5);
}

static void wait_until_ready(int ranks) {
  for (int i = 0; i < 10000 && __atomic_load_n(&board->ready, __ATOMIC_SEQ_CST) < ranks; i++) usleep(1000);
  assert_int_equal(__atomic_load_n(&board->ready, __ATOMIC_SEQ_CST), ranks);
}

static void launch_and_signal(int (*rank_main)(void *), const int *signals, int n) {
  int out, err;
  ms_launch_config config = {.ranks = 3, .rank_main = rank_main, .grace = 1};
  pid_t pid = start(&config, &out, &err);
  wait_until_ready(3);
  double began = ms_clock();
  for (int i = 0; i < n; i++) {
    if (i) usleep(100000);
    kill(pid, signals[i]);
  }
  finish(pid, out, err, began, &result);
}

static void L5_nothing_outlives_a_launcher_that_is_killed(void **state) {
  (void)state;
  launch_and_signal(wait_for_ever, (int[]){SIGKILL}, 1);
  assert_int_equal(result.status, 1000 + SIGKILL);
  assert_true(result.seconds < 5);
}

static void L5_an_interrupt_ends_a_run_cleanly(void **state) {
  (void)state;
  launch_and_signal(wait_for_ever, (int[]){SIGINT}, 1);
  assert_int_equal(result.status, 130);
  assert_string_equal(result.err, "moonshard: interrupted\n");
  assert_true(result.seconds < 5);
}

static void L5_a_second_interrupt_kills(void **state) {
  (void)state;
  launch_and_signal(ignore_everything, (int[]){SIGINT, SIGINT}, 2);
  assert_int_equal(result.status, 130);
  assert_string_equal(result.err, "moonshard: interrupted\n");
  assert_true(result.seconds < 5);
}

static void L5_a_termination_is_passed_on_and_then_enforced(void **state) {
  (void)state;
  launch_and_signal(wait_for_ever, (int[]){SIGTERM}, 1);
  assert_int_equal(result.status, 128 + SIGTERM);
  assert_string_equal(result.err, "moonshard: terminated\n");
  memset(board, 0, sizeof *board);
  launch_and_signal(ignore_everything, (int[]){SIGTERM}, 1);
  assert_int_equal(result.status, 128 + SIGTERM);
  assert_true(result.seconds < 5);
}

static void L5_ranks_get_cores_threads_and_clean_signals(void **state) {
  (void)state;
  cpu_set_t set;
  assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
  int cores = CPU_COUNT(&set);
  unsetenv("OMP_NUM_THREADS");
  launch_ranks(2, look_around, NULL);
  assert_int_equal(result.status, 0);
  if (cores >= 2) {
    assert_int_equal(board->cores[0], cores / 2);
    assert_int_equal(board->cores[1], cores / 2);
    assert_int_not_equal(board->first_core[0], board->first_core[1]);
    assert_int_equal(board->threads[0], cores / 2);
  }
  setenv("OMP_NUM_THREADS", "64", 1);
  launch_ranks(2, look_around, NULL);
  assert_int_equal(result.status, 0);
  assert_int_equal(board->cores[0], cores);
  assert_int_equal(board->threads[1], 64);
  unsetenv("OMP_NUM_THREADS");
  if (cores < MOST_RANKS) {
    launch_ranks(MOST_RANKS, look_around, NULL);
    assert_int_equal(board->cores[3], cores);
    assert_int_equal(board->threads[3], 1);
  }
}

static void a_job_of_no_ranks_is_refused(void **state) {
  (void)state;
  int status;
  ms_launch_config config = {.ranks = 0, .rank_main = succeed};
  assert_fails(ms_launch(&config, &status), MS_EINVAL, "1 to 64 ranks");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      RUN_TEST(L5_rank_0_is_heard_and_the_others_are_not),
      RUN_TEST(L5_all_ranks_are_heard_with_a_prefix),
      RUN_TEST(L5_a_rank_that_exits_ends_the_run_with_its_status),
      RUN_TEST(L5_a_rank_that_is_killed_ends_the_run),
      RUN_TEST(L5_bad_input_is_told_once_for_all_ranks),
      RUN_TEST(L5_the_first_rank_that_fails_is_told_with_its_last_error),
      RUN_TEST(L5_a_stalled_rank_is_named_and_ended),
      RUN_TEST(L5_nothing_outlives_a_launcher_that_is_killed),
      RUN_TEST(L5_an_interrupt_ends_a_run_cleanly),
      RUN_TEST(L5_a_second_interrupt_kills),
      RUN_TEST(L5_a_termination_is_passed_on_and_then_enforced),
      RUN_TEST(L5_ranks_get_cores_threads_and_clean_signals),
      RUN_TEST(a_job_of_no_ranks_is_refused),
  };
  return cmocka_run_group_tests_name("launcher", tests, NULL, NULL);
}
