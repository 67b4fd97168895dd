/* test_token.c - the job's secret: where it comes from, what is refused, and that no one else sees it. Each test is a
 * process of its own, since a process keeps its token.
 */
#include "tests/c/support/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/bootstrap/token.h"

static void set_variable(const char *name, const char *value) {
  if (value) setenv(name, value, 1);
  else unsetenv(name);
}

static void set_variables(const char *token, const char *file) {
  set_variable("MOONSHARD_TOKEN", token);
  set_variable("MOONSHARD_TOKEN_FILE", file);
}

static void in_a_process(int (*body)(void)) {
  int status;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    ms_error_clear();
    int line = body();
    if (line) fprintf(stderr, "test_token.c:%d: %s\n", line, ms_error_message());
    _exit(line != 0);
  }
  waitpid(pid, &status, 0);
  assert_int_equal(status, 0);
}

#define NEED(condition) \
  if (!(condition)) return __LINE__

static int erase_from_environment(void) {
  const char *token;
  char block[65536];
  setenv("MOONSHARD_TOKEN", "0123456789abcdef-secret", 1);
  char *there = getenv("MOONSHARD_TOKEN");
  NEED(!ms_token_get(&token) && !strcmp(token, "0123456789abcdef-secret"));
  NEED(!getenv("MOONSHARD_TOKEN") && *there == 'x');
  NEED(!ms_token_get(&token) && !strcmp(token, "0123456789abcdef-secret"));
  int fd = open("/proc/self/environ", O_RDONLY);
  ssize_t n = read(fd, block, sizeof block - 1);
  close(fd);
  NEED(n >= 0 && !memmem(block, (size_t)n, "-secret", 7));
  return 0;
}

static int make_random(void) {
  const char *token;
  char first[64];
  set_variables(NULL, NULL);
  NEED(!ms_token_get(&token) && !*token);
  NEED(!ms_token_make() && !ms_token_get(&token) && strlen(token) == 32);
  snprintf(first, sizeof first, "%s", token);
  NEED(!ms_token_make() && !ms_token_get(&token) && !strcmp(token, first));
  return 0;
}

static int read_from_file(void) {
  const char *token;
  char path[] = "/tmp/moonshard-token-XXXXXX";
  int fd = mkstemp(path);
  NEED(fd >= 0 && write(fd, "a secret of enough bytes\n", 25) == 25);
  set_variables(NULL, path);
  fchmod(fd, 0640);
  int open_to_others = ms_token_get(&token) == MS_EINVAL && !message_lacks(ms_error_message(), "chmod 600");
  ms_error_clear();
  fchmod(fd, 0600);
  int read_well = !ms_token_get(&token) && !strcmp(token, "a secret of enough bytes");
  close(fd);
  unlink(path);
  NEED(open_to_others);
  NEED(read_well);
  return 0;
}

static int refuse_what_is_none(void) {
  const char *token;
  char pipe[64];
  snprintf(pipe, sizeof pipe, "/tmp/moonshard-token-%d", (int)getpid()); /* it is never written to */
  set_variables(NULL, "/proc/nowhere");
  NEED(ms_token_get(&token) == MS_EINVAL && !message_lacks(ms_error_message(), "/proc/nowhere: | No such file"));
  ms_error_clear();
  NEED(!mkfifo(pipe, 0600));
  set_variables(NULL, pipe);
  int status = ms_token_get(&token);
  unlink(pipe);
  NEED(status == MS_EINVAL && !message_lacks(ms_error_message(), "regular file"));
  ms_error_clear();
  set_variables("0123456789abcdef", "/proc/nowhere");
  NEED(ms_token_get(&token) == MS_EINVAL &&
       !message_lacks(ms_error_message(), "MOONSHARD_TOKEN | MOONSHARD_TOKEN_FILE | both"));
  ms_error_clear();
  set_variables("short", NULL);
  NEED(ms_token_get(&token) == MS_EINVAL && !message_lacks(ms_error_message(), "16 to 256 | 5"));
  NEED(!strstr(ms_error_message(), "short"));
  return 0;
}

