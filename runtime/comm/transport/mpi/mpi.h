/* mpi.h - the parts of the MPI transport, which moves bytes with the MPI whose mpirun or srun started the ranks.
 * Internal to transport.
 *
 * Protocol. Messages of tag 0 contain frames of 32 bytes: credits, cancellations, pings, and announcements of pieces.
 * An announced piece follows as a message of its own, from the sender's memory to the receiver's, under the tag of its
 * place, 1 to MS_MPI_UNDER_WAY. Keys and numbers are only in frames, so the few tags that every MPI has are enough.
 * MPI keeps the order of messages of one tag, so the receive that an announcement leads to meets the right piece. What
 * MPI holds unexpected is bounded: a piece is announced only after its credit, and at most MS_MPI_UNDER_WAY are under
 * way.
 *
 * MPI gives the memory of a receive back until its message comes; later, and that of a send at any time, only at its
 * end. So cancelling waits for the pieces under way, and a transfer of a failed peer stays posted until they have
 * arrived. Where they do not arrive within the deadline, the endpoint itself fails.
 */
#ifndef MS_COMM_TRANSPORT_MPI_MPI_H
#define MS_COMM_TRANSPORT_MPI_MPI_H

#include "comm/transport/mpi/library.h"
#include "comm/transport/peers.h"
#include "comm/transport/wire.h"

enum {
  MS_MPI_VERSION = 1, /* of the protocol */
  MS_MPI_FRAME = 32,
  MS_MPI_FRAMES = 16,       /* of a message, at most */
  MS_MPI_PIECE = 512 << 10, /* bytes of a message under a tag of its own */
  MS_MPI_UNDER_WAY = 8,     /* pieces to a peer, and as many from it */
  MS_MPI_MESSAGES = 4,      /* messages of frames under way to a peer */
  MS_MPI_MESSAGE = MS_MPI_FRAME * MS_MPI_FRAMES,
  MS_MPI_REASON = MS_MPI_MESSAGE - MS_MPI_FRAME /* bytes of the text by which a side says why it ends */
};

/* ---- frames (frame.c) ---- */

enum ms_mpi_kind {
  MS_MPI_HELLO = 1,     /* key: of the job; number: size of the world; value: MS_MPI_VERSION */
  MS_MPI_CREDIT = 2,    /* a receive is posted: key, number; value: its size */
  MS_MPI_DATA = 3,      /* `bytes` bytes of send `number` of the key, from offset `value`, come under tag `tag` */
  MS_MPI_CANCEL = 4,    /* this side does not use the key any more */
  MS_MPI_GOODBYE = 5,   /* this side leaves without an error */
  MS_MPI_REASON_OF = 6, /* this side has failed; a text of `bytes` bytes follows, which says why */
  MS_MPI_PING = 7,      /* asks for a sign of life */
  MS_MPI_PONG = 8       /* the answer, which every call of progress gives */
};

typedef struct ms_mpi_frame {
  uint16_t kind, tag;
  uint32_t bytes;
  uint64_t key, number;
  int64_t value;
} ms_mpi_frame;

void ms_mpi_put_frame(uint8_t at[MS_MPI_FRAME], const ms_mpi_frame *frame);
/* NULL, or what is wrong with it. */
const char *ms_mpi_get_frame(const uint8_t at[MS_MPI_FRAME], ms_mpi_frame *frame);

/* ---- peers ---- */

/* A piece under way. */
typedef struct ms_mpi_piece {
  uint8_t held;          /* MPI has it */
  ms_key *key;           /* NULL: nothing waits for it; its memory is the endpoint's */
  ms_transfer *transfer; /* of the key */
  int bytes;
} ms_mpi_piece;

typedef struct ms_mpi_peer {
  ms_peer common; /* APART: it has not said hello yet. GONE: what it has announced still comes, and is dropped */
  int first_slot;
  uint8_t hello;      /* such a frame is due */
  uint16_t last_kind; /* the last frame, GOODBYE or REASON_OF, is due; 0: it is not */
  ms_mpi_piece out[MS_MPI_UNDER_WAY], in[MS_MPI_UNDER_WAY]; /* by tag */
  uint8_t *dropped;    /* [MS_MPI_UNDER_WAY][MS_MPI_PIECE]: pieces that nothing waits for; untouched otherwise */
  uint8_t listens;     /* MPI has message_in */
  int in_bytes, in_at; /* of message_in: how many came, and how many of them have been taken */
  uint8_t busy[MS_MPI_MESSAGES]; /* MPI has this message */
  uint8_t message_in[MS_MPI_MESSAGE], message_out[MS_MPI_MESSAGES][MS_MPI_MESSAGE];
  /* Times: a piece came, or began to; a piece went out, or began to; the end of waiting for what a failed peer has
   * under way. */
  double in_moved_at, out_moved_at, fail_by;
} ms_mpi_peer;

