/* test_transport_leaving.c - ranks that leave without an error, over each transport; progress that sleeps. */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/endpoints.h"
#include "tests/c/support/ranks/endpoints_ucx.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

static ends all;

enum { MIB = 1 << 20 };

/* ---- leaving ---- */

static void H4_a_goodbye_is_no_failure(void **state) {
  char data[4] = "";
  (void)state;
  open_ends(&all, 3, 20);
  ends_api->close(all.of[1].endpoint);
  all.of[1].endpoint = NULL;
  turn_for(&all, 0.1);
  assert_int_equal(all.of[0].failures + all.of[2].failures, 0);
  assert_int_equal(ends_api->connected(all.of[0].endpoint), 1);
  ms_transfer late = receive_from(1, 1, data, 4);
  post_at(&all, 0, &late);
  assert_int_equal(late.state, MS_TRANSFER_FAILED);
  turn_until(&all, &all.of[0].failures, 1);
  assert_int_equal(all.of[0].failed_peer, 1);
  assert_has(all.of[0].why, "left");
  close_ends(&all);
}

static void H4_a_goodbye_with_transfers_under_way_is_one(void **state) {
  char data[4] = "";
  (void)state;
  open_ends(&all, 2, 20);
  ms_transfer waits = receive_from(1, 1, data, 4);
  post_at(&all, 0, &waits);
  turn_for(&all, 0.02);
  ends_api->close(all.of[1].endpoint);
  all.of[1].endpoint = NULL;
  turn_until(&all, &all.of[0].failures, 1);
  assert_int_equal(waits.state, MS_TRANSFER_FAILED);
  assert_has(all.of[0].why, "left | under way");
  close_ends(&all);
}

static void H4_the_last_bytes_arrive_before_a_goodbye(void **state) {
  enum { LONG = 4 * MIB };
  static int out[LONG / sizeof(int)], in[LONG / sizeof(int)];
  (void)state;
  for (int i = 0; i < (int)(LONG / sizeof(int)); i++) out[i] = i, in[i] = 0;
  open_ends(&all, 2, 20);
  ms_transfer sends = send_to(1, 1, out, LONG), receives = receive_from(0, 1, in, LONG);
  post_at(&all, 1, &receives);
  post_at(&all, 0, &sends);
  turn_until_is(&all, &sends, MS_TRANSFER_DONE);
  ends_api->close(all.of[0].endpoint);
  all.of[0].endpoint = NULL;
  turn_until_is(&all, &receives, MS_TRANSFER_DONE);
  assert_memory_equal(in, out, LONG);
  turn_for(&all, 0.02);
  assert_int_equal(all.of[1].failures, 0);
  close_ends(&all);
}

/* ---- sleeping ---- */

static void *wake_later(void *endpoint) {
  usleep(20000);
  ends_api->wake(endpoint);
  return NULL;
}

static void H5_progress_sleeps_until_it_is_woken(void **state) {
  pthread_t thread;
  (void)state;
  all = (ends){.n = 1};
  prepare_end(&all.of[0], 0, 1);
  open_end(&all, 0);
  double began = ms_clock();
  must(ends_api->progress(all.of[0].endpoint, 0.01));
  assert_true(ms_clock() - began >= 0.009);
  began = ms_clock();
  assert_int_equal(pthread_create(&thread, NULL, wake_later, all.of[0].endpoint), 0);
  must(ends_api->progress(all.of[0].endpoint, 30));
  pthread_join(thread, NULL);
  assert_true(ms_clock() - began < 10);
  close_ends(&all);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H4_a_goodbye_is_no_failure),
      TEST(H4_a_goodbye_with_transfers_under_way_is_one),
      TEST(H4_the_last_bytes_arrive_before_a_goodbye),
      TEST(H5_progress_sleeps_until_it_is_woken),
  };
  int failed = cmocka_run_group_tests_name("transport mpi, leaving", tests, use_mpi, NULL);
  ends_api = &ms_transport_tcp;
  failed += cmocka_run_group_tests_name("transport tcp, leaving", tests, NULL, NULL);
  if (!has_ucx()) return failed;
  ends_api = &ms_transport_ucx;
  failed += cmocka_run_group_tests_name("transport ucx, leaving", tests, NULL, NULL);
  setenv("UCX_RNDV_THRESH", "16k", 1); /* UCX moves the pieces itself, as over RDMA */
  return failed + cmocka_run_group_tests_name("transport ucx with rendezvous, leaving", tests, NULL, NULL);
}
