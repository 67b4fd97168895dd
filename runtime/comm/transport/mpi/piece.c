/* piece.c - the pieces under way, from the sender's memory to the receiver's, and what MPI says about them. */
#include "base/clock.h"
#include "base/error.h"
#include "comm/transport/mpi/mpi.h"

int ms_mpi_holds(const ms_mpi_peer *peer, const ms_key *key) {
  for (int i = 0; i < MS_MPI_UNDER_WAY; i++) {
    const ms_mpi_piece *out = &peer->out[i], *in = &peer->in[i];
    if (out->held && out->key && (!key || out->key == key)) return 1;
    if (in->held && in->key && (!key || in->key == key)) return 1;
  }
  return 0;
}

int ms_mpi_has_pieces_in(const ms_mpi_peer *peer) {
  for (int i = 0; i < MS_MPI_UNDER_WAY; i++)
    if (peer->in[i].held) return 1;
  return 0;
}

int ms_mpi_find_place(const ms_mpi_peer *peer) {
  for (int place = 0; place < MS_MPI_UNDER_WAY; place++)
    if (!peer->out[place].held) return place;
  return -1;
}

void ms_mpi_announce(ms_mpi_peer *peer, int place, ms_key *key, ms_mpi_frame *frame) {
  const ms_transfer *send = key->sends.next;
  const int64_t rest = send->bytes - key->sends.begun;
  *frame = (ms_mpi_frame){.kind = MS_MPI_DATA,
                          .tag = (uint16_t)(1 + place),
                          .bytes = (uint32_t)(rest < MS_MPI_PIECE ? rest : MS_MPI_PIECE),
                          .key = key->key,
                          .number = send->number,
                          .value = key->sends.begun};
  peer->out[place] = (ms_mpi_piece){
      .held = 1, .key = key, .transfer = ms_key_begin(&key->sends, frame->bytes), .bytes = (int)frame->bytes};
  peer->out_moved_at = ms_clock();
}

int ms_mpi_send_piece(ms_endpoint *endpoint, ms_mpi_peer *peer, const ms_mpi_frame *frame) {
  const int place = frame->tag - 1, slot = peer->first_slot + MS_MPI_SLOT_PIECE_OUT + place;
  const char *data = (const char *)peer->out[place].transfer->data + frame->value;
  if (endpoint->library->send(endpoint->mpi, slot, peer->common.rank, frame->tag, data, (int)frame->bytes))
    return MS_OK;
  return ms_mpi_break(endpoint);
}

/* MPI receives a piece to `data`; NULL: to where it is dropped. */
static int receive_to(ms_endpoint *endpoint, ms_mpi_peer *peer, int place, void *data, int bytes) {
  const int slot = peer->first_slot + MS_MPI_SLOT_PIECE_IN + place;
  if (!data) data = peer->dropped + (size_t)place * MS_MPI_PIECE;
  if (endpoint->library->receive(endpoint->mpi, slot, peer->common.rank, 1 + place, data, bytes)) return MS_OK;
  return ms_mpi_break(endpoint);
}

int ms_mpi_receive_piece(ms_endpoint *endpoint, ms_mpi_peer *peer, const ms_mpi_frame *frame, ms_key *key) {
  const int place = frame->tag - 1, bytes = (int)frame->bytes;
  ms_mpi_piece piece = {.held = 1, .key = key, .bytes = bytes};
  if (key) piece.transfer = ms_key_begin(&key->receives, bytes);
  peer->in[place] = piece;
  peer->in_moved_at = ms_clock();
  return receive_to(endpoint, peer, place, key ? (char *)piece.transfer->data + frame->value : NULL, bytes);
}

int ms_mpi_take_back(ms_endpoint *endpoint, ms_mpi_peer *peer, const ms_key *key) {
  for (int i = 0; i < MS_MPI_UNDER_WAY; i++) {
    ms_mpi_piece *piece = &peer->in[i];
    if (!piece->held || !piece->key || (key && piece->key != key)) continue;
    if (!endpoint->library->take_back(endpoint->mpi, peer->first_slot + MS_MPI_SLOT_PIECE_IN + i)) continue;
    piece->key = NULL;
    MS_TRY(receive_to(endpoint, peer, i, NULL, piece->bytes));
  }
  return MS_OK;
}

/* ---- what is over ---- */

static void end_out(ms_endpoint *endpoint, ms_mpi_peer *peer, ms_mpi_piece *piece, double now) {
  piece->held = 0;
  peer->out_moved_at = now;
  if (!piece->key) return;
  endpoint->common.counts.sent += piece->bytes;
  ms_key_moved(&piece->key->sends, piece->transfer, piece->bytes);
}

static void end_in(ms_endpoint *endpoint, ms_mpi_peer *peer, ms_mpi_piece *piece, int bytes, double now) {
  piece->held = 0;
  peer->in_moved_at = now;
  if (bytes != piece->bytes)
    ms_peer_fail(endpoint, &peer->common, 1, "rank %d sent a piece of %d bytes, and had announced %d",
                 peer->common.rank, bytes, piece->bytes);
  else if (piece->key) {
    endpoint->common.counts.received += piece->bytes;
    ms_key_moved(&piece->key->receives, piece->transfer, piece->bytes);
  }
}

static void end_slot(ms_endpoint *endpoint, const ms_mpi_over *over, double now) {
  ms_mpi_peer *peer = &endpoint->peers[over->slot / MS_MPI_SLOTS];
  const int slot = over->slot % MS_MPI_SLOTS;
  if (over->bytes < 0)
    ms_peer_fail(endpoint, &peer->common, 0, "MPI reports %s", endpoint->library->why(endpoint->mpi));
  if (slot >= MS_MPI_SLOT_PIECE_IN) {
    ms_mpi_piece *piece = &peer->in[slot - MS_MPI_SLOT_PIECE_IN];
    end_in(endpoint, peer, piece, over->bytes < 0 ? piece->bytes : over->bytes, now);
  } else if (slot >= MS_MPI_SLOT_PIECE_OUT) end_out(endpoint, peer, &peer->out[slot - MS_MPI_SLOT_PIECE_OUT], now);
  else if (slot >= MS_MPI_SLOT_OUT) peer->busy[slot - MS_MPI_SLOT_OUT] = 0;
  else {
    peer->listens = 0;
    peer->in_at = 0;
    peer->in_bytes = over->bytes < 0 ? 0 : over->bytes;
    peer->common.heard_at = now;
  }
}

int ms_mpi_poll(ms_endpoint *endpoint) {
  int n = endpoint->library->poll(endpoint->mpi, endpoint->over);
  if (n < 0) return ms_mpi_break(endpoint);
  double now = n ? ms_clock() : 0;
  for (int i = 0; i < n; i++) end_slot(endpoint, &endpoint->over[i], now);
  endpoint->news += n;
  return MS_OK;
}
