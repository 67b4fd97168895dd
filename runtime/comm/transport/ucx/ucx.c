/* ucx.c - the transport ucx: its table. One thread, one worker of UCX; see ucx.h for the protocol. */
#include "comm/transport/ucx/ucx.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

enum { MAX_PROGRESS = 64, CLOSE_PAUSE_US = 200 };
/* Seconds that close, and a cancellation with rendezvous, wait at most. */
static const double CLOSE_SECONDS = 1.0, CANCEL_SECONDS = 1.0;

/* ---- peers ---- */

static int prepare_slots(const ms_endpoint *endpoint, ms_ucx_peer *peer) {
  if (!endpoint->rendezvous && !(peer->pieces = ms_calloc(MS_UCX_PIECES, MS_UCX_PIECE))) return MS_ENOMEM;
  for (int i = 0; i < MS_UCX_CONTROLS; i++) peer->control[i].peer = peer;
  for (int i = 0; i < MS_UCX_PIECES; i++) {
    peer->in[i].peer = peer->out[i].peer = peer;
    if (peer->pieces) peer->out[i].piece = peer->pieces + (size_t)i * MS_UCX_PIECE;
  }
  return MS_OK;
}

static int name_peer(ms_endpoint *endpoint, int rank, const uint8_t *address) {
  const ucp_address_t *worker;
  char name[MS_UCX_NAME];
  if (ms_peers_find(&endpoint->common, rank)) return MS_OK;
  if (ms_ucx_check_address(address, name, &worker)) return ms_error_prefix("transport: the address of rank %d", rank);
  ms_ucx_peer *peer = (ms_ucx_peer *)ms_peers_add(&endpoint->common, rank);
  if (!peer) return MS_ENOMEM;
  peer->endpoint = endpoint;
  memcpy(peer->name, name, sizeof name);
  MS_TRY(prepare_slots(endpoint, peer));
  MS_TRY(ms_secret_random(peer->nonce, sizeof peer->nonce));
  return ms_ucx_call(endpoint, peer, worker);
}

/* Until UCX refers to no memory of the key; with copies it never does. A peer that keeps it has failed. */
static void await_pieces(ms_endpoint *endpoint, ms_peer *common, ms_key *key) {
  ms_ucx_peer *peer = (ms_ucx_peer *)common;
  for (double end = ms_clock() + CANCEL_SECONDS; ms_ucx_refers(peer, key);) {
    endpoint->ucx->worker_progress(endpoint->worker);
    if (ms_clock() < end) continue;
    ms_peer_fail(endpoint, &peer->common, 0, "it did not take a piece of a transfer within %g s of its being cancelled",
                 CANCEL_SECONDS);
    ms_ucx_gone(endpoint, peer, MS_PEER_GONE);
    end = INFINITY; /* closing ends what is under way */
  }
}

static const ms_peer_calls calls = {.name = name_peer, .end = ms_ucx_end_failed, .let_go = await_pieces};

/* ---- open ---- */

static ucs_status_t take_greeting(void *context, const void *header, size_t header_bytes, void *data, size_t bytes,
                                  const ucp_am_recv_param_t *param) {
  ms_endpoint *endpoint = context;
  (void)data, (void)bytes, (void)param;
  if (header_bytes == MS_UCX_GREETING) ms_ucx_take_greeting(endpoint, header);
  endpoint->heard++;
  return UCS_OK;
}

static int fail_of(const ms_endpoint *endpoint, const char *what, ucs_status_t status) {
  return MS_FAIL(MS_EIO, "transport: UCX cannot %s: %s", what, endpoint->ucx->status_string(status));
}

static int handle(ms_endpoint *endpoint, enum ms_ucx_message id, ucp_am_recv_callback_t handler) {
  ucp_am_handler_param_t param = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                  .id = id,
                                  .cb = handler,
                                  .arg = endpoint};
  ucs_status_t status = endpoint->ucx->worker_set_am_recv_handler(endpoint->worker, &param);
  return status == UCS_OK ? MS_OK : fail_of(endpoint, "take messages", status);
}

