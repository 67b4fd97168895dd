/* test_store_hostile.c - what comes to a store and is no rank: nothing of it holds up the ranks, or ends the server.
 * Next to it, a client that is as odd but is a rank, and is let in. */
#include "tests/c/support/ranks/callers.h"
#include "tests/c/support/check.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/bootstrap/store/store_peer.h"

static caller ranks[2];

/* Rank 0 has come; disturb() does its worst with raw connections; then rank 1 comes, and they meet. */
static void meet_despite(void (*disturb)(int port, int *fds), int count) {
  int port = find_port(), fds[256];
  for (int i = 0; i < count; i++) fds[i] = -1;
  start_callers(ranks, 0, 1, port, 2);
  disturb(port, fds);
  start_callers(ranks, 1, 2, port, 2);
  meet_and_close(ranks, 2);
  for (int i = 0; i < count; i++)
    if (fds[i] >= 0) close(fds[i]);
}

static void send_garbage(int port, int *fds) {
  static const char *const texts[] = {"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
                                      "\x80\x80\x01\x03\x01\x57\x40\x20\xc0\x14",
                                      "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"};
  (void)fds;
  for (int i = 0; i < 3; i++) {
    int fd = connect_raw(port);
    send_raw(fd, texts[i], strlen(texts[i]));
    assert_closed(fd);
  }
}

static void L3_garbage_cannot_stop_it(void **state) {
  (void)state;
  meet_despite(send_garbage, 0);
}

enum { RANDOM_CALLS = 300 };

/* Anything: lengths and kinds that may be right, cut off anywhere. */
static void send_at_random(int port, int *fds) {
  uint32_t state = 1;
  for (int i = 0; i < RANDOM_CALLS; i++) {
    uint8_t bytes[600];
    for (size_t at = 0; at < sizeof bytes; at++) {
      state = state * 1664525 + 1013904223;
      bytes[at] = (uint8_t)(state >> 24);
    }
    if (bytes[8] & 1) ms_wire_put32(bytes, bytes[9] & 1 ? MS_WIRE_HELLO_BYTES : bytes[10]);
    if (bytes[11] & 1) ms_wire_put32(bytes + 4, 1 + bytes[12] % 9);
    if (bytes[13] & 1) ms_wire_put32(bytes + 8, MS_STORE_VERSION);
    fds[0] = connect_raw(port);
    send(fds[0], bytes, sizeof bytes - bytes[14] - bytes[15], MSG_NOSIGNAL);
    close(fds[0]);
  }
  fds[0] = -1;
}

static void L3_random_bytes_cannot_stop_it(void **state) {
  (void)state;
  meet_despite(send_at_random, 1);
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
    send_raw(fd, header, sizeof header);
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
      send_raw(fds[i], header + byte, 1);
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

static uint16_t origin_of(const char *text) {
  union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
  } address = {.any.sa_family = AF_UNIX};
  if (inet_pton(AF_INET, text, &address.v4.sin_addr) == 1) address.any.sa_family = AF_INET;
  else if (inet_pton(AF_INET6, text, &address.v6.sin6_addr) == 1) address.any.sa_family = AF_INET6;
  return ms_stranger_origin(&address.any);
}

static const ms_stranger *listed(const void *context, int i) {
  const ms_stranger *one = (const ms_stranger *)context + i;
  return one->since < 0 ? NULL : one;
}

/* A rank that is far away proves itself late, and must not be pushed out by a process nearby that connects endlessly.
 */
