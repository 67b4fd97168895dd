/* tcp.h - the parts of the TCP transport, which moves bytes over one authenticated connection for each pair of ranks.
 * Internal to transport.
 *
 * Protocol. The accepting side greets with a nonce; the connecting side answers with a hello, which contains its own
 * nonce and a proof of the token; the accepting side proves the token, too, or refuses with a text. Then both send
 * frames: a header of 32 bytes, and for some kinds a body. All sizes are fixed or bounded, and everything that arrives
 * is checked before it is used: a peer that breaks the protocol loses its connection.
 *
 * Memory: allocated by open, and for each peer when it is named or accepted. What a peer can occupy is bounded:
 * MS_TRANSPORT_KEYS keys, each with MS_TRANSPORT_UNDER_WAY credits. A process that has not proved the token occupies
 * one ms_tcp_stranger.
 */
#ifndef MS_COMM_TRANSPORT_TCP_TCP_H
#define MS_COMM_TRANSPORT_TCP_TCP_H

#include <stddef.h>
#include <sys/socket.h>

#include "comm/transport/frame.h"
#include "comm/transport/handshake.h"
#include "comm/transport/peers.h"
#include "comm/transport/strangers.h"

enum {
  MS_TCP_TURN = 2 << 20, /* bytes that a peer moves in each direction before it is another peer's turn */
  MS_TCP_SCRATCH = 64 << 10,
  MS_TCP_SPARE_STRANGERS = 64,
  MS_TCP_INTERFACE = 64 /* bytes of an interface's name */
};

/* ---- addresses (address.c) ---- */

/* Listens as MOONSHARD_INTERFACE and MOONSHARD_PORTS say; without a token only this machine can connect. *fd is
 * non-blocking. */
int ms_tcp_listen(const char *token, uint8_t address[MS_TRANSPORT_ADDRESS], int *fd);
/* Place number i at which the owner of an address can be reached from the owner of `own`, best first. 0: there are no
 * more. */
int ms_tcp_place(const uint8_t *own, const uint8_t *address, int i, struct sockaddr_storage *place, socklen_t *bytes);
/* MS_EINVAL: it is not an address that this build has made. */
int ms_tcp_check_address(const uint8_t *address);
int ms_tcp_same_machine(const uint8_t *a, const uint8_t *b);
/* The address that MOONSHARD_INTERFACE chose, from which connections are made as well. 0: any. */
int ms_tcp_source(const uint8_t *own, struct sockaddr_storage *source, socklen_t *bytes);
/* The name of the interface that MOONSHARD_INTERFACE chose; "": it is not set. Fails with MS_EIO: there is none. */
int ms_tcp_chosen_interface(char name[MS_TCP_INTERFACE]);
/* The address of this host that MOONSHARD_INTERFACE, which must be set, chose, as text. Fails as above. */
int ms_tcp_chosen_address(char *text, size_t bytes);
/* MS_EINVAL: MOONSHARD_PORTS is no range. */
int ms_tcp_check_ports(void);
/* "10.0.0.7:4242" */
void ms_tcp_place_text(const struct sockaddr_storage *place, socklen_t bytes, char *text, size_t capacity);

/* ---- peers ---- */

/* An attempt to connect (call.c). */
enum ms_tcp_stage { MS_TCP_PAUSING = 0, MS_TCP_CONNECTING, MS_TCP_GREETED, MS_TCP_ANSWERED };

typedef struct ms_tcp_call {
  uint8_t address[MS_TRANSPORT_ADDRESS]; /* of the peer */
  enum ms_tcp_stage stage;
  int place, fd, got;
  double until; /* end of the attempt, or of the pause */
  uint8_t bytes[MS_PEER_ANSWER], nonce[MS_WIRE_NONCE];
  ms_peer_hello hello;
  char why[MS_PEER_REASON + 96]; /* the last failure of the attempts that came furthest, to told_at */
  enum ms_tcp_stage told_at;
} ms_tcp_call;

