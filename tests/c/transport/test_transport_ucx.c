/* test_transport_ucx.c - what only the transport ucx does: hellos and proofs, sessions, addresses, its settings. */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/endpoints.h"
#include "tests/c/support/ranks/endpoints_ucx.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"

static ends all;

/* Opens and connects two ranks, of which rank 1 was changed; both must name the other for it. */
static void expect_apart(const char *facts) {
  for (int rank = 0; rank < 2; rank++) open_end(&all, rank);
  for (int rank = 0; rank < 2; rank++) connect_end(&all, rank);
  for (int rank = 0; rank < 2; rank++) {
    turn_until(&all, &all.of[rank].failures, 1);
    assert_int_equal(all.of[rank].failed_peer, !rank);
    assert_has(all.of[rank].why, facts);
    assert_int_equal(ends_api->connected(all.of[rank].endpoint), 0);
  }
  close_ends(&all);
}

static void prepare_two(void) {
  all = (ends){.n = 2};
  for (int rank = 0; rank < 2; rank++) {
    prepare_end(&all.of[rank], rank, 2);
    all.of[rank].config.timeout = 0.5;
  }
}

static void H6_a_peer_without_the_token_moves_nothing(void **state) {
  (void)state;
  prepare_two();
  all.of[1].config.token = "another";
  expect_apart("0.5 s | token | MOONSHARD_TOKEN");
}

static void H6_a_peer_of_another_job_or_world_moves_nothing(void **state) {
  (void)state;
  prepare_two();
  all.of[1].config.job = "other";
  expect_apart("0.5 s | job");
  prepare_two();
  all.of[1].config.size = 3;
  expect_apart("0.5 s | world | 3");
}

/* They come from anybody who can reach the port. */
static void H6_messages_without_the_session_are_dropped(void **state) {
  static const uint8_t zeros[64];
  uint8_t out[64], in[64] = {0};
  (void)state;
  open_ends(&all, 2, 20);
  memset(out, 7, sizeof out);
  ms_transfer sends = send_to(1, 1, out, 64), receives = receive_from(0, 1, in, 64);
  post_at(&all, 1, &receives);
  turn_for(&all, 0.05); /* the credit */
  ucx_forge(all.of[0].endpoint);
  post_at(&all, 0, &sends);
  turn_for(&all, 0.3);
  assert_int_equal(receives.state, MS_TRANSFER_POSTED);
  assert_memory_equal(in, zeros, sizeof in);
  assert_int_equal(all.of[1].failures, 0);
  close_ends(&all);
}

static void H6_ucx_needs_a_token(void **state) {
  (void)state;
  prepare_two();
  all.of[0].config.token = "";
  assert_fails(ends_api->open(&all.of[0].config, &all.of[0].endpoint), MS_EINVAL, "ucx | token | MOONSHARD_TOKEN");
  assert_null(all.of[0].endpoint);
}

static void H6_an_address_of_another_transport_is_refused(void **state) {
  uint8_t address[MS_TRANSPORT_ADDRESS];
  int peer = 1;
  (void)state;
  prepare_two();
  open_end(&all, 0);
  all.n = 1;
  memset(address, 0x40, sizeof address);
  assert_fails(ends_api->connect(all.of[0].endpoint, 1, &peer, address), MS_EINVAL, "rank 1 | transport ucx");
  memcpy(address, all.addresses[0], sizeof address);
  address[5] = 0xff; /* longer than an address */
  all.of[0].failures = 0;
  close_ends(&all);
  open_end(&all, 0);
  assert_fails(ends_api->connect(all.of[0].endpoint, 1, &peer, address), MS_EINVAL, "rank 1 | transport ucx");
  close_ends(&all);
}

static void H4_settings_of_interface_and_ports_are_used(void **state) {
  (void)state;
  setenv("MOONSHARD_INTERFACE", "127.0.0.0/8", 1);
  setenv("MOONSHARD_PORTS", "30100-30163", 1);
  open_ends(&all, 2, 20);
  close_ends(&all);
  setenv("MOONSHARD_PORTS", "30000", 1);
  prepare_two();
  assert_fails(ends_api->open(&all.of[0].config, &all.of[0].endpoint), MS_EINVAL, "MOONSHARD_PORTS | first-last");
  unsetenv("MOONSHARD_PORTS");
  setenv("MOONSHARD_INTERFACE", "nosuch0", 1);
  assert_fails(ends_api->open(&all.of[0].config, &all.of[0].endpoint), MS_EIO, "MOONSHARD_INTERFACE | nosuch0 | lo");
  unsetenv("MOONSHARD_INTERFACE");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H6_a_peer_without_the_token_moves_nothing),     TEST(H6_a_peer_of_another_job_or_world_moves_nothing),
      TEST(H6_messages_without_the_session_are_dropped),   TEST(H6_ucx_needs_a_token),
      TEST(H6_an_address_of_another_transport_is_refused), TEST(H4_settings_of_interface_and_ports_are_used),
  };
  if (!has_ucx()) return 0;
  ends_api = &ms_transport_ucx;
  return cmocka_run_group_tests_name("transport ucx, alone", tests, NULL, NULL);
}
