/* emulated_nccl.c - communicators of NCCL among processes of one host: created, split, asked for errors and aborted.
 *
 * The memory is a memfd of the lowest rank, which the others open through /proc: an id is its process and descriptor.
 * MOONSHARD_EMULATE_FAIL also accepts "abort:1" (the first ncclCommAbort never returns).
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "emulated_log.h"
#include "emulated_nccl.h"
#include "emulated_runtime.h"
#include "emulated_window.h"

static char last_error[256] = "";
static _Atomic int not_aborted; /* communicators of this process */

/* ---- barriers and shared memory ---------------------------------------------------------------------------------- */

void emulated_nccl_nap(int turn) {
  struct timespec t = {0, turn < 1000 ? 2000 : 200000};
  nanosleep(&t, NULL);
}

int emulated_nccl_barrier(struct ncclComm *comm) {
  emulated_nccl_memory *m = comm->memory;
  uint32_t mine = comm->generation++;
  if (atomic_fetch_add(&m->arrived[mine & 1], 1) + 1 == (uint32_t)comm->size) {
    atomic_store(&m->arrived[mine & 1], 0);
    atomic_fetch_add(&m->generation, 1);
    return 0;
  }
  for (int turn = 0; atomic_load(&m->generation) == mine; turn++) {
    if (atomic_load(&comm->aborted)) return 1;
    emulated_nccl_nap(turn);
  }
  return 0;
}

static int map(struct ncclComm *comm, int fd) {
  void *memory = mmap(NULL, sizeof(emulated_nccl_memory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) return SYSTEM_ERROR;
  comm->memory = memory;
  return MS_NCCL_SUCCESS;
}

static int offer(emulated_nccl_home *id) {
  id->pid = getpid();
  id->fd = memfd_create("emulated-nccl", MFD_CLOEXEC);
  return id->fd >= 0 && !ftruncate(id->fd, sizeof(emulated_nccl_memory)) ? MS_NCCL_SUCCESS : SYSTEM_ERROR;
}

static int join(struct ncclComm *comm, emulated_nccl_home id) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", id.pid, id.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return SYSTEM_ERROR;
  int rc = map(comm, fd);
  close(fd);
  return rc;
}

/* ---- creating communicators -------------------------------------------------------------------------------------- */

static void *open_on_thread(void *argument) {
  struct ncclComm *comm = argument;
  int rc = join(comm, comm->id);
  if (!rc) rc = emulated_nccl_barrier(comm) ? REMOTE_ERROR : MS_NCCL_SUCCESS;
  if (!rc) emulated_take(COMM_BYTES);
  atomic_store(&comm->state, rc);
  return NULL;
}

/* Runs a thread for the communicator, which is in progress until the thread sets its state. */
static int start(struct ncclComm *comm, void *(*run)(void *), void *argument) {
  atomic_store(&comm->state, MS_NCCL_IN_PROGRESS);
  comm->opens = !pthread_create(&comm->opening, NULL, run, argument);
  return comm->opens ? MS_NCCL_IN_PROGRESS : SYSTEM_ERROR;
}

int ncclGetVersion(int *version) {
  const char *text = getenv("MOONSHARD_EMULATE_NCCL_VERSION");
  *version = text ? atoi(text) : 22809;
  return MS_NCCL_SUCCESS;
}

static int ids[256], id_count; /* descriptors kept open for ranks that join */

int ncclGetUniqueId(ms_nccl_id *out) {
  emulated_nccl_home id;
  if (emulated_fails("ncclGetUniqueId")) return SYSTEM_ERROR;
  memset(out, 0, sizeof *out);
  int rc = offer(&id);
  if (!rc && id_count < 256) ids[id_count++] = id.fd;
  memcpy(out, &id, sizeof id);
  return rc;
}

__attribute__((destructor)) static void close_ids(void) {
  while (id_count) close(ids[--id_count]);
}

/* NCCL would choose the number of thread blocks itself, and up to 32 on any version. */
static int is_bounded(const ms_nccl_config *config) { return config->max_ctas >= 1 && config->max_ctas <= 32; }

static int asks_for_copy_engines(const ms_nccl_config *config) {
  return config->size == sizeof *config && config->cta_policy == MS_NCCL_CTA_POLICY_ZERO;
}

int ncclCommInitRankConfig(ms_nccl_comm *out, int size, ms_nccl_id id, int rank, ms_nccl_config *config) {
  if (emulated_fails("ncclCommInitRankConfig")) return INTERNAL;
  if (size < 1 || size > MAX_RANKS || rank < 0 || rank >= size || config->blocking != 0 || !is_bounded(config))
    return INVALID_ARGUMENT;
  struct ncclComm *comm = calloc(1, sizeof *comm);
  if (!comm) return SYSTEM_ERROR;
  atomic_fetch_add(&not_aborted, 1);
  comm->size = size;
  comm->rank = rank;
  comm->windowed = asks_for_copy_engines(config);
  emulated_log_communicator(size, config->max_ctas);
  memcpy(&comm->id, &id, sizeof comm->id);
  *out = comm;
  return start(comm, open_on_thread, comm);
}

