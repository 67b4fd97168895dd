/* peers.h - what every endpoint knows of its peers, however bytes move: who they are, which transfers are posted with
 * them, whether they still answer, and why they failed. With it, a transport is what remains: it opens connections,
 * says what is due to a peer, takes what a peer says, and moves pieces (keys.h). Internal to transport.
 *
 * A transport's endpoint begins with an ms_peers, and its peers begin with an ms_peer, of which the endpoint has an
 * array. So the functions below take any transport's, and some of them stand in its table (transport.h): address,
 * connect, connected, post, wake, cancel and counts need no other code. What a transport does its own way is in
 * ms_peer_calls.
 *
 * A peer that fails: ms_peer_fail notes why, and the transport ends what it has of the connection. As soon as nothing
 * refers to the caller's memory, the transport fails the transfers (ms_keys_fail) and sets `report` to DUE; the next
 * ms_peers_report tells the caller.
 */
#ifndef MS_COMM_TRANSPORT_PEERS_H
#define MS_COMM_TRANSPORT_PEERS_H

#include "comm/transport/keys.h"

enum ms_peer_state {
  MS_PEER_APART = 0, /* not connected yet */
  MS_PEER_UP = 1,
  MS_PEER_ENDING = 2, /* it has failed, or this side leaves: a last frame goes out */
  MS_PEER_LEFT = 3,   /* it said goodbye */
  MS_PEER_GONE = 4    /* it has failed, or the connection has ended */
};

enum ms_peer_report {
  MS_PEER_NO_REPORT = 0,
  MS_PEER_UNSETTLED = 1, /* it has failed, and something may still refer to memory of its transfers */
  MS_PEER_DUE = 2,       /* failed() is to be called */
  MS_PEER_REPORTED = 3
};

typedef struct ms_peer {
  int rank;
  enum ms_peer_state state;
  enum ms_peer_report report;
  uint8_t output;     /* there can be something to send */
  uint8_t ping, pong; /* such a frame is due */
  char why[1024];     /* it failed */
  ms_keys keys;
  /* Times: the end of waiting for a connection; something came in; a ping was due. */
  double connect_by, heard_at, pinged_at;
} ms_peer;

/* What a transport does its own way. */
typedef struct ms_peer_calls {
  /* The caller names a rank that can be a peer; it may have been named before. As connect (transport.h). */
  int (*name)(ms_endpoint *endpoint, int rank, const uint8_t *address);
  /* The peer has failed, and `report` is UNSETTLED: its state becomes ENDING or GONE. say: send it the reason. */
  void (*end)(ms_endpoint *endpoint, ms_peer *peer, int say);
  /* The caller wants the memory of a key's transfers back: returns when nothing refers to it. */
  void (*let_go)(ms_endpoint *endpoint, ms_peer *peer, ms_key *key);
} ms_peer_calls;

typedef struct ms_peers {
  ms_transport_config config; /* without token and job, which are the caller's */
  const ms_peer_calls *calls;
  uint8_t address[MS_TRANSPORT_ADDRESS]; /* the transport writes it when it opens */
  uint8_t *first; /* [n] of peer_bytes each, with room for all ranks: what is not used stays untouched */
  int64_t peer_bytes;
  int n, n_up;
  int *index_of;   /* [size]: of a rank's peer, or -1 */
  int wake;        /* an eventfd, which progress sleeps on */
  double turn_at;  /* the end of the last call of progress */
  double awake_at; /* the end of this process's last absence: no peer is blamed for that time */
  double watch_at; /* the next look at deadlines */
  ms_transport_counts counts;
} ms_peers;

/* ---- the whole ---- */

/* Fails with MS_EINVAL: the config; MS_EIO, MS_ENOMEM. ms_peers_close is safe afterwards, and on zeros. */
int ms_peers_open(ms_peers *peers, const ms_transport_config *config, int64_t peer_bytes, const ms_peer_calls *calls);
/* Frees what ms_peers_open and ms_peers_add have allocated; the transport has ended its connections. */
void ms_peers_close(ms_peers *peers);
/* Of ms_transport_api. */
int ms_peers_get_address(const ms_endpoint *endpoint, void *address);
int ms_peers_connect(ms_endpoint *endpoint, int n, const int *ranks, const void *addresses);
int ms_peers_connected(const ms_endpoint *endpoint);
int ms_peers_post(ms_endpoint *endpoint, ms_transfer *transfer);
void ms_peers_wake(ms_endpoint *endpoint);
void ms_peers_cancel(ms_endpoint *endpoint, uint64_t key);
void ms_peers_get_counts(const ms_endpoint *endpoint, ms_transport_counts *counts);

/* ---- one peer ---- */

/* NULL: this rank has no such peer. */
ms_peer *ms_peers_find(const ms_peers *peers, int64_t rank);
/* Adds a peer, which is APART, after all others. NULL: MS_ENOMEM. */
ms_peer *ms_peers_add(ms_peers *peers, int rank);
/* 1: transfers can be posted with it. */
int ms_peer_is_live(const ms_peer *peer);
/* The peer has failed, unless it has before. say: send it the reason. */
void ms_peer_fail(ms_endpoint *endpoint, ms_peer *peer, int say, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- turns of progress ---- */

/* A call of progress begins. */
void ms_peers_begin_turn(ms_peers *peers, double now);
/* Wake was called: it is over. */
void ms_peers_take_wake(ms_peers *peers);
/* Calls failed() for the peers whose report is due. */
void ms_peers_report(ms_endpoint *endpoint);
/* 1: nothing has happened since `since` for longer than the timeout. */
int ms_peers_is_late(const ms_peers *peers, double since, double now);
/* For a peer that transfers wait for: pings it when it has been silent for a while. 1: it has not answered a ping
 * within the timeout. A process that runs does, however long it leaves transfers alone. */
int ms_peer_is_silent(const ms_peers *peers, ms_peer *peer, double now);

#endif
