/* mpi.c - the transport mpi: its table. See mpi.h for the protocol, library.h for what it needs of MPI. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "comm/transport/mpi/mpi.h"

/* Seconds between two calls of progress after which this process was away: peers are not blamed for that time. At most
 * half of the timeout. */
static const double AWAY_SECONDS = 1.0;
static const double CLOSE_SECONDS = 1.0;
/* MPI is polled without a pause for so many seconds after something has happened; then the pauses grow, as a share of
 * the time since, up to the second and third of these: while pieces are under way, and otherwise. */
static const double SPIN_SECONDS = 1e-4, BUSY_PAUSE = 1e-4, IDLE_PAUSE = 1e-3, PAUSE_SHARE = 0.5;
static const char MARK[] = "moonshard mpi";

/* ---- open ---- */

static int has_pieces(const ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->n_peers; i++)
    for (int k = 0; k < MS_MPI_UNDER_WAY; k++)
      if (endpoint->peers[i].out[k].held || endpoint->peers[i].in[k].held) return 1;
  return 0;
}

static int has_messages(const ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->n_peers; i++)
    for (int k = 0; k < MS_MPI_MESSAGES; k++)
      if (endpoint->peers[i].busy[k]) return 1;
  return 0;
}

static int listens(const ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->n_peers; i++)
    if (endpoint->peers[i].listens) return 1;
  return 0;
}

static int holds_anything(const ms_endpoint *endpoint) {
  return has_pieces(endpoint) || has_messages(endpoint) || listens(endpoint);
}

static void free_endpoint(ms_endpoint *endpoint) {
  const int is_held = holds_anything(endpoint);
  if (endpoint->mpi) endpoint->library->end(endpoint->mpi);
  if (endpoint->wake >= 0) close(endpoint->wake);
  if (is_held) return; /* MPI may still write to the peers' memory; it is never freed */
  for (int i = 0; i < endpoint->n_peers; i++) {
    free(endpoint->peers[i].keys.slot);
    free(endpoint->peers[i].dropped);
  }
  free(endpoint->peers);
  free(endpoint->peer_of);
  free(endpoint->over);
  free(endpoint);
}

static int check_config(const ms_transport_config *config) {
  if (config->size < 1 || config->rank < 0 || config->rank >= config->size || !(config->timeout > 0))
    return MS_FAIL(MS_EINVAL, "transport: rank %d of %d with a timeout of %g s", config->rank, config->size,
                   config->timeout);
  return ms_mpi_check_launcher(config->rank, config->size);
}

static int start_mpi(ms_endpoint *endpoint) {
  char why[MS_MPI_WHY];
  const ms_mpi_world *world = &endpoint->world;
  const ms_transport_config *config = &endpoint->config;
  MS_TRY(ms_mpi_load(&endpoint->library));
  endpoint->mpi = endpoint->library->start(&endpoint->world, why);
  if (!endpoint->mpi) return MS_FAIL(MS_EUNSUPPORTED, "transport mpi: %s", why);
  if (world->rank == config->rank && world->size == config->size) return MS_OK;
  return MS_FAIL(MS_EINVAL,
                 "transport mpi: this is rank %d of %d, and %s counts it as rank %d of %d: was libmoonshard_mpi.so "
                 "built for the MPI whose launcher started the ranks (with Slurm: srun --mpi=pmix or pmi2)?",
                 config->rank, config->size, world->name, world->rank, world->size);
}

