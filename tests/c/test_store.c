/* test_store.c - meeting at the store: who is let in, who is refused, who is missing, who died. */
#include "tests/c/support/callers.h"
#include "tests/c/support/check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

static caller ranks[64];

/* ---- places ---- */

static void L1_places_are_read(void **state) {
  (void)state;
  ms_store_place place;
  assert_int_equal(ms_store_place_parse("tcp://node-1.cluster:29500", &place), MS_OK);
  assert_string_equal(place.host, "node-1.cluster");
  assert_int_equal(place.port, 29500);
  assert_int_equal(ms_store_place_is_local(&place), 0);
  assert_int_equal(ms_store_place_parse("tcp://[fd00::2]:1", &place), MS_OK);
  assert_string_equal(place.host, "fd00::2");
  assert_string_equal(place.text, "tcp://[fd00::2]:1");
  assert_int_equal(ms_store_place_parse("file:///tmp/meet", &place), MS_OK);
  assert_string_equal(place.name, "/tmp/meet");
  const char *local[] = {"tcp://127.0.0.1:1", "tcp://127.9.9.9:1", "tcp://localhost:1", "tcp://[::1]:1", "file:///a"};
  for (int i = 0; i < 5; i++) {
    assert_int_equal(ms_store_place_parse(local[i], &place), MS_OK);
    assert_int_equal(ms_store_place_is_local(&place), 1);
  }
}

static void L1_places_that_make_no_sense_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *url, *part;
  } wrong[] = {{"tcp://host", "it has no port"},
               {"tcp://host:", "the port must be 1 to 65535"},
               {"tcp://host:0", "the port must be 1 to 65535"},
               {"tcp://host:65536", "the port must be 1 to 65535"},
               {"tcp://host:29500x", "the port must be 1 to 65535"},
               {"tcp://:29500", "no host name"},
               {"tcp://host/path:29500", "no host name"},
               {"file://relative", "must be absolute"},
               {"file:///", "must be absolute"},
               {"udp://host:1", "tcp://host:port, file:///path or env://"},
               {"", "tcp://host:port, file:///path or env://"}};
  ms_store_place place;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    assert_fails(ms_store_place_parse(wrong[i].url, &place), MS_EINVAL, wrong[i].part);
}

/* ---- meeting ---- */

static void meet(int size, const ms_store_place *place, const char *token) {
  int port = find_port();
  for (int rank = size - 1; rank >= 0; rank--) { /* rank 0 comes last: the others wait for it */
    prepare_caller(&ranks[rank], port, rank, size);
    if (place) ranks[rank].place = *place;
    ranks[rank].config.token = token;
    start_caller(&ranks[rank]);
  }
  for (int rank = 0; rank < size; rank++) join_caller(&ranks[rank]);
  assert_gathered(ranks, size);
  close_callers(ranks, size);
}

static void L1_ranks_meet_over_tcp(void **state) {
  (void)state;
  meet(1, NULL, "");
  meet(5, NULL, "");
  meet(5, NULL, "a token of sixteen");
  meet(24, NULL, "");
}

static void L1_ranks_of_a_host_meet_without_a_port(void **state) {
  (void)state;
  ms_store_place place;
  char key[64];
  snprintf(key, sizeof key, "test %d", (int)getpid());
  ms_store_place_local(key, "env://here", &place);
  meet(4, &place, "");
}

static void L1_several_gathers_follow_each_other(void **state) {
  (void)state;
  int port = find_port(), mine[2] = {7, 8}, all[4];
  for (int rank = 0; rank < 2; rank++) {
    prepare_caller(&ranks[rank], port, rank, 2);
    start_caller(&ranks[rank]);
  }
  for (int rank = 0; rank < 2; rank++) join_caller(&ranks[rank]);
  assert_gathered(ranks, 2);
  assert_fails(ms_store_gather(ranks[0].store, mine, 0, all), MS_EINVAL, "1 to 512");
  assert_fails(ms_store_gather(ranks[0].store, mine, 513, all), MS_EINVAL, "1 to 512");
  close_callers(ranks, 2);
}

/* ---- who is missing ---- */

