/* test_launcher_output.c - log files of ranks, and what rank 0 finds where its output goes. */
#include "tests/c/support/ranks/launched.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

static char folder[] = "/tmp/moonshard-log-XXXXXX";
static char log_text[OUTPUT_BYTES];

static const char *path_of(int rank) {
  static char path[128];
  snprintf(path, sizeof path, "%s/rank-%d.log", folder, rank);
  return path;
}

static const char *read_log(int rank) {
  FILE *file = fopen(path_of(rank), "r");
  assert_non_null(file);
  log_text[fread(log_text, 1, sizeof log_text - 1, file)] = '\0';
  fclose(file);
  return log_text;
}

static int with_folder(void **state) {
  strcpy(folder, "/tmp/moonshard-log-XXXXXX");
  assert_non_null(mkdtemp(folder));
  return with_board(state);
}

static int without_folder(void **state) {
  for (int rank = 0; rank < MAX_RANKS; rank++) unlink(path_of(rank));
  assert_int_equal(rmdir(folder), 0); /* and so there is nothing else in it */
  return without_board(state);
}

#define LOG_TEST(name) cmocka_unit_test_setup_teardown(name, with_folder, without_folder)

static int print_some(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  int rank = ms_world_rank(world);
  printf("rank %d of %d\nunfinished", rank, ms_world_size(world));
  fprintf(stderr, "warning of rank %d\n", rank);
  return leave(world, ms_world_barrier(world));
}

/* "2026-03-01T12:00:00.123Z out  text\n" */
static void assert_logged(int rank, const char *stream, const char *text) {
  char part[256];
  int year, month, day, hour, minute;
  double second;
  snprintf(part, sizeof part, " %s  %s\n", stream, text);
  assert_has(read_log(rank), part);
  assert_int_equal(sscanf(log_text, "%d-%d-%dT%d:%d:%lfZ ", &year, &month, &day, &hour, &minute, &second), 6);
  assert_true(year > 2020 && month <= 12 && day <= 31 && hour < 24 && minute < 60 && second < 61);
}

static void L5_log_files_get_every_ranks_lines(void **state) {
  (void)state;
  ms_launch_config config = {.ranks = 3, .rank_main = print_some, .log_dir = folder};
  launch_config(&config);
  assert_int_equal(result.status, 0);
  assert_string_equal(result.out, "rank 0 of 3\nunfinished");
  assert_string_equal(result.err, "warning of rank 0\n");
  for (int rank = 0; rank < 3; rank++) {
    char text[64];
    snprintf(text, sizeof text, "rank %d of 3", rank);
    assert_logged(rank, "out", text);
    assert_logged(rank, "out", "unfinished");
    snprintf(text, sizeof text, "warning of rank %d", rank);
    assert_logged(rank, "err", text);
    assert_int_equal(count_lines(read_log(rank)), 3);
  }
}

static void L5_log_files_and_prefixes_go_together(void **state) {
  (void)state;
  ms_launch_config config = {.ranks = 2, .rank_main = print_some, .log_dir = folder, .log_all = 1};
  launch_config(&config);
  assert_int_equal(count_lines(result.out), 4);
  assert_has(result.out, "[rank 1] rank 1 of 2\n");
  assert_has(result.err, "[rank 0] warning of rank 0\n");
  assert_logged(1, "out", "rank 1 of 2");
}

static int print_long_lines(void *context) {
  (void)context;
  ms_world *world;
  if (join(&world)) return 2;
  for (int i = 0; i < 3000; i++) printf("%05d %*s\n", i, i % 97, "x");
  for (int i = 0; i < 40000; i++) putchar('y');
  fprintf(stderr, "step 1\rstep 2\rstep 3\33[K\n");
  return leave(world, ms_world_barrier(world));
}

static void long_lines_are_cut_and_redrawn_ones_written_once(void **state) {
  (void)state;
  ms_launch_config config = {.ranks = 2, .rank_main = print_long_lines, .log_dir = folder};
  launch_config(&config);
  assert_int_equal(result.status, 0);
  FILE *file = fopen(path_of(1), "r");
  assert_non_null(file);
  static char line[OUTPUT_BYTES];
  int numbered = 0, letters = 0;
  while (fgets(line, sizeof line, file)) {
    const char *text = strstr(line, "out  ");
    if (text && text[5] == 'y') letters += (int)strcspn(text + 5, "\n");
    else if (text) assert_int_equal(atoi(text + 5), numbered++);
    else assert_has(line, "err  step 3\n");
  }
  fclose(file);
  assert_int_equal(numbered, 3000);
  assert_int_equal(letters, 40000);
}

static void a_log_file_that_cannot_be_opened_stops_the_run_before_it_starts(void **state) {
  (void)state;
  int status;
  ms_launch_config config = {.ranks = 2, .rank_main = print_some, .log_dir = "/proc/nowhere"};
  assert_fails(ms_launch(&config, &status), MS_EIO, "/proc/nowhere/rank-0.log | No such file");
}

/* ---- rank 0 at a terminal ---- */

static int look_at_the_terminal(void *context) {
  (void)context;
  ms_world *world;
  struct winsize size = {0};
  if (join(&world)) return 2;
  ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
  printf("terminal %d, columns %d\n", isatty(STDOUT_FILENO), size.ws_col);
  printf("drawn\rredrawn\33[K");
  fflush(stdout);
  return leave(world, ms_world_barrier(world));
}

static void L5_rank_0_keeps_its_terminal_with_log_files(void **state) {
  (void)state;
  ms_launch_config config = {.ranks = 2, .rank_main = look_at_the_terminal, .log_dir = folder};
  int screen;
  pid_t pid = start_at_terminal(&config, 93, &screen);
  finish_at_terminal(pid, screen, ms_clock());
  assert_int_equal(result.status, 0);
  assert_has(result.out, "terminal 1, columns 93\r\n");
  assert_has(result.out, "drawn\rredrawn\33[K");
  assert_logged(0, "out", "terminal 1, columns 93");
  assert_logged(0, "out", "redrawn");
  assert_logged(1, "out", "terminal 0, columns 0");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      LOG_TEST(L5_log_files_get_every_ranks_lines),
      LOG_TEST(L5_log_files_and_prefixes_go_together),
      LOG_TEST(long_lines_are_cut_and_redrawn_ones_written_once),
      LOG_TEST(a_log_file_that_cannot_be_opened_stops_the_run_before_it_starts),
      LOG_TEST(L5_rank_0_keeps_its_terminal_with_log_files),
  };
  return cmocka_run_group_tests_name("launcher output", tests, NULL, NULL);
}
