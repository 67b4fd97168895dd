/* receive.c - the frames that come in from a peer. Each is checked against what this rank has posted. One that
 * cannot be taken yet waits, and all that follow with it, until MPI says that earlier pieces are over: the peer may
 * know that before this rank does.
 */
#include <string.h>

#include "base/error.h"
#include "comm/transport/mpi/mpi.h"

static void break_off(ms_endpoint *endpoint, ms_mpi_peer *peer, const ms_mpi_frame *frame, const char *what) {
  ms_peer_fail(endpoint, &peer->common, 1,
               "rank %d sent %s (kind %u, tag %u, %u bytes, key %llx, number %llu, value %lld)", peer->common.rank,
               what, frame->kind, frame->tag, frame->bytes, (unsigned long long)frame->key,
               (unsigned long long)frame->number, (long long)frame->value);
}

static void take_hello(ms_endpoint *endpoint, ms_mpi_peer *peer, const ms_mpi_frame *frame) {
  if (peer->common.state != MS_PEER_APART) break_off(endpoint, peer, frame, "a second hello");
  else if (frame->value != MS_MPI_VERSION || frame->number != (uint64_t)endpoint->common.config.size)
    ms_peer_fail(endpoint, &peer->common, 1,
                 "rank %d belongs to a job of %llu ranks, version %lld; this job has %d, version %d", peer->common.rank,
                 (unsigned long long)frame->number, (long long)frame->value, endpoint->common.config.size,
                 MS_MPI_VERSION);
  else if (frame->key != endpoint->job)
    ms_peer_fail(endpoint, &peer->common, 1, "rank %d belongs to another job", peer->common.rank);
  else {
    peer->common.state = MS_PEER_UP;
    endpoint->common.n_up++;
  }
}

/* Returns 0 when the frame has to wait: this rank does not know yet that its oldest sends are over. */
static int take_credit(ms_endpoint *endpoint, ms_mpi_peer *peer, const ms_mpi_frame *frame) {
  const ms_key *key = ms_keys_find(&peer->common.keys, frame->key);
  if (key && ms_key_has_all_credits(key) && ms_mpi_holds(peer, key)) return 0;
  const char *wrong = ms_keys_take_credit(&peer->common.keys, frame->key, frame->number, frame->value);
  if (wrong) break_off(endpoint, peer, frame, wrong);
  return 1;
}

/* Returns 0 when the frame has to wait for the piece before it under the same tag. */
static int take_data(ms_endpoint *endpoint, ms_mpi_peer *peer, const ms_mpi_frame *frame, int *rc) {
  if (peer->in[frame->tag - 1].held) return 0;
  ms_key *key = peer->common.state == MS_PEER_UP ? ms_keys_find(&peer->common.keys, frame->key) : NULL;
  const int drops = peer->common.state != MS_PEER_UP || ms_key_drops(key);
  const char *wrong = drops ? NULL : ms_key_check_data(key, frame->number, frame->value, frame->bytes);
  if (wrong) break_off(endpoint, peer, frame, wrong);
  *rc = ms_mpi_receive_piece(endpoint, peer, frame, drops || wrong ? NULL : key);
  return 1;
}

static void take_cancel(ms_endpoint *endpoint, ms_mpi_peer *peer, const ms_mpi_frame *frame) {
  const char *wrong = ms_keys_take_cancel(&peer->common.keys, frame->key);
  if (wrong) break_off(endpoint, peer, frame, wrong);
}

/* Returns 0 when the frame has to wait for pieces that the peer sent before it. */
static int take_goodbye(ms_endpoint *endpoint, ms_mpi_peer *peer) {
  if (ms_mpi_has_pieces_in(peer)) return 0;
  if (ms_keys_are_awaited(&peer->common.keys))
    ms_peer_fail(endpoint, &peer->common, 0, "it left while transfers with it were under way");
  else {
    peer->common.state = MS_PEER_LEFT;
    endpoint->common.n_up--;
  }
  return 1;
}

static void take_reason(ms_endpoint *endpoint, ms_mpi_peer *peer, const ms_mpi_frame *frame) {
  char text[MS_MPI_REASON + 1];
  const int rest = peer->in_bytes - peer->in_at - MS_MPI_FRAME;
  size_t bytes = frame->bytes < (uint32_t)rest ? frame->bytes : (size_t)rest;
  ms_wire_get_text(peer->message_in + peer->in_at + MS_MPI_FRAME, bytes, text, sizeof text);
  ms_peer_fail(endpoint, &peer->common, 0, "it ended the connection: %s", text);
  peer->in_at = peer->in_bytes;
}

/* Returns 0 when the frame has to wait. */
static int take(ms_endpoint *endpoint, ms_mpi_peer *peer, const ms_mpi_frame *frame, int *rc) {
  if (frame->kind == MS_MPI_DATA) return take_data(endpoint, peer, frame, rc);
  if (frame->kind == MS_MPI_PING) peer->common.pong = 1;
  if (frame->kind == MS_MPI_PING || frame->kind == MS_MPI_PONG) return 1;
  if (peer->common.state != MS_PEER_UP && peer->common.state != MS_PEER_APART) return 1;
  if (frame->kind == MS_MPI_REASON_OF) {
    take_reason(endpoint, peer, frame);
    return 1;
  }
  if (peer->common.state == MS_PEER_APART && frame->kind != MS_MPI_HELLO) {
    break_off(endpoint, peer, frame, "a frame before its hello");
    return 1;
  }
  switch (frame->kind) {
    case MS_MPI_HELLO: take_hello(endpoint, peer, frame); return 1;
    case MS_MPI_CREDIT: return take_credit(endpoint, peer, frame);
    case MS_MPI_CANCEL: take_cancel(endpoint, peer, frame); return 1;
    default: return take_goodbye(endpoint, peer);
  }
}

int ms_mpi_listen(ms_endpoint *endpoint, ms_mpi_peer *peer) {
  const int slot = peer->first_slot + MS_MPI_SLOT_IN;
  peer->listens = 1;
  if (endpoint->library->receive(endpoint->mpi, slot, peer->common.rank, 0, peer->message_in, MS_MPI_MESSAGE))
    return MS_OK;
  return ms_mpi_break(endpoint);
}

int ms_mpi_receive(ms_endpoint *endpoint, ms_mpi_peer *peer) {
  ms_mpi_frame frame;
  int rc = MS_OK;
  if (peer->listens) return MS_OK;
  while (peer->in_at < peer->in_bytes) {
    const int whole = peer->in_bytes - peer->in_at >= MS_MPI_FRAME;
    const char *wrong = whole ? ms_mpi_get_frame(peer->message_in + peer->in_at, &frame) : "a part of a frame";
    if (wrong) {
      break_off(endpoint, peer, whole ? &frame : &(ms_mpi_frame){0}, wrong);
      break;
    }
    if (!take(endpoint, peer, &frame, &rc)) return MS_OK;
    MS_TRY(rc);
    endpoint->news++;
    if (peer->in_at < peer->in_bytes) peer->in_at += MS_MPI_FRAME;
  }
  return ms_mpi_listen(endpoint, peer);
}