/* 1 when the mapping that holds an address is left out of core dumps ("dd" of /proc/self/smaps). */
static int is_left_out_of_dumps(const void *address) {
  char line[1024];
  unsigned long begin, end;
  int inside = 0, left_out = 0;
  FILE *maps = fopen("/proc/self/smaps", "r");
  while (maps && fgets(line, sizeof line, maps)) {
    if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
      inside = begin <= (unsigned long)address && (unsigned long)address < end;
    if (inside && !strncmp(line, "VmFlags:", 8)) left_out = strstr(line, " dd") != NULL;
  }
  if (maps) fclose(maps);
  return left_out;
}

static int leave_out_of_dumps(void) {
  const char *token;
  set_variables("0123456789abcdef-secret", NULL);
  NEED(!ms_token_get(&token) && is_left_out_of_dumps(token));
  NEED(!is_left_out_of_dumps(&token));
  return 0;
}

/* Larger mappings are a sanitizer's notes on this memory, and mostly not there. */
enum { LARGEST_MAPPING = 1 << 30 };

/* How often a text is in the writable memory of this process, whatever a sanitizer thinks of its bytes. */
__attribute__((no_sanitize("address"))) static int count_in_memory(const char *text, size_t bytes) {
  char line[1024], mode[8];
  unsigned long begin, end;
  int found = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps)) {
    if (sscanf(line, "%lx-%lx %7s", &begin, &end, mode) != 3 || strncmp(mode, "rw", 2)) continue;
    if (end - begin > LARGEST_MAPPING) continue;
    for (const char *at = (const char *)begin; at + bytes <= (const char *)end; at++) {
      size_t same = 0;
      while (same < bytes && at[same] == text[same]) same++;
      found += same == bytes;
    }
  }
  if (maps) fclose(maps);
  return found;
}

/* The token is put together here, so that this program's own text of it does not count. */
static int leave_one_copy(void) {
  const char *token;
  char path[] = "/tmp/moonshard-token-XXXXXX", file[64];
  int fd = mkstemp(path), halves = 0;
  NEED(fd >= 0);
  for (int i = 0; i < 32; i++) halves += write(fd, i % 2 ? "q" : "Z", 1) == 1;
  fchmod(fd, 0600);
  close(fd);
  snprintf(file, sizeof file, "%s", path);
  set_variables(NULL, file);
  int rc = ms_token_get(&token);
  unlink(path);
  NEED(halves == 32 && !rc && strlen(token) == 32);
  NEED(count_in_memory(token, 32) == 1);
  return 0;
}

static void L3_a_token_is_kept_out_of_sight(void **state) {
  (void)state;
  in_a_process(erase_from_environment);
  in_a_process(leave_out_of_dumps);
#ifdef __SANITIZE_THREAD__
  (void)leave_one_copy; /* it reads freed memory, which the sanitizer reports */
#else
  in_a_process(leave_one_copy);
#endif
}

static void L3_tokens_come_from_a_file_or_are_made(void **state) {
  (void)state;
  in_a_process(make_random);
  in_a_process(read_from_file);
}

static void L3_tokens_that_make_no_sense_are_refused(void **state) {
  (void)state;
  in_a_process(refuse_what_is_none);
}

static void L3_between_hosts_a_token_is_needed(void **state) {
  (void)state;
  ms_store_place place;
  assert_int_equal(ms_store_place_parse("tcp://10.0.0.1:1", &place), MS_OK);
  assert_fails(ms_token_check(&place, ""), MS_EINVAL, "MOONSHARD_TOKEN | openssl rand -hex 16");
  assert_int_equal(ms_token_check(&place, "given"), MS_OK);
  assert_int_equal(ms_store_place_parse("tcp://127.0.0.1:1", &place), MS_OK);
  assert_int_equal(ms_token_check(&place, ""), MS_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(L3_a_token_is_kept_out_of_sight),
      TEST(L3_tokens_come_from_a_file_or_are_made),
      TEST(L3_tokens_that_make_no_sense_are_refused),
      TEST(L3_between_hosts_a_token_is_needed),
  };
  return cmocka_run_group_tests_name("token", tests, NULL, NULL);
}