static void L4_every_rank_names_the_ranks_that_are_missing(void **state) {
  (void)state;
  static const int present[] = {0, 2, 6};
  int port = find_port();
  for (int i = 0; i < 3; i++) {
    prepare_caller(&ranks[i], port, present[i], 8);
    ranks[i].config.timeout = i == 1 ? 0.4 : 5; /* whose deadline comes first speaks for all */
    start_caller(&ranks[i]);
  }
  for (int i = 0; i < 3; i++) {
    join_caller(&ranks[i]);
    assert_int_equal(ranks[i].status, MS_ETIMEOUT);
    assert_contains(ranks[i].message, "ranks 1, 3-5, 7 of 8 have not come within 0.4 s");
    assert_contains(ranks[i].message, "tcp://127.0.0.1:");
  }
}

static void L4_one_missing_rank_is_named(void **state) {
  (void)state;
  prepare_caller(&ranks[0], find_port(), 0, 2);
  ranks[0].config.timeout = 0.2;
  start_caller(&ranks[0]);
  join_caller(&ranks[0]);
  assert_int_equal(ranks[0].status, MS_ETIMEOUT);
  assert_contains(ranks[0].message, "rank 1 of 2 has not come within 0.2 s");
}

static void L4_a_missing_rank_0_is_named(void **state) {
  (void)state;
  prepare_caller(&ranks[0], find_port(), 1, 2);
  ranks[0].config.timeout = 0.3;
  start_caller(&ranks[0]);
  join_caller(&ranks[0]);
  assert_int_equal(ranks[0].status, MS_ETIMEOUT);
  assert_contains(ranks[0].message, "rank 0 of 2 has not come within 0.3 s (Connection refused)");
}

/* ---- who is refused ---- */

/* Ranks 0 and 1 of 2 meet, while `intruder` is refused with this text. */
static void refuse_while_others_meet(caller *intruder, const char *token, const char *part) {
  int port = intruder->place.port;
  prepare_caller(&ranks[0], port, 0, 2);
  prepare_caller(&ranks[1], port, 1, 2);
  ranks[0].config.token = ranks[1].config.token = token;
  start_caller(&ranks[0]);
  start_caller(intruder);
  join_caller(intruder);
  assert_int_equal(intruder->status, MS_EMISMATCH);
  assert_contains(intruder->message, part);
  start_caller(&ranks[1]);
  join_caller(&ranks[0]);
  join_caller(&ranks[1]);
  assert_gathered(ranks, 2);
  close_callers(ranks, 2);
}

static void L3_another_job_is_refused(void **state) {
  (void)state;
  caller *intruder = &ranks[2];
  prepare_caller(intruder, find_port(), 1, 2);
  intruder->config.job = "yesterday's";
  refuse_while_others_meet(intruder, "", "it belongs to job \"yesterday's\", the store to job \"test\"");
}

static void L3_another_token_is_refused(void **state) {
  (void)state;
  caller *intruder = &ranks[2];
  prepare_caller(intruder, find_port(), 1, 2);
  intruder->config.token = "guessed";
  refuse_while_others_meet(intruder, "the right one", "it does not know the job's token");
  prepare_caller(intruder, find_port(), 1, 2);
  refuse_while_others_meet(intruder, "the right one", "it does not know the job's token");
  prepare_caller(intruder, find_port(), 1, 2);
  intruder->config.token = "superfluous";
  refuse_while_others_meet(intruder, "", "it has a token and rank 0 has none");
}

static void L3_another_size_is_refused(void **state) {
  (void)state;
  caller *intruder = &ranks[2];
  prepare_caller(intruder, find_port(), 1, 4);
  refuse_while_others_meet(intruder, "", "rank 1 says that there are 4 ranks, rank 0 says 2");
}

static void L3_a_second_process_with_the_same_rank_is_refused(void **state) {
  (void)state;
  char text[512];
  uint8_t frame[MS_WIRE_HEADER + 4];
  int port = find_port();
  prepare_caller(&ranks[0], port, 0, 2);
  prepare_caller(&ranks[1], port, 1, 2);
  start_caller(&ranks[0]);
  int fd = connect_raw(port);
  ms_wire_hello hello = {.version = MS_STORE_VERSION, .rank = 1, .size = 2, .job = "test", .host = "there"};
  assert_int_equal(say_hello(fd, &hello, "", text, sizeof text), MS_WIRE_WELCOME);
  start_caller(&ranks[1]);
  join_caller(&ranks[1]);
  assert_int_equal(ranks[1].status, MS_EMISMATCH);
  assert_contains(ranks[1].message, "says that it is rank 1; so does there, which came first");
  ms_wire_put32(frame, 4);
  ms_wire_put32(frame + 4, MS_WIRE_ROUND);
  ms_wire_put32(frame + MS_WIRE_HEADER, 101);
  assert_int_equal(send(fd, frame, sizeof frame, MSG_NOSIGNAL), sizeof frame);
  join_caller(&ranks[0]);
  assert_int_equal(ranks[0].status, MS_OK);
  assert_int_equal(ranks[0].all[1], 101);
  close(fd);
  close_callers(ranks, 1);
}

