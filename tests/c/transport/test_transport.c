/* test_transport.c - transfers between ranks over each transport: what arrives, in which order, in how much memory. */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/endpoints.h"
#include "tests/c/support/ranks/endpoints_ucx.h"

#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "base/clock.h"
#include "base/error.h"

static ends all;

enum { MIB = 1 << 20 };

/* A pattern that no size of a piece is a multiple of; in blocks, which are fast under a sanitizer. */
enum { PERIOD = 65521 };

static const uint8_t *pattern(int seed) {
  static uint8_t block[PERIOD];
  for (int i = 0; i < PERIOD; i++) block[i] = (uint8_t)(i * 7 + i / 251 + seed);
  return block;
}

static uint8_t *filled(int64_t bytes, int seed) {
  const uint8_t *block = pattern(seed);
  uint8_t *data = malloc((size_t)bytes);
  assert_non_null(data);
  for (int64_t i = 0; i < bytes; i += PERIOD)
    memcpy(data + i, block, (size_t)(bytes - i < PERIOD ? bytes - i : PERIOD));
  return data;
}

static int is_filled(const uint8_t *data, int64_t bytes, int seed) {
  const uint8_t *block = pattern(seed);
  for (int64_t i = 0; i < bytes; i += PERIOD)
    if (memcmp(data + i, block, (size_t)(bytes - i < PERIOD ? bytes - i : PERIOD))) return 0;
  return 1;
}

static int64_t sent_by(int rank) {
  ms_transport_counts counts;
  ends_api->counts(all.of[rank].endpoint, &counts);
  return counts.sent;
}

/* ---- what arrives ---- */

/* Both send and receive the same number of bytes at once. */
static void swap(int64_t bytes) {
  uint8_t *out[2] = {filled(bytes, 1), filled(bytes, 2)}, *in[2] = {calloc(1, (size_t)bytes), calloc(1, (size_t)bytes)};
  ms_transfer send[2], receive[2];
  for (int rank = 0; rank < 2; rank++) {
    send[rank] = send_to(!rank, 1, out[rank], bytes);
    receive[rank] = receive_from(!rank, 1, in[rank], bytes);
    post_at(&all, rank, &send[rank]);
    post_at(&all, rank, &receive[rank]);
  }
  for (int rank = 0; rank < 2; rank++) {
    turn_until_is(&all, &send[rank], MS_TRANSFER_DONE);
    turn_until_is(&all, &receive[rank], MS_TRANSFER_DONE);
    assert_true(is_filled(in[rank], bytes, 2 - rank));
  }
  for (int rank = 0; rank < 2; rank++) {
    free(out[rank]);
    free(in[rank]);
  }
}

static void H5_transfers_of_every_size_arrive_in_both_directions_at_once(void **state) {
  static const int64_t sizes[] = {
      1, 2, 31, 32, 33, 4095, 65537, MS_PEER_PIECE - 1, MS_PEER_PIECE, MS_PEER_PIECE + 1, MIB, 3 * MIB + 5, 20 * MIB};
  int64_t sum = 0;
  ms_transport_counts counts;
  (void)state;
  open_ends(&all, 2, 20);
  int64_t before = ms_allocations();
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    swap(sizes[i]);
    sum += sizes[i];
  }
  assert_int_equal(ms_allocations(), before);
  for (int rank = 0; rank < 2; rank++) {
    ends_api->counts(all.of[rank].endpoint, &counts);
    assert_int_equal(counts.sent, sum);
    assert_int_equal(counts.received, sum);
    assert_int_equal(all.of[rank].failures, 0);
  }
  close_ends(&all);
}

enum { KEYS = 40, EACH = 3 };

