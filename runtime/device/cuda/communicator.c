/* communicator.c - collectives among GPUs, by NCCL.
 *
 * Communicators are non-blocking: slow operations (opening, the first collective) continue in NCCL's own threads, and
 * ms_cuda_comm_ready reports when they are done. Only non-blocking communicators allow ncclCommAbort while an operation
 * hangs. ncclCommAbort itself can hang, and can wait for kernels that wait for those of another communicator, so each
 * runs on a thread of its own, which is abandoned after the given time.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/numbers/dtype.h"
#include "device/cuda/cuda.h"
#include "device/cuda/nccl.h"

/* NCCL's threads write `handle` some time after the call, so its memory lives as long as the communicator. */
struct ms_device_window {
  ms_nccl_window handle; /* NULL: none was made */
  int told;              /* that none was made */
  ms_device_window *next;
};

struct ms_device_comm {
  const ms_nccl *nccl;
  ms_nccl_comm comm;
  ms_device_comm *parent;   /* during a split: a thread of NCCL writes `comm` until the parent is ready; else NULL */
  ms_device_comm *given_up; /* list of splits that were closed during a split: the parent frees them */
  int opening;              /* comm_ready has not reported yet that it is open */
  int64_t free_before;      /* free device memory in bytes when opening began */
  ms_device_window *window; /* list */
  /* After ms_cuda_comm_abort: */
  int device;
  pthread_t ending;
  _Atomic int users; /* the thread and the caller; the last one frees the communicator */
};

/* Seconds to wait for a communicator that could not be opened. */
enum { DROP_SECONDS = 1 };

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
                          .max_ctas = ((const ms_cuda_device *)device)->ctas,
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

/* After a failure to open it. */
static void drop(ms_device *device, ms_device_comm *comm) {
  ms_cuda_comm_abort(device, &comm);
  if (comm) ms_cuda_comm_close(device, comm, DROP_SECONDS);
}

/* NCCL refuses two ranks on the same GPU of a host. Where ranks share a GPU, each claims to be on a different host. */
static void set_host_id(void) {
  char id[64];
  snprintf(id, sizeof id, "moonshard-%d", (int)getpid());
  if (ms_cuda_shares()) setenv("NCCL_HOSTID", id, 0);
}

int ms_cuda_comm_id(ms_device *device, int at_once, void *id) {
  ms_device_comm none = {0};
  set_host_id();
  _Static_assert(sizeof(ms_nccl_id) == MS_DEVICE_ID_BYTES, "an id has MS_DEVICE_ID_BYTES bytes");
  MS_TRY(ms_cuda_attach(device));
  MS_TRY(ms_cuda_order_collectives((ms_cuda_device *)device, at_once));
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
  if (rc) drop(device, comm);
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
    drop(device, comm);
    return rc;
  }
  comm->parent = parent;
  *out = comm;
  return MS_OK;
}

/* NCCL reports success, and no handle, where GPUs of a communicator cannot reach each other's memory. */
static void note_missing_windows(const ms_device_comm *comm) {
  for (ms_device_window *w = comm->window; w; w = w->next) {
    if (w->handle || w->told) continue;
    w->told = 1;
    ms_note("NCCL has registered no window: some GPUs of a communicator cannot access each other's memory directly. "
            "Its collectives use NCCL's own buffers, as without --nccl-windows");
  }
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
  if (*ready && comm->window) note_missing_windows(comm);
  if (!*ready || !comm->opening) return MS_OK;
  comm->opening = 0;
  int64_t taken = comm->free_before - free_bytes();
  if (taken > 0) atomic_fetch_add(&ms_cuda_totals.communicators, taken);
  return MS_OK;
}

