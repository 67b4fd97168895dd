/* tcp.h - the parts of the TCP transport, which moves bytes over one authenticated connection for each pair of ranks.
 * Internal to transport.
 *
 * Protocol. The accepting side greets with a nonce; the connecting side answers with a hello, which contains its own
 * nonce and a proof of the token; the accepting side proves the token, too, or refuses with a text. Then both send
 * frames: a header of 32 bytes, and for some kinds a body. All sizes are fixed or bounded, and everything that arrives
 * is checked before it is used: a peer that breaks the protocol loses its connection.
 *
 * Memory: all of it is allocated by open and connect. What a peer can occupy is bounded: MS_TRANSPORT_KEYS keys, each
 * with MS_TRANSPORT_UNDER_WAY credits. A process that has not proved the token occupies one ms_tcp_stranger.
 */
#ifndef MS_COMM_TRANSPORT_TCP_H
#define MS_COMM_TRANSPORT_TCP_H

#include <stddef.h>
#include <sys/socket.h>

#include "comm/transport/transport.h"
#include "comm/transport/wire.h"

enum {
  MS_TCP_VERSION = 1,
  MS_TCP_HEADER = 32,
  MS_TCP_PIECE = 256 << 10, /* bytes of a frame's body: then it is another key's turn */
  MS_TCP_TURN = 2 << 20,    /* bytes that a peer moves in each direction before it is another peer's turn */
  MS_TCP_REASON = 512,      /* bytes of the text by which a side says why it ends the connection */
  MS_TCP_SCRATCH = 64 << 10,
  MS_TCP_JOB = 128
};

/* ---- frames (tcp_frame.c) ---- */

enum ms_tcp_kind {
  MS_TCP_CREDIT = 1,    /* a receive is posted: key, number; value: its size */
  MS_TCP_DATA = 2,      /* `bytes` bytes of send `number` of the key, from offset `value` */
  MS_TCP_CANCEL = 3,    /* this side does not use the key any more */
  MS_TCP_GOODBYE = 4,   /* this side leaves without an error */
  MS_TCP_REASON_OF = 5, /* this side ends the connection; the body is a text of `bytes` bytes that says why */
  MS_TCP_PING = 6,      /* is there anybody? */
  MS_TCP_PONG = 7       /* the answer, which every call of progress gives */
};

typedef struct ms_tcp_frame {
  uint32_t kind, bytes; /* bytes: of the body that follows */
  uint64_t key, number;
  int64_t value;
} ms_tcp_frame;

void ms_tcp_put_frame(uint8_t header[MS_TCP_HEADER], const ms_tcp_frame *frame);
/* NULL, or what is wrong with the header: an unknown kind, a body that this kind does not have. */
const char *ms_tcp_get_frame(const uint8_t header[MS_TCP_HEADER], ms_tcp_frame *frame);

/* ---- keys (tcp_key.c) ---- */

/* The posted transfers of one key and direction, oldest first. */
typedef struct ms_tcp_queue {
  ms_transfer *first, *last;
  uint64_t posted, finished; /* how many, so far */
} ms_tcp_queue;

typedef struct ms_tcp_key {
  uint64_t key;
  ms_tcp_queue sends, receives;
  ms_transfer *uncredited;                /* the first receive whose credit has not been sent */
  uint64_t credits;                       /* that the peer has given: sends below this number can move */
  int64_t credit[MS_TRANSPORT_UNDER_WAY]; /* sizes of the peer's receives, by number */
  uint8_t used;
  uint8_t cancelled;      /* enum ms_tcp_cancelled */
  uint8_t told;           /* the peer has been sent CANCEL */
  uint8_t peer_cancelled; /* it has sent CANCEL */
} ms_tcp_key;

enum ms_tcp_cancelled {
  MS_TCP_IN_USE = 0,
  MS_TCP_BY_PEER = 1, /* the peer cancelled a key that this rank never used: agreed */
  MS_TCP_BY_CALLER = 2
};

typedef struct ms_tcp_keys {
  ms_tcp_key *slot; /* [MS_TRANSPORT_KEYS] */
  int reach;        /* used slots are below */
  int turn;         /* the slot that sends next */
} ms_tcp_keys;

/* NULL: not in use. */
ms_tcp_key *ms_tcp_find_key(ms_tcp_keys *keys, uint64_t key);
/* Finds or adds it; NULL: too many keys. */
ms_tcp_key *ms_tcp_add_key(ms_tcp_keys *keys, uint64_t key);
void ms_tcp_forget_key(ms_tcp_keys *keys, ms_tcp_key *key);
void ms_tcp_queue_add(ms_tcp_queue *queue, ms_transfer *transfer);
/* The first transfer is over. */
void ms_tcp_queue_finish(ms_tcp_queue *queue, enum ms_transfer_state state);
/* All transfers are over: FAILED. */
void ms_tcp_fail_transfers(ms_tcp_key *key);
/* The send of a key that can move now, or NULL. */
ms_transfer *ms_tcp_next_send(const ms_tcp_key *key);
/* 1: transfers are posted that this peer has not cancelled. */
int ms_tcp_is_awaited(const ms_tcp_keys *keys);
/* 1: some receive has come in part, and the peer has not cancelled it. */
int ms_tcp_is_half_received(const ms_tcp_keys *keys);

