/* test_machine_memory.c - the memory that control groups of both versions leave, read below a folder in place of /. */
#include "tests/c/support/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/machine/machine_memory.h"

static char root[] = "/tmp/moonshard-memory-XXXXXX";

static int make_root(void **state) {
  (void)state;
  strcpy(root + strlen(root) - 6, "XXXXXX");
  return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  return system(command);
}

static void put(const char *path, const char *text) {
  char whole[512];
  snprintf(whole, sizeof whole, "%s%s", root, path);
  for (char *slash = strchr(whole + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    mkdir(whole, 0777);
    *slash = '/';
  }
  FILE *file = fopen(whole, "w");
  assert_non_null(file);
  fputs(text, file);
  assert_int_equal(fclose(file), 0);
}

static void assert_memory(int64_t total, int64_t available, int64_t limit, const char *file) {
  char whole[512];
  ms_machine_memory memory;
  ms_machine_memory_read(root, &memory);
  assert_int_equal(memory.total, total);
  assert_int_equal(memory.available, available);
  assert_int_equal(memory.limit, limit);
  snprintf(whole, sizeof whole, "%s%s", *file ? root : "", file);
  assert_string_equal(memory.limit_file, whole);
}

static const char MACHINE[] = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    800 kB\n";
static const int64_t TOTAL = 1024000, AVAILABLE = 819200;

static void what_is_not_there_is_unknown(void **state) {
  (void)state;
  assert_memory(-1, -1, -1, "");
  put("/proc/meminfo", MACHINE);
  assert_memory(TOTAL, AVAILABLE, -1, "");
  put("/proc/self/cgroup", "0::/gone\n");
  assert_memory(TOTAL, AVAILABLE, -1, "");
}

static void the_group_of_the_second_version_that_leaves_the_least_counts(void **state) {
  (void)state;
  put("/proc/meminfo", MACHINE);
  put("/proc/self/cgroup", "0::/a/b\n");
  put("/sys/fs/cgroup/a/b/memory.max", "max\n");
  put("/sys/fs/cgroup/a/b/memory.current", "100\n");
  assert_memory(TOTAL, AVAILABLE, -1, "");
  put("/sys/fs/cgroup/a/memory.max", "500000\n"); /* above the process's own group */
  put("/sys/fs/cgroup/a/memory.current", "300000\n");
  assert_memory(TOTAL, 200000, 500000, "/sys/fs/cgroup/a/memory.max");
  put("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 40000\nactive_file 10000\nslab 7\n");
  assert_memory(TOTAL, 250000, 500000, "/sys/fs/cgroup/a/memory.max");
  put("/sys/fs/cgroup/a/b/memory.max", "600000\n"); /* a higher limit, but less is left */
  put("/sys/fs/cgroup/a/b/memory.current", "599000\n");
  assert_memory(TOTAL, 1000, 600000, "/sys/fs/cgroup/a/b/memory.max");
  put("/sys/fs/cgroup/a/b/memory.current", "700000\n"); /* over its limit for a moment */
  assert_memory(TOTAL, 0, 600000, "/sys/fs/cgroup/a/b/memory.max");
}

static void a_container_sees_its_own_group_as_the_topmost(void **state) {
  (void)state;
  put("/proc/meminfo", MACHINE);
  put("/proc/self/cgroup", "0::/docker/0123\n");
  put("/sys/fs/cgroup/memory.max", "400000\n");
  put("/sys/fs/cgroup/memory.current", "100000\n");
  assert_memory(TOTAL, 300000, 400000, "/sys/fs/cgroup/memory.max");
}

static void limits_of_the_first_version_are_read(void **state) {
  (void)state;
  put("/proc/meminfo", MACHINE);
  put("/proc/self/cgroup", "4:cpu,cpuacct:/x\n3:memory:/job/step\n0::/\n");
  put("/sys/fs/cgroup/memory/job/step/memory.limit_in_bytes", "9223372036854771712\n"); /* no limit */
  put("/sys/fs/cgroup/memory/job/step/memory.usage_in_bytes", "1000\n");
  assert_memory(TOTAL, AVAILABLE, -1, "");
  put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "200000\n");
  put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "150000\n");
  put("/sys/fs/cgroup/memory/job/memory.stat", "active_file 1\ntotal_inactive_file 20000\ntotal_active_file 5000\n");
  assert_memory(TOTAL, 75000, 200000, "/sys/fs/cgroup/memory/job/memory.limit_in_bytes");
}

static void the_machine_can_have_less_than_a_group_leaves(void **state) {
  (void)state;
  put("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 1 kB\n");
  put("/proc/self/cgroup", "0::/\n");
  put("/sys/fs/cgroup/memory.max", "500000\n");
  put("/sys/fs/cgroup/memory.current", "0\n");
  assert_memory(TOTAL, 1024, 500000, "/sys/fs/cgroup/memory.max");
}

static void the_host_is_the_only_device_of_its_kind(void **state) {
  (void)state;
  ms_device_info host;
  int count;
  char version[8];
  must(ms_device_count(MS_DEVICE_CPU, &count));
  assert_int_equal(count, 1);
  must(ms_device_check(MS_DEVICE_CPU, 0));
  must(ms_device_describe(MS_DEVICE_CPU, 0, &host, sizeof host));
  assert_true(host.memory_bytes > 0 && host.available > 0 && host.available <= host.memory_bytes);
  assert_true((host.limit < 0) == !*host.limit_file);
  assert_true(host.processors >= 1 && !host.major && !strchr(host.name, '\n'));
  assert_fails(ms_device_describe(MS_DEVICE_CPU, 1, &host, sizeof host), MS_EINVAL, "device 1 | the host");
  assert_fails(ms_device_check(MS_DEVICE_CPU, 1), MS_EINVAL, "device 1 | the host");
  assert_fails(ms_device_library(MS_DEVICE_CPU, MS_LIBRARY_NCCL, version, sizeof version), MS_EINVAL,
               "cpu | libraries");
}

#define ROOT_TEST(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

int main(void) {
  const struct CMUnitTest tests[] = {
      ROOT_TEST(what_is_not_there_is_unknown),
      ROOT_TEST(the_group_of_the_second_version_that_leaves_the_least_counts),
      ROOT_TEST(a_container_sees_its_own_group_as_the_topmost),
      ROOT_TEST(limits_of_the_first_version_are_read),
      ROOT_TEST(the_machine_can_have_less_than_a_group_leaves),
      TEST(the_host_is_the_only_device_of_its_kind),
  };
  return cmocka_run_group_tests_name("machine memory", tests, NULL, NULL);
}
