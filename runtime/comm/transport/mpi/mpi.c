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
#include "base/text/hash.h"
#include "comm/transport/mpi/mpi.h"

static const double CLOSE_SECONDS = 1.0;
/* MPI is polled without a pause for so many seconds after something has happened; then the pauses grow, as a share of
 * the time since, up to the second and third of these: while pieces are under way, and otherwise. */
static const double SPIN_SECONDS = 1e-4, BUSY_PAUSE = 1e-4, IDLE_PAUSE = 1e-3, PAUSE_SHARE = 0.5;
static const char MARK[] = "moonshard mpi";

/* ---- what MPI holds ---- */

static int has_pieces(const ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->common.n; i++)
    for (int k = 0; k < MS_MPI_UNDER_WAY; k++)
      if (endpoint->peers[i].out[k].held || endpoint->peers[i].in[k].held) return 1;
  return 0;
}

static int has_messages(const ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->common.n; i++)
    for (int k = 0; k < MS_MPI_MESSAGES; k++)
      if (endpoint->peers[i].busy[k]) return 1;
  return 0;
}

static int listens(const ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->common.n; i++)
    if (endpoint->peers[i].listens) return 1;
  return 0;
}

static int holds_anything(const ms_endpoint *endpoint) {
  return has_pieces(endpoint) || has_messages(endpoint) || listens(endpoint);
}

/* ---- peers ---- */

static void write_address(const ms_endpoint *endpoint, int rank, uint8_t address[MS_TRANSPORT_ADDRESS]) {
  memset(address, 0, MS_TRANSPORT_ADDRESS);
  memcpy(address, MARK, sizeof MARK);
  ms_wire_put32(address + sizeof MARK, MS_MPI_VERSION);
  ms_wire_put32(address + sizeof MARK + 4, (uint32_t)rank);
  memcpy(address + sizeof MARK + 8, endpoint->world.name, MS_MPI_NAME);
}

static int check_peer(const ms_endpoint *endpoint, int rank, const uint8_t *address) {
  uint8_t expected[MS_TRANSPORT_ADDRESS];
  write_address(endpoint, rank, expected);
  if (!memcmp(address, expected, MS_TRANSPORT_ADDRESS)) return MS_OK;
  if (memcmp(address, MARK, sizeof MARK))
    return MS_FAIL(MS_EINVAL, "transport: the address of rank %d is not one of MPI", rank);
  return MS_FAIL(MS_EINVAL, "transport: rank %d has another build or another MPI than %s, or its address is rank %u's",
                 rank, endpoint->world.name, ms_wire_get32(address + sizeof MARK + 4));
}

/* With slots for every rank of the world, since more peers can be named later; untouched memory costs nothing. */
static int make_room(ms_endpoint *endpoint) {
  const int slots = endpoint->common.config.size * MS_MPI_SLOTS;
  endpoint->over = ms_calloc(slots, sizeof *endpoint->over);
  if (!endpoint->over) return MS_ENOMEM;
  endpoint->common.turn_at = endpoint->common.awake_at = ms_clock();
  return endpoint->library->make_slots(endpoint->mpi, slots) ? MS_OK : ms_mpi_break(endpoint);
}

static int name_peer(ms_endpoint *endpoint, int rank, const uint8_t *address) {
  MS_TRY(check_peer(endpoint, rank, address));
  if (ms_peers_find(&endpoint->common, rank)) return MS_OK;
  if (!endpoint->over) MS_TRY(make_room(endpoint));
  ms_mpi_peer *peer = (ms_mpi_peer *)ms_peers_add(&endpoint->common, rank);
  if (!peer) return MS_ENOMEM;
  peer->first_slot = (int)(peer - endpoint->peers) * MS_MPI_SLOTS;
  peer->hello = 1;
  peer->dropped = ms_calloc(MS_MPI_UNDER_WAY, MS_MPI_PIECE);
  return peer->dropped ? ms_mpi_listen(endpoint, peer) : MS_ENOMEM;
}

/* ---- progress ---- */

/* Does what can be done without waiting. */
static int turn(ms_endpoint *endpoint) {
  endpoint->news = 0;
  if (!endpoint->common.n) return MS_OK;
  MS_TRY(ms_mpi_poll(endpoint));
  for (int i = 0; i < endpoint->common.n; i++) {
    MS_TRY(ms_mpi_receive(endpoint, &endpoint->peers[i]));
    MS_TRY(ms_mpi_send(endpoint, &endpoint->peers[i]));
  }
  double now = endpoint->common.turn_at = ms_clock();
  if (now >= endpoint->common.watch_at) endpoint->common.watch_at = ms_mpi_watch(endpoint, now);
  if (endpoint->news) endpoint->busy_at = now;
  return ms_mpi_settle(endpoint);
}