typedef struct ms_tcp_peer {
  ms_peer common; /* heard_at: a byte came in. ENDING: what comes in is dropped */
  int fd;
  uint8_t named;              /* by this rank; otherwise it has only been accepted */
  uint8_t readable, writable; /* as far as epoll and the last system call have said */
  int broken;                 /* errno of a failed send: the peer fails when what it sent has been read */
  char name[80];
  /* The frame that comes in: `got` bytes of its header, or `rest` bytes of its body to come to `to` (NULL: dropped). */
  uint8_t in_header[MS_PEER_HEADER];
  ms_peer_frame in;
  int in_got;
  int64_t in_rest;
  uint8_t *in_to;
  ms_key *in_key; /* of the receive that in_to belongs to; NULL: none */
  char reason[MS_PEER_REASON];
  /* The frame that goes out, alike; out_from NULL: zeros. */
  uint8_t out_header[MS_PEER_HEADER];
  int out_sent; /* bytes of the header; MS_PEER_HEADER with out_rest 0: there is no frame */
  int64_t out_rest;
  const uint8_t *out_from;
  ms_key *out_key;
  uint32_t last_kind;    /* ENDING: the last frame, 0 when it is under way or sent; 0 */
  double out_at, end_by; /* a byte went out; the connection is closed without waiting */
  /* Acknowledgements, to see a link that is down. */
  int64_t written, acked;
  double acked_at;
  ms_tcp_call call;
} ms_tcp_peer;

/* A connection that has not proved the token (accept.c). */
typedef struct ms_tcp_stranger {
  int fd, got; /* fd -1: a free place */
  ms_stranger stranger;
  uint8_t nonce[MS_WIRE_NONCE], hello[MS_PEER_HELLO];
} ms_tcp_stranger;

struct ms_endpoint {
  ms_peers common;
  ms_peer_job job;
  int epoll, listener; /* listener -1: every rank that could connect has done so */
  ms_tcp_peer *peers;  /* of common */
  int n_strangers;
  ms_tcp_stranger *strangers; /* [n_strangers]: one for each peer and MS_TCP_SPARE_STRANGERS, with room for all ranks */
  double accept_at;           /* 0, or the end of a pause in accepting */
  char turned_away[256];      /* the last stranger that was refused, for reports */
  uint8_t *scratch;           /* takes bytes that no transfer waits for */
};

/* What an epoll event belongs to: the kind, and an index. */
enum ms_tcp_tag { MS_TCP_WAKE = 0, MS_TCP_LISTENER, MS_TCP_PEER, MS_TCP_STRANGER };

/* Registers a descriptor. Fails with MS_EIO. */
int ms_tcp_register(ms_endpoint *endpoint, int fd, uint32_t events, enum ms_tcp_tag tag, int index);
/* Ends a connection at once, also for processes that inherited the descriptor; accepts -1. */
void ms_tcp_hang_up(ms_endpoint *endpoint, int *fd);

/* (peer.c) Adds a peer, which is APART; a place for a stranger comes with it. Fails with MS_ENOMEM. */
int ms_tcp_add_peer(ms_endpoint *endpoint, int rank);
/* A socket that has passed the handshake. */
void ms_tcp_bring_up(ms_endpoint *endpoint, ms_tcp_peer *peer, int fd);
/* Of ms_peer_calls: a peer that fails ends at once, apart from the reason that it is sent. */
void ms_tcp_end_failed(ms_endpoint *endpoint, ms_peer *peer, int say);
/* Sends a last frame, a goodbye or the reason, and then ends the connection. */
void ms_tcp_end(ms_endpoint *endpoint, ms_tcp_peer *peer, uint32_t last_kind);
/* The connection has ended. */
void ms_tcp_gone(ms_endpoint *endpoint, ms_tcp_peer *peer, enum ms_peer_state state);
/* Of ms_peer_calls: nothing refers to memory of a key's transfers, or of any (NULL), from here on. */
void ms_tcp_let_go(ms_endpoint *endpoint, ms_peer *peer, ms_key *key);

/* Move bytes until a turn is over or the socket has had enough. */
void ms_tcp_send(ms_endpoint *endpoint, ms_tcp_peer *peer);    /* send.c */
void ms_tcp_receive(ms_endpoint *endpoint, ms_tcp_peer *peer); /* receive.c */

/* call.c */
/* The socket of an attempt is ready for its next step. */
void ms_tcp_call_on(ms_endpoint *endpoint, ms_tcp_peer *peer);
/* The time of an attempt, or of the pause before the next one, is over. */
void ms_tcp_call_again(ms_endpoint *endpoint, ms_tcp_peer *peer, double now);

/* accept.c */
void ms_tcp_accept(ms_endpoint *endpoint);
/* Something has come from a stranger. */
void ms_tcp_meet(ms_endpoint *endpoint, ms_tcp_stranger *stranger);
/* Ends those whose time is over, and the pause in accepting. */
void ms_tcp_clear_strangers(ms_endpoint *endpoint, double now);
/* No rank is accepted any more. */
void ms_tcp_stop_listening(ms_endpoint *endpoint);

/* watch.c: deadlines of connections, transfers and links. Returns when it must be called again. */
double ms_tcp_watch(ms_endpoint *endpoint, double now);

#endif
