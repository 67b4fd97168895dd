/* receive.c - the frames that come in from a peer. Every header is checked against what this rank has posted;
 * bodies go from the kernel to the receive's memory, or, once their key is cancelled, to scratch memory.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "comm/transport/tcp/tcp.h"

static void break_off(ms_endpoint *endpoint, ms_tcp_peer *peer, const ms_peer_frame *frame, const char *what) {
  ms_peer_fail(endpoint, &peer->common, 1, "rank %d sent %s (kind %u, %u bytes, key %llx, number %llu, value %lld)",
               peer->common.rank, what, frame->kind, frame->bytes, (unsigned long long)frame->key,
               (unsigned long long)frame->number, (long long)frame->value);
}

static void take_credit(ms_endpoint *endpoint, ms_tcp_peer *peer, const ms_peer_frame *frame) {
  const char *wrong = ms_keys_take_credit(&peer->common.keys, frame->key, frame->number, frame->value);
  if (wrong) break_off(endpoint, peer, frame, wrong);
  else peer->common.output = 1;
}

static void take_data(ms_endpoint *endpoint, ms_tcp_peer *peer, const ms_peer_frame *frame) {
  ms_key *key = ms_keys_find(&peer->common.keys, frame->key);
  if (ms_key_drops(key)) return;
  const char *wrong = ms_key_check_data(key, frame->number, frame->value, frame->bytes);
  if (wrong) {
    break_off(endpoint, peer, frame, wrong);
    return;
  }
  peer->in_to = (uint8_t *)key->receives.next->data + frame->value;
  peer->in_key = key;
  ms_key_begin(&key->receives, frame->bytes);
}

static void take_cancel(ms_endpoint *endpoint, ms_tcp_peer *peer, const ms_peer_frame *frame) {
  const char *wrong = ms_keys_take_cancel(&peer->common.keys, frame->key);
  if (wrong) break_off(endpoint, peer, frame, wrong);
  else peer->common.output = 1;
}

static void take_goodbye(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  if (ms_keys_are_awaited(&peer->common.keys))
    ms_peer_fail(endpoint, &peer->common, 0, "it left while transfers with it were under way");
  else ms_tcp_gone(endpoint, peer, MS_PEER_LEFT);
}

/* A whole header. */
static void take_header(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  ms_peer_frame *frame = &peer->in;
  const char *wrong = ms_peer_get_frame(peer->in_header, frame);
  if (wrong) {
    break_off(endpoint, peer, frame, wrong);
    return;
  }
  peer->in_got = 0;
  peer->in_rest = frame->bytes;
  peer->in_to = NULL;
  peer->in_key = NULL;
  switch (frame->kind) {
    case MS_PEER_CREDIT: take_credit(endpoint, peer, frame); return;
    case MS_PEER_DATA: take_data(endpoint, peer, frame); return;
    case MS_PEER_CANCEL: take_cancel(endpoint, peer, frame); return;
    case MS_PEER_GOODBYE: take_goodbye(endpoint, peer); return;
    case MS_PEER_PING: peer->common.pong = peer->common.output = 1; return;
    case MS_PEER_PONG: return;
    default: peer->in_to = (uint8_t *)peer->reason; return;
  }
}

/* A whole body, or more of it. */
static void take_body(ms_endpoint *endpoint, ms_tcp_peer *peer, int64_t bytes) {
  char text[MS_PEER_REASON];
  peer->in_rest -= bytes;
  if (peer->in_to) peer->in_to += bytes;
  if (peer->in_key) {
    endpoint->common.counts.received += bytes;
    ms_key_moved(&peer->in_key->receives, peer->in_key->receives.first, bytes);
    if (!peer->in_rest) peer->in_key = NULL;
  } else if (!peer->in_rest && peer->in.kind == MS_PEER_REASON_OF) {
    ms_wire_get_text((const uint8_t *)peer->reason, peer->in.bytes, text, sizeof text);
    ms_peer_fail(endpoint, &peer->common, 0, "it ended the connection: %s", text);
  }
}

/* The rest of the body, and in the same call the next header. */
static ssize_t receive_some(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  struct iovec parts[2] = {{peer->in_to, (size_t)peer->in_rest},
                           {peer->in_header + peer->in_got, (size_t)(MS_PEER_HEADER - peer->in_got)}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
  if (peer->in_rest && !peer->in_to) {
    parts[0].iov_base = endpoint->scratch;
    if (peer->in_rest > MS_TCP_SCRATCH) parts[0].iov_len = MS_TCP_SCRATCH;
    message.msg_iovlen = 1;
  }
  return recvmsg(peer->fd, &message, MSG_DONTWAIT);
}

/* The connection has ended: why is an errno, or 0. */
static void take_end(ms_endpoint *endpoint, ms_tcp_peer *peer, int why) {
  if (peer->common.state == MS_PEER_ENDING) ms_tcp_gone(endpoint, peer, MS_PEER_GONE);
  else if (!why || why == ECONNRESET || why == EPIPE)
    ms_peer_fail(endpoint, &peer->common, 0, "its end of the connection to %s was closed: the process has ended",
                 peer->name);
  else
    ms_peer_fail(endpoint, &peer->common, 0, "the connection to %s failed: %s: its host or the link to it is down",
                 peer->name, strerror(why));
}

static void drop_input(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  for (int64_t turn = 0; turn < MS_TCP_TURN;) {
    ssize_t got = recv(peer->fd, endpoint->scratch, MS_TCP_SCRATCH, MSG_DONTWAIT);
    if (got > 0) turn += got;
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    peer->readable = 0;
    if (got == 0 || errno != EAGAIN || peer->broken) ms_tcp_gone(endpoint, peer, MS_PEER_GONE);
    return;
  }
}

void ms_tcp_receive(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  for (int64_t turn = 0; turn < MS_TCP_TURN && peer->readable && peer->common.state == MS_PEER_UP;) {
    ssize_t got = receive_some(endpoint, peer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      peer->readable = 0;
      if (peer->broken) take_end(endpoint, peer, peer->broken);
      return;
    }
    if (got <= 0) {
      take_end(endpoint, peer, got ? errno : 0);
      return;
    }
    peer->common.heard_at = ms_clock();
    turn += got;
    int64_t body = got < peer->in_rest ? got : peer->in_rest;
    if (body) take_body(endpoint, peer, body);
    if (peer->common.state != MS_PEER_UP) return;
    peer->in_got += (int)(got - body);
    if (peer->in_got == MS_PEER_HEADER) take_header(endpoint, peer);
  }
  if (peer->common.state == MS_PEER_ENDING && peer->readable) drop_input(endpoint, peer);
}
