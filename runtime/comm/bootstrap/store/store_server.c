/* store_server.c - one thread, one poll loop. All input from outside is bounded.
 *
 * A connection is a stranger until its HELLO is accepted. The number of strangers is limited (one of the crowd makes
 * room for the newest, see strangers.h; all ranks at once fit), and each has a few seconds and can send one small
 * frame, so silence, garbage and floods occupy a slot only briefly. With a local socket, processes of other users do
 * not even become strangers; over TCP without a token they stay strangers, whatever they send. A member is a rank: it
 * can send frames of a few hundred bytes, one ROUND per gather, and in a world of several hosts posts of at most 24 KiB
 * (store_posts.c). Output to a member is bounded as well: the last gather, stored once for all, one failure, and posts
 * that it has not read yet.
 */
#include "comm/bootstrap/store/store_server.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/numbers/number.h"
#include "comm/bootstrap/store/store_peer.h"
#include "comm/bootstrap/store/store_posts.h"
#include "comm/bootstrap/store/store_round.h"

/* SPARE_STRANGERS: in addition to one per rank. SPARE_FILES: descriptors for the rest of the program. */
enum { SPARE_STRANGERS = 64, ACCEPTS_A_TURN = 64, SPARE_FILES = 64, SECOND = 1000 };
/* Seconds for a HELLO: enough on a loaded machine, but a silent peer is soon dropped. */
static const double STRANGER_SECONDS = 10.0;
/* Seconds to wait when out of descriptors: some may be free again then. */
static const double ACCEPT_PAUSE = 0.05;
static const double STOP_SECONDS = 2.0;
/* Seconds for which the ranks of several hosts can still post after rank 0 has left: at the end of a run the others may
 * wait for posts that rank 0 did not need. */
static const double LINGER_SECONDS = 1.0;
static const double HURRIED_SECONDS = 0.3; /* instead of each of the two, when the run has failed */
static const double LONGEST_SILENCE = 10.0;

struct ms_store_server {
  pthread_t thread;
  char *job, *token;
  int kind; /* of the store's place */
  int size, listen_fd, stop_fd;
  double accept_at;    /* time before which it does not accept */
  double linger_until; /* 0: rank 0 has not left */
  double stop_at;      /* 0: not stopping */
  atomic_int hurries;  /* the run has failed */
  double silence;      /* seconds after which a connection without an answer is dead */
  ms_store_posts posts;
  ms_store_peer **peers, **member; /* all connections; [size] by rank: NULL before it connects and after it leaves */
  struct pollfd *polled;
  int n_peers, n_strangers, max_strangers;
  uint8_t *joined;      /* [size]: the rank has connected at some time */
  ms_store_round round; /* the current gather */
  int failed;           /* status and reason; sent to every later peer */
  char why[MS_STORE_TEXT];
  char turned_away[256]; /* the last stranger that was refused, for reports */
};

/* ---- reporting ---- */

/* The first failure is reported to all members, and to peers that connect later. */
__attribute__((format(printf, 3, 4))) static void fail_all(ms_store_server *server, int status, const char *format,
                                                           ...) {
  if (server->failed) return;
  va_list args;
  va_start(args, format);
  ms_format_list(server->why, sizeof server->why, format, args);
  va_end(args);
  server->failed = status;
  for (int i = 0; i < server->n_peers; i++)
    if (server->peers[i]->rank >= 0) ms_store_peer_tell(server->peers[i], MS_WIRE_FAILED, status, server->why);
}

static void tell_missing(ms_store_server *server, const char *seconds) {
  char ranks[512];
  int missing = ms_store_round_list_missing(&server->round, ranks, sizeof ranks);
  const char *away = server->turned_away;
  if (missing)
    fail_all(server, MS_ETIMEOUT, "%s %s of %d %s not connected within %s s%s%s", missing == 1 ? "rank" : "ranks",
             ranks, server->size, missing == 1 ? "has" : "have", seconds, *away ? "; refused: " : "", away);
}

/* ---- connecting and leaving ---- */

static void drop(ms_store_server *server, int index) {
  ms_store_peer *peer = server->peers[index];
  server->peers[index] = server->peers[--server->n_peers];
  if (peer->rank < 0) server->n_strangers--;
  else server->member[peer->rank] = NULL;
  if (peer->rank >= 0 && !peer->left && server->stop_at == 0)
    fail_all(server, MS_EPEER, "rank %d %s: process %d on %s", peer->rank,
             peer->broken ? "does not read what the store sends" : "died, or lost its connection", peer->pid,
             peer->host);
  ms_store_peer_free(peer);
}

static const ms_stranger *stranger_at(const void *context, int i) {
  const ms_store_peer *peer = ((const ms_store_server *)context)->peers[i];
  return peer->rank < 0 ? &peer->stranger : NULL;
}

