/* watch.c - deadlines: peers that do not connect, transfers in which no byte moves, processes that answer no ping.
 * UCX itself reports only connections that a peer's kernel has ended: not a process that was stopped, nor for long a
 * link that is down.
 */
#include <math.h>

#include "base/clock.h"
#include "comm/transport/ucx/ucx.h"

/* Seconds between two looks, while something is about to happen, and otherwise; between two hellos; of silence after
 * which a peer that transfers wait for is pinged. */
static const double SOON = 0.02, LATER = 0.25, HELLO_SECONDS = 0.1, PING_SECONDS = 1.0;

static void watch_absent(ms_endpoint *endpoint, ms_ucx_peer *peer, double now) {
  if (now >= peer->connect_by) {
    ms_ucx_fail(endpoint, peer, 0, "no connection to it within %g s: %s", endpoint->config.timeout,
                *peer->refused ? peer->refused : "no answer");
  } else if (now >= peer->hello_at) {
    peer->hello = peer->output = 1;
    peer->hello_at = now + HELLO_SECONDS;
  }
}

static int is_sending(const ms_ucx_peer *peer) {
  for (int i = 0; i < MS_UCX_PIECES; i++)
    if (peer->out[i].busy) return 1;
  return 0;
}

/* A process that runs answers a ping, however long it leaves transfers alone. */
static void watch_process(ms_endpoint *endpoint, ms_ucx_peer *peer, double now) {
  double timeout = endpoint->config.timeout;
  if (peer->pinged_at <= peer->in_at) {
    if (now - fmax(peer->in_at, endpoint->awake_at) < fmin(PING_SECONDS, timeout / 4)) return;
    peer->ping = peer->output = 1;
    peer->pinged_at = now;
  } else if (now - fmax(peer->pinged_at, endpoint->awake_at) > timeout)
    ms_ucx_fail(endpoint, peer, 0,
                "no answer from %s within %g s, while transfers wait for it: its process hangs or was stopped, or the "
                "link to it is down",
                peer->name, timeout);
}

static void watch_transfers(ms_endpoint *endpoint, ms_ucx_peer *peer, double now) {
  double timeout = endpoint->config.timeout;
  int late = (is_sending(peer) && now - fmax(peer->out_at, endpoint->awake_at) > timeout) ||
             (ms_keys_are_half_received(&peer->keys) && now - fmax(peer->in_at, endpoint->awake_at) > timeout);
  if (late)
    ms_ucx_fail(endpoint, peer, 0,
                "no byte of a transfer that both ranks have posted was moved within %g s: its process on %s hangs or "
                "was stopped, or the link to it is down",
                timeout, peer->name);
  else if (ms_keys_are_awaited(&peer->keys)) watch_process(endpoint, peer, now);
}

double ms_ucx_watch(ms_endpoint *endpoint, double now) {
  double next = now + fmin(LATER, endpoint->config.timeout / 10);
  int absent = 0;
  for (int i = 0; i < endpoint->n_peers; i++) {
    ms_ucx_peer *peer = &endpoint->peers[i];
    if (peer->state == MS_UCX_APART) watch_absent(endpoint, peer, now);
    if (peer->state == MS_UCX_UP) watch_transfers(endpoint, peer, now);
    if (peer->state == MS_UCX_ENDING && now >= peer->end_by) ms_ucx_gone(endpoint, peer, MS_UCX_GONE);
    absent += peer->state == MS_UCX_APART || peer->state == MS_UCX_ENDING;
  }
  return absent ? fmin(next, now + SOON) : next;
}
