/* test_transport_choice.c - which transport a rank chooses, and what it says. */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/endpoints_ucx.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "comm/transport/choice.h"
#include "comm/transport/rdma.h"

static const ms_transport_api *api;
static char why[MS_TRANSPORT_WHY];

static int choose(const char *name) {
  setenv("MOONSHARD_TRANSPORT", name, 1);
  api = NULL;
  return ms_transport_choose(&api, why);
}

/* The first test: once loaded, UCX stays. */
static void H9_ucx_without_its_library_is_an_error(void **state) {
  (void)state;
  setenv("MOONSHARD_UCX_LIBRARY", "/nonexistent/libucp.so", 1);
  assert_fails(choose("ucx"), MS_EUNSUPPORTED,
               "MOONSHARD_TRANSPORT=ucx | /nonexistent/libucp.so | libucx0 | MOONSHARD_UCX_LIBRARY");
  unsetenv("MOONSHARD_UCX_LIBRARY");
}

static void H9_a_transport_is_chosen_by_name(void **state) {
  (void)state;
  must(choose("tcp"));
  assert_ptr_equal(api, &ms_transport_tcp);
  assert_has(why, "tcp:");
  if (!has_ucx()) return;
  must(choose("ucx"));
  assert_ptr_equal(api, &ms_transport_ucx);
  assert_has(why, "ucx:");
}

static void H9_a_transport_that_does_not_exist_is_refused(void **state) {
  (void)state;
  assert_fails(choose("udp"), MS_EINVAL, "MOONSHARD_TRANSPORT | udp | auto | tcp | ucx | mpi");
  assert_fails(choose("mpi"), MS_EUNSUPPORTED, "MOONSHARD_TRANSPORT=mpi | mpirun");
}

/* All that can be chosen, and nothing else: commands check names with it. */
static void H9_the_names_of_transports_are_told(void **state) {
  char names[MS_TRANSPORT_WHY], small[5];
  (void)state;
  must(ms_transport_describe(MS_TRANSPORT_NAMES, names, sizeof names));
  assert_string_equal(names, "auto, tcp, ucx or mpi");
  must(ms_transport_describe(MS_TRANSPORT_NAMES, small, sizeof small));
  assert_string_equal(small, "auto");
  assert_fails(ms_transport_describe(MS_TRANSPORT_NAMES + 1, names, sizeof names), MS_EINVAL, "ms_transport_fact | 3");
}

/* UCX_TLS without RDMA decides it on every machine. */
static void H9_auto_takes_tcp_without_rdma(void **state) {
  static const char *const without[] = {"tcp", "tcp,self", "self,sm,tcp", "posix,cma,tcp"};
  (void)state;
  for (int i = 0; i < 4; i++) {
    setenv("UCX_TLS", without[i], 1);
    assert_int_equal(ms_rdma_device(NULL, 0), 0);
    must(choose("auto"));
    assert_ptr_equal(api, &ms_transport_tcp);
    assert_has(why, "tcp: | RDMA");
  }
  unsetenv("MOONSHARD_TRANSPORT");
  must(ms_transport_choose(&api, why));
  assert_ptr_equal(api, &ms_transport_tcp);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H9_ucx_without_its_library_is_an_error),
      TEST(H9_a_transport_is_chosen_by_name),
      TEST(H9_a_transport_that_does_not_exist_is_refused),
      TEST(H9_the_names_of_transports_are_told),
      TEST(H9_auto_takes_tcp_without_rdma),
  };
  return cmocka_run_group_tests_name("transport, choice", tests, NULL, NULL);
}
