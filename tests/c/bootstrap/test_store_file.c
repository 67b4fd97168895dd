/* test_store_file.c - ranks of a host that find each other through a file; and every file that does
 * not lead anywhere. */
#include "tests/c/support/ranks/callers.h"
#include "tests/c/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/bootstrap/store/store_file.h"

static caller ranks[4];
static char folder[64], path[128];

static int make_folder(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/moonshard-test-XXXXXX");
  if (!mkdtemp(folder)) return -1;
  snprintf(path, sizeof path, "%s/meet", folder);
  return start_without_error(state);
}

/* Whatever happened, nothing is left. */
static int remove_folder(void **state) {
  (void)state;
  unlink(path);
  return rmdir(folder);
}

#define FILE_TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

static void write_text(const char *text) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static void prepare_by_file(caller *one, int rank, int size) {
  char url[160];
  prepare_caller(one, 1, rank, size);
  snprintf(url, sizeof url, "file://%s", path);
  assert_int_equal(ms_store_place_parse(url, &one->place), MS_OK);
}

static void L1_ranks_meet_by_a_file_that_is_gone_then(void **state) {
  (void)state;
  for (int rank = 3; rank >= 0; rank--) {
    prepare_by_file(&ranks[rank], rank, 4);
    start_caller(&ranks[rank]);
  }
  for (int rank = 0; rank < 4; rank++) join_caller(&ranks[rank]);
  assert_gathered(ranks, 4);
  assert_int_equal(access(path, F_OK), -1);
  close_callers(ranks, 4);
}

static void L3_the_file_is_private_and_goes_with_a_failure_too(void **state) {
  (void)state;
  struct stat info = {0};
  prepare_by_file(&ranks[0], 0, 2);
  ranks[0].config.timeout = 1;
  start_caller(&ranks[0]);
  for (int i = 0; i < 20000 && stat(path, &info); i++) usleep(1000);
  assert_int_equal(info.st_mode & 0777, 0600);
  join_caller(&ranks[0]);
  assert_int_equal(ranks[0].status, MS_ETIMEOUT);
  assert_has(ranks[0].message, "rank 1 of 2 | 1 s");
  assert_int_equal(access(path, F_OK), -1);
}

static void fail_by_file(int rank, int status, const char *facts) {
  prepare_by_file(&ranks[rank], rank, 2);
  start_caller(&ranks[rank]);
  join_caller(&ranks[rank]);
  assert_int_equal(ranks[rank].status, status);
  assert_has(ranks[rank].message, facts);
  assert_has(ranks[rank].message, path);
}

/* What a rank 0 of this process writes, with one thing changed. */
static void write_changed(const char *from, const char *to) {
  char text[2048], changed[4096];
  ms_store_place socket;
  ms_store_place_local("test", "test", &socket);
  assert_int_equal(ms_store_file_write(path, "test", 2, &socket), MS_OK);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  text[fread(text, 1, sizeof text - 1, file)] = '\0';
  fclose(file);
  char *at = strstr(text, from);
  assert_non_null(at);
  snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  write_text(changed);
}

static void L3_a_stale_file_is_told(void **state) {
  (void)state;
  pid_t gone = fork();
  if (gone == 0) {
    ms_store_place socket;
    ms_store_place_local("test", "test", &socket);
    _exit(ms_store_file_write(path, "test", 2, &socket));
  }
  waitpid(gone, NULL, 0);
  fail_by_file(1, MS_EMISMATCH, "stale | process");
  fail_by_file(0, MS_EIO, "already | killed");
}

static void L3_a_partial_or_foreign_file_is_told(void **state) {
  (void)state;
  write_changed("\nend\n", "");
  fail_by_file(1, MS_EMISMATCH, "announcement");
  fail_by_file(0, MS_EIO, "already");
  write_text("");
  fail_by_file(1, MS_EMISMATCH, "announcement | rank 0 | 0 bytes");
  write_text("my diary\nend\n");
  fail_by_file(1, MS_EMISMATCH, "announcement");
  unlink(path);
  write_changed("\nsocket ", "\n");
  fail_by_file(1, MS_EMISMATCH, "announcement");
}

static void L3_a_file_of_another_run_is_told(void **state) {
  (void)state;
  static const struct {
    const char *from, *to, *facts;
  } changes[] = {{"rendezvous 2", "rendezvous 3", "version 3 | 2"},
                 {"job test", "job other", "\"other\" | \"test\""},
                 {"ranks 2", "ranks 3", "rank 0 | 3 ranks | 2"}};
  for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
    write_changed(changes[i].from, changes[i].to);
    fail_by_file(1, MS_EMISMATCH, changes[i].facts);
    unlink(path);
  }
  setenv("MOONSHARD_NODE", "7", 1);
  write_changed("end", "end");
  unsetenv("MOONSHARD_NODE");
  fail_by_file(1, MS_EMISMATCH, "rank 0 | host");
}

static void L3_a_file_in_use_is_told(void **state) {
  (void)state;
  write_changed("end", "end");
  fail_by_file(0, MS_EIO, "run | job \"test\" | process");
}

static void L4_a_file_that_nobody_writes_is_told(void **state) {
  (void)state;
  prepare_by_file(&ranks[1], 1, 2);
  ranks[1].config.timeout = 0.2;
  start_caller(&ranks[1]);
  join_caller(&ranks[1]);
  assert_int_equal(ranks[1].status, MS_ETIMEOUT);
  assert_has(ranks[1].message, "rank 0 | written");
  snprintf(path, sizeof path, "%s/nowhere/meet", folder);
  fail_by_file(0, MS_EIO, "rank 0 | create | No such file");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      FILE_TEST(L1_ranks_meet_by_a_file_that_is_gone_then),
      FILE_TEST(L3_the_file_is_private_and_goes_with_a_failure_too),
      FILE_TEST(L3_a_stale_file_is_told),
      FILE_TEST(L3_a_partial_or_foreign_file_is_told),
      FILE_TEST(L3_a_file_of_another_run_is_told),
      FILE_TEST(L3_a_file_in_use_is_told),
      FILE_TEST(L4_a_file_that_nobody_writes_is_told),
  };
  return cmocka_run_group_tests_name("store, by a file", tests, NULL, NULL);
}
