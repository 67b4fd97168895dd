/* endpoints.h - a few ranks' endpoints, all driven by the calling thread: of the transport tcp over the loopback, or of
 * another one. */
#ifndef MS_TESTS_ENDPOINTS_H
#define MS_TESTS_ENDPOINTS_H

#include "comm/transport/tcp/tcp.h"

enum { MAX_ENDS = 6 };

/* The transport; tcp unless a test changes it. */
extern const ms_transport_api *ends_api;
/* A group's setup: mpi, on an emulated MPI. */
int use_mpi(void **state);

/* Rank i's endpoint, and what it was called with. */
typedef struct end {
  ms_transport_config config;
  ms_endpoint *endpoint;
  int rank, failures, failed_peer; /* failed_peer: the last one */
  double failed_at;
  char why[512];
} end;

typedef struct ends {
  int n;
  end of[MAX_ENDS];
  uint8_t addresses[MAX_ENDS][MS_TRANSPORT_ADDRESS];
} ends;

/* Rank `rank` of n with a token, job "test" and 20 s; what a test wants otherwise it changes before open_end. */
void prepare_end(end *one, int rank, int n);
/* Opens it and stores its address. */
void open_end(ends *all, int rank);
/* Connects a rank to all others, whose addresses are stored. */
void connect_end(ends *all, int rank);
/* Opens and connects n ranks, with this timeout, until all connections are open. */
void open_ends(ends *all, int n, double timeout);
/* Opens n ranks and connects all but rank 0, which the test plays. */
void open_without_rank_0(ends *all, int n, double timeout);
/* Closes those that are open. */
void close_ends(ends *all);
/* One turn of every open endpoint; sleeps only if there is one. */
void turn_ends(ends *all);
/* Turns until *what is `value`, or fails the test after 20 s. */
void turn_until(ends *all, const int *what, int value);
/* Turns for a while. */
void turn_for(ends *all, double seconds);

ms_transfer send_to(int peer, uint64_t key, void *data, int64_t bytes);
ms_transfer receive_from(int peer, uint64_t key, void *data, int64_t bytes);
/* Keys in use with a rank's first peer. */
int keys_in_use(const end *one);
/* Changes the deadline of one rank. */
void set_timeout(end *one, double seconds);
/* Posts it at a rank. */
void post_at(ends *all, int rank, ms_transfer *transfer);
/* Turns until the transfer is in this state. */
void turn_until_is(ends *all, ms_transfer *transfer, enum ms_transfer_state state);

/* The port of an address. */
int port_of_end(const uint8_t *address);
/* Drives the endpoints in a thread, while this one blocks on plain sockets. */
void start_turning(ends *all);
void stop_turning(void);
/* A plain blocking connection that has answered rank `to`'s greeting with this hello, and read its answer; 1: it is
 * welcome. */
int greet_end(ends *all, int to, ms_peer_hello *hello, const char *token, int *fd, char why[MS_PEER_REASON]);
/* What rank `rank` of n says to rank `to`. */
ms_peer_hello hello_to(int rank, int to, int n);
void send_tcp_frame(int fd, uint32_t kind, uint32_t bytes, uint64_t key, uint64_t number, int64_t value);

#endif
