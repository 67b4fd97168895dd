/* test_transport_connect.c - peers that are named one after another, when they are needed. */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/endpoints.h"
#include "tests/c/support/ranks/endpoints_ucx.h"

#include "base/clock.h"

static ends all;

static void open_unconnected(int n, double timeout) {
  all = (ends){.n = n};
  for (int rank = 0; rank < n; rank++) {
    prepare_end(&all.of[rank], rank, n);
    all.of[rank].config.timeout = timeout;
    open_end(&all, rank);
  }
}

static void name_peer(int rank, int peer) {
  must(ends_api->connect(all.of[rank].endpoint, 1, &peer, all.addresses[peer]));
}

static int connected_at(int rank) { return ends_api->connected(all.of[rank].endpoint); }

static void turn_until_connected(int rank, int count) {
  for (double end = ms_clock() + 20; connected_at(rank) != count;) {
    turn_ends(&all);
    if (ms_clock() > end) fail_msg("rank %d has %d connections, not %d", rank, connected_at(rank), count);
  }
}

/* A word in each direction. */
static void swap(int a, int b, uint64_t key) {
  int out[2] = {100 * a + b, 100 * b + a}, in[2] = {0};
  ms_transfer send[2] = {send_to(b, key, &out[0], 4), send_to(a, key, &out[1], 4)};
  ms_transfer receive[2] = {receive_from(b, key, &in[0], 4), receive_from(a, key, &in[1], 4)};
  for (int i = 0; i < 2; i++) {
    post_at(&all, i ? b : a, &send[i]);
    post_at(&all, i ? b : a, &receive[i]);
  }
  for (int i = 0; i < 2; i++) {
    turn_until_is(&all, &send[i], MS_TRANSFER_DONE);
    turn_until_is(&all, &receive[i], MS_TRANSFER_DONE);
    assert_int_equal(in[i], out[!i]);
  }
}

static void H5_peers_can_be_named_one_after_another(void **state) {
  (void)state;
  open_unconnected(4, 20);
  name_peer(0, 1);
  name_peer(1, 0);
  swap(0, 1, 1);
  assert_int_equal(connected_at(0), 1);
  /* All, of which some have been named. */
  for (int rank = 0; rank < 4; rank++) connect_end(&all, rank);
  swap(0, 3, 1);
  swap(1, 2, 1);
  swap(0, 1, 1);
  for (int rank = 0; rank < 4; rank++) turn_until_connected(rank, 3);
  connect_end(&all, 0);
  swap(0, 1, 1);
  for (int rank = 0; rank < 4; rank++) {
    assert_int_equal(connected_at(rank), 3);
    assert_int_equal(all.of[rank].failures, 0);
  }
  close_ends(&all);
}

/* In either order, within the timeout. */
static void H5_a_peer_can_be_named_late(void **state) {
  (void)state;
  for (int first = 0; first < 2; first++) {
    open_unconnected(2, 20);
    name_peer(first, !first);
    turn_for(&all, 0.3);
    name_peer(!first, first);
    swap(0, 1, 1);
    assert_int_equal(all.of[0].failures + all.of[1].failures, 0);
    close_ends(&all);
  }
}

/* Rank 1 needs rank 0 only when rank 0 has waited for longer than the timeout. */
static void H5_a_rank_accepts_another_before_it_names_it(void **state) {
  int out = 5, in = 0;
  (void)state;
  open_unconnected(3, 0.4);
  ms_transfer sends = send_to(1, 7, &out, 4), receives = receive_from(0, 7, &in, 4);
  name_peer(0, 1);
  post_at(&all, 0, &sends);
  turn_until_connected(0, 1);
  turn_for(&all, 0.8);
  assert_int_equal(sends.state, MS_TRANSFER_POSTED);
  assert_int_equal(connected_at(1), 1);
  name_peer(1, 0);
  post_at(&all, 1, &receives);
  turn_until_is(&all, &receives, MS_TRANSFER_DONE);
  assert_int_equal(in, 5);
  for (int rank = 0; rank < 3; rank++) assert_int_equal(all.of[rank].failures, 0);
  assert_int_equal(connected_at(2), 0);
  close_ends(&all);
}

/* The deadline of a connection begins when the peer is named. */
static void H5_a_peer_that_does_not_connect_fails_when_its_time_is_over(void **state) {
  (void)state;
  open_unconnected(3, 0.4);
  turn_for(&all, 0.5);
  ends_api->close(all.of[0].endpoint);
  all.of[0].endpoint = NULL;
  name_peer(1, 2);
  name_peer(2, 1);
  swap(1, 2, 1);
  name_peer(1, 0);
  double began = ms_clock();
  turn_until(&all, &all.of[1].failures, 1);
  assert_int_equal(all.of[1].failed_peer, 0);
  assert_true(ms_clock() - began > 0.3);
  swap(1, 2, 1);
  assert_int_equal(all.of[2].failures, 0);
  close_ends(&all);
}

int main(void) {
  const struct CMUnitTest of_all[] = {
      TEST(H5_peers_can_be_named_one_after_another),
      TEST(H5_a_peer_can_be_named_late),
  };
  const struct CMUnitTest of_tcp[] = {
      TEST(H5_a_rank_accepts_another_before_it_names_it),
      TEST(H5_a_peer_that_does_not_connect_fails_when_its_time_is_over),
  };
  int failed = cmocka_run_group_tests_name("transport mpi, connect", of_all, use_mpi, NULL);
  ends_api = &ms_transport_tcp;
  failed += cmocka_run_group_tests_name("transport tcp, connect", of_all, NULL, NULL);
  failed += cmocka_run_group_tests_name("transport tcp, connect late", of_tcp, NULL, NULL);
  if (!has_ucx()) return failed;
  ends_api = &ms_transport_ucx;
  return failed + cmocka_run_group_tests_name("transport ucx, connect", of_all, NULL, NULL);
}
