/* test_launcher.c - how a run ends by itself: exit statuses, deaths, stalls, and what is told of them. */
#include "tests/c/support/ranks/launched.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"

/* Ranks that are not ended sleep for 100 s, and deadlines are further away; a busy machine ends others within this. */
enum { MUCH_LATER = 50 };

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
    ms_free(world);
    return 7;
  }
  return leave(world, ms_world_barrier(world));
}

static int die_by_signal(void *context) {
  ms_world *world;
  if (join(&world)) return 2;
  signal(*(int *)context, SIG_DFL); /* cmocka and the sanitizers have handlers of their own */
  if (ms_world_rank(world) == 2) raise(*(int *)context);
  return leave(world, ms_world_barrier(world));
}

/* oneDNN for one crashes when it gets no memory. */
static void L5_a_crash_under_a_memory_limit_names_the_limit(void **state) {
  (void)state;
#ifdef __SANITIZE_THREAD__
  skip(); /* its own memory does not fit below any limit */
#endif
  int number = SIGSEGV;
  struct rlimit old, limit;
  assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
  limit = (struct rlimit){.rlim_cur = 1ull << 46, .rlim_max = old.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
  launch_ranks(3, die_by_signal, &number);
  assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
  assert_int_equal(result.status, STATUS_FAILED_RUN);
  assert_has(result.err, "ulimit -v | 67108864 MiB");
}

static int tell_bad_input(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  ms_world_abort(world, "toy.lua:3: unknown key 'dmi'");
  ms_free(world);
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
  assert_has(result.out, "[rank 0] rank 0 of 2\n");
  assert_has(result.out, "[rank 0] unfinished\n");
  assert_has(result.out, "[rank 1] rank 1 of 2\n");
  assert_has(result.out, "[rank 1] unfinished\n");
  assert_has(result.err, "[rank 0] warning of rank 0\n");
  assert_has(result.err, "[rank 1] warning of rank 1\n");
}

static void L5_a_rank_that_exits_ends_the_run_and_is_named(void **state) {
  (void)state;
  launch_ranks(4, end_with_status_7, NULL);
  assert_int_equal(result.status, 3);
  assert_has(result.err, "moonshard: | rank 1 | status 7");
  assert_has(result.err, "exit(7)");
  assert_has(result.err, "rank 1 | stderr | \nsomething that only stderr knows\n");
  assert_true(result.seconds < MUCH_LATER);
}

static void L5_a_rank_that_is_killed_ends_the_run(void **state) {
  (void)state;
  int number = SIGKILL;
  launch_ranks(4, die_by_signal, &number);
  assert_int_equal(result.status, 3);
  assert_has(result.err, "moonshard: | rank 2 | signal 9 | Killed | kernel");
  assert_has(result.err, "\nmoonshard: rank 2 | Lua");
  assert_true(result.seconds < MUCH_LATER);
}

/* A page of a mapped file that is no more. */
static int read_behind_the_end(void *context) {
  ms_world *world;
  if (join(&world)) return 2;
  signal(SIGBUS, SIG_DFL); /* cmocka and the sanitizers have handlers of their own */
  int rank = ms_world_rank(world), fd = *(int *)context;
  const volatile char *text = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
  int rc =
      text == MAP_FAILED || text[0] != 'x' ? MS_FAIL(MS_EINTERNAL, "the file cannot be read") : ms_world_barrier(world);
  if (!rc && rank == 1) rc = ftruncate(fd, 0) || text[0] ? MS_FAIL(MS_EINTERNAL, "the file is still there") : MS_OK;
  return leave(world, rc ? rc : ms_world_barrier(world));
}

static void L5_a_report_explains_the_signal(void **state) {
  (void)state;
  FILE *file = tmpfile();
  assert_non_null(file);
  int fd = fileno(file);
  assert_int_equal(write(fd, "x", 1), 1);
  launch_ranks(2, read_behind_the_end, &fd);
  fclose(file);
  assert_int_equal(result.status, 3);
  assert_has(result.err, "moonshard: | rank 1 | signal 7 | Bus error | mapped");
}

/* Starts a program, forgets it, and ends with the status that it was given. */
static int leave_a_program_behind(void *context) {
  ms_world *world;
  if (join(&world)) return 2;
  if (ms_world_rank(world) == 0) {
    pid_t pid = fork();
    if (pid == 0) {
      close(STDOUT_FILENO);
      close(STDERR_FILENO);
      sleep(100);
      _exit(0);
    }
    board->program = pid;
  }
  return *(int *)context ? leave(world, MS_FAIL(MS_EIO, "the disk is full")) : leave(world, MS_OK);
}

static void L5_a_program_that_a_rank_left_behind_ends_with_a_failed_run(void **state) {
  (void)state;
  int fails = 1;
  launch_ranks(2, leave_a_program_behind, &fails);
  assert_int_equal(result.status, 3);
  assert_true(is_gone(board->program));
  fails = 0;
  launch_ranks(2, leave_a_program_behind, &fails);
  assert_int_equal(result.status, 0);
  assert_int_not_equal(state_of(board->program), 0);
  kill(board->program, SIGKILL);
}

static void L5_bad_input_is_reported_once_for_all_ranks(void **state) {
  (void)state;
  launch_ranks(4, tell_bad_input, NULL);
  assert_int_equal(result.status, 2);
  assert_string_equal(result.err, "moonshard: toy.lua:3: unknown key 'dmi'\n");
}

static void L5_the_first_rank_that_fails_is_reported_with_its_last_error(void **state) {
  (void)state;
  launch_ranks(4, tell_and_fail, NULL);
  assert_int_equal(result.status, 3);
  assert_string_equal(result.err, "moonshard: rank 3 failed: loss is nan at step 7\n");
}

static void L5_a_stalled_rank_is_named_and_ended(void **state) {
  (void)state;
  ms_launch_config config = {.ranks = 3, .rank_main = stall_in_rank_1, .grace = 1};
  launch_config(&config);
  assert_int_equal(result.status, 3);
  assert_int_equal(count_lines(result.err), 3);
  assert_has(result.err, "0.5 s | rank 1");
  assert_has(result.err, "\n  ranks 0, 2:");
  assert_true(result.seconds < MUCH_LATER);
}

static void a_bad_timeout_is_refused_before_a_rank_starts(void **state) {
  (void)state;
  ms_launch_config config = {.ranks = 2, .rank_main = succeed};
  int status;
  setenv("MOONSHARD_TIMEOUT", "nan", 1);
  assert_fails(ms_launch(&config, &status), MS_EINVAL, "MOONSHARD_TIMEOUT | nan | finite");
  setenv("MOONSHARD_TIMEOUT", "-3", 1);
  assert_fails(ms_launch(&config, &status), MS_EINVAL, "MOONSHARD_TIMEOUT | above 0 | -3");
  unsetenv("MOONSHARD_TIMEOUT");
}

static void a_job_of_no_ranks_is_refused(void **state) {
  (void)state;
  int status;
  ms_launch_config config = {.ranks = 0, .rank_main = succeed};
  assert_fails(ms_launch(&config, &status), MS_EINVAL, "1 | 4096");
  config.ranks = 65;
  assert_fails(ms_launch(&config, &status), MS_EINVAL, "65 | 64");
  config = (ms_launch_config){.ranks = 8, .nodes = 1 << 30, .rank_main = succeed};
  assert_fails(ms_launch(&config, &status), MS_EINVAL, "4096");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      RUN_TEST(L5_rank_0_is_heard_and_the_others_are_not),
      RUN_TEST(L5_all_ranks_are_heard_with_a_prefix),
      RUN_TEST(L5_a_rank_that_exits_ends_the_run_and_is_named),
      RUN_TEST(L5_a_rank_that_is_killed_ends_the_run),
      RUN_TEST(L5_a_report_explains_the_signal),
      RUN_TEST(L5_a_program_that_a_rank_left_behind_ends_with_a_failed_run),
      RUN_TEST(L5_bad_input_is_reported_once_for_all_ranks),
      RUN_TEST(L5_a_crash_under_a_memory_limit_names_the_limit),
      RUN_TEST(L5_the_first_rank_that_fails_is_reported_with_its_last_error),
      RUN_TEST(L5_a_stalled_rank_is_named_and_ended),
      RUN_TEST(a_bad_timeout_is_refused_before_a_rank_starts),
      RUN_TEST(a_job_of_no_ranks_is_refused),
  };
  return cmocka_run_group_tests_name("launcher", tests, NULL, NULL);
}