static int start_worker(ms_endpoint *endpoint) {
  const ms_ucx_functions *ucx = endpoint->ucx;
  ucp_params_t context = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
  ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                .thread_mode = UCS_THREAD_MODE_SERIALIZED};
  ucp_config_t *config;
  MS_TRY(ms_ucx_configure(ucx, endpoint->rendezvous, endpoint->common.config.timeout, &config));
  ucs_status_t status = ucx->init_version(UCP_API_MAJOR, UCP_API_MINOR, &context, config, &endpoint->context);
  ucx->config_release(config);
  if (status != UCS_OK) return fail_of(endpoint, "start: see UCX_TLS and UCX_NET_DEVICES", status);
  status = ucx->worker_create(endpoint->context, &worker, &endpoint->worker);
  if (status != UCS_OK) return fail_of(endpoint, "make a worker", status);
  status = ucx->worker_get_efd(endpoint->worker, &endpoint->worker_fd);
  if (status != UCS_OK) return fail_of(endpoint, "make a descriptor to sleep on", status);
  MS_TRY(handle(endpoint, MS_UCX_GREET, take_greeting));
  return handle(endpoint, MS_UCX_FRAME, ms_ucx_take_frame);
}

/* UCX starts a thread, which takes no signals: they are for the program's own threads. */
static int start_worker_without_signals(ms_endpoint *endpoint) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int rc = start_worker(endpoint);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return rc;
}

static int prepare(ms_endpoint *endpoint, const ms_transport_config *config) {
  MS_TRY(ms_peers_open(&endpoint->common, config, sizeof *endpoint->peers, &calls));
  MS_TRY(ms_peer_job_open(&endpoint->job, config));
  endpoint->peers = (ms_ucx_peer *)endpoint->common.first;
  if (!*config->token)
    return MS_FAIL(MS_EINVAL, "the transport ucx needs a token, even on one machine: give all ranks the same one in "
                              "MOONSHARD_TOKEN (`openssl rand -hex 16` makes one), or set MOONSHARD_TRANSPORT=tcp");
  MS_TRY(ms_ucx_load(&endpoint->ucx));
  endpoint->rendezvous = ms_ucx_uses_rendezvous();
  MS_TRY(start_worker_without_signals(endpoint));
  return ms_ucx_make_address(endpoint);
}

static void free_endpoint(ms_endpoint *endpoint) {
  if (endpoint->worker) endpoint->ucx->worker_destroy(endpoint->worker);
  if (endpoint->context) endpoint->ucx->cleanup(endpoint->context);
  for (int i = 0; i < endpoint->common.n; i++) free(endpoint->peers[i].pieces);
  ms_peer_job_close(&endpoint->job);
  ms_peers_close(&endpoint->common);
  free(endpoint);
}

static int open_endpoint(const ms_transport_config *config, ms_endpoint **endpoint) {
  int rc;
  *endpoint = NULL;
  ms_endpoint *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  made->worker_fd = -1;
  MS_GOTO(prepare(made, config));
  *endpoint = made;
  return MS_OK;
fail:
  free_endpoint(made);
  return rc;
}

/* ---- progress ---- */

/* Closes failed connections; their reports are due once UCX refers to none of their memory, as it can with rendezvous.
 */
static void settle(ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->common.n; i++) {
    ms_ucx_peer *peer = &endpoint->peers[i];
    if (peer->broken != UCS_OK && peer->ep) ms_ucx_take_error(endpoint, peer);
    if (peer->common.state == MS_PEER_GONE && peer->ep) ms_ucx_gone(endpoint, peer, MS_PEER_GONE);
    if (peer->common.report != MS_PEER_UNSETTLED || ms_ucx_refers(peer, NULL)) continue;
    ms_ucx_take_back(peer);
    peer->common.report = MS_PEER_DUE;
  }
}

static void turn(ms_endpoint *endpoint) {
  int left = MAX_PROGRESS;
  while (left && endpoint->ucx->worker_progress(endpoint->worker)) left--;
  if (!left) endpoint->heard++; /* UCX can only be slept on when it has nothing to do */
  for (int i = 0; i < endpoint->common.n; i++)
    if (endpoint->peers[i].common.output) ms_ucx_send(endpoint, &endpoint->peers[i]);
}

