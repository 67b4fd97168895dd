/* test_transport_hostile.c - crowds of strangers at a rank's port, and ranks that break the protocol: neither holds up
 * the others or ends a process. */
#include "tests/c/support/ranks/callers.h"
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/endpoints.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

static ends all;
static const char TOKEN[] = "known-to-all-of-them";

/* ---- crowds ---- */

enum { FLOOD = 1000, HELD = 300 };

static uint8_t any_byte(uint32_t *state) {
  *state = *state * 1664525 + 1013904223;
  return (uint8_t)(*state >> 24);
}

/* 1,000 connections, silent, slow, or with garbage, while ranks connect: they do not wait for the crowd to leave. */
static void H6_a_crowd_does_not_delay_the_ranks(void **state) {
  static int fds[HELD];
  static uint8_t bytes[4096];
  uint32_t random = 1;
  (void)state;
  all = (ends){.n = 3};
  for (int rank = 0; rank < 3; rank++) {
    prepare_end(&all.of[rank], rank, 3);
    open_end(&all, rank);
  }
  connect_end(&all, 1); /* of rank 0, which does not connect, it waits */
  connect_end(&all, 2);
  start_turning(&all);
  for (int i = 0; i < FLOOD; i++) {
    if (i >= HELD) close(fds[i % HELD]);
    int fd = fds[i % HELD] = connect_raw(port_of_end(all.addresses[2]));
    for (size_t at = 0; at < sizeof bytes; at++) bytes[at] = any_byte(&random);
    if (i % 4 == 1) send(fd, bytes, sizeof bytes - bytes[0], MSG_NOSIGNAL);
    if (i % 4 == 2) send(fd, bytes, bytes[0] % 16, MSG_NOSIGNAL);
    if (i % 4 == 3) send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
  }
  stop_turning();
  int held = 0;
  for (int i = 0; i < all.of[2].endpoint->n_strangers; i++) held += all.of[2].endpoint->strangers[i].fd >= 0;
  assert_in_range(held, 0, 2 + 64);
  connect_end(&all, 0);
  int up = 0;
  for (double end = ms_clock() + 4; up < 3 * 2 && ms_clock() < end;) { /* for less time than strangers have */
    turn_ends(&all);
    up = 0;
    for (int rank = 0; rank < 3; rank++) up += ms_transport_tcp.connected(all.of[rank].endpoint);
  }
  for (int rank = 0; rank < 3; rank++) {
    assert_int_equal(ms_transport_tcp.connected(all.of[rank].endpoint), 2);
    assert_int_equal(all.of[rank].failures, 0);
  }
  turn_for(&all, 0.3);
  assert_int_equal(all.of[2].endpoint->listener, -1); /* everybody has come: the port is closed */
  for (int i = 0; i < HELD; i++) close(fds[i]);
  close_ends(&all);
}

/* Silence, and a hello that never ends, cost a place for a few seconds. */
static void H6_silent_and_slow_strangers_are_dropped(void **state) {
  uint8_t greeting[MS_PEER_GREETING];
  int silent, slow;
  (void)state;
  ms_wait_scale = 0.05;
  open_without_rank_0(&all, 2, 20);
  int port = port_of_end(all.addresses[1]);
  start_turning(&all);
  silent = connect_raw(port);
  slow = connect_raw(port);
  receive_raw(silent, greeting, sizeof greeting);
  receive_raw(slow, greeting, sizeof greeting);
  double began = ms_clock();
  while (send(slow, "\1\0\0\0", 1, MSG_NOSIGNAL) == 1 && ms_clock() < began + 20) usleep(10000);
  assert_true(ms_clock() - began < 10);
  assert_closed(silent);
  close(slow);
  stop_turning();
  ms_wait_scale = 1;
  close_ends(&all);
}

/* ---- ranks that break the protocol ---- */

/* Rank 1 has a receive of 100 bytes of key 5 posted, and a send of key 6. */
static int join_as_rank_0(ms_transfer *receive, ms_transfer *send, void *data) {
  char why[MS_PEER_REASON];
  int fd;
  ms_peer_hello hello = hello_to(0, 1, 2);
  open_without_rank_0(&all, 2, 20);
  *receive = receive_from(0, 5, data, 100);
  *send = send_to(0, 6, data, 100);
  post_at(&all, 1, receive);
  post_at(&all, 1, send);
  assert_int_equal(greet_end(&all, 1, &hello, TOKEN, &fd, why), 1);
  return fd;
}