static void L3_who_was_turned_away_is_reported_with_who_is_missing(void **state) {
  (void)state;
  int port = find_port();
  prepare_caller(&ranks[0], port, 0, 2);
  prepare_caller(&ranks[1], port, 1, 2);
  ranks[0].config.timeout = 1.5;
  ranks[1].config.token = "not the right one";
  start_caller(&ranks[0]);
  start_caller(&ranks[1]);
  join_caller(&ranks[1]);
  join_caller(&ranks[0]);
  assert_int_equal(ranks[0].status, MS_ETIMEOUT);
  assert_contains(ranks[0].message, "rank 1 of 2 has not come within 1.5 s; turned away: 127.0.0.1:");
}

static void L3_another_protocol_version_is_refused(void **state) {
  (void)state;
  char text[512];
  int port = find_port();
  prepare_caller(&ranks[0], port, 0, 2);
  start_caller(&ranks[0]);
  int fd = connect_raw(port);
  ms_wire_hello hello = {.version = MS_STORE_VERSION + 1, .rank = 1, .size = 2, .job = "test", .host = "h"};
  assert_int_equal(say_hello(fd, &hello, "", text, sizeof text), MS_WIRE_REFUSED);
  assert_contains(text, "it speaks version 2 of the protocol, the store version 1");
  assert_closed(fd);
  prepare_caller(&ranks[1], port, 1, 2);
  start_caller(&ranks[1]);
  join_caller(&ranks[0]);
  join_caller(&ranks[1]);
  assert_gathered(ranks, 2);
  close_callers(ranks, 2);
}

