/* test_store_posts.c - what ranks of several hosts post reaches one rank of every other host, in order; what makes no
 * sense is dropped with its connection; a peer that does not read costs bounded memory. */
#include "tests/c/support/ranks/callers.h"
#include "tests/c/support/check.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/bootstrap/store/store_peer.h"

enum { MAX = 16 };

/* What a rank's store thread heard. */
typedef struct heard {
  atomic_int posts, looks, left, disorder, last[MAX];
  atomic_int failed;
  char why[512]; /* complete when failed is set */
} heard;

static caller ranks[MAX];
static heard h[MAX];

static void hear_failure(void *context, const char *why) {
  heard *mine = context;
  if (atomic_load(&mine->failed)) return;
  snprintf(mine->why, sizeof mine->why, "%s", why);
  atomic_store(&mine->failed, 1);
}

/* A post's payload is its number, then bytes with that value. */
static void hear_post(void *context, int from, int kind, const uint8_t *payload, size_t bytes) {
  heard *mine = context;
  if (kind == MS_POST_LOOK) atomic_fetch_add(&mine->looks, 1);
  if (kind == MS_POST_LEFT) atomic_fetch_add(&mine->left, 1);
  if (kind != MS_POST_TICKET) return;
  int number = bytes >= 4 ? (int)ms_wire_get32(payload) : -1;
  int whole = bytes == 4 || payload[bytes - 1] == (uint8_t)number;
  if (from < 0 || from >= MAX || !whole || number != atomic_load(&mine->last[from]) + 1)
    atomic_fetch_add(&mine->disorder, 1);
  else atomic_store(&mine->last[from], number);
  atomic_fetch_add(&mine->posts, 1);
}

static void hear_end(void *context) { (void)context; }

static const ms_store_listener listener = {.failed = hear_failure, .posted = hear_post, .closed = hear_end};

static void wait_for(const atomic_int *count, int expected) {
  for (double end = ms_clock() + 20; ms_clock() < end && atomic_load(count) < expected; usleep(500)) continue;
  assert_int_equal(atomic_load(count), expected);
}

/* Says its host and gathers, as a rank does that joins. */
static void *take_node(void *argument) {
  caller *one = argument;
  int mine = one->config.rank, all[MAX];
  one->status = ms_store_set_node(one->store, one->all[0]);
  if (!one->status) one->status = ms_store_gather(one->store, &mine, sizeof mine, all);
  return NULL;
}

/* Ranks 0 to size - 1 on hosts of `per_host`; those from `first` on are left to the test. */
static void meet_on_hosts(int size, int per_host) {
  int port = find_port();
  memset(h, 0, sizeof h);
  start_callers(ranks, 0, size, port, size);
  for (int rank = 0; rank < size; rank++) join_caller(&ranks[rank]);
  assert_gathered(ranks, size);
  for (int rank = 0; rank < size; rank++) {
    ranks[rank].all[0] = rank / per_host;
    assert_int_equal(pthread_create(&ranks[rank].thread, NULL, take_node, &ranks[rank]), 0);
  }
  for (int rank = 0; rank < size; rank++) {
    join_caller(&ranks[rank]);
    assert_int_equal(ranks[rank].status, MS_OK);
    assert_int_equal(ms_store_watch(ranks[rank].store, &listener, &h[rank]), MS_OK);
  }
}

static void post_number(int rank, int number, size_t bytes) {
  uint8_t payload[MS_STORE_POST];
  memset(payload, number, bytes);
  ms_wire_put32(payload, (uint32_t)number);
  ms_store_post(ranks[rank].store, MS_POST_TICKET, payload, bytes);
}

enum { POSTS = 500 };

/* Lengths of all sizes. */
static void *post_often(void *argument) {
  int rank = (int)((caller *)argument - ranks);
  for (int i = 1; i <= POSTS; i++) post_number(rank, i, i % 50 ? 5 + (size_t)(i * 37 % 300) : (size_t)MS_STORE_POST);
  return NULL;
}

static void H4_posts_reach_the_lowest_rank_of_every_other_host_in_order(void **state) {
  (void)state;
  meet_on_hosts(6, 2);
  for (int rank = 0; rank < 6; rank++)
    assert_int_equal(pthread_create(&ranks[rank].thread, NULL, post_often, &ranks[rank]), 0);
  for (int rank = 0; rank < 6; rank++) join_caller(&ranks[rank]);
  for (int rank = 0; rank < 6; rank += 2) wait_for(&h[rank].posts, 4 * POSTS);
  for (int rank = 0; rank < 6; rank++) {
    assert_int_equal(atomic_load(&h[rank].disorder), 0);
    assert_int_equal(atomic_load(&h[rank].failed), 0);
    if (rank % 2) assert_int_equal(atomic_load(&h[rank].posts), 0);
  }
  close_callers(ranks, 6);
}