/* The receiver's keys are posted in the opposite order of the sender's; within a key, transfers keep their order. */
static void H5_orders_of_keys_can_differ(void **state) {
  static ms_transfer send[3][3][KEYS][EACH], receive[3][3][KEYS][EACH];
  static int out[3][3][KEYS][EACH], in[3][3][KEYS][EACH];
  (void)state;
  open_ends(&all, 3, 20);
  for (int rank = 0; rank < 3; rank++)
    for (int peer = 0; peer < 3; peer++)
      for (int i = 0; i < KEYS * EACH && peer != rank; i++) {
        int key = rank < peer ? i / EACH : KEYS - 1 - i / EACH, turn = i % EACH;
        out[rank][peer][key][turn] = rank * 100000 + peer * 10000 + key * 10 + turn;
        send[rank][peer][key][turn] = send_to(peer, 1000 + (uint64_t)key, &out[rank][peer][key][turn], 4);
        receive[rank][peer][key][turn] = receive_from(peer, 1000 + (uint64_t)key, &in[rank][peer][key][turn], 4);
        post_at(&all, rank, &send[rank][peer][key][turn]);
        post_at(&all, rank, &receive[rank][peer][key][turn]);
      }
  for (int rank = 0; rank < 3; rank++)
    for (int peer = 0; peer < 3; peer++)
      for (int i = 0; i < KEYS * EACH && peer != rank; i++) {
        turn_until_is(&all, &receive[rank][peer][i / EACH][i % EACH], MS_TRANSFER_DONE);
        assert_int_equal(in[rank][peer][i / EACH][i % EACH], peer * 100000 + rank * 10000 + i / EACH * 10 + i % EACH);
      }
  close_ends(&all);
}

static void H5_a_short_transfer_does_not_wait_for_a_long_one(void **state) {
  enum { LONG = 64 * MIB };
  uint8_t *out = filled(LONG, 1), *in = calloc(1, LONG);
  int word = 5, got = 0;
  (void)state;
  open_ends(&all, 2, 20);
  ms_transfer sends = send_to(1, 1, out, LONG), receives = receive_from(0, 1, in, LONG);
  ms_transfer word_sent = send_to(1, 2, &word, 4), word_received = receive_from(0, 2, &got, 4);
  post_at(&all, 1, &receives);
  post_at(&all, 0, &sends);
  for (double end = ms_clock() + 20; !receives.moved && ms_clock() < end;) turn_ends(&all);
  post_at(&all, 1, &word_received);
  post_at(&all, 0, &word_sent);
  turn_until_is(&all, &word_received, MS_TRANSFER_DONE);
  assert_int_equal(got, 5);
  assert_int_equal(receives.state, MS_TRANSFER_POSTED);
  assert_in_range(receives.moved, 1, LONG / 2);
  turn_until_is(&all, &receives, MS_TRANSFER_DONE);
  assert_true(is_filled(in, LONG, 1));
  close_ends(&all);
  free(out);
  free(in);
}

/* Who waits for the transfer may have to start the next one. A call that sleeps does so for some 0.1 s. */
static void H5_progress_does_not_sleep_once_a_transfer_is_done(void **state) {
  enum { TIMES = 50 };
  int word = 5, got = 0;
  double seconds = 0;
  (void)state;
  open_ends(&all, 2, 20);
  for (int i = 0; i < TIMES; i++) {
    ms_transfer sends = send_to(1, 1, &word, 4), receives = receive_from(0, 1, &got, 4);
    post_at(&all, 1, &receives);
    turn_for(&all, 0.01); /* the sender has the receiver's credit */
    post_at(&all, 0, &sends);
    const double began = ms_clock();
    must(ends_api->progress(all.of[0].endpoint, 5));
    seconds += ms_clock() - began;
    turn_until_is(&all, &receives, MS_TRANSFER_DONE);
    turn_until_is(&all, &sends, MS_TRANSFER_DONE);
  }
  assert_true(seconds < 0.04 * TIMES);
  close_ends(&all);
}

/* ---- receivers that are late ---- */

/* Bytes in the kernel between two ranks, both directions; 0: the transport does not show its sockets. */
static int in_sockets(void) {
  int sum = 0;
  if (ends_api != &ms_transport_tcp) return 0;
  for (int rank = 0; rank < 2; rank++) {
    int out = 0, in = 0, fd = all.of[rank].endpoint->peers[0].fd;
    assert_int_equal(ioctl(fd, SIOCOUTQ, &out), 0);
    assert_int_equal(ioctl(fd, SIOCINQ, &in), 0);
    sum += out + in;
  }
  return sum;
}

