/* store_peer.h - a connection as the store's server sees it: what came in and is no whole frame yet, what goes out and
** was not taken yet. Internal to comm. */
#ifndef MS_COMM_STORE_PEER_H
#define MS_COMM_STORE_PEER_H

#include "comm/store_wire.h"

/* The longest frame that a client may send, a text; and a stranger, a HELLO (of another version, perhaps). */
enum { MS_PEER_LONGEST = MS_STORE_TEXT, MS_STRANGER_LONGEST = 512 };

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
} ms_store_peer;

/* What is done with a frame; 0: it makes no sense, and the peer is dropped. */
typedef int ms_store_take(void *context, ms_store_peer *peer, uint32_t kind, const uint8_t *body, uint32_t bytes);

/* A stranger, greeted. Takes the descriptor: closes it when there is no memory (NULL). */
ms_store_peer *ms_store_peer_new(int fd);
void ms_store_peer_free(ms_store_peer *peer);
/* Queues a frame. */
void ms_store_peer_send(ms_store_peer *peer, uint32_t kind, const void *body, size_t bytes);
void ms_store_peer_tell(ms_store_peer *peer, uint32_t kind, int status, const char *text);
/* What to poll for. */
short ms_store_peer_events(const ms_store_peer *peer);
/* Sends and receives what can be without waiting, gives whole frames to take; 0: the connection is over. */
int ms_store_peer_move(ms_store_peer *peer, short ready, ms_store_take *take, void *context);

#endif
