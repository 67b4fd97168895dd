/* test_launcher_cores.c - what of a machine a run may use, how ranks divide it, and that ranks and their threads stay
 * where they were put.
 */
#include "tests/c/support/ranks/launched.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/machine/cores.h"
#include "base/error.h"
#include "host/launcher/pin.h"
#include "kernels/cpu/team.h"

/* n cores 0 .. n-1; with two hardware threads a core, i and i + n / 2 are siblings, as most machines number them. */
static ms_cores machine(int n, int threads_a_core) {
  ms_cores cores = {.n = n, .n_physical = n / threads_a_core, .quota = n};
  for (int i = 0; i < n; i++) {
    cores.core[i] = threads_a_core == 1 ? i : i / 2 + i % 2 * (n / 2);
    cores.physical[i] = i / threads_a_core;
  }
  return cores;
}

static void assert_set(const ms_pinning *pinning, int rank, const char *expected) {
  char text[256];
  ms_cores_text(&pinning->set[rank], text, sizeof text);
  assert_string_equal(text, expected);
}

static ms_pinning plan(const ms_cores *cores, const char *pin, int threads, int ranks) {
  ms_pinning pinning;
  must(ms_pinning_plan(cores, 0, pin, threads, ranks, &pinning));
  return pinning;
}

/* ---- dividing ---- */

static void ranks_get_equal_shares(void **state) {
  (void)state;
  ms_cores cores = machine(9, 1);
  ms_pinning p = plan(&cores, "auto", 0, 4);
  assert_true(p.pinned && p.threads == 2);
  assert_set(&p, 0, "0-1");
  assert_set(&p, 3, "6-7");
  p = plan(&cores, NULL, 2, 4);
  assert_true(p.pinned && p.threads == 2);
}

static void ranks_get_whole_physical_cores_where_there_are_enough(void **state) {
  (void)state;
  ms_cores cores = machine(8, 2);
  ms_pinning p = plan(&cores, NULL, 0, 2);
  assert_true(p.pinned && p.threads == 2);
  assert_set(&p, 0, "0-1,4-5");
  assert_set(&p, 1, "2-3,6-7");
  p = plan(&cores, NULL, 0, 8);
  assert_true(p.pinned && p.threads == 1);
  assert_set(&p, 1, "4");
}

static void no_rank_is_pinned_if_cores_are_scarce(void **state) {
  (void)state;
  ms_cores cores = machine(4, 1);
  ms_pinning p = plan(&cores, NULL, 0, 5);
  assert_true(!p.pinned && p.threads == 1);
  p = plan(&cores, NULL, 3, 2);
  assert_true(!p.pinned && p.threads == 3);
  p = plan(&cores, "none", 0, 2);
  assert_true(!p.pinned && p.threads == 2);
  cores.quota = 2.1; /* a container with 2.1 processors' worth of time on 4 cores */
  p = plan(&cores, NULL, 0, 2);
  assert_true(!p.pinned && p.threads == 1);
}

static void a_batch_system_s_grant_is_shared(void **state) {
  (void)state;
  ms_cores cores = machine(16, 1);
  ms_pinning p;
  must(ms_pinning_plan(&cores, 8, NULL, 0, 2, &p));
  assert_true(!p.pinned && p.threads == 4); /* other jobs run on the rest: which cores are theirs is not known */
  must(ms_pinning_plan(&cores, 16, NULL, 0, 2, &p));
  assert_true(p.pinned && p.threads == 8);
  must(ms_pinning_plan(&cores, 8, "0-15", 0, 2, &p));
  assert_true(p.pinned && p.threads == 8);
}

static void assert_grant(int node, int rank) {
  ms_grant grant;
  must(ms_grant_read(&grant));
  assert_int_equal(grant.node, node);
  assert_int_equal(grant.rank, rank);
}