static void H5_nothing_moves_before_the_receive_is_posted(void **state) {
  enum { LONG = 32 * MIB, SHORT = 100000 };
  uint8_t *out = filled(LONG, 1), *in = calloc(1, LONG);
  (void)state;
  open_ends(&all, 2, 0.8);
  ms_transfer sends = send_to(1, 1, out, LONG), receives = receive_from(0, 1, in, LONG);
  ms_transfer first = send_to(1, 2, out, SHORT), later = send_to(1, 2, out, LONG);
  ms_transfer only = receive_from(0, 2, in, SHORT);
  post_at(&all, 0, &sends);
  post_at(&all, 0, &first);
  post_at(&all, 0, &later);
  turn_for(&all, 1.2); /* longer than the deadline, which is for transfers of both sides */
  assert_int_equal(sent_by(0), 0);
  assert_int_equal(in_sockets(), 0);
  post_at(&all, 1, &only);
  must(ends_api->progress(all.of[1].endpoint, 0));
  /* The receiver reads nothing now: what it gave credit for waits for it, and no more. */
  for (int i = 0; i < 100; i++) must(ends_api->progress(all.of[0].endpoint, 0.001));
  assert_int_equal(sent_by(0), SHORT);
  assert_in_range(in_sockets(), 0, SHORT + 4 * MS_PEER_HEADER);
  turn_until_is(&all, &only, MS_TRANSFER_DONE);
  assert_int_equal(sends.state, MS_TRANSFER_POSTED);
  post_at(&all, 1, &receives);
  turn_until_is(&all, &receives, MS_TRANSFER_DONE);
  assert_true(is_filled(in, LONG, 1));
  assert_int_equal(later.state, MS_TRANSFER_POSTED);
  ends_api->cancel(all.of[0].endpoint, 2);
  assert_int_equal(later.state, MS_TRANSFER_FAILED);
  assert_int_equal(all.of[0].failures + all.of[1].failures, 0);
  close_ends(&all);
  free(out);
  free(in);
}

/* ---- mistakes ---- */

static void H4_sizes_that_differ_are_named_on_both_sides(void **state) {
  char out[300] = "", in[300] = "";
  (void)state;
  open_ends(&all, 3, 20);
  ms_transfer sends = send_to(1, 9, out, 300), receives = receive_from(0, 9, in, 200);
  post_at(&all, 0, &sends);
  post_at(&all, 1, &receives);
  turn_until_is(&all, &receives, MS_TRANSFER_FAILED);
  assert_int_equal(sends.state, MS_TRANSFER_FAILED);
  for (int rank = 0; rank < 2; rank++) {
    turn_until(&all, &all.of[rank].failures, 1);
    assert_int_equal(all.of[rank].failed_peer, !rank);
    assert_has(all.of[rank].why, "rank 0 | 300 bytes | rank 1 | 200 | key 9");
  }
  assert_int_equal(ends_api->connected(all.of[0].endpoint), 1);
  post_at(&all, 0, &sends);
  assert_int_equal(sends.state, MS_TRANSFER_FAILED);
  /* The third rank's connections are as they were. */
  ms_transfer other = send_to(2, 9, out, 300), of_other = receive_from(0, 9, in, 300);
  post_at(&all, 0, &other);
  post_at(&all, 2, &of_other);
  turn_until_is(&all, &of_other, MS_TRANSFER_DONE);
  assert_int_equal(all.of[0].failures, 1);
  assert_int_equal(all.of[2].failures, 0);
  close_ends(&all);
}

