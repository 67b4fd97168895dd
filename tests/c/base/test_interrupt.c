/* test_interrupt.c - Ctrl-C and SIGTERM set a flag first, and end the process when they come again. */
#include "base/clock.h"
#include "base/interrupt.h"
#include "tests/c/support/check.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void L7_an_interrupt_sets_a_flag_and_a_second_one_ends(void **state) {
  (void)state;
  ms_interrupt_install();
  assert_int_equal(ms_interrupted(), 0);
  raise(SIGINT);
  assert_int_equal(ms_interrupted(), 1);
  assert_int_equal(ms_interrupted(), 1);
  ms_interrupt_install();
  assert_int_equal(ms_interrupted(), 0);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    raise(SIGINT);
    raise(SIGINT);
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
  signal(SIGINT, SIG_DFL);
}

/* Whether it is caught may be up to a word that others set, and that may go. */
static void L7_termination_is_caught_while_a_word_is_set(void **state) {
  (void)state;
  enum { UNSET, SET, FORGOTTEN, CASES };
  for (int c = 0; c < CASES; c++) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
      static _Atomic uint32_t word;
      ms_termination_catch(&word);
      atomic_store(&word, c != UNSET);
      if (c == FORGOTTEN) ms_termination_forget(&word);
      raise(SIGTERM);
      _exit(ms_terminated() ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (c == SET) assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    else assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  }
}

/* One that comes again at once came by another way; later it is a request of its own. */
static void L7_termination_sets_a_flag_and_a_second_one_ends(void **state) {
  (void)state;
  assert_int_equal(ms_terminated(), 0);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    ms_wait_scale = 0.1;
    ms_termination_catch(NULL);
    raise(SIGTERM);
    raise(SIGTERM);
    if (!ms_terminated()) _exit(1);
    usleep((useconds_t)(1.1e6 * ms_wait_scale * MS_SAME_REQUEST));
    raise(SIGTERM);
    _exit(2);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(L7_an_interrupt_sets_a_flag_and_a_second_one_ends),
      TEST(L7_termination_is_caught_while_a_word_is_set),
      TEST(L7_termination_sets_a_flag_and_a_second_one_ends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
