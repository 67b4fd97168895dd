/* test_store_refused.c - who is no rank of this job: refused by the store, or found at the place where it should be. */
#include "tests/c/support/ranks/callers.h"
#include "tests/c/support/check.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

static caller ranks[3];

/* Ranks 0 and 1 of 2 meet, while `intruder` is refused with this text. */
static void refuse_while_others_meet(caller *intruder, const char *token, const char *facts) {
  int port = intruder->place.port;
  prepare_caller(&ranks[0], port, 0, 2);
  prepare_caller(&ranks[1], port, 1, 2);
  ranks[0].config.token = ranks[1].config.token = token;
  start_caller(&ranks[0]);
  start_caller(intruder);
  assert_caller_fails(intruder, MS_EMISMATCH, facts);
  start_caller(&ranks[1]);
  meet_and_close(ranks, 2);
}

static void L3_another_job_is_refused(void **state) {
  (void)state;
  caller *intruder = &ranks[2];
  prepare_caller(intruder, find_port(), 1, 2);
  intruder->config.job = "yesterday's";
  refuse_while_others_meet(intruder, "", "job \"yesterday's\" | job \"test\"");
}

static void L3_another_token_is_refused(void **state) {
  (void)state;
  caller *intruder = &ranks[2];
  prepare_caller(intruder, find_port(), 1, 2);
  intruder->config.token = "guessed";
  refuse_while_others_meet(intruder, "the right one", "token");
  prepare_caller(intruder, find_port(), 1, 2);
  refuse_while_others_meet(intruder, "the right one", "token");
  prepare_caller(intruder, find_port(), 1, 2);
  intruder->config.token = "superfluous";
  refuse_while_others_meet(intruder, "", "token | rank 0");
}

static void L3_another_size_is_refused(void **state) {
  (void)state;
  caller *intruder = &ranks[2];
  prepare_caller(intruder, find_port(), 1, 4);
  refuse_while_others_meet(intruder, "", "rank 1 | 4 ranks | rank 0 | 2");
}

static void L3_a_second_process_with_the_same_rank_is_refused(void **state) {
  (void)state;
  uint8_t body[4];
  int port = find_port();
  start_callers(ranks, 0, 1, port, 2);
  int fd = join_raw(port, 1);
  start_callers(ranks, 1, 2, port, 2);
  assert_caller_fails(&ranks[1], MS_EMISMATCH, "rank 1 | there");
  ms_wire_put32(body, 101);
  send_frame(fd, MS_WIRE_ROUND, body, sizeof body);
  join_caller(&ranks[0]);
  assert_int_equal(ranks[0].status, MS_OK);
  assert_int_equal(ranks[0].all[1], 101);
  close(fd);
  close_callers(ranks, 1);
}

/* Its number is not free again: what it did before it died may have been seen already. */
static void L3_a_rank_that_died_cannot_come_again(void **state) {
  (void)state;
  int port = find_port();
  start_callers(ranks, 0, 1, port, 3);
  ms_wire_hello hello = hello_of(2);
  char text[512];
  hello.size = 3;
  int fd = connect_raw(port);
  assert_int_equal(say_hello(fd, &hello, "", text, sizeof text), MS_WIRE_WELCOME);
  close(fd);
  assert_caller_fails(&ranks[0], MS_EPEER, "rank 2 | connection | process 4711 | there");
  prepare_caller(&ranks[2], port, 2, 3);
  ranks[2].config.timeout = 0.5;
  start_caller(&ranks[2]); /* no rank waits for it any more */
  assert_caller_fails(&ranks[2], MS_ETIMEOUT, "rank 0 of 3 | 0.5 s");
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
  assert_caller_fails(&ranks[1], MS_EMISMATCH, "token | rank 0");
  assert_caller_fails(&ranks[0], MS_ETIMEOUT, "rank 1 of 2 | 1.5 s | 127.0.0.1");
}

static void L3_another_protocol_version_is_refused(void **state) {
  (void)state;
  char text[512];
  int port = find_port();
  start_callers(ranks, 0, 1, port, 2);
  int fd = connect_raw(port);
  ms_wire_hello hello = hello_of(1);
  hello.version = MS_STORE_VERSION + 1;
  assert_int_equal(say_hello(fd, &hello, "", text, sizeof text), MS_WIRE_REFUSED);
  assert_has(text, "version 3 | version 2");
  assert_closed(fd);
  start_callers(ranks, 1, 2, port, 2);
  meet_and_close(ranks, 2);
}

/* ---- what else may be at the place ---- */

static void meet_a_foreign_server(const void *greeting, size_t bytes, const char *facts) {
  int port, listener = listen_raw(&port);
  start_callers(ranks, 1, 2, port, 2);
  int fd = accept(listener, NULL, NULL);
  send_raw(fd, greeting, bytes);
  assert_caller_fails(&ranks[1], MS_EMISMATCH, facts);
  close(fd);
  close(listener);
}

