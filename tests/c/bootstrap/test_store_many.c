/* test_store_many.c - a store of 1,024 ranks on 128 hosts: rank 0 as in a job, the others plain connections that one
 * thread drives. */
#include "tests/c/support/ranks/callers.h"
#include "tests/c/support/check.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

enum { RANKS = 1024, PER_HOST = 8, OTHERS = RANKS - PER_HOST };
static const char TOKEN[] = "sixteen-byte-key";

static int fds[RANKS];
static caller first;
static int gathered[2][RANKS];
static atomic_int posts, wrong;

static void hear_failure(void *context, const char *why) {
  (void)context;
  (void)why;
  atomic_fetch_add(&wrong, 1);
}

/* A post is the number of its rank. */
static void hear_post(void *context, int from, int kind, const uint8_t *payload, size_t bytes) {
  (void)context;
  int right = kind == MS_POST_ROW && bytes == 4 && (int)ms_wire_get32(payload) == from && from >= PER_HOST;
  if (!right && kind != MS_POST_LEFT) atomic_fetch_add(&wrong, 1);
  if (right) atomic_fetch_add(&posts, 1);
}

static void hear_end(void *context) { (void)context; }

static const ms_store_listener listener = {.failed = hear_failure, .posted = hear_post, .closed = hear_end};

static void *be_rank_0(void *context) {
  int mine = 0;
  first.config.place = &first.place;
  first.status = ms_store_open(&first.config, &first.store);
  if (!first.status) first.status = ms_store_gather(first.store, &mine, sizeof mine, gathered[0]);
  if (!first.status) first.status = ms_store_set_node(first.store, 0);
  if (!first.status) first.status = ms_store_gather(first.store, &mine, sizeof mine, gathered[1]);
  if (!first.status) first.status = ms_store_watch(first.store, &listener, context);
  return NULL;
}

static void send_number(int fd, uint32_t kind, int number) {
  uint8_t body[4];
  ms_wire_put32(body, (uint32_t)number);
  send_frame(fd, kind, body, sizeof body);
}

static void post_number(int fd, int number) {
  uint8_t body[8];
  ms_wire_put32(body, MS_POST_ROW);
  ms_wire_put32(body + 4, (uint32_t)number);
  send_frame(fd, MS_WIRE_POST, body, sizeof body);
}

static void join_and_gather(int port, int rank) {
  char text[512];
  ms_wire_hello hello = hello_of(rank);
  hello.size = RANKS;
  fds[rank] = connect_raw(port);
  assert_int_equal(say_hello(fds[rank], &hello, TOKEN, text, sizeof text), MS_WIRE_WELCOME);
  send_number(fds[rank], MS_WIRE_ROUND, rank);
}

static void receive_gathered(int fd) {
  uint8_t frame[MS_WIRE_HEADER + 4 * RANKS];
  receive_raw(fd, frame, sizeof frame);
  assert_int_equal(ms_wire_get32(frame), 4 * RANKS);
  assert_int_equal(ms_wire_get32(frame + 4), MS_WIRE_ALL);
  for (int rank = 0; rank < RANKS; rank++)
    assert_int_equal(ms_wire_get32(frame + MS_WIRE_HEADER + 4 * (size_t)rank), rank);
}

/* What the lowest rank of a host receives: one post of every rank of the other hosts. */
static void receive_posts(int rank) {
  uint8_t frame[MS_WIRE_HEADER + 12], seen[RANKS] = {0};
  for (int i = 0; i < OTHERS; i++) {
    receive_raw(fds[rank], frame, sizeof frame);
    assert_int_equal(ms_wire_get32(frame), 12);
    assert_int_equal(ms_wire_get32(frame + 4), MS_WIRE_POSTED);
    uint32_t from = ms_wire_get32(frame + 8);
    assert_true(from < RANKS && from / PER_HOST != (uint32_t)rank / PER_HOST);
    assert_int_equal(ms_wire_get32(frame + 16), from);
    assert_int_equal(seen[from]++, 0);
  }
}

static void H8_1024_ranks_on_128_hosts_gather_and_post(void **state) {
  (void)state;
  int port = find_port();
  prepare_caller(&first, port, 0, RANKS);
  first.config.token = TOKEN;
  first.config.timeout = 60;
  assert_int_equal(pthread_create(&first.thread, NULL, be_rank_0, NULL), 0);
  for (int rank = 1; rank < RANKS; rank++) join_and_gather(port, rank);
  for (int rank = 1; rank < RANKS; rank++) {
    receive_gathered(fds[rank]);
    send_number(fds[rank], MS_WIRE_NODE, rank / PER_HOST);
    send_number(fds[rank], MS_WIRE_ROUND, rank);
  }
  for (int rank = 1; rank < RANKS; rank++) receive_gathered(fds[rank]);
  join_caller(&first);
  assert_int_equal(first.status, MS_OK);
  for (int rank = 0; rank < RANKS; rank++) assert_true(gathered[0][rank] == rank && gathered[1][rank] == rank);
  uint8_t zero[4] = {0};
  ms_store_post(first.store, MS_POST_ROW, zero, sizeof zero);
  for (int rank = 1; rank < RANKS; rank++) post_number(fds[rank], rank);
  for (int rank = PER_HOST; rank < RANKS; rank += PER_HOST) receive_posts(rank);
  for (double end = ms_clock() + 20; ms_clock() < end && atomic_load(&posts) < OTHERS;) usleep(1000);
  assert_int_equal(atomic_load(&posts), OTHERS);
  for (int rank = 1; rank < RANKS; rank++) send_frame(fds[rank], MS_WIRE_LEAVE, NULL, 0);
  ms_store_close(first.store);
  assert_int_equal(atomic_load(&wrong), 0);
  for (int rank = 1; rank < RANKS; rank++) close(fds[rank]);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(H8_1024_ranks_on_128_hosts_gather_and_post)};
  return cmocka_run_group_tests_name("store of many ranks", tests, NULL, NULL);
}
