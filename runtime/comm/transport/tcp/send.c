/* send.c - the frames that go out to a peer: credits and cancellations first, then data, a piece of each key in
 * turn, so that a short transfer does not wait for the end of a long one. Bodies go from the caller's memory to the
 * kernel.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "comm/transport/tcp/tcp.h"

/* In place of memory that the caller has taken back in the middle of a frame. */
static const uint8_t zeros[16 << 10];

static void begin_frame(ms_tcp_peer *peer, const ms_peer_frame *frame, const void *body, ms_key *key) {
  ms_peer_put_frame(peer->out_header, frame);
  peer->out_sent = 0;
  peer->out_rest = frame->bytes;
  peer->out_from = body;
  peer->out_key = key;
  peer->out_at = ms_clock();
}

static int is_between_frames(const ms_tcp_peer *peer) { return peer->out_sent == MS_PEER_HEADER && !peer->out_rest; }

/* Returns 0 when the last frame has been sent already. */
static int begin_last(ms_tcp_peer *peer) {
  ms_peer_frame last = {.kind = peer->last_kind};
  if (!last.kind) return 0;
  peer->last_kind = 0;
  if (last.kind == MS_PEER_REASON_OF) {
    snprintf(peer->reason, sizeof peer->reason, "%.*s", MS_PEER_REASON - 1, peer->why);
    last.bytes = (uint32_t)strlen(peer->reason);
  }
  begin_frame(peer, &last, peer->reason, NULL);
  return 1;
}

/* Begins a ping or its answer, a credit, or a cancellation. */
static int begin_control(ms_tcp_peer *peer) {
  if (peer->ping || peer->pong) {
    begin_frame(peer, &(ms_peer_frame){.kind = peer->pong ? MS_PEER_PONG : MS_PEER_PING}, NULL, NULL);
    *(peer->pong ? &peer->pong : &peer->ping) = 0;
    return 1;
  }
  for (int i = 0; i < peer->keys.reach; i++) {
    ms_key *key = &peer->keys.slot[i];
    if (!key->used) continue;
    if (key->cancelled && !key->told) {
      begin_frame(peer, &(ms_peer_frame){.kind = MS_PEER_CANCEL, .key = key->key}, NULL, NULL);
      key->told = 1;
      if (key->peer_cancelled) ms_keys_forget(&peer->keys, key);
      return 1;
    }
    ms_transfer *receive = key->uncredited;
    if (!receive || key->peer_cancelled) continue;
    ms_peer_frame credit = {
        .kind = MS_PEER_CREDIT, .key = key->key, .number = receive->number, .value = receive->bytes};
    begin_frame(peer, &credit, NULL, NULL);
    key->uncredited = receive->next;
    return 1;
  }
  return 0;
}

/* Begins the next piece of a send. Returns 0 when there is none, or the sizes differ and the peer has failed. */
static int begin_data(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  ms_keys *keys = &peer->keys;
  char why[MS_KEY_SIZES];
  for (int i = 0; i < keys->reach; i++) {
    ms_key *key = &keys->slot[(keys->turn + i) % keys->reach];
    ms_transfer *send = ms_key_next_send(key);
    if (!send) continue;
    const int64_t rest = send->bytes - send->moved;
    if (ms_key_compare_sizes(key, send, endpoint->config.rank, why)) {
      ms_tcp_fail(endpoint, peer, 1, "%s", why);
      return 0;
    }
    ms_peer_frame data = {.kind = MS_PEER_DATA,
                          .bytes = (uint32_t)(rest < MS_PEER_PIECE ? rest : MS_PEER_PIECE),
                          .key = key->key,
                          .number = send->number,
                          .value = send->moved};
    begin_frame(peer, &data, (const uint8_t *)send->data + send->moved, key);
    keys->turn = (int)(key - keys->slot) + 1;
    return 1;
  }
  return 0;
}

static int begin_next(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  if (peer->state == MS_TCP_UP && (begin_control(peer) || begin_data(endpoint, peer))) return 1;
  return peer->state == MS_TCP_ENDING && begin_last(peer);
}

/* The body's bytes are in the kernel: the send's memory can be written again when all are. */
static void count_body(ms_endpoint *endpoint, ms_tcp_peer *peer, int64_t bytes) {
  peer->out_rest -= bytes;
  if (!peer->out_from) return;
  peer->out_from += bytes;
  if (!peer->out_key) return;
  ms_transfer *send = peer->out_key->sends.first;
  endpoint->counts.sent += bytes;
  send->moved += bytes;
  if (peer->out_rest) return;
  if (send->moved == send->bytes) ms_key_finish(&peer->out_key->sends, MS_TRANSFER_DONE);
  peer->out_key = NULL;
}

static ssize_t send_some(ms_tcp_peer *peer) {
  struct iovec parts[2] = {{peer->out_header + peer->out_sent, (size_t)(MS_PEER_HEADER - peer->out_sent)}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
  parts[1].iov_base = (void *)(uintptr_t)(peer->out_from ? peer->out_from : zeros);
  parts[1].iov_len = (size_t)peer->out_rest;
  if (!peer->out_from && peer->out_rest > (int64_t)sizeof zeros) parts[1].iov_len = sizeof zeros;
  return sendmsg(peer->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ms_tcp_send(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  for (int64_t turn = 0; turn < MS_TCP_TURN && peer->writable && peer->output;) {
    if (is_between_frames(peer) && !begin_next(endpoint, peer)) {
      /* A failure in begin_next has a last frame to send. */
      peer->output = peer->state == MS_TCP_ENDING && peer->last_kind;
      if (peer->state == MS_TCP_ENDING && !peer->output) shutdown(peer->fd, SHUT_WR);
      continue;
    }
    ssize_t sent = send_some(peer);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      peer->writable = 0;
      if (errno == EAGAIN) return;
      /* What the peer sent before says more about its end: it is read first. */
      peer->broken = errno;
      peer->readable = 1;
      return;
    }
    int64_t header = MS_PEER_HEADER - peer->out_sent;
    if (header > sent) header = sent;
    peer->out_sent += (int)header;
    if (sent > header) count_body(endpoint, peer, sent - header);
    peer->written += sent;
    peer->out_at = ms_clock();
    turn += sent;
  }
}
