/* peer.c - the life of a connection: a peer, up, failed, ending, gone. */
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/transport/tcp/tcp.h"

/* Seconds that a last frame has to go out. */
static const double LAST_SECONDS = 1.0;
/* Seconds of silence after which a host or link is down, unless the endpoint's timeout is shorter. The kernel sends
 * probes while a connection is idle; watch.c sees to data that is not acknowledged. */
enum { DOWN_SECONDS = 5, PROBES = 3 };
/* Bytes that the kernel holds unsent: credits wait behind them. */
enum { UNSENT_BYTES = 256 << 10 };
/* The longest pause before the kernel sends again what was not acknowledged. By default pauses double without such a
 * limit, and a link that was down for four seconds would be tried again only when it counts as down. Kernels before
 * Linux 6.15 do not have TCP_RTO_MAX_MS; there the first pauses do not double (TCP_THIN_LINEAR_TIMEOUTS). */
enum { RETRY_MS = 1000, RTO_MAX_MS = 44 };

int ms_tcp_register(ms_endpoint *endpoint, int fd, uint32_t events, enum ms_tcp_tag tag, int index) {
  struct epoll_event event = {.events = events, .data.u64 = (uint64_t)tag << 32 | (uint32_t)index};
  if (!epoll_ctl(endpoint->epoll, EPOLL_CTL_ADD, fd, &event)) return MS_OK;
  return MS_FAIL(MS_EIO, "transport: epoll_ctl: %s", strerror(errno));
}

int ms_tcp_add_peer(ms_endpoint *endpoint, int rank) {
  ms_tcp_peer *peer = (ms_tcp_peer *)ms_peers_add(&endpoint->common, rank);
  if (!peer) return MS_ENOMEM;
  peer->fd = peer->call.fd = -1;
  peer->out_sent = MS_PEER_HEADER;
  endpoint->strangers[endpoint->n_strangers++].fd = -1;
  return MS_OK;
}

void ms_tcp_hang_up(ms_endpoint *endpoint, int *fd) {
  if (*fd < 0) return;
  epoll_ctl(endpoint->epoll, EPOLL_CTL_DEL, *fd, NULL);
  shutdown(*fd, SHUT_RDWR);
  close(*fd);
  *fd = -1;
}

static void set_up_socket(int fd, double timeout) {
  int yes = 1, down = (int)fmax(2, fmin(DOWN_SECONDS, timeout)), probes = down > PROBES ? PROBES : down - 1;
  int idle = down - probes, interval = 1, unsent = UNSENT_BYTES, retry = RETRY_MS;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  if (setsockopt(fd, IPPROTO_TCP, RTO_MAX_MS, &retry, sizeof retry))
    setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &yes, sizeof yes);
  setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
}

void ms_tcp_bring_up(ms_endpoint *endpoint, ms_tcp_peer *peer, int fd) {
  set_up_socket(fd, endpoint->common.config.timeout);
  ms_wire_peer_name(fd, peer->name, sizeof peer->name);
  peer->fd = fd;
  peer->common.state = MS_PEER_UP;
  peer->readable = peer->writable = peer->common.output = 1;
  peer->common.heard_at = peer->out_at = peer->acked_at = ms_clock();
  endpoint->common.n_up++;
}

void ms_tcp_let_go(ms_endpoint *endpoint, ms_peer *common, ms_key *key) {
  ms_tcp_peer *peer = (ms_tcp_peer *)common;
  (void)endpoint;
  if (!key || peer->in_key == key) peer->in_to = NULL, peer->in_key = NULL;
  if (!key || peer->out_key == key) peer->out_from = NULL, peer->out_key = NULL;
}

static void take_back_all(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  ms_tcp_let_go(endpoint, &peer->common, NULL);
  ms_keys_fail(&peer->common.keys);
}

void ms_tcp_gone(ms_endpoint *endpoint, ms_tcp_peer *peer, enum ms_peer_state state) {
  if (peer->common.state == MS_PEER_UP) endpoint->common.n_up--;
  take_back_all(endpoint, peer);
  ms_tcp_hang_up(endpoint, peer->common.state == MS_PEER_APART ? &peer->call.fd : &peer->fd);
  peer->common.state = state;
  peer->readable = peer->writable = peer->common.output = 0;
}

void ms_tcp_end(ms_endpoint *endpoint, ms_tcp_peer *peer, uint32_t last_kind) {
  endpoint->common.n_up--;
  take_back_all(endpoint, peer);
  peer->common.state = MS_PEER_ENDING;
  peer->last_kind = last_kind;
  peer->common.output = peer->readable = 1;
  peer->end_by = ms_clock() + LAST_SECONDS;
}

void ms_tcp_end_failed(ms_endpoint *endpoint, ms_peer *common, int say) {
  ms_tcp_peer *peer = (ms_tcp_peer *)common;
  common->report = MS_PEER_DUE;
  if (say && common->state == MS_PEER_UP) ms_tcp_end(endpoint, peer, MS_PEER_REASON_OF);
  else ms_tcp_gone(endpoint, peer, MS_PEER_GONE);
}
