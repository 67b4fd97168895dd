/* test_transport_refused.c - what claims to be a rank and is none: other tokens, jobs, users, replayed bytes. Each is
 * refused with its reason, and gets no byte in or out. */
#include "tests/c/support/ranks/callers.h"
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/endpoints.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

static ends all;
static const char TOKEN[] = "known-to-all-of-them";

/* Two ranks of which one differs try to connect. */
static void meet(void (*differ)(end *one), const char *facts) {
  all = (ends){.n = 2};
  for (int rank = 0; rank < 2; rank++) {
    prepare_end(&all.of[rank], rank, 2);
    all.of[rank].config.timeout = 0.3;
    if (rank == 1) differ(&all.of[rank]);
    open_end(&all, rank);
  }
  for (int rank = 0; rank < 2; rank++) connect_end(&all, rank);
  for (int rank = 0; rank < 2; rank++) {
    turn_until(&all, &all.of[rank].failures, 1);
    assert_has(all.of[rank].why, facts);
    assert_has(all.of[rank].why, "0.3 s");
  }
  close_ends(&all);
}

static void another_token(end *one) { one->config.token = "a-guess-of-some-length"; }
static void another_job(end *one) { one->config.job = "elsewhere"; }
static void another_size(end *one) { one->config.size = 3; }

static void H6_ranks_of_other_jobs_and_tokens_are_refused(void **state) {
  (void)state;
  meet(another_token, "MOONSHARD_TOKEN");
  meet(another_job, "job \"test\" | job \"elsewhere\"");
  meet(another_size, "2 ranks | 3");
}

static void assert_refused(ms_peer_hello hello, const char *token, const char *facts) {
  char why[MS_PEER_REASON];
  int fd;
  assert_int_equal(greet_end(&all, 1, &hello, token, &fd, why), 0);
  assert_has(why, facts);
  assert_closed(fd);
}

static void H6_claims_that_do_not_fit_are_refused(void **state) {
  (void)state;
  open_without_rank_0(&all, 3, 20);
  assert_refused(hello_to(0, 1, 3), "", "MOONSHARD_TOKEN");
  assert_refused(hello_to(0, 2, 3), TOKEN, "rank 2 | rank 1");
  assert_refused(hello_to(2, 1, 3), TOKEN, "rank 2 | rank 1"); /* of this pair, rank 1 connects */
  assert_refused(hello_to(-1, 1, 3), TOKEN, "rank -1");
  assert_refused(hello_to(1 << 30, 1, 3), TOKEN, "rank 1073741824");
  ms_peer_hello newer = hello_to(0, 1, 3);
  newer.version = 9;
  assert_refused(newer, TOKEN, "version 9 | version 1");
  char why[MS_PEER_REASON];
  int fd;
  ms_peer_hello good = hello_to(0, 1, 3);
  assert_int_equal(greet_end(&all, 1, &good, TOKEN, &fd, why), 1);
  turn_for(&all, 0.02);
  assert_int_equal(all.of[1].failures, 0);
  close(fd);
  turn_until(&all, &all.of[1].failures, 1);
  assert_has(all.of[1].why, "closed");
  close_ends(&all);
}

/* Bytes that were accepted on one connection are worth nothing on another. */
static void H6_a_replayed_handshake_is_refused(void **state) {
  uint8_t greeting[2][MS_PEER_GREETING], nonce[MS_WIRE_NONCE], bytes[MS_PEER_HELLO], answer[MS_PEER_ANSWER], proof[32];
  char why[MS_PEER_REASON];
  uint32_t version;
  int fd[2];
  (void)state;
  open_without_rank_0(&all, 2, 20);
  start_turning(&all);
  for (int i = 0; i < 2; i++) {
    fd[i] = connect_raw(port_of_end(all.addresses[1]));
    receive_raw(fd[i], greeting[i], MS_PEER_GREETING);
  }
  assert_memory_not_equal(greeting[0], greeting[1], MS_PEER_GREETING);
  ms_peer_hello hello = hello_to(0, 1, 2);
  assert_true(ms_peer_get_greeting(greeting[0], &version, nonce));
  ms_peer_prove(TOKEN, 'C', nonce, &hello, hello.proof);
  ms_peer_put_hello(bytes, &hello);
  send_raw(fd[1], bytes, sizeof bytes);
  receive_raw(fd[1], answer, sizeof answer);
  assert_int_equal(ms_peer_get_answer(answer, proof, why), 0);
  send_raw(fd[0], bytes, sizeof bytes);
  receive_raw(fd[0], answer, sizeof answer);
  assert_int_equal(ms_peer_get_answer(answer, proof, why), 1);
  stop_turning();
  close(fd[0]);
  close(fd[1]);
  close_ends(&all);
}