static void L2_what_batch_systems_grant_is_read(void **state) {
  (void)state;
  static const char *const names[] = {"SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK", "NCPUS", "PBS_NUM_PPN", "NSLOTS"};
  ms_grant grant;
  int threads;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
  unsetenv("OMP_NUM_THREADS");
  assert_grant(0, 0);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    setenv(names[i], "1", 1);
    assert_grant(i != 1, i == 1);
    must(ms_thread_count(1, &threads));
    assert_int_equal(threads, 1);
    unsetenv(names[i]);
  }
  setenv("SLURM_CPUS_ON_NODE", "6", 1);
  setenv("SLURM_CPUS_PER_TASK", "3", 1);
  assert_grant(6, 3);
  setenv("SLURM_CPUS_ON_NODE", "many", 1);
  assert_fails(ms_grant_read(&grant), MS_EINVAL, "SLURM_CPUS_ON_NODE");
  unsetenv("SLURM_CPUS_ON_NODE");
  unsetenv("SLURM_CPUS_PER_TASK");
}

static void a_list_is_divided_in_its_order(void **state) {
  (void)state;
  ms_cores cores = machine(8, 1);
  ms_pinning p = plan(&cores, "6,2-4", 0, 2);
  assert_true(p.pinned && p.threads == 2);
  assert_set(&p, 0, "2,6");
  assert_set(&p, 1, "3-4");
  p = plan(&cores, "1,3", 5, 2); /* more threads than cores, as it was asked for twice */
  assert_true(p.pinned && p.threads == 5);
}

