/* call.c - connects to a peer with a higher rank: tries its addresses in turn, each for a few seconds, until one
 * leads to that very rank and both have proved the token, or the endpoint's deadline passes. What answers at an address
 * can be another process (a private address that two hosts have), so a refusal leads to the next address.
 */
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/numbers/number.h"
#include "comm/transport/tcp/tcp.h"

/* Seconds for an address to answer; the pause when all have been tried. */
static const double CONNECT_SECONDS = 3.0, GREETING_SECONDS = 5.0, PAUSE_SECONDS = 0.05;

/* This attempt has failed; the next one begins at once, at the next address. */
__attribute__((format(printf, 3, 4))) static void give_up(ms_endpoint *endpoint, ms_tcp_peer *peer, const char *format,
                                                          ...) {
  ms_tcp_call *call = &peer->call;
  char name[64], why[MS_PEER_REASON];
  struct sockaddr_storage place;
  socklen_t bytes;
  va_list args;
  va_start(args, format);
  ms_format_list(why, sizeof why, format, args);
  va_end(args);
  /* An answer says more than an address at which there is none. */
  if (call->stage >= call->told_at &&
      ms_tcp_place(endpoint->common.address, call->address, call->place, &place, &bytes)) {
    call->told_at = call->stage;
    ms_tcp_place_text(&place, bytes, name, sizeof name);
    snprintf(call->why, sizeof call->why, "%s: %s", name, why);
  }
  ms_tcp_hang_up(endpoint, &call->fd);
  call->stage = MS_TCP_PAUSING;
  call->until = 0;
  call->place++;
  endpoint->common.watch_at = 0;
}

static int begin(ms_endpoint *endpoint, ms_tcp_peer *peer, const struct sockaddr_storage *place, socklen_t bytes) {
  struct sockaddr_storage source;
  socklen_t source_bytes;
  int *fd = &peer->call.fd, yes = 1;
  *fd = socket(place->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (*fd < 0) return errno;
  setsockopt(*fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes);
  if (ms_tcp_source(endpoint->common.address, &source, &source_bytes) && source.ss_family == place->ss_family &&
      bind(*fd, (struct sockaddr *)&source, source_bytes))
    return errno;
  if (connect(*fd, (const struct sockaddr *)place, bytes) && errno != EINPROGRESS) return errno;
  return 0;
}

static void call_next(ms_endpoint *endpoint, ms_tcp_peer *peer, double now) {
  ms_tcp_call *call = &peer->call;
  struct sockaddr_storage place;
  socklen_t bytes;
  if (!ms_tcp_place(endpoint->common.address, call->address, call->place, &place, &bytes)) {
    if (!call->place) snprintf(call->why, sizeof call->why, "it has no address that this host can reach");
    call->place = 0;
    call->until = now + PAUSE_SECONDS;
    return;
  }
  int why = begin(endpoint, peer, &place, bytes);
  if (why) {
    give_up(endpoint, peer, "%s", strerror(why));
    return;
  }
  call->stage = MS_TCP_CONNECTING;
  call->until = now + CONNECT_SECONDS * ms_wait_scale;
  call->got = 0;
  if (ms_tcp_register(endpoint, call->fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, MS_TCP_PEER,
                      (int)(peer - endpoint->peers)))
    give_up(endpoint, peer, "%s", ms_error_message());
}

void ms_tcp_call_again(ms_endpoint *endpoint, ms_tcp_peer *peer, double now) {
  ms_error_record before;
  ms_error_save(&before); /* an attempt that fails is no error of this rank */
  if (peer->call.stage == MS_TCP_PAUSING) call_next(endpoint, peer, now);
  else give_up(endpoint, peer, "no answer");
  ms_error_restore(&before);
}

/* 1: all `bytes` bytes are there. 0: not yet, or the attempt has failed. */
static int receive_all(ms_endpoint *endpoint, ms_tcp_peer *peer, int bytes) {
  ms_tcp_call *call = &peer->call;
  while (call->got < bytes) {
    ssize_t got = recv(call->fd, call->bytes + call->got, (size_t)(bytes - call->got), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) {
      give_up(endpoint, peer, "%s", got ? strerror(errno) : "it closed the connection");
      return 0;
    }
    call->got += (int)got;
  }
  call->got = 0;
  return 1;
}

/* The greeting is there: claims to be this rank, with proof. */
static void answer_greeting(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  ms_tcp_call *call = &peer->call;
  uint8_t bytes[MS_PEER_HELLO];
  uint32_t version;
  if (!ms_peer_get_greeting(call->bytes, &version, call->nonce)) {
    give_up(endpoint, peer, "what listens there is no rank");
    return;
  }
  if (version != MS_PEER_VERSION) {
    give_up(endpoint, peer, "it uses protocol version %u, this rank %d: all ranks must run the same build",
            (unsigned)version, MS_PEER_VERSION);
    return;
  }
  call->hello = ms_peer_own_hello(&endpoint->common.config, &endpoint->job, peer->common.rank);
  if ((!*endpoint->job.token && ms_wire_check_user(call->fd)) ||
      ms_secret_random(call->hello.nonce, sizeof call->hello.nonce)) {
    give_up(endpoint, peer, "%s", ms_error_message());
    return;
  }
  ms_peer_prove(endpoint->job.token, 'C', call->nonce, &call->hello, call->hello.proof);
  ms_peer_put_hello(bytes, &call->hello);
  /* A new socket has room for it. */
  if (send(call->fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof bytes) {
    give_up(endpoint, peer, "it closed the connection");
    return;
  }
  call->stage = MS_TCP_ANSWERED;
}

static void take_answer(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  ms_tcp_call *call = &peer->call;
  uint8_t proof[MS_WIRE_PROOF], expected[MS_WIRE_PROOF];
  char why[MS_PEER_REASON];
  if (!ms_peer_get_answer(call->bytes, proof, why)) {
    give_up(endpoint, peer, "it refused: %s", why);
    return;
  }
  ms_peer_prove(endpoint->job.token, 'A', call->nonce, &call->hello, expected);
  if (!ms_wire_same_proof(proof, expected)) {
    give_up(endpoint, peer, "what listens there does not know the job's token");
    return;
  }
  int fd = call->fd;
  call->fd = -1;
  ms_tcp_bring_up(endpoint, peer, fd);
}

void ms_tcp_call_on(ms_endpoint *endpoint, ms_tcp_peer *peer) {
  ms_tcp_call *call = &peer->call;
  int why = 0;
  socklen_t bytes = sizeof why;
  ms_error_record before;
  ms_error_save(&before);
  if (call->stage == MS_TCP_CONNECTING) {
    getsockopt(call->fd, SOL_SOCKET, SO_ERROR, &why, &bytes);
    call->stage = MS_TCP_GREETED;
    call->until = ms_clock() + GREETING_SECONDS * ms_wait_scale;
    if (why) give_up(endpoint, peer, "%s", strerror(why));
  }
  if (call->stage == MS_TCP_GREETED && receive_all(endpoint, peer, MS_PEER_GREETING)) {
    /* Once it has a hello, the peer can count this rank as connected: the answer has until the deadline. */
    call->until = peer->common.connect_by;
    answer_greeting(endpoint, peer);
  }
  if (call->stage == MS_TCP_ANSWERED && receive_all(endpoint, peer, MS_PEER_ANSWER)) take_answer(endpoint, peer);
  ms_error_restore(&before);
}
