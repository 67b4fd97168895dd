/* peers.c - see peers.h. */
#include "comm/transport/peers.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/numbers/number.h"

/* Seconds between two calls of progress after which this process was away: peers are not blamed for that time. At most
 * half of the timeout. */
static const double AWAY_SECONDS = 1.0;
/* Seconds of silence after which a peer that transfers wait for is pinged. */
static const double PING_SECONDS = 1.0;

static ms_peer *peer_at(const ms_peers *peers, int i) { return (ms_peer *)(peers->first + i * peers->peer_bytes); }

/* ---- the whole ---- */

int ms_peers_open(ms_peers *peers, const ms_transport_config *config, int64_t peer_bytes, const ms_peer_calls *calls) {
  *peers = (ms_peers){.config = *config, .calls = calls, .peer_bytes = peer_bytes, .wake = -1};
  peers->config.token = peers->config.job = NULL;
  if (config->size < 1 || config->rank < 0 || config->rank >= config->size || !(config->timeout > 0))
    return MS_FAIL(MS_EINVAL, "transport: rank %d of %d with a timeout of %g s", config->rank, config->size,
                   config->timeout);
  peers->index_of = ms_calloc(config->size, sizeof *peers->index_of);
  peers->first = ms_calloc(config->size, peer_bytes);
  if (!peers->index_of || !peers->first) return MS_ENOMEM;
  for (int rank = 0; rank < config->size; rank++) peers->index_of[rank] = -1;
  peers->turn_at = peers->awake_at = ms_clock();
  peers->watch_at = INFINITY; /* no deadline yet */
  peers->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return peers->wake >= 0 ? MS_OK : MS_FAIL(MS_EIO, "transport: cannot make an eventfd: %s", strerror(errno));
}

void ms_peers_close(ms_peers *peers) {
  for (int i = 0; i < peers->n; i++) free(peer_at(peers, i)->keys.slot);
  if (peers->calls && peers->wake >= 0) close(peers->wake);
  free(peers->first);
  free(peers->index_of);
}

int ms_peers_get_address(const ms_endpoint *endpoint, void *address) {
  memcpy(address, ((const ms_peers *)endpoint)->address, MS_TRANSPORT_ADDRESS);
  return MS_OK;
}

int ms_peers_connect(ms_endpoint *endpoint, int n, const int *ranks, const void *addresses) {
  ms_peers *peers = (ms_peers *)endpoint;
  const ms_transport_config *own = &peers->config;
  peers->watch_at = 0;
  for (int i = 0; i < n; i++) {
    if (ranks[i] < 0 || ranks[i] >= own->size || ranks[i] == own->rank)
      return MS_FAIL(MS_EINVAL, "transport: rank %d cannot be a peer of rank %d", ranks[i], own->rank);
    MS_TRY(peers->calls->name(endpoint, ranks[i], (const uint8_t *)addresses + (size_t)i * MS_TRANSPORT_ADDRESS));
  }
  return MS_OK;
}

int ms_peers_connected(const ms_endpoint *endpoint) { return ((const ms_peers *)endpoint)->n_up; }

int ms_peers_post(ms_endpoint *endpoint, ms_transfer *transfer) {
  const ms_peers *peers = (const ms_peers *)endpoint;
  ms_peer *peer = ms_peers_find(peers, transfer->peer);
  if (!peer) return MS_FAIL(MS_EINVAL, "transport: rank %d is no peer of rank %d", transfer->peer, peers->config.rank);
  if (transfer->bytes < 1) return MS_FAIL(MS_EINVAL, "transport: a transfer of %lld bytes", (long long)transfer->bytes);
  if (peer->state == MS_PEER_LEFT) ms_peer_fail(endpoint, peer, 0, "it has left");
  if (!ms_peer_is_live(peer)) {
    transfer->state = MS_TRANSFER_FAILED;
    return MS_OK;
  }
  MS_TRY(ms_keys_post(&peer->keys, transfer));
  peer->output = 1;
  return MS_OK;
}

