/* test_store_hostile.c - what comes to a store and is no rank: nothing of it holds up the ranks, or ends the server. */
#include "tests/c/support/callers.h"
#include "tests/c/support/check.h"

#include <sys/socket.h>
#include <unistd.h>

static caller ranks[2];

/* Rank 0 has come; disturb() does its worst with raw connections; then rank 1 comes, and they meet. */
static void meet_despite(void (*disturb)(int port, int *fds), int count) {
  int port = find_port(), fds[256];
  for (int i = 0; i < count; i++) fds[i] = -1;
  prepare_caller(&ranks[0], port, 0, 2);
  prepare_caller(&ranks[1], port, 1, 2);
  start_caller(&ranks[0]);
  disturb(port, fds);
  start_caller(&ranks[1]);
  join_caller(&ranks[0]);
  join_caller(&ranks[1]);
  assert_gathered(ranks, 2);
  close_callers(ranks, 2);
  for (int i = 0; i < count; i++)
    if (fds[i] >= 0) close(fds[i]);
}

static void send_bytes(int fd, const void *data, size_t bytes) {
  assert_true(send(fd, data, bytes, MSG_NOSIGNAL) >= 0);
}

static void send_garbage(int port, int *fds) {
  static const char *const texts[] = {"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
                                      "\x80\x80\x01\x03\x01\x57\x40\x20\xc0\x14",
                                      "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"};
  (void)fds;
  for (int i = 0; i < 3; i++) {
    int fd = connect_raw(port);
    send_bytes(fd, texts[i], strlen(texts[i]));
    assert_closed(fd);
  }
}

static void L3_garbage_cannot_stop_it(void **state) {
  (void)state;
  meet_despite(send_garbage, 0);
}

static void send_oversized(int port, int *fds) {
  static char megabyte[1 << 20];
  uint8_t header[MS_WIRE_HEADER];
  (void)fds;
  static const uint32_t lengths[] = {513, 1 << 20, 0x7fffffff, 0xffffffff};
  for (int i = 0; i < 4; i++) {
    int fd = connect_raw(port);
    ms_wire_put32(header, lengths[i]);
    ms_wire_put32(header + 4, MS_WIRE_HELLO);
    send_bytes(fd, header, sizeof header);
    send(fd, megabyte, sizeof megabyte, MSG_NOSIGNAL | MSG_DONTWAIT);
    assert_closed(fd);
  }
}

static void L3_oversized_frames_cannot_stop_it(void **state) {
  (void)state;
  meet_despite(send_oversized, 0);
}

static void stay_silent(int port, int *fds) {
  for (int i = 0; i < 20; i++) fds[i] = connect_raw(port);
}

static void L3_half_open_connections_cannot_stop_it(void **state) {
  (void)state;
  meet_despite(stay_silent, 20);
}

/* The first bytes of a hello, one by one, and never the last. */
static void speak_slowly(int port, int *fds) {
  uint8_t header[MS_WIRE_HEADER];
  ms_wire_put32(header, MS_WIRE_HELLO_BYTES);
  ms_wire_put32(header + 4, MS_WIRE_HELLO);
  for (int i = 0; i < 5; i++) fds[i] = connect_raw(port);
  for (size_t byte = 0; byte < sizeof header; byte++)
    for (int i = 0; i < 5; i++) {
      send_bytes(fds[i], header + byte, 1);
      usleep(1000);
    }
}

static void L3_slow_peers_cannot_stop_it(void **state) {
  (void)state;
  meet_despite(speak_slowly, 5);
}

static void come_in_crowds(int port, int *fds) {
  for (int i = 0; i < 200; i++) fds[i] = connect_raw(port);
}

static void L3_too_many_peers_cannot_stop_it(void **state) {
  (void)state;
  meet_despite(come_in_crowds, 200);
}

/* A rank that was let in may not say everything either: it is dropped, and then it is missing. */
static void L3_a_member_that_sends_nonsense_is_dropped(void **state) {
  (void)state;
  static const struct {
    uint32_t bytes, kind;
  } frames[] = {{4, 77}, {0, MS_WIRE_ROUND}, {600, MS_WIRE_ROUND}, {100000, MS_WIRE_ABORT}, {4, MS_WIRE_ALL}};
  for (size_t i = 0; i < sizeof frames / sizeof frames[0]; i++) {
    char text[512];
    uint8_t header[MS_WIRE_HEADER], body[600] = {0};
    int port = find_port();
    prepare_caller(&ranks[0], port, 0, 2);
    start_caller(&ranks[0]);
    int fd = connect_raw(port);
    ms_wire_hello hello = {
        .version = MS_STORE_VERSION, .rank = 1, .size = 2, .pid = 4711, .job = "test", .host = "there"};
    assert_int_equal(say_hello(fd, &hello, "", text, sizeof text), MS_WIRE_WELCOME);
    ms_wire_put32(header, frames[i].bytes);
    ms_wire_put32(header + 4, frames[i].kind);
    send_bytes(fd, header, sizeof header);
    send(fd, body, frames[i].bytes < sizeof body ? frames[i].bytes : sizeof body, MSG_NOSIGNAL | MSG_DONTWAIT);
    join_caller(&ranks[0]);
    assert_int_equal(ranks[0].status, MS_EPEER);
    assert_contains(ranks[0].message, "rank 1 died, or lost its connection: process 4711 on there");
    close(fd);
  }
}

/* A text of a peer is printed: it must not move the cursor of somebody's terminal. */
static void L3_texts_of_peers_are_harmless(void **state) {
  (void)state;
  char text[512];
  int port = find_port();
  prepare_caller(&ranks[0], port, 0, 2);
  start_caller(&ranks[0]);
  int fd = connect_raw(port);
  ms_wire_hello hello = {.version = MS_STORE_VERSION, .rank = 1, .size = 2, .job = "test", .host = "there"};
  assert_int_equal(say_hello(fd, &hello, "", text, sizeof text), MS_WIRE_WELCOME);
  uint8_t frame[MS_WIRE_HEADER + 9];
  ms_wire_put32(frame, 9);
  ms_wire_put32(frame + 4, MS_WIRE_ABORT);
  memcpy(frame + MS_WIRE_HEADER, "red \x1b[31m\n", 9);
  send_bytes(fd, frame, sizeof frame);
  join_caller(&ranks[0]);
  assert_contains(ranks[0].message, "rank 1 gave up: red ?[31m");
  close(fd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(L3_garbage_cannot_stop_it),
      TEST(L3_oversized_frames_cannot_stop_it),
      TEST(L3_half_open_connections_cannot_stop_it),
      TEST(L3_slow_peers_cannot_stop_it),
      TEST(L3_too_many_peers_cannot_stop_it),
      TEST(L3_a_member_that_sends_nonsense_is_dropped),
      TEST(L3_texts_of_peers_are_harmless),
  };
  return cmocka_run_group_tests_name("store, hostile peers", tests, NULL, NULL);
}
