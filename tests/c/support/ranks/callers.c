/* callers.c - see callers.h. Threads assert nothing: cmocka leaves by longjmp. */
#include "tests/c/support/ranks/callers.h"

#include "tests/c/support/check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

/* The port stays bound, though nothing listens: the kernel gives a bound port to no outgoing connection, which
 * otherwise takes it before the rank listens, or meets itself there. A rank may bind it, too, since both allow the
 * reuse. */
int find_port(void) {
  enum { RESERVED = 4 };
  static int reserved[RESERVED], next;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t bytes = sizeof address;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)), 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
  if (reserved[next]) close(reserved[next]);
  reserved[next] = fd;
  next = (next + 1) % RESERVED;
  return ntohs(address.sin_port);
}

void prepare_caller(caller *one, int port, int rank, int size) {
  *one = (caller){0};
  assert_int_equal(ms_store_place_tcp("127.0.0.1", port, &one->place), MS_OK);
  one->config = (ms_store_config){.job = "test", .token = "", .rank = rank, .size = size, .timeout = 20};
}

static void *call(void *argument) {
  caller *one = argument;
  double began = ms_clock();
  int mine = 100 + one->config.rank;
  one->config.place = &one->place;
  ms_error_clear();
  one->status = ms_store_open(&one->config, &one->store);
  if (!one->status) {
    one->status = ms_store_gather(one->store, &mine, sizeof mine, one->all);
    if (one->status) {
      snprintf(one->message, sizeof one->message, "%s", ms_error_message());
      ms_store_close(one->store);
      one->store = NULL;
    }
  } else snprintf(one->message, sizeof one->message, "%s", ms_error_message());
  one->seconds = ms_clock() - began;
  return NULL;
}

void start_caller(caller *one) { assert_int_equal(pthread_create(&one->thread, NULL, call, one), 0); }

void start_callers(caller *callers, int first, int last, int port, int size) {
  for (int rank = first; rank < last; rank++) {
    prepare_caller(&callers[rank], port, rank, size);
    start_caller(&callers[rank]);
  }
}

void join_caller(caller *one) { pthread_join(one->thread, NULL); }

void meet_and_close(caller *callers, int size) {
  for (int rank = 0; rank < size; rank++) join_caller(&callers[rank]);
  assert_gathered(callers, size);
  close_callers(callers, size);
}

void assert_caller_fails(caller *one, int status, const char *facts) {
  join_caller(one);
  assert_int_equal(one->status, status);
  assert_has(one->message, facts);
}

void assert_gathered(const caller *callers, int size) {
  for (int rank = 0; rank < size; rank++) {
    if (callers[rank].status) fail_msg("rank %d: %s", rank, callers[rank].message);
    for (int other = 0; other < size; other++) assert_int_equal(callers[rank].all[other], 100 + other);
  }
}

void close_callers(caller *callers, int size) {
  for (int rank = size - 1; rank >= 0; rank--) {
    ms_store_close(callers[rank].store);
    callers[rank].store = NULL;
  }
}

int connect_raw(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (double end = ms_clock() + 20; ms_clock() < end; usleep(2000)) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (!connect(fd, (struct sockaddr *)&address, sizeof address)) return fd;
    close(fd);
  }
  fail_msg("nothing listens at port %d", port);
  return -1;
}

void assert_closed(int fd) {
  char bytes[4096];
  struct pollfd one = {.fd = fd, .events = POLLIN};
  for (double end = ms_clock() + 20; ms_clock() < end;)
    if (poll(&one, 1, 1000) > 0 && recv(fd, bytes, sizeof bytes, 0) <= 0) {
      close(fd);
      return;
    }
  fail_msg("the connection is still open");
}

int listen_raw(int *port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t bytes = sizeof address;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
  assert_int_equal(listen(fd, 4), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
  *port = ntohs(address.sin_port);
  return fd;
}

void send_raw(int fd, const void *data, size_t bytes) {
  assert_int_equal(send(fd, data, bytes, MSG_NOSIGNAL), (int)bytes);
}

void send_frame(int fd, uint32_t kind, const void *body, uint32_t bytes) {
  uint8_t frame[MS_WIRE_HEADER + 1024] = {0};
  size_t sent = bytes < 1024 ? bytes : 1024;
  ms_wire_put32(frame, bytes);
  ms_wire_put32(frame + 4, kind);
  if (body) memcpy(frame + MS_WIRE_HEADER, body, sent);
  send_raw(fd, frame, MS_WIRE_HEADER + sent);
}

void receive_raw(int fd, void *data, size_t bytes) { assert_int_equal(recv(fd, data, bytes, MSG_WAITALL), (int)bytes); }

ms_wire_hello hello_of(int rank) {
  return (ms_wire_hello){
      .version = MS_STORE_VERSION, .rank = rank, .size = 2, .pid = 4711, .job = "test", .host = "there"};
}

void make_hello_frame(const uint8_t nonce[MS_WIRE_NONCE], ms_wire_hello *hello, const char *token,
                      uint8_t frame[MS_WIRE_HEADER + MS_WIRE_HELLO_BYTES]) {
  ms_wire_client_proof(token, nonce, hello, hello->proof);
  ms_wire_put32(frame, MS_WIRE_HELLO_BYTES);
  ms_wire_put32(frame + 4, MS_WIRE_HELLO);
  ms_wire_put_hello(frame + MS_WIRE_HEADER, hello);
}

uint32_t say_hello(int fd, ms_wire_hello *hello, const char *token, char *text, size_t bytes) {
  uint8_t greeting[MS_WIRE_GREETING], nonce[MS_WIRE_NONCE], frame[MS_WIRE_HEADER + MS_WIRE_HELLO_BYTES], body[2048];
  uint32_t version;
  receive_raw(fd, greeting, sizeof greeting);
  assert_true(ms_wire_get_greeting(greeting, &version, nonce));
  make_hello_frame(nonce, hello, token, frame);
  send_raw(fd, frame, sizeof frame);
  receive_raw(fd, frame, MS_WIRE_HEADER);
  uint32_t length = ms_wire_get32(frame);
  assert_true(length <= sizeof body);
  receive_raw(fd, body, length);
  if (length > 4) ms_wire_get_text(body + 4, length - 4, text, bytes);
  return ms_wire_get32(frame + 4);
}

int join_raw(int port, int rank) {
  char text[512];
  int fd = connect_raw(port);
  ms_wire_hello hello = hello_of(rank);
  assert_int_equal(say_hello(fd, &hello, "", text, sizeof text), MS_WIRE_WELCOME);
  return fd;
}
