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
/* Seconds between two calls of progress after which this process was away: peers are not blamed for that time. At most
 * half of the timeout. */
static const double AWAY_SECONDS = 1.0;
static const double CLOSE_SECONDS = 1.0;

/* ---- open and close ---- */

static void free_endpoint(ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->n_peers; i++) {
    ms_tcp_gone(endpoint, &endpoint->peers[i], MS_TCP_GONE);
    free(endpoint->peers[i].keys.slot);
  }
  if (endpoint->strangers) ms_tcp_stop_listening(endpoint);
  if (endpoint->listener >= 0) close(endpoint->listener);
  if (endpoint->wake >= 0) close(endpoint->wake);
  if (endpoint->epoll >= 0) close(endpoint->epoll);
  free(endpoint->peers);
  free(endpoint->peer_of);
  free(endpoint->strangers);
  free(endpoint->scratch);
  ms_secret_free(endpoint->token);
  free(endpoint);
}

static int prepare(ms_endpoint *endpoint) {
  const ms_transport_config *config = &endpoint->config;
  endpoint->token = ms_secret_copy(config->token);
  endpoint->scratch = ms_calloc(1, MS_TCP_SCRATCH);
  endpoint->peer_of = ms_calloc(config->size, sizeof *endpoint->peer_of);
  endpoint->peers = ms_calloc(config->size, sizeof *endpoint->peers);
  endpoint->strangers = ms_calloc(config->size + MS_TCP_SPARE_STRANGERS, sizeof *endpoint->strangers);
  if (!endpoint->token || !endpoint->scratch || !endpoint->peer_of || !endpoint->peers || !endpoint->strangers)
    return MS_ENOMEM;
  for (int rank = 0; rank < config->size; rank++) endpoint->peer_of[rank] = -1;
  for (; endpoint->n_strangers < MS_TCP_SPARE_STRANGERS; endpoint->n_strangers++)
    endpoint->strangers[endpoint->n_strangers].fd = -1;
  endpoint->epoll = epoll_create1(EPOLL_CLOEXEC);
  endpoint->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (endpoint->epoll < 0 || endpoint->wake < 0)
    return MS_FAIL(MS_EIO, "transport: cannot make an epoll set: %s", strerror(errno));
  MS_TRY(ms_tcp_register(endpoint, endpoint->wake, EPOLLIN, MS_TCP_WAKE, 0));
  MS_TRY(ms_tcp_listen(endpoint->token, endpoint->address, &endpoint->listener));
  endpoint->turn_at = endpoint->awake_at = ms_clock();
  endpoint->watch_at = INFINITY; /* no deadline yet */
  return ms_tcp_register(endpoint, endpoint->listener, EPOLLIN, MS_TCP_LISTENER, 0);
}

static int open_endpoint(const ms_transport_config *config, ms_endpoint **endpoint) {
  int rc;
  *endpoint = NULL;
  if (config->size < 1 || config->rank < 0 || config->rank >= config->size || !(config->timeout > 0))
    return MS_FAIL(MS_EINVAL, "transport: rank %d of %d with a timeout of %g s", config->rank, config->size,
                   config->timeout);
  if (strlen(config->job) >= MS_PEER_JOB)
    return MS_FAIL(MS_EINVAL, "transport: the job's id has %zu characters; it can have %d", strlen(config->job),
                   MS_PEER_JOB - 1);
  ms_endpoint *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  made->config = *config;
  made->epoll = made->wake = made->listener = -1;
  ms_wire_get_text((const uint8_t *)config->job, strlen(config->job), made->job, sizeof made->job);
  MS_GOTO(prepare(made));
  made->config.token = made->token;
  made->config.job = made->job;
  *endpoint = made;
  return MS_OK;
fail:
  free_endpoint(made);
  return rc;
}

static int get_address(const ms_endpoint *endpoint, void *address) {
  memcpy(address, endpoint->address, MS_TRANSPORT_ADDRESS);
  return MS_OK;
}

