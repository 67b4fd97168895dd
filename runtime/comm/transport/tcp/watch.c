/* watch.c - deadlines: peers that do not connect, transfers in which no byte moves, processes that answer no ping,
 * links that acknowledge nothing.
 *
 * The kernel has a limit for unacknowledged data too (TCP_USER_TIMEOUT), but also applies it to a peer that is alive
 * and does not read for a while; so acknowledgements are watched here. Probes of idle connections are the kernel's.
 */
#include <linux/sockios.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/ioctl.h>

#include "base/clock.h"
#include "comm/transport/tcp/tcp.h"

/* Seconds between two looks, while something is about to happen, and otherwise; seconds without an acknowledgement
 * after which a link is down, at most. */
static const double SOON = 0.02, LATER = 0.25, DOWN_SECONDS = 5.0;

/* Milliseconds without an answer to probes of a full buffer after which the link is down. A kernel answers one such
 * probe in half a second at most, and the probes come after 0.2, 0.4, 0.8 s …: that of 0.4 s may get no answer where
 * nothing is wrong, and the next one comes 1.2 s after the last answer, and later where timers are late. */
static const double PROBES_UNANSWERED_MS = 2000;

static void watch_absent(ms_endpoint *endpoint, ms_tcp_peer *peer, double now) {
  const char *away = endpoint->turned_away;
  double timeout = endpoint->common.config.timeout;
  int calls = peer->common.rank > endpoint->common.config.rank;
  if (now < peer->common.connect_by) {
    if (calls && now >= peer->call.until) ms_tcp_call_again(endpoint, peer, now);
  } else if (calls)
    ms_peer_fail(endpoint, &peer->common, 0, "no connection to it within %g s: %s", timeout,
                 *peer->call.why ? peer->call.why : "no answer");
  else
    ms_peer_fail(endpoint, &peer->common, 0, "it has not connected within %g s%s%s", timeout,
                 *away ? "; refused: " : "", away);
}

static void fail_link(ms_endpoint *endpoint, ms_tcp_peer *peer, double seconds) {
  ms_peer_fail(endpoint, &peer->common, 0,
               "nothing sent to %s has been acknowledged for %g s: its host or the link to it is down", peer->name,
               seconds);
}

/* Returns 1 when the peer's kernel owes acknowledgements: of data in flight, or of probes of a full buffer. */
static int watch_link(ms_endpoint *endpoint, ms_tcp_peer *peer, double now) {
  double limit = fmin(DOWN_SECONDS, endpoint->common.config.timeout);
  struct tcp_info info = {0};
  socklen_t bytes = sizeof info;
  int queued = 0;
  if (ioctl(peer->fd, SIOCOUTQ, &queued) || getsockopt(peer->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes)) return 0;
  int64_t acked = peer->written - queued;
  int owes = info.tcpi_unacked || info.tcpi_probes > 1;
  if (!owes || acked != peer->acked) {
    peer->acked = acked;
    peer->acked_at = now;
  } else if (now - fmax(peer->acked_at, endpoint->common.awake_at) > limit) fail_link(endpoint, peer, limit);
  /* A host without a route does not even send, and then its one probe counts. A peer that reads nothing answers
   * probes; but the kernel doubles the time between them, so that silence alone says nothing. */
  double silent = fmax(PROBES_UNANSWERED_MS, 750 * endpoint->common.config.timeout);
  return owes || (queued && info.tcpi_probes && info.tcpi_last_ack_recv > silent);
}

static void watch_process(ms_endpoint *endpoint, ms_tcp_peer *peer, double now, int owes) {
  double timeout = endpoint->common.config.timeout;
  if (!ms_peer_is_silent(&endpoint->common, &peer->common, now)) return;
  if (owes) fail_link(endpoint, peer, timeout);
  else
    ms_peer_fail(endpoint, &peer->common, 0,
                 "no answer within %g s, while transfers wait for it: its process hangs or was stopped", timeout);
}

static void watch_transfers(ms_endpoint *endpoint, ms_tcp_peer *peer, double now, int owes) {
  double timeout = endpoint->common.config.timeout;
  int sending = peer->out_sent < MS_PEER_HEADER || peer->out_rest, receiving = peer->in_got || peer->in_rest;
  receiving |= ms_keys_are_half_received(&peer->common.keys);
  if (peer->readable) return; /* what has come has not been read yet */
  int late = (sending && ms_peers_is_late(&endpoint->common, peer->out_at, now)) ||
             (receiving && ms_peers_is_late(&endpoint->common, peer->common.heard_at, now));
  if (late && owes) fail_link(endpoint, peer, timeout);
  else if (late)
    ms_peer_fail(endpoint, &peer->common, 0,
                 "no byte of a transfer that both ranks have posted was moved within %g s: its process hangs or was "
                 "stopped",
                 timeout);
  else if (ms_keys_are_awaited(&peer->common.keys)) watch_process(endpoint, peer, now, owes);
}

double ms_tcp_watch(ms_endpoint *endpoint, double now) {
  double next = now + fmin(LATER, endpoint->common.config.timeout / 10);
  int absent = 0, accepted = 0;
  for (int i = 0; i < endpoint->common.n; i++) {
    ms_tcp_peer *peer = &endpoint->peers[i];
    if (peer->common.state == MS_PEER_APART && peer->named) watch_absent(endpoint, peer, now);
    int owes = peer->common.state == MS_PEER_UP && watch_link(endpoint, peer, now);
    if (peer->common.state == MS_PEER_UP) watch_transfers(endpoint, peer, now, owes);
    if (peer->common.state == MS_PEER_ENDING && now >= peer->end_by) ms_tcp_gone(endpoint, peer, MS_PEER_GONE);
    absent += (peer->common.state == MS_PEER_APART && peer->named) || peer->common.state == MS_PEER_ENDING;
    accepted += peer->common.state != MS_PEER_APART && peer->common.rank < endpoint->common.config.rank;
    /* An address that failed at once leads to the next one without a pause. */
    if (peer->common.state == MS_PEER_APART && peer->named && peer->common.rank > endpoint->common.config.rank)
      next = fmin(next, peer->call.until);
  }
  if (accepted == endpoint->common.config.rank) ms_tcp_stop_listening(endpoint); /* all ranks below */
  ms_tcp_clear_strangers(endpoint, now);
  return absent ? fmin(next, now + SOON) : next;
}