static void make_room(ms_store_server *server) {
  const int place = ms_stranger_to_drop(stranger_at, server, server->n_peers);
  if (place >= 0) drop(server, place);
}

/* Owns the descriptor, even when there is no room or memory. */
static void add_stranger(ms_store_server *server, int fd) {
  if (server->n_strangers == server->max_strangers) make_room(server);
  ms_store_peer *peer = ms_store_peer_new(fd);
  if (!peer) return;
  server->peers[server->n_peers++] = peer;
  server->n_strangers++;
}

/* The reason is in `text`. */
static int is_of_another_user(int fd, char *text, size_t bytes) {
  if (!ms_wire_check_user(fd)) return 0;
  snprintf(text, bytes, "%s", ms_error_message());
  return 1;
}

/* Accepts only a few at a time, so a process that connects endlessly does not delay the others. */
static void accept_some(ms_store_server *server) {
  for (int i = 0; i < ACCEPTS_A_TURN; i++) {
    int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0 && errno != EAGAIN) {
      make_room(server);
      server->accept_at = ms_clock() + ACCEPT_PAUSE;
    }
    if (fd < 0) return;
    /* Abstract sockets have no permissions: every process that knows or lists their names can connect. */
    if (server->kind != MS_STORE_TCP && is_of_another_user(fd, server->turned_away, sizeof server->turned_away)) {
      close(fd);
      continue;
    }
    ms_wire_keep_alive(fd, server->silence);
    add_stranger(server, fd);
  }
}

static void drop_late_strangers(ms_store_server *server, double now) {
  for (int i = server->n_peers - 1; i >= 0; i--)
    if (server->peers[i]->rank < 0 && now > server->peers[i]->stranger.since + STRANGER_SECONDS) drop(server, i);
}

/* ---- frames ---- */

/* NULL, or the reason to refuse this hello. */
static const char *judge_hello(const ms_store_server *server, const ms_store_peer *peer, const ms_wire_hello *hello,
                               char *text, size_t bytes) {
  uint8_t proof[MS_WIRE_PROOF];
  ms_wire_client_proof(server->token, peer->nonce, hello, proof);
  if (!ms_wire_same_proof(proof, hello->proof))
    return *server->token
               ? "it does not know the job's token: all ranks need the same MOONSHARD_TOKEN or MOONSHARD_TOKEN_FILE"
               : "it has a token but rank 0 has none: all ranks need the same MOONSHARD_TOKEN or MOONSHARD_TOKEN_FILE";
  /* Ports have no permissions either: without a token, the kernel must confirm that the peer is a process of this user.
   * Only a whole HELLO justifies that search, so a crowd of strangers does not cause any. */
  if (server->kind == MS_STORE_TCP && !*server->token && is_of_another_user(peer->fd, text, bytes)) return text;
  if (strcmp(hello->job, server->job))
    snprintf(text, bytes, "it belongs to job \"%s\", but the store to job \"%s\"", hello->job, server->job);
  else if (hello->size != server->size)
    snprintf(text, bytes, "rank %d has a world of %d ranks, but rank 0 of %d: -n, --nodes, WORLD_SIZE must agree",
             hello->rank, hello->size, server->size);
  else if (hello->rank < 0 || hello->rank >= server->size)
    snprintf(text, bytes, "invalid rank %d of %d: ranks are 0 to %d", hello->rank, server->size, server->size - 1);
  else if (server->joined[hello->rank])
    snprintf(text, bytes, "process %d on %s is rank %d, but so is %s, which came first: --node-rank, RANK must differ",
             hello->pid, hello->host, hello->rank,
             server->member[hello->rank] ? server->member[hello->rank]->host : "a process that has left");
  else return NULL;
  return text;
}

static void refuse(ms_store_server *server, ms_store_peer *peer, const char *why) {
  char name[80];
  ms_wire_peer_name(peer->fd, name, sizeof name);
  snprintf(server->turned_away, sizeof server->turned_away, "%s: %.160s", name, why);
  ms_store_peer_tell(peer, MS_WIRE_REFUSED, MS_EMISMATCH, why);
  peer->closing = 1;
}

/* Every version's HELLO begins with the version; a different version's remaining bytes are not read. */
static void refuse_version(ms_store_server *server, ms_store_peer *peer, uint32_t version) {
  char text[128];
  snprintf(text, sizeof text,
           "it uses protocol version %u, but the store version %d: all ranks must run the same build",
           (unsigned)version, MS_STORE_VERSION);
  refuse(server, peer, text);
}

