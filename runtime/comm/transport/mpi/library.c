/* library.c - libmoonshard_mpi.so: the table of library.h over the MPI whose headers it was built with.
 *
 * Threads: the program's thread opens the endpoint and closes it, its progress thread does everything between, so MPI
 * is asked for MPI_THREAD_SERIALIZED. A program that has initialised MPI itself also calls it while the progress thread
 * does, and must have asked for MPI_THREAD_MULTIPLE.
 *
 * MPI_Finalize waits for all ranks, and a process that ends without it ends the job. So it is called when the process
 * ends well, and not before: a rank that has failed does not wait for others.
 */
#include "comm/transport/mpi/library.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ms_mpi {
  MPI_Comm comm;
  int slots, reach;     /* reach: those that were ever used are below it */
  MPI_Request *request; /* [slots]; MPI_REQUEST_NULL: free */
  MPI_Status *status;   /* [slots]: of poll */
  int *index;           /* [slots]: of poll */
  char *receives;       /* [slots] */
  char *cancelled;      /* [slots]: MPI was asked to cancel it, and did not */
  ms_mpi_over *early;   /* [slots]: was over when it was to be taken back */
  int n_early;
  char why[MS_MPI_WHY];
};

static void explain(int code, const char *what, char why[MS_MPI_WHY]) {
  char text[MPI_MAX_ERROR_STRING] = "an unknown error";
  int length;
  MPI_Error_string(code, text, &length);
  snprintf(why, MS_MPI_WHY, "%s: %.400s", what, text);
}

static int succeeds(ms_mpi *mpi, int code, const char *what) {
  if (code != MPI_SUCCESS) explain(code, what, mpi->why);
  return code == MPI_SUCCESS;
}

/* ---- start and end ---- */

/* The MPI that this library has initialised, in this process. */
static struct {
  pid_t process; /* 0: it has not */
  int in_use;    /* ms_mpi that have not ended, or of which MPI may still use memory */
} ours;

/* When the process ends. Children that were forked have inherited this. */
static void finalize(int status, void *unused) {
  (void)unused;
  if (!status && !ours.in_use && ours.process == getpid()) MPI_Finalize();
}

static void read_name(char name[MS_MPI_NAME]) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "MPI";
  int length;
  MPI_Get_library_version(text, &length);
  text[strcspn(text, ",\n")] = '\0';
  snprintf(name, MS_MPI_NAME, "%.*s", MS_MPI_NAME - 1, text);
}

/* 1: MPI runs, with threads as this library needs them. */
static int initialise(char why[MS_MPI_WHY]) {
  int runs = 0, ended = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&runs);
  MPI_Finalized(&ended);
  if (ended) {
    snprintf(why, MS_MPI_WHY, "MPI was finalized in this process, and it cannot begin again");
    return 0;
  }
  int code = runs ? MPI_Query_thread(&level) : MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
  if (code != MPI_SUCCESS) {
    explain(code, "MPI_Init_thread", why);
    return 0;
  }
  if (!runs) {
    ours.process = getpid();
    on_exit(finalize, NULL); /* runs before what MPI_Init has registered */
  }
  if (level >= (ours.process ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE)) return 1;
  snprintf(why, MS_MPI_WHY, "%s",
           ours.process
               ? "this MPI was built for a single thread: it does not offer MPI_THREAD_SERIALIZED"
               : "the program has initialised MPI without MPI_THREAD_MULTIPLE, and a second thread would call it");
  return 0;
}

static ms_mpi *start(ms_mpi_world *world, char why[MS_MPI_WHY]) {
  memset(world, 0, sizeof *world);
  ms_mpi *mpi = calloc(1, sizeof *mpi);
  if (!mpi) {
    snprintf(why, MS_MPI_WHY, "out of memory");
    return NULL;
  }
  if (!initialise(why)) {
    free(mpi);
    return NULL;
  }
  read_name(world->name);
  MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world->size);
  int code = MPI_Comm_dup(MPI_COMM_WORLD, &mpi->comm);
  if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
  ours.in_use += code == MPI_SUCCESS;
  if (code == MPI_SUCCESS) return mpi;
  explain(code, "MPI_Comm_dup", why);
  free(mpi);
  return NULL;
}

