/* test_token.c - the job's secret: where it comes from, what is refused, and that nobody sees it. Each test is a process of
** its own, since a process keeps its token.
*/
#include "tests/c/support/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/token.h"

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
  int open_to_others = ms_token_get(&token) == MS_EINVAL && strstr(ms_error_message(), "chmod 600");
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
  snprintf(pipe, sizeof pipe, "/tmp/moonshard-token-%d", (int)getpid()); /* nobody will ever write to it */
  set_variables(NULL, "/nowhere");
  NEED(ms_token_get(&token) == MS_EINVAL && strstr(ms_error_message(), "/nowhere: No such file"));
  ms_error_clear();
  NEED(!mkfifo(pipe, 0600));
  set_variables(NULL, pipe);
  int status = ms_token_get(&token);
  unlink(pipe);
  NEED(status == MS_EINVAL && strstr(ms_error_message(), "no regular file"));
  ms_error_clear();
  set_variables("0123456789abcdef", "/nowhere");
  NEED(ms_token_get(&token) == MS_EINVAL && strstr(ms_error_message(), "both set"));
  ms_error_clear();
  set_variables("short", NULL);
  NEED(ms_token_get(&token) == MS_EINVAL && strstr(ms_error_message(), "16 to 256 characters, this one 5"));
  NEED(!strstr(ms_error_message(), "short"));
  return 0;
}

static void L3_a_token_is_kept_out_of_sight(void **state) {
  (void)state;
  in_a_process(erase_from_environment);
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
  assert_fails(ms_token_check(&place, ""), MS_EINVAL,
               "the environment variable MOONSHARD_TOKEN (`openssl rand -hex 16`");
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
