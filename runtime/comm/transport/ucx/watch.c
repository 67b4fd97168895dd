/* watch.c - deadlines: peers that do not connect, transfers in which no byte moves, processes that answer no ping.
 * UCX itself reports only connections that a peer's kernel has ended: not a process that was stopped, nor for long a
 * link that is down.
 */
#include <math.h>

#include "base/clock.h"
#include "comm/transport/ucx/ucx.h"

/* Seconds between two looks, while something is about to happen, and otherwise; between two hellos. */
static const double SOON = 0.02, LATER = 0.25, HELLO_SECONDS = 0.1;

static void watch_absent(ms_endpoint *endpoint, ms_ucx_peer *peer, double now) {
  if (now >= peer->common.connect_by) {
    ms_peer_fail(endpoint, &peer->common, 0, "no connection to it within %g s: %s", endpoint->common.config.timeout,
                 *peer->refused ? peer->refused : "no answer");
  } else if (now >= peer->hello_at) {
    peer->hello = peer->common.output = 1;
    peer->hello_at = now + HELLO_SECONDS;
  }
}

static int is_sending(const ms_ucx_peer *peer) {
  for (int i = 0; i < MS_UCX_PIECES; i++)
    if (peer->out[i].busy) return 1;
  return 0;
}

static void watch_transfers(ms_endpoint *endpoint, ms_ucx_peer *peer, double now) {
  double timeout = endpoint->common.config.timeout;
  const ms_peers *peers = &endpoint->common;
  int late = (is_sending(peer) && ms_peers_is_late(peers, peer->out_at, now)) ||
             (ms_keys_are_half_received(&peer->common.keys) && ms_peers_is_late(peers, peer->common.heard_at, now));
  if (late)
    ms_peer_fail(endpoint, &peer->common, 0,
                 "no byte of a transfer that both ranks have posted was moved within %g s: its process on %s hangs or "
                 "was stopped, or the link to it is down",
                 timeout, peer->name);
  else if (ms_keys_are_awaited(&peer->common.keys) && ms_peer_is_silent(peers, &peer->common, now))
    ms_peer_fail(endpoint, &peer->common, 0,
                 "no answer from %s within %g s, while transfers wait for it: its process hangs or was stopped, or "
                 "the link to it is down",
                 peer->name, timeout);
}

double ms_ucx_watch(ms_endpoint *endpoint, double now) {
  double next = now + fmin(LATER, endpoint->common.config.timeout / 10);
  int absent = 0;
  for (int i = 0; i < endpoint->common.n; i++) {
    ms_ucx_peer *peer = &endpoint->peers[i];
    if (peer->common.state == MS_PEER_APART) watch_absent(endpoint, peer, now);
    if (peer->common.state == MS_PEER_UP) watch_transfers(endpoint, peer, now);
    if (peer->common.state == MS_PEER_ENDING && now >= peer->end_by) ms_ucx_gone(endpoint, peer, MS_PEER_GONE);
    absent += peer->common.state == MS_PEER_APART || peer->common.state == MS_PEER_ENDING;
  }
  return absent ? fmin(next, now + SOON) : next;
}
