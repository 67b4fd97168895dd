/* store_peer.h - a connection on the store's server side, with its partial input frame and its unsent output. Internal
 * to comm. */
#ifndef MS_COMM_BOOTSTRAP_STORE_PEER_H
#define MS_COMM_BOOTSTRAP_STORE_PEER_H

#include "comm/bootstrap/store/store_wire.h"
#include "comm/transport/strangers.h"

/* Body sizes in bytes: the longest frame of a client, a text; that of a client that posts; and that of a stranger, a
 * HELLO, perhaps of another version. Last, the output that a peer can leave unread. */
enum {
  MS_STORE_LONGEST = MS_STORE_TEXT,
  MS_STORE_LONGEST_POST = 4 + MS_STORE_POST,
  MS_STRANGER_LONGEST = 512,
  MS_STORE_UNREAD = 64 << 20
};

/* A body sent to many peers: stored once, freed by its last holder. */
typedef struct ms_store_shared {
  int holders;
  size_t bytes;
  uint8_t data[];
} ms_store_shared;

typedef struct ms_store_peer {
  int fd, rank, pid;    /* rank -1: a stranger, which has not sent a valid HELLO */
  int left;             /* it announced that it leaves */
  int closing;          /* close it as soon as everything is sent */
  int posts;            /* it has room for posts */
  int broken;           /* it does not read its output, or memory for that is short */
  ms_stranger stranger; /* when and from where it connected */
  uint8_t nonce[MS_WIRE_NONCE];
  char host[MS_WIRE_NAME];
  uint8_t *in;
  size_t in_used, in_capacity;
  uint8_t *out;
  size_t out_used, out_sent, out_capacity;
  ms_store_shared *shared; /* sent when out_sent reaches shared_at */
  size_t shared_at, shared_sent;
} ms_store_peer;

/* Handles a frame; returns 0 when it makes no sense, and the peer is dropped. */
typedef int ms_store_take(void *context, ms_store_peer *peer, uint32_t kind, const uint8_t *body, uint32_t bytes);

/* Copies the data, with one holder; NULL when memory is short. */
ms_store_shared *ms_store_shared_new(const void *data, size_t bytes);
void ms_store_shared_release(ms_store_shared *shared);
/* Makes a stranger and queues the greeting. Owns fd: closes it when memory is short (returns NULL). */
ms_store_peer *ms_store_peer_new(int fd);
void ms_store_peer_free(ms_store_peer *peer);
/* Queues a frame. */
void ms_store_peer_send(ms_store_peer *peer, uint32_t kind, const void *body, size_t bytes);
/* Queues a frame with a shared body. Marks the peer as broken if it has not yet read the previous shared frame: it
 * requests more than it reads. */
void ms_store_peer_share(ms_store_peer *peer, uint32_t kind, ms_store_shared *body);
void ms_store_peer_tell(ms_store_peer *peer, uint32_t kind, int status, const char *text);
/* Makes room for frames of MS_STORE_LONGEST_POST bytes; 0 when memory is short. */
int ms_store_peer_allow_posts(ms_store_peer *peer);
/* The events to poll for. */
short ms_store_peer_events(const ms_store_peer *peer);
/* Sends and receives as much as possible without blocking, and passes whole frames to `take`; returns 0 when the
 * connection is over. */
int ms_store_peer_move(ms_store_peer *peer, short ready, ms_store_take *take, void *context);

#endif
