/* store_peer.c - buffers of one connection. */
#include "comm/bootstrap/store/store_peer.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

/* Moves unsent output to the front once most of the buffer was sent, so that a peer that always has some does not make
 * it grow. */
static void compact(ms_store_peer *peer) {
  if (2 * peer->out_sent < peer->out_used || !peer->out_sent) return;
  memmove(peer->out, peer->out + peer->out_sent, peer->out_used - peer->out_sent);
  peer->out_used -= peer->out_sent;
  peer->shared_at -= peer->shared ? peer->out_sent : 0;
  peer->out_sent = 0;
}

static int append(ms_store_peer *peer, const void *bytes, size_t n) {
  if (peer->broken || peer->out_used - peer->out_sent + n > MS_STORE_UNREAD) return 0;
  if (peer->out_used + n > peer->out_capacity) compact(peer);
  if (peer->out_used + n > peer->out_capacity) {
    size_t capacity = 2 * peer->out_capacity + n;
    uint8_t *grown = realloc(peer->out, capacity);
    if (!grown) return 0;
    peer->out = grown;
    peer->out_capacity = capacity;
  }
  if (n) memcpy(peer->out + peer->out_used, bytes, n);
  peer->out_used += n;
  return 1;
}

ms_store_shared *ms_store_shared_new(const void *data, size_t bytes) {
  ms_store_shared *shared = malloc(sizeof *shared + bytes);
  if (!shared) return NULL;
  shared->holders = 1;
  shared->bytes = bytes;
  memcpy(shared->data, data, bytes);
  return shared;
}

void ms_store_shared_release(ms_store_shared *shared) {
  if (shared && !--shared->holders) free(shared);
}

ms_store_peer *ms_store_peer_new(int fd) {
  uint8_t greeting[MS_WIRE_GREETING];
  ms_store_peer *peer = ms_calloc(1, sizeof *peer);
  if (peer) peer->in = malloc(peer->in_capacity = MS_WIRE_HEADER + MS_STORE_LONGEST);
  if (peer && peer->in) {
    peer->fd = fd;
    peer->rank = -1;
    peer->stranger = ms_stranger_new(fd);
    if (!ms_secret_random(peer->nonce, sizeof peer->nonce)) {
      ms_wire_put_greeting(greeting, peer->nonce);
      if (append(peer, greeting, sizeof greeting)) return peer;
    }
  }
  if (peer) free(peer->in);
  free(peer);
  close(fd);
  return NULL;
}

int ms_store_peer_allow_posts(ms_store_peer *peer) {
  size_t capacity = MS_WIRE_HEADER + MS_STORE_LONGEST_POST;
  uint8_t *grown = realloc(peer->in, capacity);
  if (!grown) return 0;
  peer->in = grown;
  peer->in_capacity = capacity;
  peer->posts = 1;
  return 1;
}

void ms_store_peer_free(ms_store_peer *peer) {
  close(peer->fd);
  ms_store_shared_release(peer->shared);
  free(peer->out);
  free(peer->in);
  free(peer);
}

void ms_store_peer_send(ms_store_peer *peer, uint32_t kind, const void *body, size_t bytes) {
  uint8_t header[MS_WIRE_HEADER];
  ms_wire_put32(header, (uint32_t)bytes);
  ms_wire_put32(header + 4, kind);
  if (!append(peer, header, sizeof header) || !append(peer, body, bytes)) peer->broken = 1;
}

void ms_store_peer_share(ms_store_peer *peer, uint32_t kind, ms_store_shared *body) {
  uint8_t header[MS_WIRE_HEADER];
  ms_wire_put32(header, (uint32_t)body->bytes);
  ms_wire_put32(header + 4, kind);
  if (peer->shared || !append(peer, header, sizeof header)) {
    peer->broken = 1;
    return;
  }
  body->holders++;
  peer->shared = body;
  peer->shared_at = peer->out_used;
  peer->shared_sent = 0;
}

void ms_store_peer_tell(ms_store_peer *peer, uint32_t kind, int status, const char *text) {
  uint8_t body[4 + MS_STORE_TEXT];
  size_t n = strnlen(text, MS_STORE_TEXT - 1);
  ms_wire_put32(body, (uint32_t)status);
  memcpy(body + 4, text, n);
  ms_store_peer_send(peer, kind, body, 4 + n);
}

static int has_more_to_send(const ms_store_peer *peer) { return peer->shared || peer->out_sent < peer->out_used; }

short ms_store_peer_events(const ms_store_peer *peer) {
  return (short)(POLLIN | (has_more_to_send(peer) ? POLLOUT : 0));
}

/* Sends from *sent to end. 1: everything was sent; 0: more later; -1: the connection is closed. */
static int send_until(int fd, const uint8_t *data, size_t *sent, size_t end) {
  while (*sent < end) {
    ssize_t n = send(fd, data + *sent, end - *sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN ? 0 : -1;
    *sent += (size_t)n;
  }
  return 1;
}

/* 0: the connection is closed. */
static int send_some(ms_store_peer *peer) {
  ms_store_shared *shared = peer->shared;
  int went = send_until(peer->fd, peer->out, &peer->out_sent, shared ? peer->shared_at : peer->out_used);
  if (went == 1 && shared) {
    went = send_until(peer->fd, shared->data, &peer->shared_sent, shared->bytes);
    if (went < 1) return went == 0;
    ms_store_shared_release(shared);
    peer->shared = NULL;
    went = send_until(peer->fd, peer->out, &peer->out_sent, peer->out_used);
  }
  if (went == 1) peer->out_sent = peer->out_used = 0;
  return went >= 0;
}

static uint32_t longest_of(const ms_store_peer *peer) {
  if (peer->rank < 0) return MS_STRANGER_LONGEST;
  return peer->posts ? MS_STORE_LONGEST_POST : MS_STORE_LONGEST;
}

/* Passes on the whole frames in the buffer. 0: one of them is invalid. */
static int take_frames(ms_store_peer *peer, ms_store_take *take, void *context) {
  size_t taken = 0;
  for (;;) {
    if (peer->in_used - taken < MS_WIRE_HEADER) break;
    uint32_t bytes = ms_wire_get32(peer->in + taken), kind = ms_wire_get32(peer->in + taken + 4);
    if (bytes > longest_of(peer)) return 0;
    size_t whole = MS_WIRE_HEADER + (size_t)bytes;
    if (peer->in_used - taken < whole) break;
    if (!take(context, peer, kind, peer->in + taken + MS_WIRE_HEADER, bytes)) return 0;
    taken += whole;
  }
  peer->in_used -= taken;
  if (taken) memmove(peer->in, peer->in + taken, peer->in_used);
  return 1;
}

/* 0: the connection was closed, or a frame is invalid. Reads one buffer at a time, so a peer that sends without pause
 * does not delay the others. */
static int receive_some(ms_store_peer *peer, ms_store_take *take, void *context) {
  ssize_t n = recv(peer->fd, peer->in + peer->in_used, peer->in_capacity - peer->in_used, MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return 0;
  peer->in_used += (size_t)n;
  return take_frames(peer, take, context);
}

int ms_store_peer_move(ms_store_peer *peer, short ready, ms_store_take *take, void *context) {
  int alive = 1;
  if (ready & (POLLIN | POLLHUP | POLLERR)) alive = receive_some(peer, take, context);
  if (has_more_to_send(peer) && !send_some(peer)) return 0;
  if (peer->broken) return 0;
  return alive && !(peer->closing && !has_more_to_send(peer));
}