static void L3_a_crowd_makes_room_among_itself(void **state) {
  (void)state;
  static const char *const alike[][3] = {{"127.0.0.1", "127.200.3.4", "::1"},
                                         {"::ffff:127.0.0.9", "a local socket", "::1"},
                                         {"10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1"},
                                         {"2001:db8:1:2::1", "2001:db8:1:2:ffff::9", "2001:db8:1:2:1:2:3:4"}};
  for (int i = 0; i < 4; i++) {
    assert_int_equal(origin_of(alike[i][0]), origin_of(alike[i][1]));
    assert_int_equal(origin_of(alike[i][0]), origin_of(alike[i][2]));
  }
  assert_int_not_equal(origin_of("10.0.0.1"), origin_of("10.0.0.2"));
  assert_int_not_equal(origin_of("2001:db8:1:2::1"), origin_of("2001:db8:1:3::1"));
  assert_int_not_equal(origin_of("10.0.0.1"), origin_of("127.0.0.1"));
  const uint16_t far = origin_of("10.0.0.2"), near = origin_of("127.0.0.1");
  ms_stranger all[] = {{-1, near}, {1, far}, {2, far}, {5, near}, {4, near}, {6, near}};
  assert_int_equal(ms_stranger_to_drop(listed, all, 1), -1);
  assert_int_equal(ms_stranger_to_drop(listed, all, 2), 1);
  assert_int_equal(ms_stranger_to_drop(listed, all, 6), 4); /* the oldest of the most */
  all[4].since = -1;
  assert_int_equal(ms_stranger_to_drop(listed, all, 6), 1); /* as many of each: the oldest of all */
  all[0].since = 0;
  assert_int_equal(ms_stranger_to_drop(listed, all, 6), 0);
}

/* A rank that was let in may not say everything either: it is dropped, and then it is missing. */
static void L3_a_member_that_sends_nonsense_is_dropped(void **state) {
  (void)state;
  static const struct {
    uint32_t bytes, kind;
  } frames[] = {{4, 77}, {0, MS_WIRE_ROUND}, {600, MS_WIRE_ROUND}, {100000, MS_WIRE_ABORT}, {4, MS_WIRE_ALL}};
  for (size_t i = 0; i < sizeof frames / sizeof frames[0]; i++) {
    int port = find_port();
    start_callers(ranks, 0, 1, port, 2);
    int fd = join_raw(port, 1);
    send_frame(fd, frames[i].kind, NULL, frames[i].bytes);
    assert_caller_fails(&ranks[0], MS_EPEER, "rank 1 | connection | process 4711 | there");
    close(fd);
  }
}

/* A text of a peer is printed: it must not move the cursor of somebody's terminal. */
static void L3_texts_of_peers_are_harmless(void **state) {
  (void)state;
  int port = find_port();
  start_callers(ranks, 0, 1, port, 2);
  int fd = join_raw(port, 1);
  send_frame(fd, MS_WIRE_ABORT, "red \x1b[31m\n", 10);
  close(fd);
  assert_caller_fails(&ranks[0], MS_EPEER, "rank 1 | red ?[31m?");
}

/* ---- odd, and ranks all the same ---- */

/* Rank 1's hello and its number for the gather. */
static void make_frames(int fd, uint8_t frames[MS_WIRE_HEADER + MS_WIRE_HELLO_BYTES + MS_WIRE_HEADER + 4]) {
  uint8_t greeting[MS_WIRE_GREETING], nonce[MS_WIRE_NONCE];
  uint32_t version;
  receive_raw(fd, greeting, sizeof greeting);
  assert_true(ms_wire_get_greeting(greeting, &version, nonce));
  ms_wire_hello hello = hello_of(1);
  make_hello_frame(nonce, &hello, "", frames);
  uint8_t *round = frames + MS_WIRE_HEADER + MS_WIRE_HELLO_BYTES;
  ms_wire_put32(round, 4);
  ms_wire_put32(round + 4, MS_WIRE_ROUND);
  ms_wire_put32(round + MS_WIRE_HEADER, 101);
}

static void L3_frames_come_in_any_pieces(void **state) {
  (void)state;
  uint8_t frames[MS_WIRE_HEADER + MS_WIRE_HELLO_BYTES + MS_WIRE_HEADER + 4];
  static const size_t pieces[] = {1, 7, MS_WIRE_HEADER, MS_WIRE_HEADER + MS_WIRE_HELLO_BYTES + 3, sizeof frames};
  for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
    int port = find_port();
    start_callers(ranks, 0, 1, port, 2);
    int fd = connect_raw(port);
    make_frames(fd, frames);
    for (size_t sent = 0; sent < sizeof frames; sent += pieces[i]) {
      size_t rest = sizeof frames - sent;
      send_raw(fd, frames + sent, pieces[i] < rest ? pieces[i] : rest);
      usleep(200);
    }
    join_caller(&ranks[0]);
    if (ranks[0].status) fail_msg("pieces of %zu bytes: %s", pieces[i], ranks[0].message);
    assert_int_equal(ranks[0].all[1], 101);
    close(fd);
    close_callers(ranks, 1);
  }
}