static int open_endpoint(const ms_transport_config *config, ms_endpoint **endpoint) {
  int rc;
  *endpoint = NULL;
  MS_TRY(check_config(config));
  ms_endpoint *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  made->config = *config;
  made->config.token = made->config.job = NULL; /* the caller's; not used later */
  made->job = ms_hash_string(MS_HASH_INIT, config->job);
  made->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  made->peer_of = ms_calloc(config->size, sizeof *made->peer_of);
  if (!made->peer_of) MS_GOTO(MS_ENOMEM);
  for (int rank = 0; rank < config->size; rank++) made->peer_of[rank] = -1;
  if (made->wake < 0) MS_GOTO(MS_FAIL(MS_EIO, "transport: eventfd: %s", strerror(errno)));
  MS_GOTO(start_mpi(made));
  *endpoint = made;
  return MS_OK;
fail:
  free_endpoint(made);
  return rc;
}

static int get_address(const ms_endpoint *endpoint, void *address) {
  uint8_t *bytes = address;
  memset(bytes, 0, MS_TRANSPORT_ADDRESS);
  memcpy(bytes, MARK, sizeof MARK);
  ms_wire_put32(bytes + sizeof MARK, MS_MPI_VERSION);
  ms_wire_put32(bytes + sizeof MARK + 4, (uint32_t)endpoint->config.rank);
  memcpy(bytes + sizeof MARK + 8, endpoint->world.name, MS_MPI_NAME);
  return MS_OK;
}

/* ---- connect ---- */

static int check_peer(const ms_endpoint *endpoint, int rank, const uint8_t *address) {
  uint8_t expected[MS_TRANSPORT_ADDRESS];
  if (rank < 0 || rank >= endpoint->config.size || rank == endpoint->config.rank)
    return MS_FAIL(MS_EINVAL, "transport: rank %d cannot be a peer of rank %d", rank, endpoint->config.rank);
  get_address(endpoint, expected);
  ms_wire_put32(expected + sizeof MARK + 4, (uint32_t)rank);
  if (!memcmp(address, expected, MS_TRANSPORT_ADDRESS)) return MS_OK;
  if (memcmp(address, MARK, sizeof MARK))
    return MS_FAIL(MS_EINVAL, "transport: the address of rank %d is not one of MPI", rank);
  return MS_FAIL(MS_EINVAL, "transport: rank %d has another build or another MPI than %s, or its address is rank %u's",
                 rank, endpoint->world.name, ms_wire_get32(address + sizeof MARK + 4));
}

static int add_peer(ms_endpoint *endpoint, int rank) {
  ms_mpi_peer *peer = &endpoint->peers[endpoint->n_peers];
  *peer = (ms_mpi_peer){.rank = rank,
                        .first_slot = endpoint->n_peers * MS_MPI_SLOTS,
                        .hello = 1,
                        .connect_by = ms_clock() + endpoint->config.timeout};
  endpoint->peer_of[rank] = endpoint->n_peers++;
  peer->keys.slot = ms_calloc(MS_TRANSPORT_KEYS, sizeof *peer->keys.slot);
  peer->dropped = ms_calloc(MS_MPI_UNDER_WAY, MS_MPI_PIECE);
  return peer->keys.slot && peer->dropped ? MS_OK : MS_ENOMEM;
}

/* With room for every rank of the world, since more peers can be named later; untouched memory costs nothing. */
static int make_room(ms_endpoint *endpoint) {
  const int most = endpoint->config.size;
  endpoint->peers = ms_calloc(most, sizeof *endpoint->peers);
  endpoint->over = ms_calloc((int64_t)most * MS_MPI_SLOTS, sizeof *endpoint->over);
  if (!endpoint->peers || !endpoint->over) return MS_ENOMEM;
  endpoint->turn_at = endpoint->awake_at = ms_clock();
  return endpoint->library->make_slots(endpoint->mpi, most * MS_MPI_SLOTS) ? MS_OK : ms_mpi_break(endpoint);
}