/* The rank with the lowest key of each color provides the memory. All ranks of the parent take part. */
static void *split_on_thread(void *argument) {
  struct ncclComm *comm = argument, *parent = comm->parent;
  emulated_nccl_memory *m = parent->memory;
  int me = parent->rank, leader = me, rc = MS_NCCL_SUCCESS;
  emulated_nccl_home id = {0, -1};
  m->split[me].color = comm->color;
  m->split[me].key = comm->key;
  if (emulated_nccl_barrier(parent)) rc = REMOTE_ERROR;
  for (int p = 0; p < parent->size && !rc; p++) {
    if (m->split[p].color != comm->color) continue;
    comm->size++;
    if (m->split[p].key < comm->key) comm->rank++;
    if (m->split[p].key < m->split[leader].key) leader = p;
  }
  if (!rc && leader == me) {
    rc = offer(&id);
    m->split[me].pid = id.pid;
    m->split[me].fd = id.fd;
  }
  if (!rc && emulated_nccl_barrier(parent)) rc = REMOTE_ERROR;
  if (!rc) rc = join(comm, (emulated_nccl_home){m->split[leader].pid, m->split[leader].fd});
  if (!rc && emulated_nccl_barrier(parent)) rc = REMOTE_ERROR;
  if (id.fd >= 0) close(id.fd);
  if (!rc) emulated_take(COMM_BYTES);
  if (!rc) {
    atomic_fetch_add(&not_aborted, 1);
    *comm->out = comm;
  }
  if (rc && comm->memory) munmap(comm->memory, sizeof(emulated_nccl_memory));
  if (rc) free(comm);
  atomic_fetch_sub(&parent->pending, 1);
  atomic_store(&parent->state, rc);
  return NULL;
}

static void finish_opening(struct ncclComm *comm) {
  if (comm->opens) pthread_join(comm->opening, NULL);
  comm->opens = 0;
}

/* Meanwhile the parent is in progress, and it also reports errors of the split. */
int ncclCommSplit(ms_nccl_comm parent, int color, int key, ms_nccl_comm *out, ms_nccl_config *config) {
  if (emulated_fails("ncclCommSplit")) return INTERNAL;
  if (config->blocking != 0 || atomic_load(&parent->state) || !is_bounded(config)) return INVALID_USAGE;
  struct ncclComm *comm = calloc(1, sizeof *comm);
  if (!comm) return SYSTEM_ERROR;
  comm->parent = parent;
  comm->windowed = asks_for_copy_engines(config);
  emulated_log_communicator(parent->size, config->max_ctas);
  comm->color = color;
  comm->key = key;
  comm->out = out;
  *out = NULL;
  finish_opening(parent);
  atomic_fetch_add(&parent->pending, 1);
  return start(parent, split_on_thread, comm);
}

int ncclCommCount(ms_nccl_comm comm, int *ranks) {
  if (emulated_fails("ncclCommCount")) return INTERNAL;
  *ranks = comm->size;
  return MS_NCCL_SUCCESS;
}

int ncclCommGetAsyncError(ms_nccl_comm comm, int *error) {
  if (emulated_fails("ncclCommGetAsyncError")) return INTERNAL;
  *error = atomic_load(&comm->state);
  return MS_NCCL_SUCCESS;
}

/* As if each communicator's kernels waited for those of the others. */
static int abort_together(void) {
  const char *text = getenv("MOONSHARD_EMULATE_NCCL_ABORTS");
  return text && !strcmp(text, "together");
}

int ncclCommAbort(ms_nccl_comm comm) {
  if (emulated_fails("abort"))
    for (;;) pause();
  atomic_store(&comm->aborted, 1);
  atomic_fetch_sub(&not_aborted, 1);
  for (int turn = 0; abort_together() && atomic_load(&not_aborted); turn++) emulated_nccl_nap(turn);
  for (int turn = 0; atomic_load(&comm->pending) || atomic_load(&comm->issuing); turn++) emulated_nccl_nap(turn);
  finish_opening(comm);
  emulated_window_forget(comm);
  if (comm->memory) {
    if (!atomic_load(&comm->state)) emulated_take(-COMM_BYTES);
    munmap(comm->memory, sizeof(emulated_nccl_memory));
  }
  free(comm);
  return MS_NCCL_SUCCESS;
}

const char *ncclGetErrorString(int result) {
  static const char *const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  return result >= 0 && result < 8 ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ms_nccl_comm comm) {
  (void)comm;
  return last_error;
}
