/* watch.c - deadlines, and the end of peers that have failed, of whose transfers MPI may still hold memory.
 *
 * MPI itself reports nothing: where a process dies, the launcher ends the job. So a peer that is stopped, or that a
 * launcher leaves alone, is noticed by deadlines only: of pieces under way, and of pings.
 */
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/transport/mpi/mpi.h"

/* Seconds between two looks. */
static const double LOOK_SECONDS = 0.1;

void ms_mpi_give_up(ms_endpoint *endpoint, ms_mpi_peer *peer) {
  if (ms_mpi_holds(peer, NULL) && !*endpoint->broken)
    snprintf(endpoint->broken, sizeof endpoint->broken,
             "rank %d has failed (%.400s), and MPI still holds memory of transfers with it: this process has to end",
             peer->common.rank, peer->common.why);
  for (int i = 0; i < MS_MPI_UNDER_WAY; i++) peer->out[i].key = peer->in[i].key = NULL;
}

int ms_mpi_settle(ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->common.n; i++) {
    ms_mpi_peer *peer = &endpoint->peers[i];
    if (peer->common.report != MS_PEER_UNSETTLED) continue;
    MS_TRY(ms_mpi_take_back(endpoint, peer, NULL));
    if (ms_mpi_holds(peer, NULL) && ms_clock() < peer->fail_by) continue;
    ms_mpi_give_up(endpoint, peer);
    ms_keys_fail(&peer->common.keys);
    peer->common.report = MS_PEER_DUE;
    endpoint->news++;
  }
  return MS_OK;
}

/* ---- deadlines ---- */

/* It has had its time: what is under way is not waited for. */
static void fail_late(ms_endpoint *endpoint, ms_mpi_peer *peer, const char *what) {
  ms_peer_fail(endpoint, &peer->common, 1, "%s within %g s", what, endpoint->common.config.timeout);
  peer->fail_by = 0;
}

static int is_late(const ms_endpoint *endpoint, const ms_mpi_piece *pieces, double moved_at, double now) {
  int held = 0;
  for (int i = 0; i < MS_MPI_UNDER_WAY; i++) held |= pieces[i].held;
  return held && ms_peers_is_late(&endpoint->common, moved_at, now);
}

static void watch(ms_endpoint *endpoint, ms_mpi_peer *peer, double now) {
  if (peer->common.state == MS_PEER_APART && now > peer->common.connect_by)
    fail_late(endpoint, peer, "it has not said hello over MPI");
  if (peer->common.state != MS_PEER_UP) return;
  if (is_late(endpoint, peer->out, peer->out_moved_at, now) || is_late(endpoint, peer->in, peer->in_moved_at, now))
    fail_late(endpoint, peer,
              "its process hangs or was stopped: no byte of a transfer that both ranks have posted was moved");
  else if (ms_keys_are_awaited(&peer->common.keys) && ms_peer_is_silent(&endpoint->common, &peer->common, now))
    fail_late(endpoint, peer, "its process hangs or was stopped: no answer, while transfers wait for it,");
}

double ms_mpi_watch(ms_endpoint *endpoint, double now) {
  for (int i = 0; i < endpoint->common.n; i++) watch(endpoint, &endpoint->peers[i], now);
  return now + fmin(LOOK_SECONDS, endpoint->common.config.timeout / 10);
}