static int connect_peers(ms_endpoint *endpoint, int n, const int *peers, const void *addresses) {
  if (!endpoint->peers) MS_TRY(make_room(endpoint));
  for (int i = 0; i < n; i++) {
    const uint8_t *address = (const uint8_t *)addresses + (size_t)i * MS_TRANSPORT_ADDRESS;
    MS_TRY(check_peer(endpoint, peers[i], address));
    if (endpoint->peer_of[peers[i]] >= 0) continue;
    MS_TRY(add_peer(endpoint, peers[i]));
    MS_TRY(ms_mpi_listen(endpoint, &endpoint->peers[endpoint->n_peers - 1]));
  }
  return MS_OK;
}

static int count_connected(const ms_endpoint *endpoint) { return endpoint->n_up; }

/* ---- progress ---- */

/* Does what can be done without waiting. */
static int turn(ms_endpoint *endpoint) {
  endpoint->news = 0;
  if (!endpoint->n_peers) return MS_OK;
  MS_TRY(ms_mpi_poll(endpoint));
  for (int i = 0; i < endpoint->n_peers; i++) {
    MS_TRY(ms_mpi_receive(endpoint, &endpoint->peers[i]));
    MS_TRY(ms_mpi_send(endpoint, &endpoint->peers[i]));
  }
  double now = endpoint->turn_at = ms_clock();
  if (now >= endpoint->watch_at) endpoint->watch_at = ms_mpi_watch(endpoint, now);
  if (endpoint->news) endpoint->busy_at = now;
  return ms_mpi_settle(endpoint);
}

/* Sleeps until MPI has to be polled again, at most until `until`. Returns 1 when wake was called. */
static int pause_until(ms_endpoint *endpoint, double now, double until) {
  struct pollfd woken = {.fd = endpoint->wake, .events = POLLIN};
  const double idle = now - endpoint->busy_at;
  const double most = fmin(until - now, has_pieces(endpoint) ? BUSY_PAUSE : IDLE_PAUSE);
  const double seconds = idle < SPIN_SECONDS ? 0 : fmax(0, fmin(most, PAUSE_SHARE * idle));
  uint64_t count;
  if (ppoll(&woken, 1, &(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL) > 0)
    return read(endpoint->wake, &count, sizeof count) > 0;
  if (!(seconds > 0)) sched_yield();
  return 0;
}

static void report_failures(ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->n_peers; i++) {
    ms_mpi_peer *peer = &endpoint->peers[i];
    if (peer->report != 2) continue;
    peer->report = 3;
    if (endpoint->config.failed) endpoint->config.failed(endpoint->config.context, peer->rank, peer->why);
  }
}

static int progress(ms_endpoint *endpoint, double seconds) {
  double now = ms_clock(), until = now + seconds;
  int rc = MS_OK, woken = 0;
  if (now - endpoint->turn_at > fmin(AWAY_SECONDS, endpoint->config.timeout / 2)) endpoint->awake_at = now;
  while (!(rc = turn(endpoint)) && !endpoint->news && !woken && (now = ms_clock()) < until)
    woken = pause_until(endpoint, now, until);
  report_failures(endpoint);
  if (!*endpoint->broken) return rc;
  if (rc) pause_until(endpoint, now, until); /* the caller's loop goes on until it closes the endpoint */
  return MS_FAIL(MS_EIO, "transport mpi: %s", endpoint->broken);
}

static void wake(ms_endpoint *endpoint) {
  uint64_t one = 1;
  while (write(endpoint->wake, &one, sizeof one) < 0 && errno == EINTR) continue;
}

/* ---- transfers ---- */

static int post(ms_endpoint *endpoint, ms_transfer *transfer) {
  int rank = transfer->peer, index = rank >= 0 && rank < endpoint->config.size ? endpoint->peer_of[rank] : -1;
  if (index < 0) return MS_FAIL(MS_EINVAL, "transport: rank %d is no peer of rank %d", rank, endpoint->config.rank);
  if (transfer->bytes < 1) return MS_FAIL(MS_EINVAL, "transport: a transfer of %lld bytes", (long long)transfer->bytes);
  ms_mpi_peer *peer = &endpoint->peers[index];
  if (peer->state == MS_MPI_LEFT) ms_mpi_fail(endpoint, peer, 0, "it has left");
  if (peer->state == MS_MPI_FAILED) {
    transfer->state = MS_TRANSFER_FAILED;
    return MS_OK;
  }
  endpoint->busy_at = ms_clock();
  return ms_keys_post(&peer->keys, transfer);
}

