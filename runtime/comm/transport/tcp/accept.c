/* accept.c - accepts ranks below this one, also those that it has not named as peers yet. Whatever connects is a
 * stranger until it has proved the token: there are as many places for strangers as for peers and a few more, one of
 * the crowd makes room for the newest (strangers.h), and each has a few seconds to send one hello. When all ranks below
 * have connected, the port is closed.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/transport/tcp/tcp.h"

enum { ACCEPTS_A_TURN = 16 };
static const double STRANGER_SECONDS = 5.0;
/* Seconds to wait when out of descriptors: some may be free again then. */
static const double ACCEPT_PAUSE = 0.05;

static void drop(ms_endpoint *endpoint, ms_tcp_stranger *stranger) { ms_tcp_hang_up(endpoint, &stranger->fd); }

static const ms_stranger *stranger_at(const void *context, int i) {
  const ms_tcp_stranger *one = &((const ms_endpoint *)context)->strangers[i];
  return one->fd < 0 ? NULL : &one->stranger;
}

/* A free place, or that of a stranger who makes room. */
static ms_tcp_stranger *make_room(ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->n_strangers; i++)
    if (endpoint->strangers[i].fd < 0) return &endpoint->strangers[i];
  ms_tcp_stranger *dropped = &endpoint->strangers[ms_stranger_to_drop(stranger_at, endpoint, endpoint->n_strangers)];
  drop(endpoint, dropped);
  return dropped;
}

static void pause_accepting(ms_endpoint *endpoint) {
  drop(endpoint, make_room(endpoint));
  epoll_ctl(endpoint->epoll, EPOLL_CTL_DEL, endpoint->listener, NULL);
  endpoint->accept_at = ms_clock() + ACCEPT_PAUSE;
}