static void take_hello(ms_store_server *server, ms_store_peer *peer, const uint8_t *body) {
  ms_wire_hello hello;
  char text[512];
  uint8_t proof[MS_WIRE_PROOF];
  ms_wire_get_hello(body, &hello);
  const char *why = judge_hello(server, peer, &hello, text, sizeof text);
  if (why) {
    refuse(server, peer, why);
    return;
  }
  peer->rank = hello.rank;
  peer->pid = hello.pid;
  memcpy(peer->host, hello.host, sizeof peer->host);
  server->member[hello.rank] = peer;
  server->joined[hello.rank] = 1;
  server->n_strangers--;
  ms_wire_server_proof(server->token, peer->nonce, hello.nonce, proof);
  ms_store_peer_send(peer, MS_WIRE_WELCOME, proof, sizeof proof);
  if (server->failed) ms_store_peer_tell(peer, MS_WIRE_FAILED, server->failed, server->why);
}

static void end_round(ms_store_server *server) {
  const ms_store_round *round = &server->round;
  ms_store_shared *all = ms_store_shared_new(round->bytes, (size_t)round->size * (size_t)round->each);
  if (!all) fail_all(server, MS_ENOMEM, "rank 0 has not enough memory for the data of %d ranks", server->size);
  for (int i = 0; all && i < server->n_peers; i++)
    if (server->peers[i]->rank >= 0) ms_store_peer_share(server->peers[i], MS_WIRE_ALL, all);
  ms_store_shared_release(all);
  ms_store_round_begin(&server->round);
}

/* 0: the frame is invalid. */
static int take_round(ms_store_server *server, const ms_store_peer *peer, const uint8_t *body, uint32_t bytes) {
  if (!ms_store_round_take(&server->round, peer->rank, body, bytes)) return 0;
  if (ms_store_round_is_whole(&server->round)) end_round(server);
  return 1;
}

static int take_member_frame(ms_store_server *server, ms_store_peer *peer, uint32_t kind, const uint8_t *body,
                             uint32_t bytes) {
  char text[MS_STORE_TEXT];
  ms_wire_get_text(body, bytes, text, sizeof text);
  switch (kind) {
    case MS_WIRE_ROUND: return take_round(server, peer, body, bytes);
    case MS_WIRE_GIVE_UP: tell_missing(server, text); return 1;
    case MS_WIRE_ABORT: fail_all(server, MS_EPEER, "rank %d gave up: %s", peer->rank, text); return 1;
    case MS_WIRE_NODE: return ms_store_posts_take_node(&server->posts, peer, body, bytes);
    case MS_WIRE_POST: return ms_store_posts_take_post(&server->posts, peer, body, bytes);
    case MS_WIRE_LEAVE:
      peer->left = peer->closing = 1;
      ms_store_posts_take_leave(&server->posts, peer);
      return 1;
    default: return 0;
  }
}

/* Handles one frame of a peer; 0 when the peer is not allowed to send it now. */
static int take_frame(void *context, ms_store_peer *peer, uint32_t kind, const uint8_t *body, uint32_t bytes) {
  ms_store_server *server = context;
  if (peer->closing) return 1;
  if (peer->rank >= 0) return take_member_frame(server, peer, kind, body, bytes);
  if (kind != MS_WIRE_HELLO || bytes < 4) return 0;
  if (ms_wire_get32(body) != MS_STORE_VERSION) refuse_version(server, peer, ms_wire_get32(body));
  else if (bytes == MS_WIRE_HELLO_BYTES) take_hello(server, peer, body);
  else return 0;
  return 1;
}

/* ---- the loop ---- */

static int has_members(const ms_store_server *server) {
  for (int i = 0; i < server->n_peers; i++)
    if (server->peers[i]->rank >= 0 && !server->peers[i]->closing) return 1;
  return 0;
}

static void stop_when_due(ms_store_server *server) {
  double now = ms_clock();
  if (server->linger_until == 0 || server->stop_at > 0 || (has_members(server) && now < server->linger_until)) return;
  server->stop_at = now + (atomic_load(&server->hurries) ? HURRIED_SECONDS : STOP_SECONDS);
  for (int i = server->n_peers - 1; i >= 0; i--) {
    ms_store_peer *peer = server->peers[i];
    if (peer->rank < 0) drop(server, i);
    else if (!peer->closing) ms_store_peer_send(peer, MS_WIRE_LEAVE, NULL, 0);
  }
}

static double linger_seconds(const ms_store_server *server) {
  if (server->posts.nodes < 2) return 0;
  return atomic_load(&server->hurries) ? HURRIED_SECONDS : LINGER_SECONDS;
}

static int poll_milliseconds(const ms_store_server *server) {
  if (server->linger_until > 0 || server->accept_at > 0) return SECOND / 20;
  return server->n_strangers ? SECOND : -1;
}

