/* ucx.h - the parts of the transport ucx, which moves bytes by active messages of UCX's worker. Internal to transport.
 *
 * Protocol. The frames are those of tcp (frame.h): credits, data, cancellations, goodbyes, pings; each is one active
 * message, with a header of MS_UCX_HEADER bytes and for data a piece of a transfer. UCX keeps their order.
 *
 * Trust. Addresses come from the authenticated store, but anybody who reaches the worker's port can send it messages,
 * and UCX does not say from whom one came. So both ranks say hello, each with a nonce, and answer with a proof of the
 * token over both nonces. From the token and the nonces they compute the connection's session, 32 bytes that begin
 * every later header. Messages without it are dropped and leave nothing behind. UCX itself trusts what arrives at its
 * ports: use it on trusted networks only.
 *
 * Pieces. Over TCP a piece is copied to the transport's own memory before UCX gets it, so UCX never refers to memory of
 * the caller, who can take it back at once. With UCX's rendezvous (ms_ucx_uses_rendezvous) the pieces under way do, and
 * cancelling waits for them.
 *
 * Memory: allocated by open, and for each peer when it is named, except for what UCX allocates. A peer occupies as much
 * as with tcp, and the slots below, whose pieces are touched only when they are used.
 */
#ifndef MS_COMM_TRANSPORT_UCX_UCX_H
#define MS_COMM_TRANSPORT_UCX_UCX_H

#include "comm/transport/frame.h"
#include "comm/transport/handshake.h"
#include "comm/transport/peers.h"
#include "comm/transport/ucx/library.h"

enum {
  MS_UCX_PIECE = 64 << 10, /* bytes of a piece without rendezvous; with it, MS_PEER_PIECE */
  MS_UCX_TURN = 2 << 20,   /* bytes that go to a peer before it is another peer's turn */
  MS_UCX_PIECES = 4,       /* under way to a peer; with rendezvous, also from it */
  MS_UCX_CONTROLS = 8,     /* messages without a piece under way to a peer */
  MS_UCX_NAME = 64,        /* bytes of a host's name */
  MS_UCX_HEADER = MS_WIRE_PROOF + 8 + MS_PEER_HEADER,
  MS_UCX_GREETING = 8 + MS_PEER_HELLO + MS_WIRE_NONCE
};

/* Ids of active messages. */
enum ms_ucx_message { MS_UCX_GREET = 0, MS_UCX_FRAME = 1 };

/* ---- messages ---- */

enum ms_ucx_greeting_kind { MS_UCX_HELLO = 1, MS_UCX_PROOF = 2 };

typedef struct ms_ucx_greeting {
  uint32_t kind;
  ms_peer_hello hello;            /* of the sender; with its proof in MS_UCX_PROOF */
  uint8_t answers[MS_WIRE_NONCE]; /* MS_UCX_PROOF: the receiver's nonce that the proof covers */
} ms_ucx_greeting;

/* ---- peers ---- */

struct ms_ucx_peer;

/* A message that UCX has not sent yet, or a piece that it has not received yet. */
typedef struct ms_ucx_slot {
  struct ms_ucx_peer *peer;
  int busy;
  ms_transfer *transfer; /* UCX refers to `bytes` bytes of its memory; NULL: it does not */
  ms_key *key;           /* of the transfer */
  int64_t bytes;         /* of the transfer */
  uint8_t *piece;        /* [MS_UCX_PIECE], for copies; NULL: with rendezvous */
  uint8_t header[MS_UCX_GREETING > MS_UCX_HEADER ? MS_UCX_GREETING : MS_UCX_HEADER];
} ms_ucx_slot;

