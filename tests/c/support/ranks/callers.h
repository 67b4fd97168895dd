/* callers.h - ranks that come to a store, each in a thread, and sockets that behave as no rank would. */
#ifndef MS_TESTS_CALLERS_H
#define MS_TESTS_CALLERS_H

#include <pthread.h>

#include "comm/bootstrap/store/store.h"
#include "comm/bootstrap/store/store_wire.h"

typedef struct caller {
  ms_store_config config;
  ms_store_place place;
  pthread_t thread;
  ms_store *store;      /* open after a rendezvous that worked */
  int status, all[256]; /* of at most 256 ranks */
  double seconds;       /* the rendezvous took */
  char message[2048];
} caller;

/* A port of the loopback without a listener, reserved until a few more were found. */
int find_port(void);
/* tcp://127.0.0.1:port, job "test", no token, 20 s; what a test wants otherwise it changes before start_caller. */
void prepare_caller(caller *one, int port, int rank, int size);
/* Opens the store and gathers 100 + rank, in a thread. */
void start_caller(caller *one);
/* Ranks first to last - 1 of size, prepared and started. */
void start_callers(caller *callers, int first, int last, int port, int size);
/* Waits for the thread; the store stays open where it worked. */
void join_caller(caller *one);
/* Ranks 0 to size - 1 that were started meet, and leave. */
void meet_and_close(caller *callers, int size);
/* Waits for the thread, which fails with this status and a message with this part. */
void assert_caller_fails(caller *one, int status, const char *facts);
/* Every one worked, and has everybody's number. */
void assert_gathered(const caller *callers, int size);
/* Leaves, the highest rank first. */
void close_callers(caller *callers, int size);

/* A plain connection to the port, blocking; waits until somebody listens. */
int connect_raw(int port);
/* A plain server at a port of the loopback. */
int listen_raw(int *port);
void send_raw(int fd, const void *data, size_t bytes);
/* A frame that claims to have `bytes` bytes, and as many of them as body holds: room for 1024. */
void send_frame(int fd, uint32_t kind, const void *body, uint32_t bytes);
void receive_raw(int fd, void *data, size_t bytes);
/* Until the other side has closed the connection; fails the test after some seconds. */
void assert_closed(int fd);
/* A connection that read the greeting and sent this hello; the reply's kind and text. */
uint32_t say_hello(int fd, ms_wire_hello *hello, const char *token, char *text, size_t bytes);
/* What rank `rank` of two says: process 4711 on "there", of job "test". */
ms_wire_hello hello_of(int rank);
/* The frame of a hello that answers the greeting with this nonce. */
void make_hello_frame(const uint8_t nonce[MS_WIRE_NONCE], ms_wire_hello *hello, const char *token,
                      uint8_t frame[MS_WIRE_HEADER + MS_WIRE_HELLO_BYTES]);
/* A plain connection that the store takes for rank `rank` of two. */
int join_raw(int port, int rank);

#endif
