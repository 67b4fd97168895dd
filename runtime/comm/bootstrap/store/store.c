/* store.c - a rank's side of the store: open or find it, prove the token, gather, watch, leave. */
#include "comm/bootstrap/store/store.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/numbers/number.h"
#include "comm/bootstrap/host_id.h"
#include "comm/bootstrap/store/store_file.h"
#include "comm/bootstrap/store/store_link.h"
#include "comm/bootstrap/store/store_server.h"
#include "comm/bootstrap/store/store_wait.h"
#include "comm/bootstrap/store/store_wire.h"

/* Seconds; a server greets as soon as its thread gets a core. */
static const double GREETING_SECONDS = 10.0;
static const double FIRST_PAUSE = 0.005, LONGEST_PAUSE = 0.2;
/* Seconds to wait, after this rank gave up, for the server's list of missing ranks. */
static const double LAST_WORD_SECONDS = 5.0;
/* Seconds between two looks at whether the job has ended. */
static const double TURN_SECONDS = 0.1;
static const double TELL_SECONDS = 1.0;
/* Seconds after which a connection without an answer is dead. */
static const double LONGEST_SILENCE = 10.0;

struct ms_store {
  ms_store_server *server; /* rank 0 only */
  ms_store_place place;    /* as passed in */
  int fd, rank, size;
  int wrote_file; /* place names a file that this rank created */
  double timeout, deadline;
  const _Atomic uint32_t *ended; /* of the config */
  ms_store_link *link;           /* NULL: not watched */
};

static int check_job(const ms_store *store) {
  return store->ended && atomic_load(store->ended) ? MS_FAIL(MS_EPEER, "the job has ended on this host") : MS_OK;
}

static int send_frame(ms_store *store, uint32_t kind, const void *body, size_t bytes, double deadline) {
  uint8_t frame[MS_WIRE_HEADER + MS_STORE_TEXT];
  ms_wire_put32(frame, (uint32_t)bytes);
  ms_wire_put32(frame + 4, kind);
  if (bytes) memcpy(frame + MS_WIRE_HEADER, body, bytes);
  return ms_wire_send(store->fd, frame, MS_WIRE_HEADER + bytes, deadline);
}

static int receive_header(int fd, uint32_t *kind, uint32_t *bytes, double deadline) {
  uint8_t header[MS_WIRE_HEADER];
  MS_TRY(ms_wire_receive(fd, header, sizeof header, deadline));
  *bytes = ms_wire_get32(header);
  *kind = ms_wire_get32(header + 4);
  return MS_OK;
}

/* Raises the status and text of REFUSED or FAILED. */
static int receive_text(int fd, uint32_t bytes, int *status, char text[MS_STORE_TEXT], double deadline) {
  uint8_t body[4 + MS_STORE_TEXT];
  if (bytes < 4 || bytes > sizeof body) return MS_FAIL(MS_EMISMATCH, "invalid data from the store");
  MS_TRY(ms_wire_receive(fd, body, bytes, deadline));
  *status = (int)ms_wire_get32(body);
  if (*status <= MS_OK || *status > MS_EDEVICE) *status = MS_EPEER;
  ms_wire_get_text(body + 4, bytes - 4, text, MS_STORE_TEXT);
  return MS_OK;
}

/* ---- connecting ---- */

static void fill_hello(const ms_store_config *config, ms_wire_hello *hello) {
  char name[MS_WIRE_NAME];
  *hello =
      (ms_wire_hello){.version = MS_STORE_VERSION, .rank = config->rank, .size = config->size, .pid = (int)getpid()};
  ms_host_name(name, sizeof name);
  ms_wire_get_text((const uint8_t *)name, sizeof name, hello->host, sizeof hello->host);
  ms_wire_get_text((const uint8_t *)config->job, strlen(config->job) + 1, hello->job, sizeof hello->job);
}

