/* send.c - the messages that go out to a peer: credits and cancellations first, then announcements, a piece of each
 * key in turn, so that a short transfer does not wait for the end of a long one. As many frames as are due share a
 * message.
 */
#include <string.h>

#include "base/error.h"
#include "comm/transport/mpi/mpi.h"

/* A ping, its answer, or hello. */
static int greet(const ms_endpoint *endpoint, ms_mpi_peer *peer, ms_mpi_frame *frame) {
  *frame = (ms_mpi_frame){0};
  if (peer->hello) {
    *frame = (ms_mpi_frame){.kind = MS_MPI_HELLO,
                            .key = endpoint->job,
                            .number = (uint64_t)endpoint->common.config.size,
                            .value = MS_MPI_VERSION};
    peer->hello = 0;
  } else if (peer->common.pong) {
    frame->kind = MS_MPI_PONG;
    peer->common.pong = 0;
  } else if (peer->common.ping) {
    frame->kind = MS_MPI_PING;
    peer->common.ping = 0;
  }
  return frame->kind;
}

/* The text of a reason follows its frame. */
static int say_last(ms_mpi_peer *peer, ms_mpi_frame *frame) {
  *frame = (ms_mpi_frame){.kind = peer->last_kind};
  if (frame->kind == MS_MPI_REASON_OF) {
    size_t bytes = strlen(peer->common.why);
    frame->bytes = (uint32_t)(bytes < MS_MPI_REASON ? bytes : MS_MPI_REASON);
  }
  peer->last_kind = 0;
  return frame->kind;
}

/* A credit or a cancellation. */
static int control(ms_mpi_peer *peer, ms_mpi_frame *frame) {
  ms_key_notice notice;
  if (!ms_keys_next_notice(&peer->common.keys, &notice)) return 0;
  *frame = (ms_mpi_frame){.kind = notice.cancels ? MS_MPI_CANCEL : MS_MPI_CREDIT,
                          .key = notice.key,
                          .number = notice.number,
                          .value = notice.bytes};
  return 1;
}

/* The next piece of a send. Returns 0 when there is none, or the sizes differ and the peer has failed. */
static int announce(ms_endpoint *endpoint, ms_mpi_peer *peer, ms_mpi_frame *frame) {
  const int place = ms_mpi_find_place(peer);
  char why[MS_KEY_SIZES];
  if (place < 0) return 0;
  ms_key *key = ms_keys_next_send(&peer->common.keys, endpoint->common.config.rank, why);
  if (*why) ms_peer_fail(endpoint, &peer->common, 1, "%s", why);
  if (!key) return 0;
  ms_mpi_announce(peer, place, key, frame);
  return 1;
}

static int next_frame(ms_endpoint *endpoint, ms_mpi_peer *peer, ms_mpi_frame *frame) {
  if (greet(endpoint, peer, frame) || (peer->last_kind && say_last(peer, frame))) return 1;
  if (peer->common.state != MS_PEER_UP || endpoint->closes) return 0;
  return control(peer, frame) || announce(endpoint, peer, frame);
}

static int free_message(const ms_mpi_peer *peer) {
  for (int i = 0; i < MS_MPI_MESSAGES; i++)
    if (!peer->busy[i]) return i;
  return -1;
}

/* A reason has a message of its own, for its text. */
static int has_room(const ms_mpi_peer *peer, int frames) {
  return frames < MS_MPI_FRAMES && !(frames && peer->last_kind == MS_MPI_REASON_OF);
}

/* Fills a message and sends it, with its pieces. *frames: how many it has; 0: nothing is due. */
static int send_message(ms_endpoint *endpoint, ms_mpi_peer *peer, int place, int *frames) {
  ms_mpi_frame frame, announced[MS_MPI_UNDER_WAY];
  uint8_t *message = peer->message_out[place];
  int pieces = 0, bytes = 0;
  for (*frames = 0; has_room(peer, *frames) && next_frame(endpoint, peer, &frame); ++*frames) {
    ms_mpi_put_frame(message + bytes, &frame);
    bytes += MS_MPI_FRAME;
    if (frame.kind == MS_MPI_DATA) announced[pieces++] = frame;
    if (frame.kind != MS_MPI_REASON_OF) continue;
    memcpy(message + bytes, peer->common.why, frame.bytes);
    bytes += (int)frame.bytes;
    ++*frames;
    break;
  }
  if (!*frames) return MS_OK;
  const int slot = peer->first_slot + MS_MPI_SLOT_OUT + place;
  peer->busy[place] = 1;
  if (!endpoint->library->send(endpoint->mpi, slot, peer->common.rank, 0, message, bytes))
    return ms_mpi_break(endpoint);
  for (int i = 0; i < pieces; i++) MS_TRY(ms_mpi_send_piece(endpoint, peer, &announced[i]));
  return MS_OK;
}

int ms_mpi_send(ms_endpoint *endpoint, ms_mpi_peer *peer) {
  for (int frames = MS_MPI_FRAMES; frames == MS_MPI_FRAMES;) {
    const int place = free_message(peer);
    if (place < 0) return MS_OK;
    MS_TRY(send_message(endpoint, peer, place, &frames));
  }
  return MS_OK;
}
