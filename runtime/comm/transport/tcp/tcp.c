/* tcp.c - the transport tcp: its table. One thread, one epoll set; see tcp.h for the protocol. */
#include <errno.h>
#include <linux/sockios.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/transport/tcp/tcp.h"

enum { EVENTS = 64, CLOSE_PAUSE_US = 200 };
static const double CLOSE_SECONDS = 1.0;

/* ---- connect ---- */

static int check_peer(const ms_endpoint *endpoint, int rank, const uint8_t *address) {
  if (ms_tcp_check_address(address)) return ms_error_prefix("transport: the address of rank %d", rank);
  if (*endpoint->job.token || ms_tcp_same_machine(endpoint->common.address, address)) return MS_OK;
  return MS_FAIL(MS_EINVAL,
                 "transport: rank %d is on another host, and connections between hosts need a token: give all ranks "
                 "the same one in MOONSHARD_TOKEN (`openssl rand -hex 16` makes one)",
                 rank);
}

static int name_peer(ms_endpoint *endpoint, int rank, const uint8_t *address) {
  MS_TRY(check_peer(endpoint, rank, address));
  if (!ms_peers_find(&endpoint->common, rank)) MS_TRY(ms_tcp_add_peer(endpoint, rank));
  ms_tcp_peer *peer = (ms_tcp_peer *)ms_peers_find(&endpoint->common, rank);
  if (peer->named) return MS_OK;
  memcpy(peer->call.address, address, MS_TRANSPORT_ADDRESS);
  /* It can have been accepted long ago. */
  peer->common.connect_by = ms_clock() + ms_transport_connect_seconds(endpoint->common.config.timeout);
  peer->named = 1;
  return MS_OK;
}

static const ms_peer_calls calls = {.name = name_peer, .end = ms_tcp_end_failed, .let_go = ms_tcp_let_go};

/* ---- open and close ---- */

static void free_endpoint(ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->common.n; i++) ms_tcp_gone(endpoint, &endpoint->peers[i], MS_PEER_GONE);
  if (endpoint->strangers) ms_tcp_stop_listening(endpoint);
  if (endpoint->listener >= 0) close(endpoint->listener);
  if (endpoint->epoll >= 0) close(endpoint->epoll);
  free(endpoint->strangers);
  free(endpoint->scratch);
  ms_peer_job_close(&endpoint->job);
  ms_peers_close(&endpoint->common);
  free(endpoint);
}

static int prepare(ms_endpoint *endpoint, const ms_transport_config *config) {
  MS_TRY(ms_peers_open(&endpoint->common, config, sizeof *endpoint->peers, &calls));
  MS_TRY(ms_peer_job_open(&endpoint->job, config));
  endpoint->peers = (ms_tcp_peer *)endpoint->common.first;
  endpoint->scratch = ms_calloc(1, MS_TCP_SCRATCH);
  endpoint->strangers = ms_calloc(config->size + MS_TCP_SPARE_STRANGERS, sizeof *endpoint->strangers);
  if (!endpoint->scratch || !endpoint->strangers) return MS_ENOMEM;
  for (; endpoint->n_strangers < MS_TCP_SPARE_STRANGERS; endpoint->n_strangers++)
    endpoint->strangers[endpoint->n_strangers].fd = -1;
  endpoint->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (endpoint->epoll < 0) return MS_FAIL(MS_EIO, "transport: cannot make an epoll set: %s", strerror(errno));
  MS_TRY(ms_tcp_register(endpoint, endpoint->common.wake, EPOLLIN, MS_TCP_WAKE, 0));
  MS_TRY(ms_tcp_listen(endpoint->job.token, endpoint->common.address, &endpoint->listener));
  return ms_tcp_register(endpoint, endpoint->listener, EPOLLIN, MS_TCP_LISTENER, 0);
}

static int open_endpoint(const ms_transport_config *config, ms_endpoint **endpoint) {
  int rc;
  *endpoint = NULL;
  ms_endpoint *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  made->epoll = made->listener = -1;
  MS_GOTO(prepare(made, config));
  *endpoint = made;
  return MS_OK;
fail:
  free_endpoint(made);
  return rc;
}