/* 1: there is something to do without waiting. */
static int is_busy(const ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->common.n; i++) {
    const ms_ucx_peer *peer = &endpoint->peers[i];
    if ((peer->common.output && peer->ep) || peer->common.report == MS_PEER_UNSETTLED ||
        (peer->broken != UCS_OK && peer->ep))
      return 1;
  }
  return endpoint->heard > 0;
}

static int sleep_until(ms_endpoint *endpoint, double until) {
  struct pollfd fds[2] = {{endpoint->worker_fd, POLLIN, 0}, {endpoint->common.wake, POLLIN, 0}};
  ucs_status_t status = endpoint->ucx->worker_arm(endpoint->worker);
  if (status == UCS_ERR_BUSY) return MS_OK; /* something has come */
  if (status != UCS_OK) return fail_of(endpoint, "sleep", status);
  double seconds = fmax(0, until - ms_clock());
  if (poll(fds, 2, (int)ceil(fmin(seconds, 1e3) * 1e3)) < 0 && errno != EINTR)
    return MS_FAIL(MS_EIO, "transport: poll: %s", strerror(errno));
  if (fds[1].revents) ms_peers_take_wake(&endpoint->common);
  return MS_OK;
}

static int progress(ms_endpoint *endpoint, double seconds) {
  double now = ms_clock(), until = fmin(now + seconds, endpoint->common.watch_at);
  ms_peers_begin_turn(&endpoint->common, now);
  endpoint->heard = 0;
  turn(endpoint);
  if (seconds > 0 && !is_busy(endpoint)) {
    MS_TRY(sleep_until(endpoint, until));
    turn(endpoint);
  }
  now = endpoint->common.turn_at = ms_clock();
  if (now >= endpoint->common.watch_at) endpoint->common.watch_at = ms_ucx_watch(endpoint, now);
  settle(endpoint);
  ms_peers_report(endpoint);
  return MS_OK;
}

/* ---- close ---- */

static void say_goodbye(ms_endpoint *endpoint, ms_ucx_peer *peer) {
  if (peer->common.state != MS_PEER_UP) return;
  peer->common.state = MS_PEER_ENDING;
  peer->end_by = INFINITY; /* until this side closes */
  endpoint->common.n_up--;
  peer->last_kind = MS_PEER_GOODBYE;
  peer->common.output = 1;
}

/* 1: the peer has everything, and knows that this side leaves, or never will. A peer that is not connected yet does
 * not: if this side's port closed now, UCX 1.13 could end the process of a peer on the same machine. */
static int knows(const ms_ucx_peer *peer) {
  int busy = 0;
  if (!peer->ep || peer->broken != UCS_OK || peer->common.state == MS_PEER_GONE) return 1;
  if (peer->common.state == MS_PEER_APART || peer->common.state == MS_PEER_UP) return 0;
  for (int i = 0; i < MS_UCX_CONTROLS; i++) busy |= peer->control[i].busy;
  for (int i = 0; i < MS_UCX_PIECES; i++) busy |= peer->out[i].busy;
  return !busy && !peer->last_kind && !peer->goodbye_answer && (peer->answered || peer->common.report);
}

/* 1: all peers know. */
static int tell_peers(ms_endpoint *endpoint) {
  int left = 0;
  for (int i = 0; i < endpoint->common.n; i++) say_goodbye(endpoint, &endpoint->peers[i]);
  turn(endpoint);
  ms_ucx_watch(endpoint, ms_clock());
  for (int i = 0; i < endpoint->common.n; i++) left += !knows(&endpoint->peers[i]);
  return !left;
}

static void close_endpoint(ms_endpoint *endpoint) {
  if (!endpoint) return;
  double end = ms_clock() + CLOSE_SECONDS;
  while (!tell_peers(endpoint) && ms_clock() < end) usleep(CLOSE_PAUSE_US);
  for (int i = 0; i < endpoint->common.n; i++) ms_ucx_gone(endpoint, &endpoint->peers[i], MS_PEER_GONE);
  while (endpoint->closing && ms_clock() < end + CLOSE_SECONDS) endpoint->ucx->worker_progress(endpoint->worker);
  for (int i = 0; i < endpoint->common.n; i++) ms_ucx_take_back(&endpoint->peers[i]);
  free_endpoint(endpoint);
}

const ms_transport_api ms_transport_ucx = {.name = "ucx",
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
