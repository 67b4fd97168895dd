/* emulated_mpi.h - an MPI among the endpoints of one process: the table of mpi/library.h, in a library that
 * MOONSHARD_MPI_LIBRARY can name. Messages of up to EMULATED_EAGER bytes are copied when they are sent;
 * of others the sender's memory is read when the receiver polls, a poll after it has met the message.
 */
#ifndef MS_TESTS_EMULATED_MPI_H
#define MS_TESTS_EMULATED_MPI_H

enum { EMULATED_EAGER = 4096, EMULATED_RANKS = 8 };

typedef struct emulated_mpi {
  int started;    /* endpoints that have not ended */
  int taken_back; /* receives */
  int waiting;    /* bytes of messages that have no receive yet, and not of their senders */
  int fails;      /* set by tests: every poll fails */
} emulated_mpi;

/* The library exports it under this name. */
#define EMULATED_MPI "ms_emulated_mpi"

/* For tests (tests/c/support/emulated_mpi.c): makes the transport mpi load the library in the folder of the program,
 * and gives the endpoint that is opened next its rank. Both return 0. */
int use_emulated_mpi(void);
int be_emulated_rank(int rank, int size);
/* The transport mpi with an `open` that does both, for ranks that are threads. */
const struct ms_transport_api *emulated_mpi_transport(void);

#endif