/* ---- addresses (tcp_address.c) ---- */

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
/* "10.0.0.7:4242" */
void ms_tcp_place_text(const struct sockaddr_storage *place, socklen_t bytes, char *text, size_t capacity);

/* ---- handshake (tcp_handshake.c) ---- */

enum {
  MS_TCP_GREETING = 8 + 4 + 4 + MS_WIRE_NONCE,
  MS_TCP_HELLO = 16 + MS_WIRE_NONCE + MS_WIRE_PROOF + MS_TCP_JOB,
  MS_TCP_ANSWER = 4 + 4 + MS_TCP_REASON
};

/* What the connecting rank claims. */
typedef struct ms_tcp_hello {
  uint32_t version;
  int32_t rank, to, size; /* to: the rank that it wants to reach */
  uint8_t nonce[MS_WIRE_NONCE], proof[MS_WIRE_PROOF];
  char job[MS_TCP_JOB];
} ms_tcp_hello;

void ms_tcp_put_greeting(uint8_t greeting[MS_TCP_GREETING], const uint8_t nonce[MS_WIRE_NONCE]);
/* 0: these bytes are no greeting. */
int ms_tcp_get_greeting(const uint8_t greeting[MS_TCP_GREETING], uint32_t *version, uint8_t nonce[MS_WIRE_NONCE]);
void ms_tcp_put_hello(uint8_t bytes[MS_TCP_HELLO], const ms_tcp_hello *hello);
void ms_tcp_get_hello(const uint8_t bytes[MS_TCP_HELLO], ms_tcp_hello *hello);
/* side: 'C' for the proof of the connecting side, 'A' for that of the accepting side. Both cover both nonces, the
 * version, the ranks and the job. */
void ms_tcp_prove(const char *token, char side, const uint8_t nonce[MS_WIRE_NONCE], const ms_tcp_hello *hello,
                  uint8_t proof[MS_WIRE_PROOF]);
void ms_tcp_put_welcome(uint8_t answer[MS_TCP_ANSWER], const uint8_t proof[MS_WIRE_PROOF]);
void ms_tcp_put_refusal(uint8_t answer[MS_TCP_ANSWER], const char *why);
/* 1: welcome, with the proof in `proof`; 0: refused, with the reason in `why`. */
int ms_tcp_get_answer(const uint8_t answer[MS_TCP_ANSWER], uint8_t proof[MS_WIRE_PROOF], char why[MS_TCP_REASON]);

/* ---- peers ---- */

enum ms_tcp_state {
  MS_TCP_APART = 0, /* not connected yet */
  MS_TCP_UP = 1,
  MS_TCP_ENDING = 2, /* it has failed, or this side leaves: the last frame goes out, and what comes in is dropped */
  MS_TCP_LEFT = 3,   /* it said goodbye */
  MS_TCP_GONE = 4    /* it has failed, or the connection has ended */
};

/* An attempt to connect (tcp_call.c). */
enum ms_tcp_stage { MS_TCP_PAUSING = 0, MS_TCP_CONNECTING, MS_TCP_GREETED, MS_TCP_ANSWERED };

typedef struct ms_tcp_call {
  uint8_t address[MS_TRANSPORT_ADDRESS]; /* of the peer */
  enum ms_tcp_stage stage;
  int place, fd, got;
  double until; /* end of the attempt, or of the pause */
  uint8_t bytes[MS_TCP_ANSWER], nonce[MS_WIRE_NONCE];
  ms_tcp_hello hello;
  char why[MS_TCP_REASON + 96]; /* the last failure of the attempts that came furthest, to told_at */
  enum ms_tcp_stage told_at;
} ms_tcp_call;