/* 1: its last frame has reached the peer's host, or never will. */
static int has_ended(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  int queued = 0;
  if (peer->state != MS_TCP_ENDING) return 1;
  peer->writable = peer->readable = 1; /* nothing waits for events here */
  ms_tcp_send(endpoint, peer);
  ms_tcp_receive(endpoint, peer);
  if (peer->state != MS_TCP_ENDING) return 1;
  return !peer->output && (ioctl(peer->fd, SIOCOUTQ, &queued) || !queued);
}

static void close_endpoint(ms_endpoint *endpoint) {
  int waits = 1;
  if (!endpoint) return;
  for (int i = 0; i < endpoint->n_peers; i++)
    if (endpoint->peers[i].state == MS_TCP_UP) ms_tcp_end(endpoint, &endpoint->peers[i], MS_PEER_GOODBYE);
  for (double end = ms_clock() + CLOSE_SECONDS; waits && ms_clock() < end;) {
    waits = 0;
    for (int i = 0; i < endpoint->n_peers; i++) waits |= !has_ended(endpoint, &endpoint->peers[i]);
    if (waits) usleep(CLOSE_PAUSE_US);
  }
  free_endpoint(endpoint);
}

/* ---- connect ---- */

static int check_peer(const ms_endpoint *endpoint, int rank, const uint8_t *address) {
  if (rank < 0 || rank >= endpoint->config.size || rank == endpoint->config.rank)
    return MS_FAIL(MS_EINVAL, "transport: rank %d cannot be a peer of rank %d", rank, endpoint->config.rank);
  if (ms_tcp_check_address(address)) return ms_error_prefix("transport: the address of rank %d", rank);
  if (*endpoint->token || ms_tcp_same_machine(endpoint->address, address)) return MS_OK;
  return MS_FAIL(MS_EINVAL,
                 "transport: rank %d is on another host, and connections between hosts need a token: give all ranks "
                 "the same one in MOONSHARD_TOKEN (`openssl rand -hex 16` makes one)",
                 rank);
}

static int name_peer(ms_endpoint *endpoint, int rank, const uint8_t *address) {
  MS_TRY(check_peer(endpoint, rank, address));
  if (endpoint->peer_of[rank] < 0) MS_TRY(ms_tcp_add_peer(endpoint, rank));
  ms_tcp_peer *peer = &endpoint->peers[endpoint->peer_of[rank]];
  if (peer->named) return MS_OK;
  memcpy(peer->call.address, address, MS_TRANSPORT_ADDRESS);
  peer->connect_by = ms_clock() + endpoint->config.timeout;
  peer->named = 1;
  return MS_OK;
}

static int connect_peers(ms_endpoint *endpoint, int n, const int *peers, const void *addresses) {
  endpoint->watch_at = 0;
  for (int i = 0; i < n; i++)
    MS_TRY(name_peer(endpoint, peers[i], (const uint8_t *)addresses + (size_t)i * MS_TRANSPORT_ADDRESS));
  return MS_OK;
}

static int count_connected(const ms_endpoint *endpoint) { return endpoint->n_up; }

/* ---- transfers ---- */

static int post(ms_endpoint *endpoint, ms_transfer *transfer) {
  int rank = transfer->peer, index = rank >= 0 && rank < endpoint->config.size ? endpoint->peer_of[rank] : -1;
  if (index < 0) return MS_FAIL(MS_EINVAL, "transport: rank %d is no peer of rank %d", rank, endpoint->config.rank);
  if (transfer->bytes < 1) return MS_FAIL(MS_EINVAL, "transport: a transfer of %lld bytes", (long long)transfer->bytes);
  ms_tcp_peer *peer = &endpoint->peers[index];
  if (peer->state == MS_TCP_LEFT) ms_tcp_fail(endpoint, peer, 0, "it has left");
  if (peer->state != MS_TCP_APART && peer->state != MS_TCP_UP) {
    transfer->state = MS_TRANSFER_FAILED;
    return MS_OK;
  }
  MS_TRY(ms_keys_post(&peer->keys, transfer));
  peer->output = 1;
  return MS_OK;
}