static void H5_what_cannot_be_posted_is_refused(void **state) {
  static ms_transfer many[MS_TRANSPORT_UNDER_WAY], keys[MS_TRANSPORT_KEYS];
  char data[8] = "";
  (void)state;
  open_ends(&all, 2, 20);
  ms_endpoint *endpoint = all.of[0].endpoint;
  ms_transfer one = send_to(0, 1, data, 8);
  assert_fails(ends_api->post(endpoint, &one), MS_EINVAL, "rank 0");
  one.peer = 2;
  assert_fails(ends_api->post(endpoint, &one), MS_EINVAL, "rank 2");
  one = send_to(1, 1, data, 0);
  assert_fails(ends_api->post(endpoint, &one), MS_EINVAL, "0 bytes");
  one.bytes = 8;
  for (int i = 0; i < MS_TRANSPORT_UNDER_WAY; i++) {
    many[i] = send_to(1, 1, data, 8);
    post_at(&all, 0, &many[i]);
  }
  assert_fails(ends_api->post(endpoint, &one), MS_EINVAL, "64 | key 1 | rank 1");
  for (int i = 1; i < MS_TRANSPORT_KEYS; i++) {
    keys[i] = send_to(1, 1 + (uint64_t)i, data, 8);
    post_at(&all, 0, &keys[i]);
  }
  one.key = 1 + MS_TRANSPORT_KEYS;
  assert_fails(ends_api->post(endpoint, &one), MS_EINVAL, "128 keys | rank 1");
  close_ends(&all);
  assert_int_equal(many[0].state, MS_TRANSFER_FAILED);
}

/* ---- cancelling ---- */

/* The receiver pauses until the sender can send no more; over tcp, its socket has taken a part of a frame. */
static void fill_the_link(const ms_transfer *sends) {
  const ms_tcp_peer *sender = &all.of[0].endpoint->peers[0];
  int64_t before = -1;
  if (ends_api != &ms_transport_tcp) {
    for (double end = ms_clock() + 20; sends->moved != before && ms_clock() < end;) {
      before = sends->moved;
      for (int i = 0; i < 20; i++) must(ends_api->progress(all.of[0].endpoint, 0.001));
    }
    assert_true(sends->moved < sends->bytes);
    return;
  }
  for (double end = ms_clock() + 20; (sender->writable || !sender->out_rest) && ms_clock() < end;)
    must(ends_api->progress(all.of[0].endpoint, 0.01));
  assert_int_not_equal(sender->out_rest, 0);
}

/* With rendezvous, a cancellation waits for the other rank to take or drop the pieces under way. */
static void cancel_at(int rank, uint64_t key) {
  ms_endpoint *own = all.of[rank].endpoint;
  int rendezvous = getenv("UCX_RNDV_THRESH") != NULL;
  all.of[rank].endpoint = NULL;
  if (rendezvous) start_turning(&all);
  ends_api->cancel(own, key);
  if (rendezvous) stop_turning();
  all.of[rank].endpoint = own;
}

/* Both sides cancel in the middle of a transfer, the sender or the receiver first; other keys go on. */
static void cancel_in_the_middle(int first) {
  enum { LONG = 24 * MIB };
  uint8_t *out = filled(LONG, 1), *in = calloc(1, LONG);
  open_ends(&all, 2, 0.4);
  ms_transfer sends = send_to(1, 7, out, LONG), receives = receive_from(0, 7, in, LONG);
  ms_transfer other = send_to(1, 8, out, LONG), of_other = receive_from(0, 8, in, LONG);
  post_at(&all, 0, &sends);
  post_at(&all, 1, &receives);
  for (double end = ms_clock() + 20; receives.moved < MIB && ms_clock() < end;) turn_ends(&all);
  fill_the_link(&sends);
  assert_int_equal(receives.state, MS_TRANSFER_POSTED);
  cancel_at(first, 7);
  assert_int_equal((first ? receives : sends).state, MS_TRANSFER_FAILED);
  /* The caller's memory again: nothing of it is sent, and nothing is written to it. */
  uint8_t *memory = first ? in : out;
  memset(memory, 0x55, LONG);
  ms_transfer again = first ? receive_from(0, 7, in, LONG) : send_to(1, 7, out, LONG);
  assert_fails(ends_api->post(all.of[first].endpoint, &again), MS_EINVAL, "key 7 | cancelled");
  turn_for(&all, 0.5); /* no deadline: the other side has not cancelled yet */
  assert_int_equal((first ? sends : receives).state, MS_TRANSFER_POSTED);
  assert_int_equal(memory[0], 0x55);
  assert_memory_equal(memory, memory + 1, LONG - 1);
  static uint8_t taken_back[64];
  memset(taken_back, 0x55, sizeof taken_back);
  if (!first) assert_null(memmem(in, LONG, taken_back, sizeof taken_back));
  cancel_at(!first, 7);
  post_at(&all, 0, &other);
  post_at(&all, 1, &of_other);
  turn_until_is(&all, &of_other, MS_TRANSFER_DONE);
  /* Both have forgotten the key: it begins again. */
  sends = send_to(1, 7, out, 10), receives = receive_from(0, 7, in, 10);
  post_at(&all, 0, &sends);
  post_at(&all, 1, &receives);
  assert_int_equal(sends.number, 0);
  turn_until_is(&all, &receives, MS_TRANSFER_DONE);
  assert_memory_equal(in, out, 10);
  assert_int_equal(all.of[0].failures + all.of[1].failures, 0);
  assert_int_equal(keys_in_use(&all.of[0]), 2);
  close_ends(&all);
  free(out);
  free(in);
}

