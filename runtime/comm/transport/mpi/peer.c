/* peer.c - a peer that has failed, and a library that has. */
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/transport/mpi/mpi.h"

void ms_mpi_end_failed(ms_endpoint *endpoint, ms_peer *common, int say) {
  ms_mpi_peer *peer = (ms_mpi_peer *)common;
  if (common->state == MS_PEER_UP) endpoint->common.n_up--;
  if (say) peer->last_kind = MS_MPI_REASON_OF;
  common->state = MS_PEER_GONE;
  peer->fail_by = ms_clock() + endpoint->common.config.timeout;
  endpoint->news++;
}

int ms_mpi_break(ms_endpoint *endpoint) {
  if (!*endpoint->broken)
    snprintf(endpoint->broken, sizeof endpoint->broken, "%s", endpoint->library->why(endpoint->mpi));
  return MS_FAIL(MS_EIO, "transport mpi: %s", endpoint->broken);
}
