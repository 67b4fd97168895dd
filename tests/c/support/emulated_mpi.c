/* emulated_mpi.c - lets the transport mpi of a test use the emulated MPI; see emulated_mpi.h. */
#include "tests/emulated_mpi/emulated_mpi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/transport/transport.h"

int use_emulated_mpi(void) {
  char path[4096];
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
  if (n < 0) return -1;
  path[n] = '\0';
  strcpy(strrchr(path, '/') + 1, "libmoonshard_mpi_emulated.so");
  return setenv("MOONSHARD_MPI_LIBRARY", path, 1);
}

/* As mpirun names the ranks that it starts. */
int be_emulated_rank(int rank, int size) {
  char text[16];
  snprintf(text, sizeof text, "%d", rank);
  if (setenv("OMPI_COMM_WORLD_RANK", text, 1)) return -1;
  snprintf(text, sizeof text, "%d", size);
  return setenv("OMPI_COMM_WORLD_SIZE", text, 1);
}

static int open_rank(const ms_transport_config *config, ms_endpoint **endpoint) {
  static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&one_at_a_time);
  int rc = be_emulated_rank(config->rank, config->size) ? MS_FAIL(MS_EIO, "no environment")
                                                        : ms_transport_mpi.open(config, endpoint);
  pthread_mutex_unlock(&one_at_a_time);
  return rc;
}

const ms_transport_api *emulated_mpi_transport(void) {
  static ms_transport_api transport;
  use_emulated_mpi();
  be_emulated_rank(0, 1);
  transport = ms_transport_mpi;
  transport.open = open_rank;
  return &transport;
}