static int make_slots(ms_mpi *mpi, int slots) {
  size_t n = (size_t)slots + 1; /* none of them is NULL then */
  mpi->request = malloc(n * sizeof *mpi->request);
  mpi->status = malloc(n * sizeof *mpi->status);
  mpi->index = malloc(n * sizeof *mpi->index);
  mpi->receives = calloc(n, 1);
  mpi->cancelled = calloc(n, 1);
  mpi->early = malloc(n * sizeof *mpi->early);
  if (!mpi->request || !mpi->status || !mpi->index || !mpi->receives || !mpi->cancelled || !mpi->early) {
    snprintf(mpi->why, sizeof mpi->why, "out of memory for %d requests", slots);
    return 0;
  }
  for (int i = 0; i < slots; i++) mpi->request[i] = MPI_REQUEST_NULL;
  mpi->slots = slots;
  return 1;
}

static void end(ms_mpi *mpi) {
  for (int i = 0; i < mpi->slots; i++)
    if (mpi->request[i] != MPI_REQUEST_NULL) return;
  ours.in_use--;
  free(mpi->request);
  free(mpi->status);
  free(mpi->index);
  free(mpi->receives);
  free(mpi->cancelled);
  free(mpi->early);
  free(mpi);
}

/* ---- requests ---- */

static void use(ms_mpi *mpi, int slot, int receives) {
  mpi->receives[slot] = (char)receives;
  mpi->cancelled[slot] = 0;
  if (slot >= mpi->reach) mpi->reach = slot + 1;
}

static int begin_send(ms_mpi *mpi, int slot, int rank, int tag, const void *data, int bytes) {
  use(mpi, slot, 0);
  return succeeds(mpi, MPI_Isend(data, bytes, MPI_BYTE, rank, tag, mpi->comm, &mpi->request[slot]), "MPI_Isend");
}

static int begin_receive(ms_mpi *mpi, int slot, int rank, int tag, void *data, int bytes) {
  use(mpi, slot, 1);
  return succeeds(mpi, MPI_Irecv(data, bytes, MPI_BYTE, rank, tag, mpi->comm, &mpi->request[slot]), "MPI_Irecv");
}

static ms_mpi_over over_with(ms_mpi *mpi, int slot, const MPI_Status *status, int code) {
  ms_mpi_over over = {slot, 0};
  if (!succeeds(mpi, code, "a message")) over.bytes = -1;
  else if (mpi->receives[slot]) MPI_Get_count(status, MPI_BYTE, &over.bytes); /* that of a send is undefined */
  return over;
}

static int poll(ms_mpi *mpi, ms_mpi_over *over) {
  int n = 0, found = 0;
  int code = MPI_Testsome(mpi->reach, mpi->request, &found, mpi->index, mpi->status);
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
    succeeds(mpi, code, "MPI_Testsome");
    return -1;
  }
  for (; mpi->n_early; n++) over[n] = mpi->early[--mpi->n_early];
  for (int i = 0; found != MPI_UNDEFINED && i < found; i++) {
    const MPI_Status *status = &mpi->status[i];
    over[n++] = over_with(mpi, mpi->index[i], status, code == MPI_SUCCESS ? MPI_SUCCESS : status->MPI_ERROR);
  }
  return n;
}

static int take_back(ms_mpi *mpi, int slot) {
  MPI_Status status;
  int is_over = 0, was_cancelled = 0;
  if (mpi->cancelled[slot] || mpi->request[slot] == MPI_REQUEST_NULL) return 0;
  mpi->cancelled[slot] = 1;
  if (MPI_Cancel(&mpi->request[slot]) != MPI_SUCCESS) return 0;
  int code = MPI_Test(&mpi->request[slot], &is_over, &status);
  if (!is_over) return 0; /* its message is on the way */
  MPI_Test_cancelled(&status, &was_cancelled);
  if (!was_cancelled) mpi->early[mpi->n_early++] = over_with(mpi, slot, &status, code);
  return was_cancelled;
}

static const char *get_why(const ms_mpi *mpi) { return mpi->why; }

__attribute__((visibility("default"))) const ms_mpi_library *ms_mpi_library_table(void);
const ms_mpi_library *ms_mpi_library_table(void) {
  static const ms_mpi_library table = {.version = MS_MPI_LIBRARY_VERSION,
                                       .start = start,
                                       .make_slots = make_slots,
                                       .send = begin_send,
                                       .receive = begin_receive,
                                       .poll = poll,
                                       .take_back = take_back,
                                       .why = get_why,
                                       .end = end};
  return &table;
}
