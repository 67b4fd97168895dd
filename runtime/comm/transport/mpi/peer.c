/* peer.c - a peer that has failed, and a library that has. */
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/transport/mpi/mpi.h"

void ms_mpi_fail(ms_endpoint *endpoint, ms_mpi_peer *peer, int say, const char *format, ...) {
  va_list args;
  if (peer->state == MS_MPI_FAILED) return;
  va_start(args, format);
  vsnprintf(peer->why, sizeof peer->why, format, args);
  va_end(args);
  if (peer->state == MS_MPI_UP) endpoint->n_up--;
  if (say) peer->last_kind = MS_MPI_REASON_OF;
  peer->state = MS_MPI_FAILED;
  peer->report = 1;
  peer->fail_by = ms_clock() + endpoint->config.timeout;
  endpoint->news++;
}

int ms_mpi_break(ms_endpoint *endpoint) {
  if (!*endpoint->broken)
    snprintf(endpoint->broken, sizeof endpoint->broken, "%s", endpoint->library->why(endpoint->mpi));
  return MS_FAIL(MS_EIO, "transport mpi: %s", endpoint->broken);
}
