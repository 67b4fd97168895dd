/* test_team.c - the threads that share a kernel's work: every part runs once, whatever other threads and forks do, and
 * a team on cores that others use as well costs little more than one thread.
 */
#include "tests/c/support/check.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu/team.h"

enum { MAX_PARTS = 16 };

typedef struct tally {
  _Atomic int ran[MAX_PARTS];
  int64_t plain[MAX_PARTS]; /* written by the part alone, read after the team */
} tally;

static void count(void *context, int part) {
  tally *t = context;
  atomic_fetch_add(&t->ran[part], 1);
  t->plain[part] += part + 1;
}

/* 1 when all of `turns` turns ran each of `parts` parts once. */
static int runs_all(int parts, int turns) {
  tally t = {0};
  for (int turn = 0; turn < turns; turn++) ms_team_run(parts, count, &t);
  for (int part = 0; part < MAX_PARTS; part++) {
    const int expected = part < parts ? turns : 0;
    if (t.ran[part] != expected || t.plain[part] != (int64_t)expected * (part + 1)) return 0;
  }
  return 1;
}

static void every_part_runs_once_a_turn(void **state) {
  (void)state;
  for (int round = 0; round < 20; round++)
    for (int parts = 1; parts <= MAX_PARTS; parts = parts * 2 + 1) assert_true(runs_all(parts, 50));
}

static void *use_team(void *context) {
  *(int *)context = runs_all(3, 2000);
  return NULL;
}

static void threads_that_use_it_at_once_do_not_mix(void **state) {
  (void)state;
  pthread_t thread[4];
  int good[4] = {0};
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&thread[i], NULL, use_team, &good[i]), 0);
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
  for (int i = 0; i < 4; i++) assert_true(good[i]);
}

static void a_forked_child_makes_its_own(void **state) {
  (void)state;
#ifdef __SANITIZE_THREAD__
  skip(); /* it refuses threads after a fork from a process that has some */
#endif
  int status;
  assert_true(runs_all(4, 10));
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) _exit(runs_all(5, 100) ? 0 : 1);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  assert_true(runs_all(4, 10));
}

/* Processor time of all threads: spinning counts, other processes do not. */
static double seconds_of(int parts, int turns) {
  const clock_t began = clock();
  assert_true(runs_all(parts, turns));
  return (double)(clock() - began) / CLOCKS_PER_SEC;
}

/* OpenMP's threads wait 5 ms and more by spinning, each on the core that the others need: 1,000 turns took
 * over 10 s. */
static void four_threads_on_one_core_spin_only_briefly(void **state) {
  (void)state;
  cpu_set_t all, one;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && !CPU_COUNT(&one); core++)
    if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  pid_t child = fork(); /* its team starts on that core */
  assert_true(child >= 0);
  if (!child) {
#ifdef __SANITIZE_THREAD__
    _exit(0);
#endif
    alarm(60);
    _exit(seconds_of(4, 1000) < 2.0 ? 0 : 1);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(every_part_runs_once_a_turn),
      TEST(threads_that_use_it_at_once_do_not_mix),
      TEST(a_forked_child_makes_its_own),
      TEST(four_threads_on_one_core_spin_only_briefly),
  };
  return cmocka_run_group_tests_name("team", tests, NULL, NULL);
}
