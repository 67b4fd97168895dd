/* library.h - the functions of MPI that the transport mpi needs, in a table that libmoonshard_mpi.so exports. That
 * library (library.c) is built with the headers of one MPI; the engine knows no type of any.
 *
 * A slot holds one request, a send or a receive, from the call that begins it until `poll` or `take_back` says that it
 * is over. Functions return 1 for success and 0 for failure, and then `why` says what MPI said, unless their comment
 * says otherwise. One thread at a time calls them.
 */
#ifndef MS_COMM_TRANSPORT_MPI_LIBRARY_H
#define MS_COMM_TRANSPORT_MPI_LIBRARY_H

#include <stddef.h>

/* MS_MPI_LIBRARY_VERSION: version of this table. A library that was built for another version is refused. */
enum { MS_MPI_LIBRARY_VERSION = 1, MS_MPI_NAME = 64, MS_MPI_WHY = 512 };

/* A communicator of its own, with all ranks that the launcher started, and the slots. */
typedef struct ms_mpi ms_mpi;

typedef struct ms_mpi_world {
  int rank, size;
  char name[MS_MPI_NAME]; /* "Open MPI v4.1.4" */
} ms_mpi_world;

typedef struct ms_mpi_over {
  int slot;
  int bytes; /* of a receive: how many came; -1: it failed, and `why` says how */
} ms_mpi_over;

typedef struct ms_mpi_library {
  int version; /* MS_MPI_LIBRARY_VERSION */
  /* Initialises MPI, unless the program has, and waits until all ranks have called this. Returns NULL on failure. What
   * it has initialised is finalized when the process ends by exit(0), or main's, and every ms_mpi has ended. A process
   * that ends otherwise leaves the job to the launcher, which ends it. */
  ms_mpi *(*start)(ms_mpi_world *world, char why[MS_MPI_WHY]);
  /* Makes room for so many slots, once. */
  int (*make_slots)(ms_mpi *mpi, int slots);
  int (*send)(ms_mpi *mpi, int slot, int rank, int tag, const void *data, int bytes);
  int (*receive)(ms_mpi *mpi, int slot, int rank, int tag, void *data, int bytes);
  /* Lets MPI make progress. Returns how many slots are over, at most as many as there are, and -1 on failure. */
  int (*poll)(ms_mpi *mpi, ms_mpi_over *over);
  /* Takes a receive back whose message has not come. Returns 0 when it has, or is on its way: poll says when it is
   * over. */
  int (*take_back)(ms_mpi *mpi, int slot);
  const char *(*why)(const ms_mpi *mpi);
  /* Frees the slots, unless MPI may still write to them: then MPI cannot be finalized. The communicator stays: freeing
   * it would wait for the other ranks. */
  void (*end)(ms_mpi *mpi);
} ms_mpi_library;

/* The library exports this function. */
#define MS_MPI_ENTRY "ms_mpi_library_table"
typedef const ms_mpi_library *(*ms_mpi_entry)(void);

#endif