/* 1: its last frame has reached the peer's host, or never will. */
static int has_ended(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  int queued = 0;
  if (peer->common.state != MS_PEER_ENDING) return 1;
  peer->writable = peer->readable = 1; /* nothing waits for events here */
  ms_tcp_send(endpoint, peer);
  ms_tcp_receive(endpoint, peer);
  if (peer->common.state != MS_PEER_ENDING) return 1;
  return !peer->common.output && (ioctl(peer->fd, SIOCOUTQ, &queued) || !queued);
}

static void close_endpoint(ms_endpoint *endpoint) {
  int waits = 1;
  if (!endpoint) return;
  for (int i = 0; i < endpoint->common.n; i++)
    if (endpoint->peers[i].common.state == MS_PEER_UP) ms_tcp_end(endpoint, &endpoint->peers[i], MS_PEER_GOODBYE);
  for (double end = ms_clock() + CLOSE_SECONDS; waits && ms_clock() < end;) {
    waits = 0;
    for (int i = 0; i < endpoint->common.n; i++) waits |= !has_ended(endpoint, &endpoint->peers[i]);
    if (waits) usleep(CLOSE_PAUSE_US);
  }
  free_endpoint(endpoint);
}

/* ---- progress ---- */

/* 1: there is something to do without waiting. */
static int is_busy(const ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->common.n; i++) {
    const ms_tcp_peer *peer = &endpoint->peers[i];
    if (peer->readable || (peer->writable && peer->common.output) || peer->common.report == MS_PEER_DUE) return 1;
  }
  return 0;
}

static void take_event(ms_endpoint *endpoint, const struct epoll_event *event) {
  int index = (int)(uint32_t)event->data.u64;
  switch ((enum ms_tcp_tag)(event->data.u64 >> 32)) {
    case MS_TCP_WAKE: ms_peers_take_wake(&endpoint->common); return;
    case MS_TCP_LISTENER: ms_tcp_accept(endpoint); return;
    case MS_TCP_STRANGER: ms_tcp_meet(endpoint, &endpoint->strangers[index]); return;
    case MS_TCP_PEER: break;
  }
  ms_tcp_peer *peer = &endpoint->peers[index];
  if (peer->common.state == MS_PEER_APART) ms_tcp_call_on(endpoint, peer);
  else if (peer->fd >= 0) {
    peer->readable |= (event->events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    peer->writable |= (event->events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
  }
}

/* Events, for which it waits until `until` (ms_clock). */
static int take_events(ms_endpoint *endpoint, double until) {
  struct epoll_event events[EVENTS];
  double seconds = until - ms_clock();
  int n = epoll_wait(endpoint->epoll, events, EVENTS, seconds > 0 ? (int)ceil(fmin(seconds, 1e3) * 1e3) : 0);
  if (n < 0 && errno != EINTR) return MS_FAIL(MS_EIO, "transport: epoll_wait: %s", strerror(errno));
  for (int i = 0; i < n; i++) take_event(endpoint, &events[i]);
  return MS_OK;
}

static int progress(ms_endpoint *endpoint, double seconds) {
  double now = ms_clock();
  ms_peers_begin_turn(&endpoint->common, now);
  MS_TRY(take_events(endpoint, is_busy(endpoint) ? 0 : fmin(now + seconds, endpoint->common.watch_at)));
  for (int i = 0; i < endpoint->common.n; i++) {
    ms_tcp_peer *peer = &endpoint->peers[i];
    if (peer->readable) ms_tcp_receive(endpoint, peer);
    if (peer->writable && peer->common.output) ms_tcp_send(endpoint, peer);
  }
  now = endpoint->common.turn_at = ms_clock();
  if (now >= endpoint->common.watch_at) {
    endpoint->common.watch_at = INFINITY; /* an address that fails at once makes it earlier */
    double next = ms_tcp_watch(endpoint, now);
    endpoint->common.watch_at = fmin(endpoint->common.watch_at, next);
  }
  ms_peers_report(endpoint);
  return MS_OK;
}

const ms_transport_api ms_transport_tcp = {.name = "tcp",
                                           .open = open_endpoint,
                                           .address = ms_peers_get_address,
                                           .connect = ms_peers_connect,
                                           .connected = ms_peers_connected,
                                           .post = ms_peers_post,
                                           .progress = progress,
                                           .wake = ms_peers_wake,
                                           .cancel = ms_peers_cancel,
                                           .counts = ms_peers_get_counts,
                                           .close = close_endpoint};