static void H5_a_cancelled_key_leaves_memory_and_connections_alone(void **state) {
  (void)state;
  cancel_in_the_middle(0);
  cancel_in_the_middle(1);
}

/* Keys come and go for longer than there is room for. */
static void H5_keys_that_both_have_cancelled_take_no_room(void **state) {
  int out = 0, in = 0;
  (void)state;
  open_ends(&all, 2, 20);
  for (uint64_t key = 0; key < 3 * MS_TRANSPORT_KEYS; key++) {
    ms_transfer sends = send_to(1, key, &out, 4), receives = receive_from(0, key, &in, 4);
    out = (int)key;
    post_at(&all, 0, &sends);
    if (key % 3) post_at(&all, 1, &receives); /* of the third, one side knows nothing */
    if (key % 3) turn_until_is(&all, &receives, MS_TRANSFER_DONE);
    if (key % 3) assert_int_equal(in, (int)key);
    ends_api->cancel(all.of[key % 2].endpoint, key);
    ends_api->cancel(all.of[!(key % 2)].endpoint, key);
    for (int i = 0; i < 4; i++) turn_ends(&all);
  }
  turn_for(&all, 0.05);
  for (int rank = 0; rank < 2 && ends_api != &ms_transport_mpi; rank++) assert_int_equal(keys_in_use(&all.of[rank]), 0);
  close_ends(&all);
}

int main(void) {
  const struct CMUnitTest of_all[] = {
      TEST(H5_transfers_of_every_size_arrive_in_both_directions_at_once),
      TEST(H5_orders_of_keys_can_differ),
      TEST(H5_a_short_transfer_does_not_wait_for_a_long_one),
      TEST(H5_progress_does_not_sleep_once_a_transfer_is_done),
      TEST(H4_sizes_that_differ_are_named_on_both_sides),
      TEST(H5_what_cannot_be_posted_is_refused),
      TEST(H5_keys_that_both_have_cancelled_take_no_room),
  };
  const struct CMUnitTest not_of_mpi[] = {
      TEST(H5_nothing_moves_before_the_receive_is_posted),
      TEST(H5_a_cancelled_key_leaves_memory_and_connections_alone),
  };
  int failed = cmocka_run_group_tests_name("transport, mpi", of_all, use_mpi, NULL);
  ends_api = &ms_transport_tcp;
  failed += cmocka_run_group_tests_name("transport, tcp", of_all, NULL, NULL);
  failed += cmocka_run_group_tests_name("transport, tcp, late and cancelled", not_of_mpi, NULL, NULL);
  if (!has_ucx()) return failed;
  ends_api = &ms_transport_ucx;
  failed += cmocka_run_group_tests_name("transport, ucx", of_all, NULL, NULL);
  failed += cmocka_run_group_tests_name("transport, ucx, late and cancelled", not_of_mpi, NULL, NULL);
  setenv("UCX_RNDV_THRESH", "16k", 1); /* UCX moves the pieces itself, as over RDMA */
  failed += cmocka_run_group_tests_name("transport, ucx with rendezvous", of_all, NULL, NULL);
  return failed +
         cmocka_run_group_tests_name("transport, ucx with rendezvous, late and cancelled", not_of_mpi, NULL, NULL);
}