static void H6_frames_that_make_no_sense_end_the_connection(void **state) {
  static const struct {
    ms_peer_frame frame;
    const char *facts;
  } wrong[] = {
      {{77, 0, 5, 0, 0}, "kind 77"},
      {{0, 0, 5, 0, 0}, "kind 0"},
      {{MS_PEER_DATA, MS_PEER_PIECE + 1, 5, 0, 0}, "262145 bytes"},
      {{MS_PEER_DATA, 0xffffffff, 5, 0, 0}, "4294967295 bytes"},
      {{MS_PEER_DATA, 0, 5, 0, 0}, "0 bytes"},
      {{MS_PEER_DATA, 101, 5, 0, 0}, "end | 101 bytes"},
      {{MS_PEER_DATA, 50, 5, 0, 60}, "follow | value 60"},
      {{MS_PEER_DATA, 50, 5, 0, -1}, "negative"},
      {{MS_PEER_DATA, 50, 5, 1, 0}, "receive | number 1"},
      {{MS_PEER_DATA, 50, 8, 0, 0}, "receive | key 8"},
      {{MS_PEER_CREDIT, 0, 6, 0, 0}, "credit | value 0"},
      {{MS_PEER_CREDIT, 0, 6, 1, 100}, "credit | number 1"},
      {{MS_PEER_CREDIT, 4, 6, 0, 100}, "size | 4 bytes"},
      {{MS_PEER_CREDIT, 0, 6, 0, 99}, "100 bytes | 99"},
      {{MS_PEER_REASON_OF, MS_PEER_REASON + 1, 0, 0, 0}, "size | 513 bytes"},
  };
  char data[100] = "";
  ms_transfer receive, send;
  (void)state;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    const ms_peer_frame *f = &wrong[i].frame;
    int fd = join_as_rank_0(&receive, &send, data);
    send_tcp_frame(fd, f->kind, f->bytes, f->key, f->number, f->value);
    turn_until(&all, &all.of[1].failures, 1);
    assert_int_equal(all.of[1].failed_peer, 0);
    assert_has(all.of[1].why, wrong[i].facts);
    assert_int_equal(receive.state, MS_TRANSFER_FAILED);
    assert_int_equal(send.state, MS_TRANSFER_FAILED);
    close(fd);
    close_ends(&all);
  }
}

static void H6_credits_and_keys_of_a_peer_are_bounded(void **state) {
  char data[100] = "";
  ms_transfer receive, send;
  (void)state;
  for (int keys = 0; keys < 2; keys++) {
    int fd = join_as_rank_0(&receive, &send, data);
    for (uint64_t i = 0; i < 200; i++)
      send_tcp_frame(fd, MS_PEER_CREDIT, 0, keys ? 100 + i : 100, keys ? 0 : i, 1 << 30);
    turn_until(&all, &all.of[1].failures, 1);
    assert_has(all.of[1].why, keys ? "credit | key too many" : "too many credits | number 64");
    close(fd);
    close_ends(&all);
  }
}

/* Frames that are right in parts, cut off anywhere: at most this connection fails. */
static void H6_random_frames_end_at_most_their_connection(void **state) {
  enum { ROUNDS = 40, FRAMES = 60 };
  static uint8_t body[1024];
  char data[100] = "";
  uint32_t random = 7;
  ms_transfer receive, send_of_key;
  (void)state;
  for (int round = 0; round < ROUNDS; round++) {
    int fd = join_as_rank_0(&receive, &send_of_key, data);
    for (int i = 0; i < FRAMES; i++) {
      uint8_t header[MS_PEER_HEADER];
      uint32_t kind = any_byte(&random) % 9, bytes = kind == MS_PEER_DATA ? any_byte(&random) % 60 : 0;
      ms_peer_frame frame = {kind, bytes, 4 + any_byte(&random) % 4u, any_byte(&random) % 2u, any_byte(&random) % 110};
      ms_peer_put_frame(header, &frame);
      if (any_byte(&random) < 5) header[any_byte(&random) % MS_PEER_HEADER] ^= any_byte(&random);
      if (send(fd, header, sizeof header, MSG_NOSIGNAL) < 0 || send(fd, body, bytes, MSG_NOSIGNAL) < 0) break;
      turn_ends(&all);
    }
    close(fd);
    /* It may have said goodbye in passing. */
    for (double end = ms_clock() + 20; receive.state == MS_TRANSFER_POSTED && ms_clock() < end;) turn_ends(&all);
    assert_int_not_equal(receive.state, MS_TRANSFER_POSTED);
    assert_in_range(all.of[1].failures, 0, 1);
    close_ends(&all);
  }
}

/* A text of a peer is printed: it must not move the cursor of somebody's terminal. */
static void H6_texts_of_peers_are_harmless(void **state) {
  char data[100] = "";
  ms_transfer receive, send;
  (void)state;
  int fd = join_as_rank_0(&receive, &send, data);
  send_tcp_frame(fd, MS_PEER_REASON_OF, 10, 0, 0, 0);
  send_raw(fd, "red \x1b[31m\n", 10);
  turn_until(&all, &all.of[1].failures, 1);
  assert_has(all.of[1].why, "red ?[31m?");
  close(fd);
  close_ends(&all);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H6_a_crowd_does_not_delay_the_ranks),
      TEST(H6_silent_and_slow_strangers_are_dropped),
      TEST(H6_frames_that_make_no_sense_end_the_connection),
      TEST(H6_credits_and_keys_of_a_peer_are_bounded),
      TEST(H6_random_frames_end_at_most_their_connection),
      TEST(H6_texts_of_peers_are_harmless),
  };
  return cmocka_run_group_tests_name("transport, hostile peers", tests, NULL, NULL);
}