/* Rank 2 posts and leaves at once; then rank 3 receives for its host. */
static void H4_a_rank_that_leaves_has_posted_everything(void **state) {
  (void)state;
  meet_on_hosts(4, 2);
  for (int i = 1; i <= POSTS; i++) post_number(2, i, 100);
  ms_store_close(ranks[2].store);
  ranks[2].store = NULL;
  wait_for(&h[0].left, 1);
  assert_int_equal(atomic_load(&h[0].posts), POSTS);
  assert_int_equal(atomic_load(&h[0].disorder), 0);
  post_number(0, 1, 4);
  wait_for(&h[3].posts, 1);
  for (int rank = 0; rank < 4; rank++) assert_int_equal(atomic_load(&h[rank].failed), 0);
  for (int rank = 3; rank >= 0; rank--) {
    ms_store_close(ranks[rank].store);
    ranks[rank].store = NULL;
  }
}

static void H4_requests_for_reports_are_limited(void **state) {
  (void)state;
  meet_on_hosts(2, 1);
  double began = ms_clock();
  for (int i = 0; i < 1000; i++) ms_store_post(ranks[1].store, MS_POST_LOOK, NULL, 0);
  post_number(1, 1, 4);
  wait_for(&h[0].posts, 1);
  int most = 1 + (int)((ms_clock() - began) / 0.3);
  assert_in_range(atomic_load(&h[0].looks), 1, most);
  /* The host that asks is asked, too. */
  post_number(0, 1, 4);
  wait_for(&h[1].posts, 1);
  assert_in_range(atomic_load(&h[1].looks), 1, most);
  close_callers(ranks, 2);
}

/* ---- members that do not behave ---- */

/* Rank 0 hears that rank 1 was dropped, after it has sent this frame. */
static void assert_dropped(uint32_t kind, const void *body, uint32_t bytes, int on_a_host) {
  int port = find_port(), all[2], zero = 0;
  uint8_t node[4] = {1, 0, 0, 0};
  memset(h, 0, sizeof h);
  start_callers(ranks, 0, 1, port, 2);
  int fd = join_raw(port, 1);
  send_frame(fd, MS_WIRE_ROUND, &zero, sizeof zero);
  join_caller(&ranks[0]);
  assert_int_equal(ranks[0].status, MS_OK);
  assert_int_equal(ms_store_set_node(ranks[0].store, 0), MS_OK);
  if (on_a_host) send_frame(fd, MS_WIRE_NODE, node, sizeof node);
  send_frame(fd, MS_WIRE_ROUND, &zero, sizeof zero);
  assert_int_equal(ms_store_gather(ranks[0].store, &zero, sizeof zero, all), MS_OK);
  assert_int_equal(ms_store_watch(ranks[0].store, &listener, &h[0]), MS_OK);
  send_frame(fd, kind, body, bytes);
  assert_closed(fd);
  wait_for(&h[0].failed, 1);
  assert_has(h[0].why, "rank 1 | process 4711");
  assert_int_equal(atomic_load(&h[0].posts), 0);
  close_callers(ranks, 1);
}

static void H4_posts_that_make_no_sense_end_their_connection(void **state) {
  (void)state;
  static const uint8_t post[1024] = {MS_POST_TICKET}; /* as much as a frame that claims more holds */
  uint8_t left[4] = {MS_POST_LEFT}, unknown[4] = {MS_POST_KINDS}, node[4] = {0, 1};
  assert_dropped(MS_WIRE_POST, post, 3, 1);                 /* no kind */
  assert_dropped(MS_WIRE_POST, left, sizeof left, 1);       /* only the store says who has left */
  assert_dropped(MS_WIRE_POST, unknown, sizeof unknown, 1); /* no such kind */
  assert_dropped(MS_WIRE_POST, post, MS_STORE_POST + 5, 1); /* too long */
  assert_dropped(MS_WIRE_POST, post, 0xffffffff, 1);        /* far too long */
  assert_dropped(MS_WIRE_POST, post, 16, 0);                /* on no host */
  assert_dropped(MS_WIRE_NODE, node, sizeof node, 0);       /* host 256 of two ranks */
  assert_dropped(MS_WIRE_NODE, (uint8_t[4]){1}, 4, 1);      /* twice */
  assert_dropped(MS_WIRE_NODE, node, 3, 0);                 /* too short */
  assert_dropped(MS_WIRE_POSTED, post, 16, 1);              /* only the store sends that */
}

/* The server's side of a connection that is never read. */
static void H4_output_that_a_peer_does_not_read_is_bounded(void **state) {
  (void)state;
  static uint8_t body[MS_STORE_POST];
  int pair[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
  ms_store_peer *peer = ms_store_peer_new(pair[0]);
  assert_non_null(peer);
  for (size_t sent = 0; sent < 2 * (size_t)MS_STORE_UNREAD && !peer->broken; sent += sizeof body)
    ms_store_peer_send(peer, MS_WIRE_POSTED, body, sizeof body);
  assert_true(peer->broken);
  assert_true(peer->out_used <= MS_STORE_UNREAD);
  ms_store_peer_free(peer);
  close(pair[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H4_posts_reach_the_lowest_rank_of_every_other_host_in_order),
      TEST(H4_a_rank_that_leaves_has_posted_everything),
      TEST(H4_requests_for_reports_are_limited),
      TEST(H4_posts_that_make_no_sense_end_their_connection),
      TEST(H4_output_that_a_peer_does_not_read_is_bounded),
  };
  return cmocka_run_group_tests_name("store posts", tests, NULL, NULL);
}
