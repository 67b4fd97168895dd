/* test_store_resolve.c - names of hosts that no name server tells: waits for them obey deadlines and Ctrl-C.
 *
 * getaddrinfo is the one below instead of the system's: names that end in ".silent" are answered when a test lets them.
 */
#include "tests/c/support/ranks/callers.h"
#include "tests/c/support/check.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/bootstrap/store/store_wait.h"

static atomic_int asked, silent, left;

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found) {
  int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
  const char *dot = host ? strrchr(host, '.') : NULL;
  if (dot && !strcmp(dot, ".none")) return EAI_NONAME;
  if (dot && !strcmp(dot, ".silent")) {
    atomic_fetch_add(&asked, 1);
    while (atomic_load(&silent)) usleep(1000);
    atomic_fetch_add(&left, 1);
    host = "127.0.0.1";
  }
  *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
  return real(host, port, hints, found);
}

/* The thread that was left to itself comes to its end, and nothing is lost with it: the sanitizers would tell. */
static void let_answer(void) {
  atomic_store(&silent, 0);
  for (int i = 0; i < 5000 && atomic_load(&left) < atomic_load(&asked); i++) usleep(1000);
  assert_int_equal(atomic_load(&left), atomic_load(&asked));
  usleep(20000);
}

static void L3_a_name_server_that_is_silent_ends_with_the_deadline(void **state) {
  (void)state;
  caller one;
  atomic_store(&silent, 1);
  prepare_caller(&one, find_port(), 1, 2);
  must(ms_store_place_tcp("host0.silent", one.place.port, &one.place));
  one.config.timeout = 0.4;
  start_caller(&one);
  assert_caller_fails(&one, MS_ETIMEOUT, "rank 0 of 2 | 0.4 s | host0.silent: | name server");
  assert_true(one.seconds >= 0.4 && one.seconds < 10);
  let_answer();
}

static void L3_a_name_is_found_when_its_answer_comes(void **state) {
  (void)state;
  caller ranks[2];
  int port = find_port();
  atomic_store(&silent, 1);
  prepare_caller(&ranks[0], port, 0, 2);
  prepare_caller(&ranks[1], port, 1, 2);
  must(ms_store_place_tcp("host0.silent", port, &ranks[1].place));
  int before = atomic_load(&asked);
  start_caller(&ranks[0]);
  start_caller(&ranks[1]);
  for (int i = 0; i < 5000 && atomic_load(&asked) == before; i++) usleep(1000);
  let_answer();
  meet_and_close(ranks, 2);
}

static void L3_a_name_that_nobody_has_is_told(void **state) {
  (void)state;
  struct addrinfo *found;
  char why[256] = "";
  must(ms_resolve("host0.none", 1234, ms_clock() + 5, &found, why, sizeof why));
  assert_null(found);
  assert_string_equal(why, "host0.none: Name or service not known");
  must(ms_resolve("::1", 1234, ms_clock() + 5, &found, why, sizeof why));
  assert_non_null(found);
  freeaddrinfo(found);
}

static void L3_ctrl_c_ends_the_wait_for_a_name(void **state) {
  (void)state;
  struct addrinfo *found;
  char why[256];
  atomic_store(&silent, 1);
  double began = ms_clock();
  ms_interrupt_set(1);
  assert_fails(ms_resolve("host0.silent", 1234, ms_clock() + 60, &found, why, sizeof why), MS_EINTERRUPT,
               "interrupted");
  ms_interrupt_set(0);
  assert_null(found);
  assert_true(ms_clock() - began < 30);
  let_answer();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(L3_a_name_server_that_is_silent_ends_with_the_deadline),
      TEST(L3_a_name_is_found_when_its_answer_comes),
      TEST(L3_a_name_that_nobody_has_is_told),
      TEST(L3_ctrl_c_ends_the_wait_for_a_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