/* NCCL has no all-to-all of its own before 2.28. Sends and receives of one group are one operation. */
static int exchange(ms_device_comm *comm, cudaStream_t stream, int dtype, const ms_device_part *part) {
  const ms_nccl *nccl = comm->nccl;
  const int64_t chunk = part->count * ms_dtype_size(part->dtype);
  int size = 0;
  MS_TRY(NCCL(comm, "ncclCommCount", nccl->comm_count(comm->comm, &size)));
  for (int p = 0; p < size; p++) {
    MS_TRY(NCCL(comm, "ncclSend",
                nccl->send((const char *)part->from + p * chunk, (size_t)part->count, dtype, p, comm->comm, stream)));
    MS_TRY(NCCL(comm, "ncclRecv",
                nccl->recv((char *)part->to + p * chunk, (size_t)part->count, dtype, p, comm->comm, stream)));
  }
  return MS_OK;
}

static int issue(ms_device_comm *comm, cudaStream_t stream, int kind, const ms_device_part *part) {
  const ms_nccl *nccl = comm->nccl;
  size_t count = (size_t)part->count;
  int dtype = 0;
  MS_TRY(ms_nccl_dtype(part->dtype, &dtype));
  if (kind == MS_DEVICE_ALL_GATHER)
    return NCCL(comm, "ncclAllGather", nccl->all_gather(part->from, part->to, count, dtype, comm->comm, stream));
  if (kind == MS_DEVICE_ALL_TO_ALL) return exchange(comm, stream, dtype, part);
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
  ms_device_window *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  made->next = comm->window;
  *window = comm->window = made; /* stays there after an error, too: a thread of NCCL may still write it */
  return NCCL(comm, "ncclCommWindowRegister",
              comm->nccl->window_register(comm->comm, base, (size_t)bytes, &made->handle, MS_NCCL_WINDOW_SYMMETRIC));
}

void ms_cuda_window_close(ms_device *device, ms_device_comm *comm, ms_device_window *window) {
  (void)device;
  ms_device_window **at = &comm->window;
  while (*at != window) at = &(*at)->next;
  *at = window->next;
  if (window->handle) comm->nccl->window_deregister(comm->comm, window->handle);
  free(window);
}

/* ---- closing ---- */

static void release(ms_device_comm *comm) {
  for (ms_device_window *w = comm->window, *next; w; w = next) {
    next = w->next;
    free(w);
  }
  free(comm);
}

static void leave(ms_device_comm *comm) {
  if (atomic_fetch_sub(&comm->users, 1) == 1) release(comm);
}

static void *end_on_thread(void *argument) {
  ms_device_comm *comm = argument;
  ms_cuda_ignore(cudaSetDevice(comm->device));
  comm->nccl->comm_abort(comm->comm);
  for (ms_device_comm *split = comm->given_up, *next; split; split = next) {
    next = split->given_up;
    if (split->comm) comm->nccl->comm_abort(split->comm);
    release(split);
  }
  leave(comm);
  return NULL;
}

void ms_cuda_comm_abort(ms_device *device, ms_device_comm **at) {
  ms_device_comm *comm = *at;
  *at = NULL;
  if (!comm) return;
  if (comm->parent) {
    comm->given_up = comm->parent->given_up;
    comm->parent->given_up = comm;
    return;
  }
  if (!comm->comm) {
    release(comm);
    return;
  }
  comm->device = ms_cuda_index(device);
  atomic_store(&comm->users, 2);
  if (pthread_create(&comm->ending, NULL, end_on_thread, comm)) return; /* nothing frees it: NCCL still uses it */
  *at = comm;
}

void ms_cuda_comm_close(ms_device *device, ms_device_comm *comm, double seconds) {
  struct timespec until;
  (void)device;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += (time_t)seconds;
  until.tv_nsec += (long)(1e9 * (seconds - (double)(time_t)seconds));
  if (until.tv_nsec >= 1000000000) {
    until.tv_sec++;
    until.tv_nsec -= 1000000000;
  }
  if (pthread_timedjoin_np(comm->ending, NULL, &until)) pthread_detach(comm->ending);
  leave(comm);
}
