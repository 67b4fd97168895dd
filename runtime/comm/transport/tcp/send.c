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
    snprintf(peer->reason, sizeof peer->reason, "%.*s", MS_PEER_REASON - 1, peer->common.why);
    last.bytes = (uint32_t)strlen(peer->reason);
  }
  begin_frame(peer, &last, peer->reason, NULL);
  return 1;
}

/* Begins a ping or its answer, a credit, or a cancellation. */
static int begin_control(ms_tcp_peer *peer) {
  ms_key_notice notice;
  if (peer->common.ping || peer->common.pong) {
    begin_frame(peer, &(ms_peer_frame){.kind = peer->common.pong ? MS_PEER_PONG : MS_PEER_PING}, NULL, NULL);
    *(peer->common.pong ? &peer->common.pong : &peer->common.ping) = 0;
    return 1;
  }
  if (!ms_keys_next_notice(&peer->common.keys, &notice)) return 0;
  begin_frame(peer,
              &(ms_peer_frame){.kind = notice.cancels ? MS_PEER_CANCEL : MS_PEER_CREDIT,
                               .key = notice.key,
                               .number = notice.number,
                               .value = notice.bytes},
              NULL, NULL);
  return 1;
}

/* Begins the next piece of a send. Returns 0 when there is none, or the sizes differ and the peer has failed. */
static int begin_data(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  char why[MS_KEY_SIZES];
  ms_key *key = ms_keys_next_send(&peer->common.keys, endpoint->common.config.rank, why);
  if (*why) ms_peer_fail(endpoint, &peer->common, 1, "%s", why);
  if (!key) return 0;
  const ms_transfer *send = key->sends.next;
  const int64_t begun = key->sends.begun, rest = send->bytes - begun;
  ms_peer_frame data = {.kind = MS_PEER_DATA,
                        .bytes = (uint32_t)(rest < MS_PEER_PIECE ? rest : MS_PEER_PIECE),
                        .key = key->key,
                        .number = send->number,
                        .value = begun};
  ms_key_begin(&key->sends, data.bytes);
  begin_frame(peer, &data, (const uint8_t *)send->data + begun, key);
  return 1;
}

static int begin_next(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  if (peer->common.state == MS_PEER_UP && (begin_control(peer) || begin_data(endpoint, peer))) return 1;
  return peer->common.state == MS_PEER_ENDING && begin_last(peer);
}

/* The body's bytes are in the kernel: the send's memory can be written again when all are. */
static void count_body(ms_endpoint *endpoint, ms_tcp_peer *peer, int64_t bytes) {
  peer->out_rest -= bytes;
  if (!peer->out_from) return;
  peer->out_from += bytes;
  if (!peer->out_key) return;
  endpoint->common.counts.sent += bytes;
  ms_key_moved(&peer->out_key->sends, peer->out_key->sends.first, bytes);
  if (!peer->out_rest) peer->out_key = NULL;
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
  for (int64_t turn = 0; turn < MS_TCP_TURN && peer->writable && peer->common.output;) {
    if (is_between_frames(peer) && !begin_next(endpoint, peer)) {
      /* A failure in begin_next has a last frame to send. */
      peer->common.output = peer->common.state == MS_PEER_ENDING && peer->last_kind;
      if (peer->common.state == MS_PEER_ENDING && !peer->common.output) shutdown(peer->fd, SHUT_WR);
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
