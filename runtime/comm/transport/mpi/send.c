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
    *frame = (ms_mpi_frame){
        .kind = MS_MPI_HELLO, .key = endpoint->job, .number = (uint64_t)endpoint->config.size, .value = MS_MPI_VERSION};
    peer->hello = 0;
  } else if (peer->pong) {
    frame->kind = MS_MPI_PONG;
    peer->pong = 0;
  } else if (peer->ping) {
    frame->kind = MS_MPI_PING;
    peer->ping = 0;
  }
  return frame->kind;
}

/* The text of a reason follows its frame. */
static int say_last(ms_mpi_peer *peer, ms_mpi_frame *frame) {
  *frame = (ms_mpi_frame){.kind = peer->last_kind};
  if (frame->kind == MS_MPI_REASON_OF) {
    size_t bytes = strlen(peer->why);
    frame->bytes = (uint32_t)(bytes < MS_MPI_REASON ? bytes : MS_MPI_REASON);
  }
  peer->last_kind = 0;
  return frame->kind;
}

/* A credit or a cancellation. */
static int control(ms_mpi_peer *peer, ms_mpi_frame *frame) {
  for (int i = 0; i < peer->keys.reach; i++) {
    ms_key *key = &peer->keys.slot[i];
    if (!key->used) continue;
    if (key->cancelled && !key->told && !key->sends.first && !key->receives.first) {
      *frame = (ms_mpi_frame){.kind = MS_MPI_CANCEL, .key = key->key};
      key->told = 1;
      if (key->peer_cancelled) ms_keys_forget(&peer->keys, key);
      return 1;
    }
    ms_transfer *receive = key->uncredited;
    if (!receive || key->cancelled || key->peer_cancelled) continue;
    *frame = (ms_mpi_frame){.kind = MS_MPI_CREDIT, .key = key->key, .number = receive->number, .value = receive->bytes};
    key->uncredited = receive->next;
    return 1;
  }
  return 0;
}

/* 1: the peer waits for the next bytes of this key. */
static int can_move(const ms_key *key) {
  const ms_transfer *send = key->sends.next;
  return key->used && !key->cancelled && !key->peer_cancelled && send && send->number < key->credits;
}

/* The next piece of a send. Returns 0 when there is none, or the sizes differ and the peer has failed. */
static int announce(ms_endpoint *endpoint, ms_mpi_peer *peer, ms_mpi_frame *frame) {
  ms_keys *keys = &peer->keys;
  char why[MS_KEY_SIZES];
  for (int i = 0; i < keys->reach; i++) {
    ms_key *key = &keys->slot[(keys->turn + i) % keys->reach];
    if (!can_move(key)) continue;
    if (ms_key_compare_sizes(key, key->sends.next, endpoint->config.rank, why)) {
      ms_mpi_fail(endpoint, peer, 1, "%s", why);
      return 0;
    }
    if (!ms_mpi_announce(peer, key, frame)) return 0;
    keys->turn = (int)(key - keys->slot) + 1;
    return 1;
  }
  return 0;
}

static int next_frame(ms_endpoint *endpoint, ms_mpi_peer *peer, ms_mpi_frame *frame) {
  if (greet(endpoint, peer, frame) || (peer->last_kind && say_last(peer, frame))) return 1;
  if (peer->state != MS_MPI_UP || endpoint->closes) return 0;
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
    memcpy(message + bytes, peer->why, frame.bytes);
    bytes += (int)frame.bytes;
    ++*frames;
    break;
  }
  if (!*frames) return MS_OK;
  const int slot = peer->first_slot + MS_MPI_SLOT_OUT + place;
  peer->busy[place] = 1;
  if (!endpoint->library->send(endpoint->mpi, slot, peer->rank, 0, message, bytes)) return ms_mpi_break(endpoint);
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
