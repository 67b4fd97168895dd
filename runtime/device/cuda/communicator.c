/* communicator.c - collectives among GPUs, by NCCL.
 *
 * Communicators are non-blocking: slow operations (opening, the first collective) continue in NCCL's own threads, and
 * ms_cuda_comm_ready reports when they are done. Only non-blocking communicators allow ncclCommAbort while an operation
 * hangs. ncclCommAbort itself can hang, so it runs on a separate thread, which is abandoned after the given time.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/dtype.h"
#include "device/cuda/cuda.h"
#include "device/cuda/nccl.h"

struct ms_device_comm {
  const ms_nccl *nccl;
  ms_nccl_comm comm;
  ms_device_comm *parent;   /* during a split: a thread of NCCL writes `comm` until the parent is ready; else NULL */
  ms_device_comm *given_up; /* list of splits that were closed during a split: the parent frees them */
  int opening;              /* comm_ready has not reported yet that it is open */
  int64_t free_before;      /* free device memory in bytes when opening began */
};

#define NCCL(comm, function, result) check((comm), (function), (result), __LINE__)

static int check(const ms_device_comm *comm, const char *function, int result, int line) {
  if (result == MS_NCCL_SUCCESS || result == MS_NCCL_IN_PROGRESS) return MS_OK;
  const ms_nccl *nccl = comm->nccl;
  const char *detail = comm->comm ? nccl->get_last_error(comm->comm) : NULL;
  int has_detail = detail && *detail;
  return ms_error_raise(MS_EDEVICE, __FILE__, line, "%s: %s%s%s", function, nccl->get_error_string(result),
                        has_detail ? ": " : "", has_detail ? detail : "");
}

static int64_t free_bytes(void) {
  size_t free_now = 0, total;
  return cudaMemGetInfo(&free_now, &total) == cudaSuccess ? (int64_t)free_now : 0;
}

/* Passes the oldest config that suffices; the library sets the fields that it lacks. */
static ms_nccl_config configure(const ms_device *device) {
  int engines = (ms_cuda_nccl(device) & MS_NCCL_COPY_ENGINES) != 0;
  return (ms_nccl_config){.size = engines ? sizeof(ms_nccl_config) : offsetof(ms_nccl_config, comm_name),
                          .magic = MS_NCCL_MAGIC,
                          .version = engines ? MS_NCCL_HAS_COPY_ENGINES : MS_NCCL_OLDEST,
                          .blocking = 0,
                          .cga_cluster_size = INT_MIN,
                          .min_ctas = INT_MIN,
                          .max_ctas = INT_MIN,
                          .split_share = INT_MIN,
                          .traffic_class = INT_MIN,
                          .collnet_enable = INT_MIN,
                          .cta_policy = engines ? MS_NCCL_CTA_POLICY_ZERO : INT_MIN,
                          .shrink_share = INT_MIN,
                          .nvls_ctas = INT_MIN,
                          .channels_per_net_peer = INT_MIN,
                          .nvlink_centric_sched = INT_MIN};
}

static int make(const ms_nccl *nccl, ms_device_comm **comm) {
  *comm = ms_calloc(1, sizeof **comm);
  if (!*comm) return MS_ENOMEM;
  (*comm)->nccl = nccl;
  (*comm)->opening = 1;
  (*comm)->free_before = free_bytes();
  atomic_fetch_add(&ms_cuda_totals.allocations, 1);
  return MS_OK;
}

/* NCCL refuses two ranks on the same GPU of a host. Where ranks share a GPU, each claims to be on a different host. */
static void set_host_id(void) {
  char id[64];
  snprintf(id, sizeof id, "moonshard-%d", (int)getpid());
  if (ms_cuda_shares()) setenv("NCCL_HOSTID", id, 0);
}

int ms_cuda_comm_id(ms_device *device, void *id) {
  ms_device_comm none = {0};
  set_host_id();
  _Static_assert(sizeof(ms_nccl_id) == MS_DEVICE_ID_BYTES, "an id has MS_DEVICE_ID_BYTES bytes");
  MS_TRY(ms_cuda_attach(device));
  MS_TRY(ms_nccl_load(&none.nccl));
  return id ? NCCL(&none, "ncclGetUniqueId", none.nccl->get_unique_id(id)) : MS_OK;
}

int ms_cuda_comm_open(ms_device *device, const void *id, int size, int rank, ms_device_comm **out) {
  const ms_nccl *nccl;
  ms_device_comm *comm;
  ms_nccl_id copy;
  ms_nccl_config config = configure(device);
  memcpy(&copy, id, sizeof copy);
  MS_TRY(ms_cuda_attach(device));
  MS_TRY(ms_nccl_load(&nccl));
  MS_TRY(make(nccl, &comm));
  int rc = NCCL(comm, "ncclCommInitRankConfig", nccl->comm_init_rank_config(&comm->comm, size, copy, rank, &config));
  if (rc) ms_cuda_comm_close(device, comm, 0);
  else *out = comm;
  return rc;
}