static void add_stranger(ms_endpoint *endpoint, int fd) {
  ms_tcp_stranger *stranger = make_room(endpoint);
  uint8_t greeting[MS_PEER_GREETING];
  *stranger = (ms_tcp_stranger){.fd = fd, .stranger = ms_stranger_new(fd)};
  int rc = ms_secret_random(stranger->nonce, sizeof stranger->nonce);
  ms_peer_put_greeting(greeting, stranger->nonce);
  /* A new socket has room for it. */
  if (rc || send(fd, greeting, sizeof greeting, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof greeting ||
      ms_tcp_register(endpoint, fd, EPOLLIN, MS_TCP_STRANGER, (int)(stranger - endpoint->strangers)))
    drop(endpoint, stranger);
}

void ms_tcp_accept(ms_endpoint *endpoint) {
  ms_error_record before;
  ms_error_save(&before);
  for (int i = 0; i < ACCEPTS_A_TURN && endpoint->listener >= 0; i++) {
    int fd = accept4(endpoint->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0 && isinf(endpoint->common.watch_at)) endpoint->common.watch_at = 0;
    if (fd >= 0) add_stranger(endpoint, fd);
    else if (errno != EINTR && errno != ECONNABORTED) {
      if (errno != EAGAIN) pause_accepting(endpoint);
      break;
    }
  }
  ms_error_restore(&before);
}

static int has_been_connected(const ms_endpoint *endpoint, int rank) {
  const ms_peer *peer = ms_peers_find(&endpoint->common, rank);
  return peer && peer->state != MS_PEER_APART;
}

/* NULL, or the reason to refuse this hello. */
static const char *judge(const ms_endpoint *endpoint, const ms_tcp_stranger *stranger, const ms_peer_hello *hello,
                         char *text, size_t bytes) {
  const ms_transport_config *own = &endpoint->common.config;
  uint8_t proof[MS_WIRE_PROOF];
  ms_peer_prove(endpoint->job.token, 'C', stranger->nonce, hello, proof);
  if (hello->version != MS_PEER_VERSION)
    snprintf(text, bytes, "it uses protocol version %u, rank %d version %d: all ranks must run the same build",
             (unsigned)hello->version, own->rank, MS_PEER_VERSION);
  else if (!ms_wire_same_proof(proof, hello->proof))
    snprintf(text, bytes, "it does not know the job's token: all ranks need the same MOONSHARD_TOKEN");
  else if (!*endpoint->job.token && ms_wire_check_user(stranger->fd)) snprintf(text, bytes, "%s", ms_error_message());
  else if (strcmp(hello->job, endpoint->job.id))
    snprintf(text, bytes, "it belongs to job \"%s\", rank %d to job \"%s\"", hello->job, own->rank, endpoint->job.id);
  else if (hello->to != own->rank)
    snprintf(text, bytes, "it wants to reach rank %d, but this is rank %d", hello->to, own->rank);
  else if (hello->size != own->size)
    snprintf(text, bytes, "its world has %d ranks, that of rank %d has %d", hello->size, own->rank, own->size);
  else if (hello->rank < 0 || hello->rank >= own->rank)
    snprintf(text, bytes, "rank %d waits for no connection of rank %d", own->rank, hello->rank);
  else if (has_been_connected(endpoint, hello->rank))
    snprintf(text, bytes, "rank %d has been connected to rank %d before", hello->rank, own->rank);
  else return NULL;
  return text;
}

static void refuse(ms_endpoint *endpoint, ms_tcp_stranger *stranger, const char *why) {
  uint8_t answer[MS_PEER_ANSWER];
  char name[80];
  ms_wire_peer_name(stranger->fd, name, sizeof name);
  snprintf(endpoint->turned_away, sizeof endpoint->turned_away, "%s: %.160s", name, why);
  ms_peer_put_refusal(answer, why);
  if (send(stranger->fd, answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {} /* it does not listen */
  drop(endpoint, stranger);
}

static void welcome(ms_endpoint *endpoint, ms_tcp_stranger *stranger, const ms_peer_hello *hello) {
  if (!ms_peers_find(&endpoint->common, hello->rank) && ms_tcp_add_peer(endpoint, hello->rank)) {
    drop(endpoint, stranger); /* it can try again */
    return;
  }
  const int fd = stranger->fd, index = endpoint->common.index_of[hello->rank];
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                              .data.u64 = (uint64_t)MS_TCP_PEER << 32 | (uint32_t)index};
  uint8_t proof[MS_WIRE_PROOF], answer[MS_PEER_ANSWER];
  ms_peer_prove(endpoint->job.token, 'A', stranger->nonce, hello, proof);
  ms_peer_put_welcome(answer, proof);
  if (send(fd, answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof answer ||
      epoll_ctl(endpoint->epoll, EPOLL_CTL_MOD, fd, &event)) {
    drop(endpoint, stranger);
    return;
  }
  stranger->fd = -1;
  ms_tcp_bring_up(endpoint, &endpoint->peers[index], fd);
  endpoint->common.watch_at = 0;
}

void ms_tcp_meet(ms_endpoint *endpoint, ms_tcp_stranger *stranger) {
  char text[MS_PEER_REASON];
  ms_peer_hello hello;
  ms_error_record before;
  if (stranger->fd < 0) return;
  ssize_t got =
      recv(stranger->fd, stranger->hello + stranger->got, sizeof stranger->hello - (size_t)stranger->got, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    drop(endpoint, stranger);
    return;
  }
  stranger->got += (int)got;
  /* Every version's hello begins with the version. */
  if (stranger->got < MS_PEER_HELLO && (stranger->got < 4 || ms_wire_get32(stranger->hello) == MS_PEER_VERSION)) return;
  ms_peer_get_hello(stranger->hello, &hello);
  ms_error_save(&before);
  const char *why = judge(endpoint, stranger, &hello, text, sizeof text);
  if (why) refuse(endpoint, stranger, why);
  else welcome(endpoint, stranger, &hello);
  ms_error_restore(&before);
}

void ms_tcp_clear_strangers(ms_endpoint *endpoint, double now) {
  for (int i = 0; i < endpoint->n_strangers; i++) {
    ms_tcp_stranger *one = &endpoint->strangers[i];
    if (one->fd >= 0 && now > one->stranger.since + STRANGER_SECONDS * ms_wait_scale) drop(endpoint, one);
  }
  if (endpoint->listener < 0 || endpoint->accept_at == 0 || now < endpoint->accept_at) return;
  ms_error_record before;
  ms_error_save(&before);
  if (ms_tcp_register(endpoint, endpoint->listener, EPOLLIN, MS_TCP_LISTENER, 0)) {
    endpoint->accept_at = now + ACCEPT_PAUSE;
    ms_error_restore(&before);
  } else endpoint->accept_at = 0;
}

void ms_tcp_stop_listening(ms_endpoint *endpoint) {
  if (endpoint->listener < 0) return;
  for (int i = 0; i < endpoint->n_strangers; i++) drop(endpoint, &endpoint->strangers[i]);
  ms_tcp_hang_up(endpoint, &endpoint->listener);
}