typedef struct ms_ucx_peer {
  ms_peer common; /* APART: it has not proved the token yet. heard_at: a message came in */
  struct ms_endpoint *endpoint;
  ucp_ep_h ep;
  ucs_status_t broken;                  /* what UCX's error handler said; UCS_OK: nothing */
  uint8_t hello, proof, goodbye_answer; /* such a message is due */
  uint8_t last_kind;                    /* of the last frame, 0: it was sent, or is not due */
  uint8_t answered;                     /* it answered this side's goodbye, or said its own */
  char name[MS_UCX_NAME], refused[384]; /* refused: why its last proof was not accepted */
  uint8_t nonce[MS_WIRE_NONCE], their_nonce[MS_WIRE_NONCE], session[MS_WIRE_PROOF];
  ms_ucx_slot control[MS_UCX_CONTROLS], out[MS_UCX_PIECES], in[MS_UCX_PIECES];
  uint8_t *pieces; /* of `out`; NULL: with rendezvous */
  char reason[MS_PEER_REASON];
  /* Times: a piece went out; the next hello; the ep is closed. */
  double out_at, hello_at, end_by;
} ms_ucx_peer;

struct ms_endpoint {
  ms_peers common;
  ms_peer_job job;
  const ms_ucx_functions *ucx;
  ucp_context_h context;
  ucp_worker_h worker;
  int rendezvous;
  int worker_fd;      /* what progress sleeps on, too */
  ms_ucx_peer *peers; /* of common */
  int heard;          /* messages, errors and transfers that are done, since the turn began */
  int closing;        /* connections that UCX has not closed yet */
};

/* (address.c) Writes the endpoint's address. Fails with MS_EIO. */
int ms_ucx_make_address(ms_endpoint *endpoint);
/* MS_EINVAL: it is no address of this transport. *worker points into it. */
int ms_ucx_check_address(const uint8_t *address, char name[MS_UCX_NAME], const ucp_address_t **worker);

/* (greet.c) */
void ms_ucx_put_greeting(ms_endpoint *endpoint, const ms_ucx_peer *peer, enum ms_ucx_greeting_kind kind,
                         uint8_t bytes[MS_UCX_GREETING]);
void ms_ucx_take_greeting(ms_endpoint *endpoint, const uint8_t bytes[MS_UCX_GREETING]);

/* (send.c) Hands messages to UCX until there is nothing to send, or all slots are busy. */
void ms_ucx_send(ms_endpoint *endpoint, ms_ucx_peer *peer);
/* A slot's message was sent, or its piece received. */
void ms_ucx_slot_done(ms_ucx_slot *slot);
/* So many bytes of a transfer have moved. Who waits for one that is done must not sleep before it has looked. */
void ms_ucx_moved(ms_ucx_peer *peer, ms_key *key, ms_transfer *transfer, int64_t bytes);
/* 1: UCX refers to memory of this key's transfers; NULL: of any. */
int ms_ucx_refers(const ms_ucx_peer *peer, const ms_key *key);

/* (receive.c) The handler of MS_UCX_FRAME. */
ucs_status_t ms_ucx_take_frame(void *endpoint, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param);

/* (peer.c) Makes UCX's endpoint for the peer. Fails with MS_EIO. */
int ms_ucx_call(ms_endpoint *endpoint, ms_ucx_peer *peer, const ucp_address_t *address);
/* Of ms_peer_calls: a note, since UCX may have called this; UCX's endpoint is closed later. */
void ms_ucx_end_failed(ms_endpoint *endpoint, ms_peer *peer, int say);
/* UCX's endpoint is closed, without waiting for what is under way. */
void ms_ucx_gone(ms_endpoint *endpoint, ms_ucx_peer *peer, enum ms_peer_state state);
/* All transfers are FAILED. UCX refers to none of them any more, or never calls back. */
void ms_ucx_take_back(ms_ucx_peer *peer);
/* UCX reported that the connection is broken. */
void ms_ucx_take_error(ms_endpoint *endpoint, ms_ucx_peer *peer);

/* (watch.c) Deadlines of connections and transfers. Returns when it must be called again. */
double ms_ucx_watch(ms_endpoint *endpoint, double now);

#endif
