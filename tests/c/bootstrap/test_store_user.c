/* test_store_user.c - whose process is at the other end: known on both loopbacks, refused where it is not known, and
 * what a store and a rank make of it where there is no token. Sockets of another user are made as root, with that
 * user's fsuid: the kernel gives a socket to the one who made it, and fsuid is a thread's own.
 */
#include "tests/c/support/ranks/callers.h"
#include "tests/c/support/check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"

enum { OTHER = 65533 };

static caller ranks[2];

/* ---- a connection, and what is said of its ends ---- */

typedef struct connection {
  int listener, caller, called; /* called -1: not accepted */
} connection;

static int as_user(int user, int (*make)(const void *), const void *argument) {
  setfsuid((uid_t)user);
  int made = make(argument);
  setfsuid(geteuid());
  return made;
}

static int accept_one(const void *listener) { return accept(*(const int *)listener, NULL, NULL); }
static int connect_to(const void *port) { return connect_raw(*(const int *)port); }

static int listen_on(int family, struct sockaddr_storage *address, socklen_t *bytes) {
  *address = (struct sockaddr_storage){.ss_family = (sa_family_t)family};
  if (family == AF_INET) ((struct sockaddr_in *)address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  else ((struct sockaddr_in6 *)address)->sin6_addr = in6addr_loopback;
  *bytes = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
  int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && !bind(fd, (struct sockaddr *)address, *bytes) && !listen(fd, 4) &&
      !getsockname(fd, (struct sockaddr *)address, bytes))
    return fd;
  if (fd >= 0) close(fd);
  return -1;
}

/* 0: this machine has no such loopback. */
static int connect_over(int family, connection *made) {
  struct sockaddr_storage address;
  socklen_t bytes;
  *made = (connection){.listener = listen_on(family, &address, &bytes), .called = -1};
  if (made->listener < 0) return 0;
  made->caller = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(made->caller, (struct sockaddr *)&address, bytes), 0);
  return 1;
}

static void disconnect(connection *made) {
  if (made->caller >= 0) close(made->caller);
  if (made->called >= 0) close(made->called);
  close(made->listener);
}

static void reset(int fd) {
  struct linger at_once = {.l_onoff = 1};
  assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  close(fd);
}

static void know_both_ends(int family) {
  connection c;
  if (!connect_over(family, &c)) return;
  assert_fails(ms_wire_check_user(c.caller), MS_EMISMATCH, "owner");
  c.called = accept_one(&c.listener);
  assert_int_equal(ms_wire_check_user(c.caller), MS_OK);
  assert_int_equal(ms_wire_check_user(c.called), MS_OK);
  close(c.caller);
  c.caller = -1;
  assert_fails(ms_wire_check_user(c.called), MS_EMISMATCH, "owner");
  disconnect(&c);
}

/* What has left, or has not come yet, belongs to root in the kernel's table: that must not let it in where ranks are
 * root's. */
static void L3_ends_that_no_process_holds_belong_to_no_user(void **state) {
  (void)state;
  know_both_ends(AF_INET);
  know_both_ends(AF_INET6);
}

static void L3_an_end_that_was_reset_belongs_to_no_user(void **state) {
  (void)state;
  connection c;
  assert_true(connect_over(AF_INET, &c));
  c.called = accept_one(&c.listener);
  reset(c.caller);
  c.caller = -1;
  assert_fails(ms_wire_check_user(c.called), MS_EIO, "connection failed");
  disconnect(&c);
}

static void L3_ends_of_another_user_are_known(void **state) {
  (void)state;
  if (geteuid() != 0) skip();
  connection c;
  assert_true(connect_over(AF_INET, &c));
  c.called = as_user(OTHER, accept_one, &c.listener);
  assert_fails(ms_wire_check_user(c.caller), MS_EMISMATCH, "user 65533 | user 0");
  assert_int_equal(ms_wire_check_user(c.called), MS_OK);
  disconnect(&c);
}

/* In a user namespace that gives root no number, root and the own user are both called by the number of those without
 * one. */
static void L3_a_number_that_several_users_have_belongs_to_none(void **state) {
  (void)state;
  connection c;
  int status;
  if (geteuid() != 0) skip();
  assert_true(connect_over(AF_INET, &c));
  c.called = as_user(OTHER, accept_one, &c.listener);
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    ms_error_clear();
    if (unshare(CLONE_NEWUSER)) _exit(2);
    _exit(ms_wire_check_user(c.caller) != MS_EMISMATCH || message_lacks(ms_error_message(), "owner"));
  }
  waitpid(pid, &status, 0);
  disconnect(&c);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) skip(); /* a machine that makes no user namespaces */
  assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- at a store ---- */

static uint32_t come_as_another_user(int port, const char *token, char *text, size_t bytes) {
  int fd = as_user(OTHER, connect_to, &port);
  ms_wire_hello hello = hello_of(1);
  uint32_t answer = say_hello(fd, &hello, token, text, bytes);
  close(fd);
  return answer;
}

static void L3_without_a_token_another_user_is_refused(void **state) {
  (void)state;
  char text[512];
  if (geteuid() != 0) skip();
  int port = find_port();
  start_callers(ranks, 0, 1, port, 2);
  assert_int_equal(come_as_another_user(port, "", text, sizeof text), MS_WIRE_REFUSED);
  assert_has(text, "user 65533 | user 0");
  assert_has(text, "MOONSHARD_TOKEN");
  start_callers(ranks, 1, 2, port, 2);
  meet_and_close(ranks, 2);
}

static void L3_who_proves_the_token_may_be_any_user(void **state) {
  (void)state;
  char text[512];
  if (geteuid() != 0) skip();
  int port = find_port();
  prepare_caller(&ranks[0], port, 0, 2);
  ranks[0].config.token = "known-to-both-of-them";
  start_caller(&ranks[0]);
  assert_int_equal(come_as_another_user(port, ranks[0].config.token, text, sizeof text), MS_WIRE_WELCOME);
  assert_caller_fails(&ranks[0], MS_EPEER, "rank 1 | connection");
}

/* Nothing is said to it, not even which rank calls. */
static void L3_a_store_of_another_user_is_not_believed(void **state) {
  (void)state;
  uint8_t greeting[MS_WIRE_GREETING], nonce[MS_WIRE_NONCE] = {1}, byte;
  if (geteuid() != 0) skip();
  int port, listener = listen_raw(&port);
  start_callers(ranks, 1, 2, port, 2);
  int fd = as_user(OTHER, accept_one, &listener);
  ms_wire_put_greeting(greeting, nonce);
  send_raw(fd, greeting, sizeof greeting);
  assert_caller_fails(&ranks[1], MS_EMISMATCH, "user 65533 | user 0");
  assert_int_equal(recv(fd, &byte, 1, 0), 0);
  close(fd);
  close(listener);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(L3_ends_that_no_process_holds_belong_to_no_user),
      TEST(L3_an_end_that_was_reset_belongs_to_no_user),
      TEST(L3_ends_of_another_user_are_known),
      TEST(L3_a_number_that_several_users_have_belongs_to_none),
      TEST(L3_without_a_token_another_user_is_refused),
      TEST(L3_who_proves_the_token_may_be_any_user),
      TEST(L3_a_store_of_another_user_is_not_believed),
  };
  return cmocka_run_group_tests_name("store, users", tests, NULL, NULL);
}