/* Answers one connection with these bytes and keeps it open until the test ends. */
static int listen_raw(int *port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t bytes = sizeof address;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
  assert_int_equal(listen(fd, 4), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
  *port = ntohs(address.sin_port);
  return fd;
}

static void meet_a_foreign_server(const void *greeting, size_t bytes, const char *part) {
  int port, listener = listen_raw(&port);
  prepare_caller(&ranks[0], port, 1, 2);
  start_caller(&ranks[0]);
  int fd = accept(listener, NULL, NULL);
  assert_int_equal(send(fd, greeting, bytes, MSG_NOSIGNAL), (int)bytes);
  join_caller(&ranks[0]);
  assert_int_equal(ranks[0].status, MS_EMISMATCH);
  assert_contains(ranks[0].message, part);
  close(fd);
  close(listener);
}

static void L3_a_foreign_server_at_the_port_is_told(void **state) {
  (void)state;
  uint8_t greeting[MS_WIRE_GREETING], nonce[MS_WIRE_NONCE] = {0};
  meet_a_foreign_server("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n", 40, "is no store of Moonshard");
  ms_wire_put_greeting(greeting, nonce);
  ms_wire_put32(greeting + 8, 7);
  meet_a_foreign_server(greeting, sizeof greeting, "the store speaks version 7 of the protocol, this build version 1");
}

static void L3_a_port_in_use_is_told(void **state) {
  (void)state;
  int port, listener = listen_raw(&port);
  prepare_caller(&ranks[0], port, 0, 2);
  start_caller(&ranks[0]);
  join_caller(&ranks[0]);
  assert_int_equal(ranks[0].status, MS_EIO);
  assert_contains(ranks[0].message, "the port is in use; choose another");
  close(listener);
}

static void L3_an_address_of_another_host_is_told(void **state) {
  (void)state;
  prepare_caller(&ranks[0], find_port(), 0, 2);
  assert_int_equal(ms_store_place_tcp("192.0.2.77", 29500, &ranks[0].place), MS_OK);
  start_caller(&ranks[0]);
  join_caller(&ranks[0]);
  assert_int_equal(ranks[0].status, MS_EIO);
  assert_contains(ranks[0].message, "it is no address of rank 0's host");
}

/* ---- deaths ---- */

typedef struct heard {
  pthread_mutex_t lock;
  char why[1024];
} heard;

static void hear(void *context, const char *why) {
  heard *h = context;
  pthread_mutex_lock(&h->lock);
  snprintf(h->why, sizeof h->why, "%s", why);
  pthread_mutex_unlock(&h->lock);
}

static void assert_heard(heard *h, const char *part) {
  char why[1024] = "";
  for (double end = ms_clock() + 20; ms_clock() < end && !*why; usleep(1000)) {
    pthread_mutex_lock(&h->lock);
    memcpy(why, h->why, sizeof why);
    pthread_mutex_unlock(&h->lock);
  }
  assert_contains(why, part);
}

static void meet_and_watch(int size, heard *h) {
  int port = find_port();
  for (int rank = 0; rank < size; rank++) {
    prepare_caller(&ranks[rank], port, rank, size);
    start_caller(&ranks[rank]);
  }
  for (int rank = 0; rank < size; rank++) {
    join_caller(&ranks[rank]);
    h[rank] = (heard){.lock = PTHREAD_MUTEX_INITIALIZER};
  }
  assert_gathered(ranks, size);
  for (int rank = 0; rank < size; rank++) assert_int_equal(ms_store_watch(ranks[rank].store, hear, &h[rank]), MS_OK);
}

static void L5_a_rank_that_gives_up_is_heard_by_all(void **state) {
  (void)state;
  heard h[3];
  meet_and_watch(3, h);
  ms_store_abort(ranks[1].store, "the loss is nan");
  for (int rank = 0; rank < 3; rank++) assert_heard(&h[rank], "rank 1 gave up: the loss is nan");
  close_callers(ranks, 3);
}

static void L5_ranks_that_leave_in_any_order_are_no_failure(void **state) {
  (void)state;
  heard h[3];
  for (int first = 0; first < 3; first++) {
    meet_and_watch(3, h);
    for (int i = 0; i < 3; i++) {
      int rank = (first + i) % 3;
      ms_store_close(ranks[rank].store);
    }
    for (int rank = 0; rank < 3; rank++) assert_string_equal(h[rank].why, "");
  }
}

/* Rank `dying` of 3 is a process that is killed when it has come; another one waits; the third never comes. */
static void let_die(int dying, const char *part) {
  int port = find_port(), came[2];
  char byte = 0;
  assert_int_equal(pipe(came), 0);
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    caller *mine = &ranks[3];
    prepare_caller(mine, port, dying, 3);
    mine->config.place = &mine->place;
    if (ms_store_open(&mine->config, &mine->store) || write(came[1], &byte, 1) != 1) _exit(1);
    sleep(60);
    _exit(0);
  }
  caller *mine = &ranks[0];
  int all[3];
  prepare_caller(mine, port, dying == 0 ? 1 : 0, 3);
  mine->config.place = &mine->place;
  assert_int_equal(ms_store_open(&mine->config, &mine->store), MS_OK);
  assert_int_equal(read(came[0], &byte, 1), 1);
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  assert_fails(ms_store_gather(mine->store, &port, sizeof port, all), dying == 0 ? MS_EIO : MS_EPEER, part);
  close_callers(mine, 1);
  close(came[0]);
  close(came[1]);
}

static void L5_a_rank_that_dies_in_the_rendezvous_is_named(void **state) {
  (void)state;
  let_die(2, "rank 2 died, or lost its connection: process ");
  let_die(0, "rank 0 died, or is no longer reached");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(L1_places_are_read),
      TEST(L1_places_that_make_no_sense_are_refused),
      TEST(L1_ranks_meet_over_tcp),
      TEST(L1_ranks_of_a_host_meet_without_a_port),
      TEST(L1_several_gathers_follow_each_other),
      TEST(L4_every_rank_names_the_ranks_that_are_missing),
      TEST(L4_one_missing_rank_is_named),
      TEST(L4_a_missing_rank_0_is_named),
      TEST(L3_another_job_is_refused),
      TEST(L3_another_token_is_refused),
      TEST(L3_another_size_is_refused),
      TEST(L3_a_second_process_with_the_same_rank_is_refused),
      TEST(L3_who_was_turned_away_is_reported_with_who_is_missing),
      TEST(L3_another_protocol_version_is_refused),
      TEST(L3_a_foreign_server_at_the_port_is_told),
      TEST(L3_a_port_in_use_is_told),
      TEST(L3_an_address_of_another_host_is_told),
      TEST(L5_a_rank_that_gives_up_is_heard_by_all),
      TEST(L5_ranks_that_leave_in_any_order_are_no_failure),
      TEST(L5_a_rank_that_dies_in_the_rendezvous_is_named),
  };
  return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