void ms_peers_wake(ms_endpoint *endpoint) {
  uint64_t one = 1;
  while (write(((ms_peers *)endpoint)->wake, &one, sizeof one) < 0 && errno == EINTR) continue;
}

void ms_peers_cancel(ms_endpoint *endpoint, uint64_t name) {
  const ms_peers *peers = (const ms_peers *)endpoint;
  ms_error_record before;
  ms_error_save(&before);
  for (int i = 0; i < peers->n; i++) {
    ms_peer *peer = peer_at(peers, i);
    ms_key *key = ms_keys_find(&peer->keys, name);
    if (!key) continue;
    key->cancelled = MS_KEY_BY_CALLER; /* from here on, pieces that come in are dropped */
    peers->calls->let_go(endpoint, peer, key);
    ms_key_fail(key);
    if (ms_peer_is_live(peer)) peer->output = 1;
  }
  ms_error_restore(&before);
}

void ms_peers_get_counts(const ms_endpoint *endpoint, ms_transport_counts *counts) {
  *counts = ((const ms_peers *)endpoint)->counts;
}

/* ---- one peer ---- */

ms_peer *ms_peers_find(const ms_peers *peers, int64_t rank) {
  const int index = rank >= 0 && rank < peers->config.size ? peers->index_of[rank] : -1;
  return index < 0 ? NULL : peer_at(peers, index);
}

double ms_transport_connect_seconds(double timeout) { return timeout - fmin(0.5, timeout / 10); }

ms_peer *ms_peers_add(ms_peers *peers, int rank) {
  ms_peer *peer = peer_at(peers, peers->n);
  peer->keys.slot = ms_calloc(MS_TRANSPORT_KEYS, sizeof *peer->keys.slot);
  if (!peer->keys.slot) return NULL;
  peer->rank = rank;
  peer->connect_by = ms_clock() + ms_transport_connect_seconds(peers->config.timeout);
  peers->index_of[rank] = peers->n++;
  return peer;
}

int ms_peer_is_live(const ms_peer *peer) { return peer->state == MS_PEER_APART || peer->state == MS_PEER_UP; }

void ms_peer_fail(ms_endpoint *endpoint, ms_peer *peer, int say, const char *format, ...) {
  va_list args;
  if (peer->report || peer->state == MS_PEER_ENDING || peer->state == MS_PEER_GONE) return;
  va_start(args, format);
  ms_format_list(peer->why, sizeof peer->why, format, args);
  va_end(args);
  peer->report = MS_PEER_UNSETTLED;
  ((const ms_peers *)endpoint)->calls->end(endpoint, peer, say);
}

/* ---- turns of progress ---- */

void ms_peers_begin_turn(ms_peers *peers, double now) {
  if (now - peers->turn_at > fmin(AWAY_SECONDS, peers->config.timeout / 2)) peers->awake_at = now;
}

void ms_peers_take_wake(ms_peers *peers) {
  uint64_t count;
  if (read(peers->wake, &count, sizeof count) < 0) {} /* it was taken before */
}

void ms_peers_report(ms_endpoint *endpoint) {
  const ms_peers *peers = (const ms_peers *)endpoint;
  for (int i = 0; i < peers->n; i++) {
    ms_peer *peer = peer_at(peers, i);
    if (peer->report != MS_PEER_DUE) continue;
    peer->report = MS_PEER_REPORTED;
    if (peers->config.failed) peers->config.failed(peers->config.context, peer->rank, peer->why);
  }
}

int ms_peers_is_late(const ms_peers *peers, double since, double now) {
  return now - fmax(since, peers->awake_at) > peers->config.timeout;
}

int ms_peer_is_silent(const ms_peers *peers, ms_peer *peer, double now) {
  if (peer->pinged_at > peer->heard_at) return ms_peers_is_late(peers, peer->pinged_at, now);
  if (now - fmax(peer->heard_at, peers->awake_at) < fmin(PING_SECONDS, peers->config.timeout / 4)) return 0;
  peer->ping = peer->output = 1;
  peer->pinged_at = now;
  return 0;
}