typedef struct ms_tcp_peer {
  int rank, fd;
  enum ms_tcp_state state;
  uint8_t readable, writable; /* as far as epoll and the last system call have said */
  uint8_t output;             /* there can be something to send */
  uint8_t ping, pong;         /* such a frame is due */
  uint8_t report;             /* failed() is due: 1 not called yet, 2 called */
  int broken;                 /* errno of a failed send: the peer fails when what it sent has been read */
  char name[80], why[512];
  ms_tcp_keys keys;
  /* The frame that comes in: `got` bytes of its header, or `rest` bytes of its body to come to `to` (NULL: dropped). */
  uint8_t in_header[MS_TCP_HEADER];
  ms_tcp_frame in;
  int in_got;
  int64_t in_rest;
  uint8_t *in_to;
  ms_tcp_key *in_key; /* of the receive that in_to belongs to; NULL: none */
  char reason[MS_TCP_REASON];
  /* The frame that goes out, alike; out_from NULL: zeros. */
  uint8_t out_header[MS_TCP_HEADER];
  int out_sent; /* bytes of the header; MS_TCP_HEADER with out_rest 0: there is no frame */
  int64_t out_rest;
  const uint8_t *out_from;
  ms_tcp_key *out_key;
  uint32_t last_kind; /* ENDING: the last frame, 0 when it is under way or sent; 0 */
  /* Times: a byte came in; a byte went out; a ping was due; the connection is closed without waiting. */
  double in_at, out_at, pinged_at, end_by;
  /* Acknowledgements, to see a link that is down. */
  int64_t written, acked;
  double acked_at;
  ms_tcp_call call;
} ms_tcp_peer;

/* A connection that has not proved the token (tcp_accept.c). */
typedef struct ms_tcp_stranger {
  int fd, got; /* fd -1: a free place */
  double since;
  uint8_t nonce[MS_WIRE_NONCE], hello[MS_TCP_HELLO];
} ms_tcp_stranger;

struct ms_endpoint {
  ms_transport_config config;
  char *token, job[MS_TCP_JOB];
  uint8_t address[MS_TRANSPORT_ADDRESS];
  int epoll, wake, listener; /* listener -1: every rank that is accepted has connected */
  ms_tcp_peer *peers;        /* [n_peers] */
  int n_peers, n_strangers, n_up;
  int *peer_of; /* [size]: index of a rank's peer, or -1 */
  ms_tcp_stranger *strangers;
  double accept_at;      /* 0, or the end of a pause in accepting */
  char turned_away[256]; /* the last stranger that was refused, for reports */
  double connect_by, turn_at, awake_at, watch_at;
  uint8_t *scratch; /* takes bytes that no transfer waits for */
  ms_transport_counts counts;
};

/* What an epoll event belongs to: the kind, and an index. */
enum ms_tcp_tag { MS_TCP_WAKE = 0, MS_TCP_LISTENER, MS_TCP_PEER, MS_TCP_STRANGER };

/* Registers a descriptor. Fails with MS_EIO. */
int ms_tcp_register(ms_endpoint *endpoint, int fd, uint32_t events, enum ms_tcp_tag tag, int index);
/* Ends a connection at once, also for processes that inherited the descriptor; accepts -1. */
void ms_tcp_hang_up(ms_endpoint *endpoint, int *fd);

/* (tcp_peer.c) A socket that has passed the handshake. */
void ms_tcp_bring_up(ms_endpoint *endpoint, ms_tcp_peer *peer, int fd);
/* The peer has failed: its transfers are FAILED, and failed() will be called. say: send it the reason. */
void ms_tcp_fail(ms_endpoint *endpoint, ms_tcp_peer *peer, int say, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Sends a last frame, a goodbye or the reason, and then ends the connection. */
void ms_tcp_end(ms_endpoint *endpoint, ms_tcp_peer *peer, uint32_t last_kind);
/* The connection has ended. */
void ms_tcp_gone(ms_endpoint *endpoint, ms_tcp_peer *peer, enum ms_tcp_state state);
/* The posted transfers of a key, or of all keys (NULL), are FAILED; their memory is not touched any more. */
void ms_tcp_take_back(ms_tcp_peer *peer, ms_tcp_key *key);

/* Move bytes until a turn is over or the socket has had enough. */
void ms_tcp_send(ms_endpoint *endpoint, ms_tcp_peer *peer);    /* tcp_send.c */
void ms_tcp_receive(ms_endpoint *endpoint, ms_tcp_peer *peer); /* tcp_receive.c */

/* tcp_call.c */
/* The socket of an attempt is ready for its next step. */
void ms_tcp_call_on(ms_endpoint *endpoint, ms_tcp_peer *peer);
/* The time of an attempt, or of the pause before the next one, is over. */
void ms_tcp_call_again(ms_endpoint *endpoint, ms_tcp_peer *peer, double now);

/* tcp_accept.c */
void ms_tcp_accept(ms_endpoint *endpoint);
/* Something has come from a stranger. */
void ms_tcp_meet(ms_endpoint *endpoint, ms_tcp_stranger *stranger);
/* Ends those whose time is over, and the pause in accepting. */
void ms_tcp_clear_strangers(ms_endpoint *endpoint, double now);
/* No rank is accepted any more. */
void ms_tcp_stop_listening(ms_endpoint *endpoint);

/* tcp_watch.c: deadlines of connections, transfers and links. Returns when it must be called again. */
double ms_tcp_watch(ms_endpoint *endpoint, double now);

#endif