static void lists_that_make_no_sense_are_refused(void **state) {
  (void)state;
  ms_pinning p;
  ms_cores cores = machine(4, 1);
  static const char *wrong[] = {"all", "1-",  "-1",  "2-1",           "1,,2", "1,",
                                ",1",  "1;2", "0x1", "1-99999999999", "5000", " 1"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    assert_fails(ms_pinning_plan(&cores, 0, wrong[i], 0, 1, &p), MS_EINVAL, "auto | none | 0-3,8");
  assert_fails(ms_pinning_plan(&cores, 0, "2-5", 0, 1, &p), MS_EINVAL, "core 4 | 0-3");
  assert_fails(ms_pinning_plan(&cores, 0, "1,0-1", 0, 1, &p), MS_EINVAL, "core 1 | twice");
  assert_fails(ms_pinning_plan(&cores, 0, "1", 0, 2, &p), MS_EINVAL, "1 core | 2 ranks");
  assert_fails(ms_pinning_plan(&cores, 0, "", 0, 2, &p), MS_EINVAL, "empty");
}

/* ---- reading the machine ---- */

static char root[] = "/tmp/moonshard-root-XXXXXX";

/* Writes a file below the test's root, with folders on the way to it. */
static void put(const char *path, const char *text) {
  char whole[512];
  snprintf(whole, sizeof whole, "%s%s", root, path);
  for (char *slash = whole + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
    *slash = '\0';
    mkdir(whole, 0777);
    *slash = '/';
  }
  FILE *file = fopen(whole, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static int with_root(void **state) {
  strcpy(root, "/tmp/moonshard-root-XXXXXX");
  assert_non_null(mkdtemp(root));
  return start_without_error(state);
}

static int without_root(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -r %s", root);
  return system(command);
}

#define ROOT_TEST(name) cmocka_unit_test_setup_teardown(name, with_root, without_root)

static void cores_are_those_of_the_mask(void **state) {
  (void)state;
  cpu_set_t set, one;
  ms_cores cores;
  assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
  ms_cores_read(root, &cores);
  assert_int_equal(cores.n, CPU_COUNT(&set));
  assert_int_equal(cores.n_physical, cores.n);
  assert_true(cores.quota == cores.n);
  int last = cores.core[cores.n - 1];
  CPU_ZERO(&one);
  CPU_SET(last, &one);
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  ms_cores_read(root, &cores);
  assert_int_equal(sched_setaffinity(0, sizeof set, &set), 0);
  assert_int_equal(cores.n, 1);
  assert_int_equal(cores.core[0], last);
  assert_int_equal(ms_cores_usable(&cores), 1);
}

static void siblings_are_next_to_each_other(void **state) {
  (void)state;
  ms_cores cores;
  ms_cores_read(root, &cores);
  for (int i = 0; i < cores.n; i++) { /* the first core is in the second package, the others are one physical core */
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_id", cores.core[i]);
    put(path, "0\n");
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id", cores.core[i]);
    put(path, i ? "0\n" : "1\n");
  }
  int first = cores.core[0];
  ms_cores_read(root, &cores);
  assert_int_equal(cores.core[cores.n - 1], first);
  assert_int_equal(cores.n_physical, cores.n > 1 ? 2 : 1);
  assert_int_equal(cores.physical[0], 0);
}

static double quota(void) {
  ms_cores cores;
  ms_cores_read(root, &cores);
  return cores.quota;
}

static void quotas_of_every_control_group_above_count(void **state) {
  (void)state;
  put("/proc/self/cgroup", "0::/a/b\n");
  double all = quota();
  put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  assert_true(quota() == all);
  put("/sys/fs/cgroup/a/cpu.max", "25000 100000\n");
  assert_true(quota() == 0.25);
  put("/sys/fs/cgroup/cpu.max", "10000 100000\n"); /* a container sees its own group as the topmost */
  assert_true(quota() == 0.1);
  put("/sys/fs/cgroup/a/b/cpu.max", "5000 100000\n");
  assert_true(quota() == 0.05);
}

static void quotas_of_the_first_version_are_read(void **state) {
  (void)state;
  put("/proc/self/cgroup", "3:cpuset:/x\n2:memory:/y\n4:cpu,cpuacct:/docker/z\n");
  put("/sys/fs/cgroup/cpu/docker/z/cpu.cfs_quota_us", "-1\n");
  put("/sys/fs/cgroup/cpu/docker/z/cpu.cfs_period_us", "100000\n");
  double all = quota();
  assert_true(all >= 1);
  put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
  put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  assert_true(quota() == 0.5);
}

/* ---- ranks ---- */

static void note_thread(void *context, int part) {
  const int rank = *(const int *)context;
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  cpu_set_t mine;
  (void)part;
  sched_getaffinity(0, sizeof mine, &mine);
  pthread_mutex_lock(&lock);
  CPU_OR(&board->team_cores[rank], &board->team_cores[rank], &mine);
  board->counted[rank]++;
  pthread_mutex_unlock(&lock);
}

static int look_around(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  int rank = ms_world_rank(world), rc = MS_OK;
  sched_getaffinity(0, sizeof board->cores[rank], &board->cores[rank]);
  if (ms_thread_count(ms_world_size(world), &board->threads[rank])) return 2;
  ms_team_run(board->threads[rank], note_thread, &rank);
  if (strcmp(getenv("LOCAL_RANK"), getenv("RANK")) || strcmp(getenv("LOCAL_WORLD_SIZE"), getenv("WORLD_SIZE")))
    rc = MS_FAIL(MS_EINTERNAL, "the local rank is not the rank");
  sigset_t mask;
  sigprocmask(SIG_BLOCK, NULL, &mask);
  if (sigismember(&mask, SIGINT) || sigismember(&mask, SIGCHLD) || sigismember(&mask, SIGTSTP))
    rc = MS_FAIL(MS_EINTERNAL, "a rank has signals blocked");
  struct sigaction pipe_action;
  if (sigaction(SIGPIPE, NULL, &pipe_action) || pipe_action.sa_handler == SIG_IGN)
    rc = MS_FAIL(MS_EINTERNAL, "a rank does not see that its reader went away");
  int fd = ms_world_fd(world);
  if (!(fcntl(fd, F_GETFD) & FD_CLOEXEC))
    rc = MS_FAIL(MS_EINTERNAL, "programs that a rank starts would get its descriptor");
  return leave(world, rc);
}

static void look(int ranks, const char *pin) {
  ms_launch_config config = {.ranks = ranks, .rank_main = look_around, .pin = pin};
  memset(board, 0, sizeof *board);
  launch_config(&config);
  assert_string_equal(result.err, "");
  assert_int_equal(result.status, 0);
  for (int rank = 0; rank < ranks; rank++) {
    assert_int_equal(board->counted[rank], board->threads[rank]);
    assert_true(CPU_EQUAL(&board->team_cores[rank], &board->cores[rank]));
  }
}

static void L5_ranks_and_their_threads_stay_on_their_cores(void **state) {
  (void)state;
  cpu_set_t all, shared;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  ms_cores cores;
  ms_cores_read("", &cores);
  unsetenv("OMP_NUM_THREADS");
  look(2, NULL);
  if (cores.n_physical >= 2 && ms_cores_usable(&cores) == cores.n) {
    CPU_AND(&shared, &board->cores[0], &board->cores[1]);
    assert_int_equal(CPU_COUNT(&shared), 0);
    assert_int_equal(CPU_COUNT(&board->cores[0]), CPU_COUNT(&board->cores[1]));
    assert_int_equal(board->threads[0], cores.n_physical / 2);
  }
  look(2, "none");
  assert_true(CPU_EQUAL(&board->cores[0], &all) && CPU_EQUAL(&board->cores[1], &all));
  setenv("OMP_NUM_THREADS", "5", 1);
  look(2, NULL);
  assert_int_equal(board->threads[1], 5);
  if (cores.n < 10) assert_true(CPU_EQUAL(&board->cores[1], &all));
  unsetenv("OMP_NUM_THREADS");
  if (cores.n >= MAX_RANKS) return;
  look(MAX_RANKS, NULL);
  assert_true(CPU_EQUAL(&board->cores[3], &all));
  assert_int_equal(board->threads[3], 1);
}

static void L5_a_list_of_cores_is_obeyed(void **state) {
  (void)state;
  ms_cores cores;
  ms_cores_read("", &cores);
  if (cores.n < 2) skip();
  char list[64];
  snprintf(list, sizeof list, "%d,%d", cores.core[1], cores.core[0]);
  unsetenv("OMP_NUM_THREADS");
  look(2, list);
  for (int rank = 0; rank < 2; rank++) {
    assert_int_equal(CPU_COUNT(&board->cores[rank]), 1);
    assert_true(CPU_ISSET(cores.core[1 - rank], &board->cores[rank]));
    assert_int_equal(board->threads[rank], 1);
  }
  ms_launch_config config = {.ranks = 2, .rank_main = look_around, .pin = "0-1023"};
  int status;
  assert_fails(ms_launch(&config, &status), MS_EINVAL, "--pin 0-1023 | core");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(ranks_get_equal_shares),
      TEST(ranks_get_whole_physical_cores_where_there_are_enough),
      TEST(no_rank_is_pinned_if_cores_are_scarce),
      TEST(a_batch_system_s_grant_is_shared),
      TEST(L2_what_batch_systems_grant_is_read),
      TEST(a_list_is_divided_in_its_order),
      TEST(lists_that_make_no_sense_are_refused),
      ROOT_TEST(cores_are_those_of_the_mask),
      ROOT_TEST(siblings_are_next_to_each_other),
      ROOT_TEST(quotas_of_every_control_group_above_count),
      ROOT_TEST(quotas_of_the_first_version_are_read),
      RUN_TEST(L5_ranks_and_their_threads_stay_on_their_cores),
      RUN_TEST(L5_a_list_of_cores_is_obeyed),
  };
  return cmocka_run_group_tests_name("launcher cores", tests, NULL, NULL);
}