enum { CROWD = 200 };

/* A launcher starts all ranks at once: none may be taken for one stranger too many. */
static void L1_all_ranks_may_come_at_the_same_moment(void **state) {
  (void)state;
  char text[512];
  int port = find_port(), fds[CROWD];
  prepare_caller(&ranks[0], port, 0, CROWD);
  start_caller(&ranks[0]);
  for (int rank = 1; rank < CROWD; rank++) fds[rank] = connect_raw(port);
  for (int rank = 1; rank < CROWD; rank++) {
    ms_wire_hello hello = hello_of(rank);
    hello.size = CROWD;
    assert_int_equal(say_hello(fds[rank], &hello, "", text, sizeof text), MS_WIRE_WELCOME);
  }
  send_frame(fds[CROWD - 1], MS_WIRE_ABORT, "seen enough", 11);
  for (int rank = CROWD - 1; rank > 0; rank--) close(fds[rank]);
  assert_caller_fails(&ranks[0], MS_EPEER, "rank 199 | seen enough");
}

static int take_nothing(void *context, ms_store_peer *peer, uint32_t kind, const uint8_t *body, uint32_t bytes) {
  (void)context, (void)peer, (void)kind, (void)body, (void)bytes;
  return 0;
}

/* What all are sent exists once, and goes out in pieces where a rank takes it in pieces; what was told since comes
 * after it. */
static void L1_a_rank_that_reads_slowly_gets_all_and_then_the_news(void **state) {
  (void)state;
  enum { BYTES = 1 << 20, BEFORE = MS_WIRE_GREETING + MS_WIRE_HEADER, NEWS = MS_WIRE_HEADER + 4 + 3 };
  static uint8_t all[BYTES], got[BEFORE + BYTES + NEWS];
  int pair[2];
  for (int i = 0; i < BYTES; i++) all[i] = (uint8_t)(i * 7 + i / 251);
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
  ms_store_peer *peer = ms_store_peer_new(pair[0]);
  ms_store_shared *shared = ms_store_shared_new(all, sizeof all);
  assert_true(peer && shared);
  ms_store_peer_share(peer, MS_WIRE_ALL, shared);
  ms_store_shared_release(shared); /* the peer has it still */
  ms_store_peer_tell(peer, MS_WIRE_FAILED, MS_EPEER, "now");
  size_t used = 0, pieces = 0;
  while (used < sizeof got) {
    assert_int_equal(ms_store_peer_move(peer, POLLOUT, take_nothing, NULL), 1);
    ssize_t n = recv(pair[1], got + used, 4096 < sizeof got - used ? 4096 : sizeof got - used, 0);
    assert_true(n > 0);
    used += (size_t)n;
    pieces++;
  }
  assert_true(pieces > 100);
  assert_false(ms_store_peer_events(peer) & POLLOUT);
  assert_int_equal(ms_wire_get32(got + MS_WIRE_GREETING), BYTES);
  assert_memory_equal(got + BEFORE, all, BYTES);
  assert_int_equal(ms_wire_get32(got + BEFORE + BYTES + 4), MS_WIRE_FAILED);
  assert_memory_equal(got + BEFORE + BYTES + MS_WIRE_HEADER + 4, "now", 3);
  ms_store_peer_free(peer);
  close(pair[1]);
}

/* ---- limits ---- */

/* As another user: connects to the abstract socket of a place, and tells whether the store greeted. Exit status 1: it
 * did. */