/* Waits until MPI holds nothing of a key, for at most the time of the deadline. */
static void drain(ms_endpoint *endpoint, ms_mpi_peer *peer, const ms_key *key) {
  double end = ms_clock() + endpoint->config.timeout;
  int rc = ms_mpi_take_back(endpoint, peer, key);
  while (!rc && ms_mpi_holds(peer, key) && ms_clock() < end) {
    rc = turn(endpoint);
    if (!endpoint->news) pause_until(endpoint, ms_clock(), end);
  }
  if (!ms_mpi_holds(peer, key)) return;
  ms_mpi_fail(endpoint, peer, 1, "a cancelled transfer did not end within %g s", endpoint->config.timeout);
  ms_mpi_give_up(endpoint, peer);
}

static void cancel(ms_endpoint *endpoint, uint64_t number) {
  ms_error_record before;
  ms_error_save(&before);
  for (int i = 0; i < endpoint->n_peers; i++) {
    ms_mpi_peer *peer = &endpoint->peers[i];
    ms_key *key = ms_keys_find(&peer->keys, number);
    if (!key) continue;
    key->cancelled = MS_KEY_BY_CALLER;
    drain(endpoint, peer, key);
    ms_key_fail(key);
  }
  ms_error_restore(&before);
}

static void get_counts(const ms_endpoint *endpoint, ms_transport_counts *counts) { *counts = endpoint->counts; }

/* ---- close ---- */

/* 1: MPI still has something to do before this side can leave. */
static int is_due(const ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->n_peers; i++)
    if (endpoint->peers[i].last_kind || endpoint->peers[i].pong) return 1;
  return has_pieces(endpoint) || has_messages(endpoint);
}

/* Takes back what no message has come for: also pieces that were announced, and never sent. */
static void stop_listening(ms_endpoint *endpoint) {
  const ms_mpi_library *library = endpoint->library;
  for (int i = 0; i < endpoint->n_peers; i++) {
    ms_mpi_peer *peer = &endpoint->peers[i];
    if (peer->listens && library->take_back(endpoint->mpi, peer->first_slot + MS_MPI_SLOT_IN)) peer->listens = 0;
    for (int k = 0; k < MS_MPI_UNDER_WAY; k++)
      if (peer->in[k].held && library->take_back(endpoint->mpi, peer->first_slot + MS_MPI_SLOT_PIECE_IN + k))
        peer->in[k].held = 0;
  }
}

static void close_endpoint(ms_endpoint *endpoint) {
  ms_error_record before;
  if (!endpoint) return;
  ms_error_save(&before);
  endpoint->closes = 1;
  endpoint->awake_at = ms_clock();
  for (int i = 0; i < endpoint->n_peers; i++)
    if (endpoint->peers[i].state == MS_MPI_UP) endpoint->peers[i].last_kind = MS_MPI_GOODBYE;
  for (double end = ms_clock() + CLOSE_SECONDS; is_due(endpoint) && ms_clock() < end;) {
    if (turn(endpoint)) break;
    if (!endpoint->news) pause_until(endpoint, ms_clock(), end);
  }
  for (int i = 0; i < endpoint->n_peers; i++)
    for (int k = 0; k < endpoint->peers[i].keys.reach; k++)
      if (endpoint->peers[i].keys.slot[k].used) ms_key_fail(&endpoint->peers[i].keys.slot[k]);
  stop_listening(endpoint);
  free_endpoint(endpoint);
  ms_error_restore(&before);
}

const ms_transport_api ms_transport_mpi = {.name = "mpi",
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