static void cancel(ms_endpoint *endpoint, uint64_t number) {
  for (int i = 0; i < endpoint->n_peers; i++) {
    ms_tcp_peer *peer = &endpoint->peers[i];
    ms_key *key = ms_keys_find(&peer->keys, number);
    if (!key || (peer->state != MS_TCP_APART && peer->state != MS_TCP_UP)) continue;
    ms_tcp_take_back(peer, key);
    key->cancelled = MS_KEY_BY_CALLER;
    peer->output = 1;
  }
}

/* ---- progress ---- */

/* 1: there is something to do without waiting. */
static int is_busy(const ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->n_peers; i++) {
    const ms_tcp_peer *peer = &endpoint->peers[i];
    if (peer->readable || (peer->writable && peer->output) || peer->report == 1) return 1;
  }
  return 0;
}

static void take_event(ms_endpoint *endpoint, const struct epoll_event *event) {
  int index = (int)(uint32_t)event->data.u64;
  uint64_t count;
  switch ((enum ms_tcp_tag)(event->data.u64 >> 32)) {
    case MS_TCP_WAKE:
      if (read(endpoint->wake, &count, sizeof count) < 0) {} /* it was read before */
      return;
    case MS_TCP_LISTENER: ms_tcp_accept(endpoint); return;
    case MS_TCP_STRANGER: ms_tcp_meet(endpoint, &endpoint->strangers[index]); return;
    case MS_TCP_PEER: break;
  }
  ms_tcp_peer *peer = &endpoint->peers[index];
  if (peer->state == MS_TCP_APART) ms_tcp_call_on(endpoint, peer);
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

static void report_failures(ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->n_peers; i++) {
    ms_tcp_peer *peer = &endpoint->peers[i];
    if (peer->report != 1) continue;
    peer->report = 2;
    if (endpoint->config.failed) endpoint->config.failed(endpoint->config.context, peer->rank, peer->why);
  }
}

static int progress(ms_endpoint *endpoint, double seconds) {
  double now = ms_clock();
  if (now - endpoint->turn_at > fmin(AWAY_SECONDS, endpoint->config.timeout / 2)) endpoint->awake_at = now;
  MS_TRY(take_events(endpoint, is_busy(endpoint) ? 0 : fmin(now + seconds, endpoint->watch_at)));
  for (int i = 0; i < endpoint->n_peers; i++) {
    ms_tcp_peer *peer = &endpoint->peers[i];
    if (peer->readable) ms_tcp_receive(endpoint, peer);
    if (peer->writable && peer->output) ms_tcp_send(endpoint, peer);
  }
  now = endpoint->turn_at = ms_clock();
  if (now >= endpoint->watch_at) {
    endpoint->watch_at = INFINITY; /* an address that fails at once makes it earlier */
    double next = ms_tcp_watch(endpoint, now);
    endpoint->watch_at = fmin(endpoint->watch_at, next);
  }
  report_failures(endpoint);
  return MS_OK;
}

static void wake(ms_endpoint *endpoint) {
  uint64_t one = 1;
  while (write(endpoint->wake, &one, sizeof one) < 0 && errno == EINTR) continue;
}

static void get_counts(const ms_endpoint *endpoint, ms_transport_counts *counts) { *counts = endpoint->counts; }

const ms_transport_api ms_transport_tcp = {.name = "tcp",
                                           .open = open_endpoint,
                                           .address = get_address,
                                           .connect = connect_peers,
                                           .connected = count_connected,
                                           .post = post,
                                           .progress = progress,
                                           .wake = wake,
                                           .cancel = cancel,
                                           .counts = get_counts,
                                           .close = close_endpoint};