struct ms_endpoint {
  ms_peers common;
  const ms_mpi_library *library;
  ms_mpi *mpi;
  ms_mpi_world world;
  uint64_t job;       /* hash of its id */
  int news;           /* what has happened in this turn */
  ms_mpi_peer *peers; /* of common */
  int closes;
  ms_mpi_over *over; /* [slots]; NULL: no peer has been named */
  double busy_at;
  char broken[640]; /* why the endpoint has failed; "" */
};

/* ---- pieces (piece.c) ---- */

/* The slots of a peer, from its first one. */
enum ms_mpi_slot {
  MS_MPI_SLOT_IN = 0,
  MS_MPI_SLOT_OUT = 1,
  MS_MPI_SLOT_PIECE_OUT = MS_MPI_SLOT_OUT + MS_MPI_MESSAGES,
  MS_MPI_SLOT_PIECE_IN = MS_MPI_SLOT_PIECE_OUT + MS_MPI_UNDER_WAY,
  MS_MPI_SLOTS = MS_MPI_SLOT_PIECE_IN + MS_MPI_UNDER_WAY
};

/* 1: the peer has pieces in flight of memory that is the caller's: of this key, or of any (NULL). */
int ms_mpi_holds(const ms_mpi_peer *peer, const ms_key *key);
/* 1: any piece is in flight from the peer, also one that is dropped. */
int ms_mpi_has_pieces_in(const ms_mpi_peer *peer);
/* A place that is free for the next piece; -1: none is. */
int ms_mpi_find_place(const ms_mpi_peer *peer);
/* Reserves it for the next piece of a key's sends, and writes the announcement. */
void ms_mpi_announce(ms_mpi_peer *peer, int place, ms_key *key, ms_mpi_frame *frame);
/* Sends the piece that was announced; the transfer's memory is MPI's until it is over. */
int ms_mpi_send_piece(ms_endpoint *endpoint, ms_mpi_peer *peer, const ms_mpi_frame *frame);
/* Receives a piece that the peer has announced, to the next bytes of a key's receives. key NULL: drops it. */
int ms_mpi_receive_piece(ms_endpoint *endpoint, ms_mpi_peer *peer, const ms_mpi_frame *frame, ms_key *key);
/* Takes back receives, of this key or of any (NULL), whose messages have not come: they will be dropped. */
int ms_mpi_take_back(ms_endpoint *endpoint, ms_mpi_peer *peer, const ms_key *key);
/* Lets MPI make progress, and ends what is over; counts it in endpoint->news. */
int ms_mpi_poll(ms_endpoint *endpoint);

/* ---- messages ---- */

/* Sends what is due: frames, and the pieces that they announce (send.c). */
int ms_mpi_send(ms_endpoint *endpoint, ms_mpi_peer *peer);
/* Takes the frames that have come, up to one that must wait; listens again (receive.c). */
int ms_mpi_receive(ms_endpoint *endpoint, ms_mpi_peer *peer);
int ms_mpi_listen(ms_endpoint *endpoint, ms_mpi_peer *peer);

/* ---- failures ---- */

/* (peer.c) Of ms_peer_calls: transfers are FAILED and the report is due as soon as MPI holds nothing of them. */
void ms_mpi_end_failed(ms_endpoint *endpoint, ms_peer *peer, int say);
/* A call of the library failed: so has the endpoint. Fails with MS_EIO. */
int ms_mpi_break(ms_endpoint *endpoint);

/* (watch.c) Ends waiting for what MPI holds of a peer; if it holds anything, the endpoint has failed. */
void ms_mpi_give_up(ms_endpoint *endpoint, ms_mpi_peer *peer);
/* Fails the transfers of failed peers of which MPI holds nothing any more, which makes their reports due. */
int ms_mpi_settle(ms_endpoint *endpoint);
/* Deadlines. Returns when it must be called again. */
double ms_mpi_watch(ms_endpoint *endpoint, double now);

/* ---- the library and the launcher (launcher.c) ---- */

/* Loads libmoonshard_mpi.so. Fails with MS_EUNSUPPORTED. */
int ms_mpi_load(const ms_mpi_library **library);
/* Whether a launcher says that it started this process as this rank of so many, each its own process. Fails with
 * MS_EUNSUPPORTED (none does) and MS_EINVAL (another rank). rank -1: any. */
int ms_mpi_check_launcher(int rank, int size);

#endif