int ms_cuda_comm_split(ms_device *device, ms_device_comm *parent, int color, int key, ms_device_comm **out) {
  ms_device_comm *comm;
  ms_nccl_config config = configure(device);
  MS_TRY(ms_cuda_attach(device));
  MS_TRY(make(parent->nccl, &comm));
  int rc = NCCL(parent, "ncclCommSplit", comm->nccl->comm_split(parent->comm, color, key, &comm->comm, &config));
  if (rc) {
    ms_cuda_comm_close(device, comm, 0);
    return rc;
  }
  comm->parent = parent;
  *out = comm;
  return MS_OK;
}

static int ask(const ms_device_comm *comm, const char *about, int *ready) {
  int state = MS_NCCL_SUCCESS;
  MS_TRY(NCCL(comm, "ncclCommGetAsyncError", comm->nccl->comm_get_async_error(comm->comm, &state)));
  MS_TRY(NCCL(comm, about, state));
  *ready = state == MS_NCCL_SUCCESS;
  return MS_OK;
}

int ms_cuda_comm_ready(ms_device *device, ms_device_comm *comm, int *ready) {
  (void)device;
  *ready = 0;
  if (comm->parent) {
    MS_TRY(ask(comm->parent, "ncclCommSplit", ready));
    if (!*ready) return MS_OK;
    comm->parent = NULL;
    if (!comm->comm) return MS_FAIL(MS_EDEVICE, "ncclCommSplit: it returned no communicator");
  }
  MS_TRY(ask(comm, "nccl collective", ready));
  if (!*ready || !comm->opening) return MS_OK;
  comm->opening = 0;
  int64_t taken = comm->free_before - free_bytes();
  if (taken > 0) atomic_fetch_add(&ms_cuda_totals.communicators, taken);
  return MS_OK;
}

static int issue(ms_device_comm *comm, cudaStream_t stream, int kind, const ms_device_part *part) {
  const ms_nccl *nccl = comm->nccl;
  size_t count = (size_t)part->count;
  int dtype = 0;
  MS_TRY(ms_nccl_dtype(part->dtype, &dtype));
  if (kind == MS_DEVICE_ALL_GATHER)
    return NCCL(comm, "ncclAllGather", nccl->all_gather(part->from, part->to, count, dtype, comm->comm, stream));
  MS_TRY(ms_dtype_check(part->dtype, MS_DTYPE_REDUCE, "nccl: what is summed"));
  if (kind == MS_DEVICE_REDUCE_SCATTER)
    return NCCL(comm, "ncclReduceScatter",
                nccl->reduce_scatter(part->from, part->to, count, dtype, MS_NCCL_SUM, comm->comm, stream));
  const int reduction = kind == MS_DEVICE_ALL_REDUCE_MAX ? MS_NCCL_MAX : MS_NCCL_SUM;
  return NCCL(comm, "ncclAllReduce",
              nccl->all_reduce(part->from, part->to, count, dtype, reduction, comm->comm, stream));
}

int ms_cuda_collective(ms_device *device, ms_device_comm *comm, ms_device_stream *stream, int kind, int parts,
                       const ms_device_part *part) {
  int rc = MS_OK;
  (void)device;
  MS_TRY(NCCL(comm, "ncclGroupStart", comm->nccl->group_start()));
  for (int i = 0; i < parts && !rc; i++)
    if (part[i].count) rc = issue(comm, (cudaStream_t)(void *)stream, kind, &part[i]);
  int end = NCCL(comm, "ncclGroupEnd", comm->nccl->group_end()); /* also after an error, to close the group */
  return rc ? rc : end;
}

/* ---- windows ---- */

int ms_cuda_window_open(ms_device *device, ms_device_comm *comm, void *base, int64_t bytes, ms_device_window **window) {
  (void)device;
  return NCCL(comm, "ncclCommWindowRegister",
              comm->nccl->window_register(comm->comm, base, (size_t)bytes, (ms_nccl_window *)(void *)window,
                                          MS_NCCL_WINDOW_SYMMETRIC));
}

void ms_cuda_window_close(ms_device *device, ms_device_comm *comm, ms_device_window *window) {
  (void)device;
  comm->nccl->window_deregister(comm->comm, (ms_nccl_window)(void *)window);
}

/* ---- closing ---- */

typedef struct ending {
  ms_device_comm *comm;
  int device;
} ending;

static void *end_on_thread(void *argument) {
  ending *e = argument;
  ms_cuda_ignore(cudaSetDevice(e->device));
  e->comm->nccl->comm_abort(e->comm->comm);
  for (ms_device_comm *split = e->comm->given_up, *next; split; split = next) {
    next = split->given_up;
    if (split->comm) e->comm->nccl->comm_abort(split->comm);
    free(split);
  }
  free(e->comm);
  free(e);
  return NULL;
}

void ms_cuda_comm_close(ms_device *device, ms_device_comm *comm, double seconds) {
  struct timespec until;
  pthread_t thread;
  if (!comm) return;
  if (comm->parent) {
    comm->given_up = comm->parent->given_up;
    comm->parent->given_up = comm;
    return;
  }
  if (!comm->comm) {
    free(comm);
    return;
  }
  ending *e = malloc(sizeof *e);
  if (!e) return;
  *e = (ending){comm, ms_cuda_index(device)};
  if (pthread_create(&thread, NULL, end_on_thread, e)) {
    free(e);
    return;
  }
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += (time_t)seconds + 1;
  if (pthread_timedjoin_np(thread, NULL, &until)) pthread_detach(thread);
}