static int is_greeted_as_another_user(const ms_store_place *place) {
  int fd, status;
  char why[128], byte;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    if (setgid(65534) || setuid(65534)) _exit(2);
    int failed = ms_wire_connect(place, 1e300, &fd, why, sizeof why);
    _exit(failed || fd < 0 ? 3 : ms_wire_receive(fd, &byte, 1, 1e300) == MS_OK);
  }
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void L3_another_user_of_the_host_is_kept_out(void **state) {
  (void)state;
  if (geteuid() != 0) skip();
  ms_store_place place;
  char key[64];
  snprintf(key, sizeof key, "users %d", (int)getpid());
  ms_store_place_local(key, "env://here", &place);
  for (int rank = 0; rank < 2; rank++) {
    prepare_caller(&ranks[rank], 1, rank, 2);
    ranks[rank].place = place;
  }
  start_caller(&ranks[0]);
  int greeted = 3;
  for (int i = 0; i < 2000 && greeted == 3; i++) { /* until rank 0 listens */
    greeted = is_greeted_as_another_user(&place);
    usleep(1000);
  }
  assert_int_equal(greeted, 0);
  start_caller(&ranks[1]);
  meet_and_close(ranks, 2);
}

static void L3_too_few_descriptors_are_told_before_anybody_waits(void **state) {
  (void)state;
  int status;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    struct rlimit limit = {.rlim_cur = 256, .rlim_max = 256};
    caller *mine = &ranks[0];
    prepare_caller(mine, find_port(), 0, 1000);
    mine->config.place = &mine->place;
    ms_error_clear();
    int told = !setrlimit(RLIMIT_NOFILE, &limit) && ms_store_open(&mine->config, &mine->store) == MS_EIO &&
               !message_lacks(ms_error_message(), "rank 0 | 256 | 1000 ranks | 2128 | limit");
    if (!told) fprintf(stderr, "test_store_hostile.c: %s\n", ms_error_message());
    _exit(!told);
  }
  waitpid(pid, &status, 0);
  assert_int_equal(status, 0);
}

static int count_descriptors(void) {
  int n = 0;
  DIR *folder = opendir("/proc/self/fd");
  assert_non_null(folder);
  while (readdir(folder)) n++;
  closedir(folder);
  return n;
}

static void refuse_and_miss(int port) {
  prepare_caller(&ranks[0], port, 0, 2);
  prepare_caller(&ranks[1], port, 1, 2);
  ranks[0].config.timeout = 0.8;
  ranks[1].config.job = "another";
  start_caller(&ranks[0]);
  start_caller(&ranks[1]);
  join_caller(&ranks[1]);
  assert_caller_fails(&ranks[0], MS_ETIMEOUT, "rank 1 of 2 | 0.8 s");
  assert_int_not_equal(ranks[1].status, MS_OK);
}

static void L3_no_descriptor_is_left_open(void **state) {
  (void)state;
  int before = count_descriptors();
  for (int i = 0; i < 2; i++) {
    meet_despite(send_garbage, 0);
    refuse_and_miss(find_port());
  }
  assert_int_equal(count_descriptors(), before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(L3_garbage_cannot_stop_it),
      TEST(L3_random_bytes_cannot_stop_it),
      TEST(L3_oversized_frames_cannot_stop_it),
      TEST(L3_half_open_connections_cannot_stop_it),
      TEST(L3_slow_peers_cannot_stop_it),
      TEST(L3_too_many_peers_cannot_stop_it),
      TEST(L3_a_crowd_makes_room_among_itself),
      TEST(L3_a_member_that_sends_nonsense_is_dropped),
      TEST(L3_texts_of_peers_are_harmless),
      TEST(L3_frames_come_in_any_pieces),
      TEST(L1_all_ranks_may_come_at_the_same_moment),
      TEST(L1_a_rank_that_reads_slowly_gets_all_and_then_the_news),
      TEST(L3_another_user_of_the_host_is_kept_out),
      TEST(L3_too_few_descriptors_are_told_before_anybody_waits),
      TEST(L3_no_descriptor_is_left_open),
  };
  return cmocka_run_group_tests_name("store, hostile peers", tests, NULL, NULL);
}