static void L3_a_foreign_server_at_the_port_is_told(void **state) {
  (void)state;
  uint8_t greeting[MS_WIRE_GREETING], nonce[MS_WIRE_NONCE] = {0};
  meet_a_foreign_server("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n", 40, "store");
  ms_wire_put_greeting(greeting, nonce);
  ms_wire_put32(greeting + 8, 7);
  meet_a_foreign_server(greeting, sizeof greeting, "version 7 | version 2");
}

/* Takes a rank's hello and answers it with a frame of `claimed` bytes of which none makes sense, then with nothing. */
static void answer_hello(uint32_t kind, uint32_t claimed, int status, const char *facts) {
  uint8_t greeting[MS_WIRE_GREETING], nonce[MS_WIRE_NONCE] = {1}, hello[MS_WIRE_HEADER + MS_WIRE_HELLO_BYTES];
  int port, listener = listen_raw(&port);
  prepare_caller(&ranks[1], port, 1, 2);
  ranks[1].config.timeout = 1;
  start_caller(&ranks[1]);
  int fd = accept(listener, NULL, NULL);
  ms_wire_put_greeting(greeting, nonce);
  send_raw(fd, greeting, sizeof greeting);
  receive_raw(fd, hello, sizeof hello);
  send_frame(fd, kind, NULL, claimed);
  assert_caller_fails(&ranks[1], status, facts);
  close(fd);
  close(listener);
}

static void L3_a_server_that_lies_is_not_believed(void **state) {
  (void)state;
  answer_hello(MS_WIRE_WELCOME, MS_WIRE_PROOF, MS_EMISMATCH, "store | token");
  answer_hello(MS_WIRE_WELCOME, 0xffffffff, MS_EMISMATCH, "answer | invalid");
  answer_hello(MS_WIRE_ALL, 8, MS_EMISMATCH, "answer | invalid");
  answer_hello(MS_WIRE_REFUSED, 0xffffffff, MS_EMISMATCH, "data | invalid");
  answer_hello(MS_WIRE_REFUSED, 100, MS_EMISMATCH, "rank 1 | refused");
}

/* A store under a flood closes connections that it has greeted: a rank comes again, until its deadline. */
static void L3_a_server_that_closes_is_asked_again(void **state) {
  (void)state;
  uint8_t greeting[MS_WIRE_GREETING], nonce[MS_WIRE_NONCE] = {1};
  int port, listener = listen_raw(&port);
  prepare_caller(&ranks[1], port, 1, 2);
  ranks[1].config.timeout = 1;
  start_caller(&ranks[1]);
  ms_wire_put_greeting(greeting, nonce);
  for (int i = 0; i < 3; i++) {
    struct pollfd comes = {.fd = listener, .events = POLLIN};
    assert_int_equal(poll(&comes, 1, 5000), 1);
    int fd = accept(listener, NULL, NULL);
    send_raw(fd, greeting, sizeof greeting);
    close(fd);
  }
  assert_caller_fails(&ranks[1], MS_ETIMEOUT, "rank 0 of 2 | 1 s");
  close(listener);
}

static void L3_a_silent_server_is_told_at_the_deadline(void **state) {
  (void)state;
  int port, listener = listen_raw(&port);
  prepare_caller(&ranks[1], port, 1, 2);
  ranks[1].config.timeout = 0.5;
  start_caller(&ranks[1]);
  int fd = accept(listener, NULL, NULL);
  assert_caller_fails(&ranks[1], MS_ETIMEOUT, "rank 0 of 2 | 0.5 s | answer");
  close(fd);
  close(listener);
}

static void L3_a_port_in_use_is_told(void **state) {
  (void)state;
  int port, listener = listen_raw(&port);
  start_callers(ranks, 0, 1, port, 2);
  assert_caller_fails(&ranks[0], MS_EIO, "port | in use");
  close(listener);
}

static void L3_an_address_of_another_host_is_told(void **state) {
  (void)state;
  prepare_caller(&ranks[0], find_port(), 0, 2);
  assert_int_equal(ms_store_place_tcp("192.0.2.77", 29500, &ranks[0].place), MS_OK);
  start_caller(&ranks[0]);
  assert_caller_fails(&ranks[0], MS_EIO, "address | rank 0");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(L3_another_job_is_refused),
      TEST(L3_another_token_is_refused),
      TEST(L3_another_size_is_refused),
      TEST(L3_a_second_process_with_the_same_rank_is_refused),
      TEST(L3_a_rank_that_died_cannot_come_again),
      TEST(L3_who_was_turned_away_is_reported_with_who_is_missing),
      TEST(L3_another_protocol_version_is_refused),
      TEST(L3_a_foreign_server_at_the_port_is_told),
      TEST(L3_a_server_that_lies_is_not_believed),
      TEST(L3_a_server_that_closes_is_asked_again),
      TEST(L3_a_silent_server_is_told_at_the_deadline),
      TEST(L3_a_port_in_use_is_told),
      TEST(L3_an_address_of_another_host_is_told),
  };
  return cmocka_run_group_tests_name("store, who is refused", tests, NULL, NULL);
}