static int receive_greeting(const ms_store *store, double deadline, uint8_t nonce[MS_WIRE_NONCE]) {
  uint8_t greeting[MS_WIRE_GREETING];
  uint32_t version;
  MS_TRY(ms_wire_receive(store->fd, greeting, sizeof greeting, deadline));
  if (!ms_wire_get_greeting(greeting, &version, nonce))
    return MS_FAIL(MS_EMISMATCH, "the server there is not a Moonshard store: does another program use the port?");
  if (version == MS_STORE_VERSION) return MS_OK;
  return MS_FAIL(MS_EMISMATCH,
                 "the store uses protocol version %u, but this build version %d: all ranks must run the same build",
                 (unsigned)version, MS_STORE_VERSION);
}

static int has_closed(int fd) {
  char byte;
  return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* A store that many strangers connect to closes the connections of the oldest. Its end then belongs to no process,
 * which says nothing about its user. */
static int check_server_user(int fd) {
  int rc = ms_wire_check_user(fd);
  return rc == MS_EMISMATCH && has_closed(fd) ? MS_FAIL(MS_EIO, "the store closed the connection") : rc;
}

/* Fails with MS_EIO when the connection closed before an answer: another attempt can succeed. */
static int greet(ms_store *store, const ms_store_config *config, double deadline) {
  ms_wire_hello hello;
  uint8_t nonce[MS_WIRE_NONCE], body[MS_WIRE_HELLO_BYTES], proof[MS_WIRE_PROOF], expected[MS_WIRE_PROOF];
  uint32_t kind, bytes;
  int status;
  char text[MS_STORE_TEXT];
  if (store->place.kind != MS_STORE_TCP) MS_TRY(ms_wire_check_user(store->fd));
  MS_TRY(receive_greeting(store, deadline, nonce));
  /* Over TCP, rank 0's end belongs to a process only after it has accepted, which the greeting shows. */
  if (store->place.kind == MS_STORE_TCP && !*config->token) MS_TRY(check_server_user(store->fd));
  fill_hello(config, &hello);
  MS_TRY(ms_secret_random(hello.nonce, sizeof hello.nonce));
  ms_wire_client_proof(config->token, nonce, &hello, hello.proof);
  ms_wire_put_hello(body, &hello);
  MS_TRY(send_frame(store, MS_WIRE_HELLO, body, sizeof body, deadline));
  MS_TRY(receive_header(store->fd, &kind, &bytes, deadline));
  if (kind == MS_WIRE_REFUSED) {
    MS_TRY(receive_text(store->fd, bytes, &status, text, deadline));
    return MS_FAIL(MS_EMISMATCH, "the store refused this process (rank %d): %s", store->rank, text);
  }
  if (kind != MS_WIRE_WELCOME || bytes != sizeof proof) return MS_FAIL(MS_EMISMATCH, "invalid answer from the store");
  MS_TRY(ms_wire_receive(store->fd, proof, sizeof proof, deadline));
  ms_wire_server_proof(config->token, nonce, hello.nonce, expected);
  if (!ms_wire_same_proof(proof, expected)) return MS_FAIL(MS_EMISMATCH, "the store does not know the job's token");
  return MS_OK;
}

static int pause_before_retry(double *pause, double deadline) {
  double until = fmin(ms_clock() + *pause, deadline);
  for (double rest; (rest = until - ms_clock()) > 0;) {
    if (ms_interrupted()) return MS_FAIL(MS_EINTERRUPT, "interrupted");
    usleep((useconds_t)(1e6 * fmin(rest, 0.05)) + 1);
  }
  *pause = fmin(2 * *pause, LONGEST_PAUSE);
  return MS_OK;
}

/* Tries until the store accepts this rank or refuses it, or the deadline passes. */
static int come(ms_store *store, const ms_store_config *config, const ms_store_place *place) {
  double pause = FIRST_PAUSE;
  char why[256] = "no connection yet";
  ms_error_record before;
  ms_error_save(&before);
  while (ms_clock() < store->deadline) {
    MS_TRY(ms_wire_connect(place, store->deadline, &store->fd, why, sizeof why));
    if (store->fd >= 0) {
      ms_wire_keep_alive(store->fd, fmin(store->timeout, LONGEST_SILENCE));
      int rc = greet(store, config, fmin(store->deadline, ms_clock() + GREETING_SECONDS));
      if (!rc) return MS_OK;
      close(store->fd);
      store->fd = -1;
      if (rc != MS_EIO && rc != MS_ETIMEOUT) return ms_error_prefix("rendezvous at %s", store->place.text);
      snprintf(why, sizeof why, "%s", ms_error_message());
      ms_error_restore(&before);
    }
    MS_TRY(check_job(store));
    MS_TRY(pause_before_retry(&pause, store->deadline));
  }
  return MS_FAIL(MS_ETIMEOUT, "rendezvous at %s: rank 0 of %d has not answered within %g s (%s)", store->place.text,
                 store->size, store->timeout, why);
}

/* Starts rank 0's server, with its own connection to it. */
static int serve(ms_store *store, const ms_store_config *config, const ms_store_place *place) {
  int listen_fd, pair[2];
  MS_TRY(ms_wire_listen(place, &listen_fd));
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)) {
    int why = errno;
    close(listen_fd);
    return MS_FAIL(MS_EIO, "rendezvous: socketpair: %s", strerror(why));
  }
  store->fd = pair[0];
  MS_TRY(ms_store_server_start(config, listen_fd, pair[1], &store->server));
  if (store->place.kind == MS_STORE_FILE) {
    MS_TRY(ms_store_file_write(store->place.name, config->job, config->size, place));
    store->wrote_file = 1;
  }
  int rc = greet(store, config, store->deadline);
  return rc ? ms_error_prefix("rendezvous at %s", store->place.text) : MS_OK;
}