/* Sleeps until MPI has to be polled again, at most until `until`. Returns 1 when wake was called. */
static int pause_until(ms_endpoint *endpoint, double now, double until) {
  struct pollfd woken = {.fd = endpoint->common.wake, .events = POLLIN};
  const double idle = now - endpoint->busy_at;
  const double most = fmin(until - now, has_pieces(endpoint) ? BUSY_PAUSE : IDLE_PAUSE);
  const double seconds = idle < SPIN_SECONDS ? 0 : fmax(0, fmin(most, PAUSE_SHARE * idle));
  uint64_t count;
  if (ppoll(&woken, 1, &(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL) > 0)
    return read(endpoint->common.wake, &count, sizeof count) > 0;
  if (!(seconds > 0)) sched_yield();
  return 0;
}

/* ---- transfers ---- */

/* Waits until MPI holds nothing of a key, for at most the time of the deadline. */
static void drain(ms_endpoint *endpoint, ms_peer *common, ms_key *key) {
  ms_mpi_peer *peer = (ms_mpi_peer *)common;
  double end = ms_clock() + endpoint->common.config.timeout;
  int rc = ms_mpi_take_back(endpoint, peer, key);
  while (!rc && ms_mpi_holds(peer, key) && ms_clock() < end) {
    rc = turn(endpoint);
    if (!endpoint->news) pause_until(endpoint, ms_clock(), end);
  }
  if (!ms_mpi_holds(peer, key)) return;
  ms_peer_fail(endpoint, &peer->common, 1, "a cancelled transfer did not end within %g s",
               endpoint->common.config.timeout);
  ms_mpi_give_up(endpoint, peer);
}

static int post(ms_endpoint *endpoint, ms_transfer *transfer) {
  endpoint->busy_at = ms_clock(); /* it is polled without a pause for a moment */
  return ms_peers_post(endpoint, transfer);
}

static const ms_peer_calls calls = {.name = name_peer, .end = ms_mpi_end_failed, .let_go = drain};

static int progress(ms_endpoint *endpoint, double seconds) {
  double now = ms_clock(), until = now + seconds;
  int rc = MS_OK, woken = 0;
  ms_peers_begin_turn(&endpoint->common, now);
  while (!(rc = turn(endpoint)) && !endpoint->news && !woken && (now = ms_clock()) < until)
    woken = pause_until(endpoint, now, until);
  ms_peers_report(endpoint);
  if (!*endpoint->broken) return rc;
  if (rc) pause_until(endpoint, now, until); /* the caller's loop goes on until it closes the endpoint */
  return MS_FAIL(MS_EIO, "transport mpi: %s", endpoint->broken);
}

/* ---- open ---- */

static void free_endpoint(ms_endpoint *endpoint) {
  const int is_held = holds_anything(endpoint);
  if (endpoint->mpi) endpoint->library->end(endpoint->mpi);
  if (is_held) { /* MPI may still write to the peers' memory; it is never freed */
    close(endpoint->common.wake);
    return;
  }
  for (int i = 0; i < endpoint->common.n; i++) free(endpoint->peers[i].dropped);
  ms_peers_close(&endpoint->common);
  free(endpoint->over);
  free(endpoint);
}

static int start_mpi(ms_endpoint *endpoint) {
  char why[MS_MPI_WHY];
  const ms_mpi_world *world = &endpoint->world;
  const ms_transport_config *config = &endpoint->common.config;
  MS_TRY(ms_mpi_load(&endpoint->library));
  endpoint->mpi = endpoint->library->start(&endpoint->world, why);
  if (!endpoint->mpi) return MS_FAIL(MS_EUNSUPPORTED, "transport mpi: %s", why);
  if (world->rank == config->rank && world->size == config->size) return MS_OK;
  return MS_FAIL(MS_EINVAL,
                 "transport mpi: this is rank %d of %d, and %s counts it as rank %d of %d: was libmoonshard_mpi.so "
                 "built for the MPI whose launcher started the ranks (with Slurm: srun --mpi=pmix or pmi2)?",
                 config->rank, config->size, world->name, world->rank, world->size);
}

static int prepare(ms_endpoint *endpoint, const ms_transport_config *config) {
  MS_TRY(ms_peers_open(&endpoint->common, config, sizeof *endpoint->peers, &calls));
  MS_TRY(ms_mpi_check_launcher(config->rank, config->size));
  endpoint->peers = (ms_mpi_peer *)endpoint->common.first;
  endpoint->job = ms_hash_string(MS_HASH_INIT, config->job);
  MS_TRY(start_mpi(endpoint));
  write_address(endpoint, config->rank, endpoint->common.address);
  return MS_OK;
}

static int open_endpoint(const ms_transport_config *config, ms_endpoint **endpoint) {
  int rc;
  *endpoint = NULL;
  ms_endpoint *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  MS_GOTO(prepare(made, config));
  *endpoint = made;
  return MS_OK;
fail:
  free_endpoint(made);
  return rc;
}

/* ---- close ---- */

/* 1: MPI still has something to do before this side can leave. */
static int is_due(const ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->common.n; i++)
    if (endpoint->peers[i].last_kind || endpoint->peers[i].common.pong) return 1;
  return has_pieces(endpoint) || has_messages(endpoint);
}

/* Takes back what no message has come for: also pieces that were announced, and never sent. */
static void stop_listening(ms_endpoint *endpoint) {
  const ms_mpi_library *library = endpoint->library;
  for (int i = 0; i < endpoint->common.n; i++) {
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
  endpoint->common.awake_at = ms_clock();
  for (int i = 0; i < endpoint->common.n; i++)
    if (endpoint->peers[i].common.state == MS_PEER_UP) endpoint->peers[i].last_kind = MS_MPI_GOODBYE;
  for (double end = ms_clock() + CLOSE_SECONDS; is_due(endpoint) && ms_clock() < end;) {
    if (turn(endpoint)) break;
    if (!endpoint->news) pause_until(endpoint, ms_clock(), end);
  }
  for (int i = 0; i < endpoint->common.n; i++) ms_keys_fail(&endpoint->peers[i].common.keys);
  stop_listening(endpoint);
  free_endpoint(endpoint);
  ms_error_restore(&before);
}

const ms_transport_api ms_transport_mpi = {.name = "mpi",
                                           .open = open_endpoint,
                                           .address = ms_peers_get_address,
                                           .connect = ms_peers_connect,
                                           .connected = ms_peers_connected,
                                           .post = post,
                                           .progress = progress,
                                           .wake = ms_peers_wake,
                                           .cancel = ms_peers_cancel,
                                           .counts = ms_peers_get_counts,
                                           .close = close_endpoint};
