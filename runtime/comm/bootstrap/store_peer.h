/* store_peer.h - a connection as the store's server sees it: what came in and is no whole frame yet, what goes out and
** was not taken yet. Internal to comm. */
#ifndef MS_COMM_BOOTSTRAP_STORE_PEER_H
#define MS_COMM_BOOTSTRAP_STORE_PEER_H

#include "comm/bootstrap/store_wire.h"

/* The longest frame that a client may send, a text; and a stranger, a HELLO (of another version, perhaps). */
enum { MS_PEER_LONGEST = MS_STORE_TEXT, MS_STRANGER_LONGEST = 512 };

/* What many peers are sent: it exists once, and goes with the last one that has it. */
typedef struct ms_store_shared {
  int holders;
  size_t bytes;
  uint8_t data[];
} ms_store_shared;

typedef struct ms_store_peer {
  int fd, rank, pid; /* rank -1: a stranger */
  int left;          /* it said that it leaves */
  int closing;       /* closed as soon as everything was sent */
  int broken;        /* no memory for what it should hear */
  double since;      /* ms_clock of its coming */
  uint8_t nonce[MS_WIRE_NONCE];
  char host[MS_WIRE_NAME];
  uint8_t in[MS_WIRE_HEADER + MS_PEER_LONGEST];
  size_t in_used;
  uint8_t *out;
  size_t out_used, out_sent, out_capacity;
  ms_store_shared *shared; /* goes out where out_sent is shared_at */
  size_t shared_at, shared_sent;
} ms_store_peer;

/* What is done with a frame; 0: it makes no sense, and the peer is dropped. */
typedef int ms_store_take(void *context, ms_store_peer *peer, uint32_t kind, const uint8_t *body, uint32_t bytes);

/* Holds it once; NULL when there is no memory. */
ms_store_shared *ms_store_shared_new(const void *data, size_t bytes);
void ms_store_shared_release(ms_store_shared *shared);
/* A stranger, greeted. Takes the descriptor: closes it when there is no memory (NULL). */
ms_store_peer *ms_store_peer_new(int fd);
void ms_store_peer_free(ms_store_peer *peer);
/* Queues a frame. */
void ms_store_peer_send(ms_store_peer *peer, uint32_t kind, const void *body, size_t bytes);
/* Queues a frame whose body is shared. A peer that was sent one before and has not taken it is broken: it asks for more than
** it hears. */
void ms_store_peer_share(ms_store_peer *peer, uint32_t kind, ms_store_shared *body);
void ms_store_peer_tell(ms_store_peer *peer, uint32_t kind, int status, const char *text);
/* What to poll for. */
short ms_store_peer_events(const ms_store_peer *peer);
/* Sends and receives what can be without waiting, gives whole frames to take; 0: the connection is over. */
int ms_store_peer_move(ms_store_peer *peer, short ready, ms_store_take *take, void *context);

#endif