/* Fills the list of descriptors: stop, listen, then the peers in order. */
static nfds_t list_descriptors(ms_store_server *server) {
  int takes = server->stop_at == 0 && ms_clock() >= server->accept_at;
  if (takes) server->accept_at = 0;
  server->polled[0] = (struct pollfd){.fd = server->linger_until > 0 ? -1 : server->stop_fd, .events = POLLIN};
  server->polled[1] = (struct pollfd){.fd = takes ? server->listen_fd : -1, .events = POLLIN};
  for (int i = 0; i < server->n_peers; i++)
    server->polled[i + 2] =
        (struct pollfd){.fd = server->peers[i]->fd, .events = ms_store_peer_events(server->peers[i])};
  return (nfds_t)server->n_peers + 2;
}

static void *serve(void *context) {
  ms_store_server *server = context;
  while (server->stop_at == 0 || (server->n_peers && ms_clock() < server->stop_at)) {
    nfds_t n = list_descriptors(server);
    if (poll(server->polled, n, poll_milliseconds(server)) < 0 && errno != EINTR) break;
    /* Backwards, since dropping a peer moves the last one into its place. */
    for (int i = (int)n - 3; i >= 0; i--) {
      int alive = !server->polled[i + 2].revents ||
                  ms_store_peer_move(server->peers[i], server->polled[i + 2].revents, take_frame, server);
      if (!alive || server->peers[i]->broken) drop(server, i);
    }
    drop_late_strangers(server, ms_clock());
    if (server->polled[1].revents) accept_some(server);
    if (server->polled[0].revents) server->linger_until = ms_clock() + linger_seconds(server);
    stop_when_due(server);
  }
  return NULL;
}

static void free_server(ms_store_server *server) {
  for (int i = 0; i < server->n_peers; i++) ms_store_peer_free(server->peers[i]);
  if (server->listen_fd >= 0) close(server->listen_fd);
  if (server->stop_fd >= 0) close(server->stop_fd);
  ms_store_posts_close(&server->posts);
  free(server->peers);
  free(server->member);
  free(server->polled);
  ms_store_round_close(&server->round);
  free(server->joined);
  free(server->job);
  ms_secret_free(server->token);
  free(server);
}

static int prepare(ms_store_server *server, const ms_store_config *config) {
  server->kind = config->place->kind;
  server->size = config->size;
  server->silence = fmin(config->timeout, LONGEST_SILENCE);
  server->max_strangers = config->size + SPARE_STRANGERS;
  int max_peers = config->size + server->max_strangers;
  MS_TRY(ms_wire_allow_files(config->size, 2 * config->size + SPARE_STRANGERS + SPARE_FILES));
  server->job = ms_strdup(config->job);
  server->token = ms_secret_copy(config->token);
  server->peers = ms_calloc(max_peers, sizeof *server->peers);
  server->member = ms_calloc(server->size, sizeof *server->member);
  server->polled = ms_calloc(max_peers + 2, sizeof *server->polled);
  server->joined = ms_calloc(server->size, 1);
  if (!server->job || !server->token || !server->peers || !server->member || !server->polled || !server->joined)
    return MS_ENOMEM;
  MS_TRY(ms_store_round_open(&server->round, server->size));
  MS_TRY(ms_store_posts_open(&server->posts, server->member, server->size));
  server->stop_fd = eventfd(0, EFD_CLOEXEC);
  if (server->stop_fd >= 0) return MS_OK;
  return MS_FAIL(MS_EIO, "rendezvous: eventfd: %s", strerror(errno));
}

int ms_store_server_start(const ms_store_config *config, int listen_fd, int own_fd, ms_store_server **server) {
  int rc = MS_OK, why;
  sigset_t all, old;
  ms_store_server *made = ms_calloc(1, sizeof *made);
  if (!made) {
    close(listen_fd);
    close(own_fd);
    return MS_ENOMEM;
  }
  made->listen_fd = listen_fd;
  made->stop_fd = -1;
  rc = prepare(made, config);
  if (rc) close(own_fd);
  else add_stranger(made, own_fd);
  /* Rank 0's own end is never the oldest stranger, however many connect before it sends its HELLO. */
  if (made->n_peers) made->peers[0]->stranger.since = INFINITY;
  if (rc) goto fail;
  sigfillset(&all); /* signals are for the program's threads */
  pthread_sigmask(SIG_SETMASK, &all, &old);
  why = pthread_create(&made->thread, NULL, serve, made);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (why) MS_GOTO(MS_FAIL(MS_EIO, "rendezvous: cannot start a thread: %s", strerror(why)));
  *server = made;
  return MS_OK;
fail:
  free_server(made);
  return rc;
}

void ms_store_server_stop(ms_store_server *server, int hurry) {
  uint64_t one = 1;
  if (!server) return;
  atomic_store(&server->hurries, hurry);
  while (write(server->stop_fd, &one, sizeof one) < 0 && errno == EINTR) continue;
  pthread_join(server->thread, NULL);
  free_server(server);
}