/* The file points to a socket with an unpredictable name. */
static int make_socket_place(const ms_store_place *file, ms_store_place *place) {
  uint64_t random;
  char key[64];
  MS_TRY(ms_secret_random(&random, sizeof random));
  snprintf(key, sizeof key, "file %llx", (unsigned long long)random);
  ms_store_place_local(key, file->text, place);
  return MS_OK;
}

int ms_store_open(const ms_store_config *config, ms_store **store) {
  int rc = MS_OK;
  ms_store_place place = *config->place;
  ms_store *opened = ms_calloc(1, sizeof *opened);
  if (!opened) return MS_ENOMEM;
  *opened = (ms_store){.place = place, .fd = -1, .rank = config->rank, .size = config->size};
  opened->timeout = config->timeout;
  opened->ended = config->ended;
  opened->deadline = ms_clock() + config->timeout;
  int by_file = place.kind == MS_STORE_FILE;
  if (config->rank == 0) {
    if (by_file) MS_GOTO(make_socket_place(config->place, &place));
    MS_GOTO(serve(opened, config, &place));
  } else {
    if (by_file) MS_GOTO(ms_store_file_read(place.name, config->job, config->size, opened->deadline, &place));
    MS_GOTO(come(opened, config, &place));
  }
  *store = opened;
  return MS_OK;
fail:
  ms_store_close(opened);
  return rc;
}

/* ---- gathering ---- */

/* Names the owner of the other side, which serves all ranks, where that is silent: "rank 0: no answer ...". */
static int of_rank_0(int rc) { return rc == MS_ETIMEOUT ? ms_error_prefix("rank 0") : rc; }

/* Waits for ALL; any other frame is a failure. */
static int receive_all(ms_store *store, void *all, size_t expected, double deadline) {
  uint32_t kind = 0, bytes = 0;
  int status;
  char text[MS_STORE_TEXT];
  MS_TRY(of_rank_0(receive_header(store->fd, &kind, &bytes, deadline)));
  if (kind == MS_WIRE_ALL && bytes == expected) return of_rank_0(ms_wire_receive(store->fd, all, expected, deadline));
  if (kind == MS_WIRE_LEAVE) return MS_FAIL(MS_EPEER, "rank 0 left");
  if (kind != MS_WIRE_FAILED) return MS_FAIL(MS_EMISMATCH, "invalid data from the store");
  MS_TRY(receive_text(store->fd, bytes, &status, text, deadline));
  return MS_FAIL(status, "%s", text);
}

/* Reports to the server that this rank's time is over, and receives the list of missing ranks, with the same text as
 * all others. */