/* What listens at a rank's address has no token, but a welcome that was good for another connection. */
static void H6_a_rank_believes_no_welcome_without_a_proof(void **state) {
  uint8_t greeting[MS_PEER_GREETING], nonce[MS_WIRE_NONCE] = {1}, hello[MS_PEER_HELLO], answer[MS_PEER_ANSWER];
  uint8_t proof[MS_WIRE_PROOF];
  int port, listener = listen_raw(&port);
  (void)state;
  all = (ends){.n = 2};
  for (int rank = 0; rank < 2; rank++) {
    prepare_end(&all.of[rank], rank, 2);
    all.of[rank].config.timeout = 0.5;
    open_end(&all, rank);
  }
  all.addresses[1][4] = (uint8_t)port;
  all.addresses[1][5] = (uint8_t)(port >> 8);
  connect_end(&all, 0);
  ms_peer_hello other = hello_to(0, 1, 2);
  ms_peer_prove(TOKEN, 'A', nonce, &other, proof);
  ms_peer_put_greeting(greeting, nonce);
  ms_peer_put_welcome(answer, proof);
  start_turning(&all);
  int fd = accept(listener, NULL, NULL);
  send_raw(fd, greeting, sizeof greeting);
  receive_raw(fd, hello, sizeof hello);
  send_raw(fd, answer, sizeof answer);
  assert_closed(fd);
  stop_turning();
  turn_until(&all, &all.of[0].failures, 1);
  assert_has(all.of[0].why, "0.5 s | 127.0.0.1 | token");
  close(listener);
  close_ends(&all);
}

/* A hello that comes byte by byte, but comes, is as good as any. */
static void H6_a_hello_can_come_in_pieces(void **state) {
  uint8_t greeting[MS_PEER_GREETING], nonce[MS_WIRE_NONCE], bytes[MS_PEER_HELLO], answer[MS_PEER_ANSWER], proof[32];
  char why[MS_PEER_REASON];
  uint32_t version;
  (void)state;
  open_without_rank_0(&all, 2, 20);
  start_turning(&all);
  int fd = connect_raw(port_of_end(all.addresses[1]));
  receive_raw(fd, greeting, sizeof greeting);
  assert_true(ms_peer_get_greeting(greeting, &version, nonce));
  ms_peer_hello hello = hello_to(0, 1, 2);
  ms_peer_prove(TOKEN, 'C', nonce, &hello, hello.proof);
  ms_peer_put_hello(bytes, &hello);
  for (size_t i = 0; i < sizeof bytes; i++) {
    send_raw(fd, bytes + i, 1);
    usleep(200);
  }
  receive_raw(fd, answer, sizeof answer);
  stop_turning();
  assert_int_equal(ms_peer_get_answer(answer, proof, why), 1);
  close(fd);
  close_ends(&all);
}

/* ---- users ---- */

enum { OTHER = 65533 };

static void H6_without_a_token_another_user_is_refused(void **state) {
  int status;
  (void)state;
  if (geteuid() != 0) skip();
  all = (ends){.n = 2};
  for (int rank = 0; rank < 2; rank++) {
    prepare_end(&all.of[rank], rank, 2);
    all.of[rank].config.token = "";
    open_end(&all, rank);
  }
  connect_end(&all, 1);
  int port = port_of_end(all.addresses[1]);
  start_turning(&all);
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    uint8_t greeting[MS_PEER_GREETING], nonce[MS_WIRE_NONCE], bytes[MS_PEER_HELLO], answer[MS_PEER_ANSWER], proof[32];
    char why[MS_PEER_REASON] = "";
    uint32_t version;
    ms_peer_hello hello = hello_to(0, 1, 2);
    if (setgid(OTHER) || setuid(OTHER)) _exit(2);
    int fd = connect_raw(port);
    receive_raw(fd, greeting, sizeof greeting);
    ms_peer_get_greeting(greeting, &version, nonce);
    ms_peer_prove("", 'C', nonce, &hello, hello.proof);
    ms_peer_put_hello(bytes, &hello);
    send_raw(fd, bytes, sizeof bytes);
    receive_raw(fd, answer, sizeof answer);
    _exit(ms_peer_get_answer(answer, proof, why) || message_lacks(why, "user 65533 | user 0"));
  }
  waitpid(pid, &status, 0);
  stop_turning();
  assert_int_equal(status, 0);
  connect_end(&all, 0); /* a rank of this user */
  for (double end = ms_clock() + 10; !ms_transport_tcp.connected(all.of[0].endpoint) && ms_clock() < end;)
    turn_ends(&all);
  assert_int_equal(ms_transport_tcp.connected(all.of[0].endpoint), 1);
  assert_int_equal(all.of[1].failures, 0);
  close_ends(&all);
}

static int count_descriptors(void) {
  int n = 0;
  DIR *folder = opendir("/proc/self/fd");
  assert_non_null(folder);
  while (readdir(folder)) n++;
  closedir(folder);
  return n;
}

static void H6_no_descriptor_is_left_open(void **state) {
  int before = count_descriptors();
  (void)state;
  meet(another_token, "MOONSHARD_TOKEN");
  open_ends(&all, 3, 20);
  close_ends(&all);
  assert_int_equal(count_descriptors(), before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H6_ranks_of_other_jobs_and_tokens_are_refused),
      TEST(H6_claims_that_do_not_fit_are_refused),
      TEST(H6_a_replayed_handshake_is_refused),
      TEST(H6_a_rank_believes_no_welcome_without_a_proof),
      TEST(H6_a_hello_can_come_in_pieces),
      TEST(H6_without_a_token_another_user_is_refused),
      TEST(H6_no_descriptor_is_left_open),
  };
  return cmocka_run_group_tests_name("transport, refused ranks", tests, NULL, NULL);
}