static int give_up(ms_store *store, void *all, size_t expected) {
  char seconds[32];
  double deadline = ms_clock() + LAST_WORD_SECONDS;
  ms_format(seconds, sizeof seconds, "%g", store->timeout);
  MS_TRY(of_rank_0(send_frame(store, MS_WIRE_GIVE_UP, seconds, strlen(seconds), deadline)));
  return receive_all(store, all, expected, deadline); /* or all: the last rank may have connected just now */
}

static void remove_file(ms_store *store) {
  if (store->wrote_file) unlink(store->place.name);
  store->wrote_file = 0;
}

static int gather(ms_store *store, const void *mine, int bytes, void *all) {
  int ready = 0;
  size_t expected = (size_t)bytes * (size_t)store->size;
  MS_TRY(of_rank_0(send_frame(store, MS_WIRE_ROUND, mine, (size_t)bytes, store->deadline)));
  while (!ready && ms_clock() < store->deadline) {
    MS_TRY(check_job(store));
    MS_TRY(ms_wire_wait(store->fd, POLLIN, fmin(store->deadline, ms_clock() + TURN_SECONDS), &ready));
  }
  if (!ready) return give_up(store, all, expected);
  return receive_all(store, all, expected, store->deadline + LAST_WORD_SECONDS);
}

int ms_store_gather(ms_store *store, const void *mine, int bytes, void *all) {
  if (bytes < 1 || bytes > MS_STORE_ROUND)
    return MS_FAIL(MS_EINVAL, "rendezvous: %d bytes per rank, but 1 to %d are supported", bytes, MS_STORE_ROUND);
  int rc = gather(store, mine, bytes, all);
  remove_file(store); /* all have connected, or the rendezvous has failed */
  if (rc == MS_EIO) ms_error_prefix("rank 0 died, or cannot be reached any more");
  if (rc && rc != MS_EINTERRUPT) ms_error_prefix("rendezvous at %s", store->place.text);
  return rc;
}

/* ---- after the rendezvous ---- */

int ms_store_set_node(ms_store *store, int node) {
  uint8_t body[4];
  ms_wire_put32(body, (uint32_t)node);
  return send_frame(store, MS_WIRE_NODE, body, sizeof body, store->deadline);
}

int ms_store_watch(ms_store *store, const ms_store_listener *listener, void *context) {
  return ms_store_link_start(store->fd, listener, context, &store->link);
}

void ms_store_post(ms_store *store, int kind, const void *payload, size_t bytes) {
  uint8_t body[4 + MS_STORE_POST];
  ms_wire_put32(body, (uint32_t)kind);
  if (bytes) memcpy(body + 4, payload, bytes);
  ms_store_link_send(store->link, MS_WIRE_POST, body, 4 + bytes);
}

/* ---- leaving ---- */

/* Before there is a thread. The other side may be gone: an error here has no effect, and must not replace a pending
 * one. */
static void tell(ms_store *store, uint32_t kind, const char *text) {
  ms_error_record before;
  if (store->fd < 0) return;
  ms_error_save(&before);
  send_frame(store, kind, text, strnlen(text, MS_STORE_TEXT - 1), ms_clock() + TELL_SECONDS);
  ms_error_restore(&before);
}

void ms_store_abort(ms_store *store, const char *why) {
  if (store->link) ms_store_link_send(store->link, MS_WIRE_ABORT, why, strnlen(why, MS_STORE_TEXT - 1));
  else tell(store, MS_WIRE_ABORT, why);
}

void ms_store_leave_at_exit(ms_store *store, int hurry) {
  ms_store_link_leave(store->link, hurry);
  ms_store_server_stop(store->server, hurry);
  store->server = NULL;
}

void ms_store_close(ms_store *store) {
  if (!store) return;
  remove_file(store);
  if (store->link) {
    ms_store_link_leave(store->link, 0);
    ms_store_link_free(store->link);
  } else tell(store, MS_WIRE_LEAVE, "");
  if (store->fd >= 0) close(store->fd);
  ms_store_server_stop(store->server, 0);
  free(store);
}
