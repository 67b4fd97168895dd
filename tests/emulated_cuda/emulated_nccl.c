/* emulated_nccl.c - the functions of NCCL that Moonshard uses, among processes of one host. In rounds, every rank
 * copies its contribution to memory that all ranks of the communicator map, and sums or copies its result from there.
 *
 * The memory is a memfd of the lowest rank, which the others open through /proc: an id is its process and descriptor.
 * Work is enqueued on emulated streams; a stream sleeps in a collective until all ranks have arrived.
 * MOONSHARD_EMULATE_FAIL also accepts "asynchronous:3" (the third collective never ends, and its communicator reports
 * an error), "lost:3" (it never ends, and no error is reported) and "abort:1" (the first ncclCommAbort never returns).
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "device/cuda/nccl.h"
#include "emulated_log.h"
#include "emulated_runtime.h"
#include "emulated_window.h"

enum { MAX_RANKS = 64, MAX_GROUP = 256, ROUND_BYTES = 1 << 18, COMM_BYTES = 16 << 20 };
enum { ALL_GATHER = 1, REDUCE_SCATTER, ALL_REDUCE };
enum { UNHANDLED = 1, SYSTEM_ERROR = 2, INTERNAL = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };

typedef struct shared {
  _Atomic uint32_t arrived[2]; /* for even and odd barriers */
  _Atomic uint32_t generation;
  struct {
    int32_t pid, fd, color, key;
  } split[MAX_RANKS];
  uint64_t signature[MAX_RANKS];
  char round[MAX_RANKS][ROUND_BYTES];
} shared;

typedef struct told {
  int32_t pid, fd;
} told;

struct ncclComm {
  int size, rank, fd;
  shared *memory;
  _Atomic int state;   /* enum ncclResult: in progress, success, or an error */
  _Atomic int aborted; /* 1: streams leave their collectives */
  _Atomic int pending; /* collectives that a stream has not finished */
  _Atomic int issuing; /* collectives that a thread is about to submit to a stream */
  int windowed;        /* 1: copy engines can access only windows */
  uint32_t generation; /* barriers passed; used by one thread at a time */
  pthread_t opening;
  int opens;
  /* used while the communicator is created */
  told id;
  struct ncclComm *parent;
  ms_nccl_comm *out; /* of a split: where to store the new communicator */
  int color, key;
};

static char last_error[256] = "";

/* ---- barriers and shared memory ---------------------------------------------------------------------------------- */

static void nap(int turn) {
  struct timespec t = {0, turn < 1000 ? 2000 : 200000};
  nanosleep(&t, NULL);
}

/* Returns 0 when all ranks have arrived, or 1 if the communicator was aborted. */
static int barrier(struct ncclComm *comm) {
  shared *m = comm->memory;
  uint32_t mine = comm->generation++;
  if (atomic_fetch_add(&m->arrived[mine & 1], 1) + 1 == (uint32_t)comm->size) {
    atomic_store(&m->arrived[mine & 1], 0);
    atomic_fetch_add(&m->generation, 1);
    return 0;
  }
  for (int turn = 0; atomic_load(&m->generation) == mine; turn++) {
    if (atomic_load(&comm->aborted)) return 1;
    nap(turn);
  }
  return 0;
}

static int map(struct ncclComm *comm, int fd) {
  void *memory = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) return SYSTEM_ERROR;
  comm->memory = memory;
  return MS_NCCL_SUCCESS;
}

static int offer(told *id) {
  id->pid = getpid();
  id->fd = memfd_create("emulated-nccl", MFD_CLOEXEC);
  return id->fd >= 0 && !ftruncate(id->fd, sizeof(shared)) ? MS_NCCL_SUCCESS : SYSTEM_ERROR;
}

static int join(struct ncclComm *comm, told id) {
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
  if (!rc) rc = barrier(comm) ? REMOTE_ERROR : MS_NCCL_SUCCESS;
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
  told id;
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

static int asks_for_copy_engines(const ms_nccl_config *config) {
  return config->size == sizeof *config && config->cta_policy == MS_NCCL_CTA_POLICY_ZERO;
}

int ncclCommInitRankConfig(ms_nccl_comm *out, int size, ms_nccl_id id, int rank, ms_nccl_config *config) {
  if (emulated_fails("ncclCommInitRankConfig")) return INTERNAL;
  if (size < 1 || size > MAX_RANKS || rank < 0 || rank >= size || config->blocking != 0) return INVALID_ARGUMENT;
  struct ncclComm *comm = calloc(1, sizeof *comm);
  if (!comm) return SYSTEM_ERROR;
  comm->size = size;
  comm->rank = rank;
  comm->windowed = asks_for_copy_engines(config);
  memcpy(&comm->id, &id, sizeof comm->id);
  *out = comm;
  return start(comm, open_on_thread, comm);
}

/* The rank with the lowest key of each color provides the memory. All ranks of the parent take part. */
static void *split_on_thread(void *argument) {
  struct ncclComm *comm = argument, *parent = comm->parent;
  shared *m = parent->memory;
  int me = parent->rank, leader = me, rc = MS_NCCL_SUCCESS;
  told id = {0, -1};
  m->split[me].color = comm->color;
  m->split[me].key = comm->key;
  if (barrier(parent)) rc = REMOTE_ERROR;
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
  if (!rc && barrier(parent)) rc = REMOTE_ERROR;
  if (!rc) rc = join(comm, (told){m->split[leader].pid, m->split[leader].fd});
  if (!rc && barrier(parent)) rc = REMOTE_ERROR;
  if (id.fd >= 0) close(id.fd);
  if (!rc) emulated_take(COMM_BYTES);
  if (!rc) *comm->out = comm;
  if (rc && comm->memory) munmap(comm->memory, sizeof(shared));
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
  if (config->blocking != 0 || atomic_load(&parent->state)) return INVALID_USAGE;
  struct ncclComm *comm = calloc(1, sizeof *comm);
  if (!comm) return SYSTEM_ERROR;
  comm->parent = parent;
  comm->windowed = asks_for_copy_engines(config);
  comm->color = color;
  comm->key = key;
  comm->out = out;
  *out = NULL;
  finish_opening(parent);
  atomic_fetch_add(&parent->pending, 1);
  return start(parent, split_on_thread, comm);
}

int ncclCommGetAsyncError(ms_nccl_comm comm, int *error) {
  if (emulated_fails("ncclCommGetAsyncError")) return INTERNAL;
  *error = atomic_load(&comm->state);
  return MS_NCCL_SUCCESS;
}

int ncclCommAbort(ms_nccl_comm comm) {
  if (emulated_fails("abort"))
    for (;;) pause();
  atomic_store(&comm->aborted, 1);
  for (int turn = 0; atomic_load(&comm->pending) || atomic_load(&comm->issuing); turn++) nap(turn);
  finish_opening(comm);
  emulated_window_forget(comm);
  if (comm->memory) {
    if (!atomic_load(&comm->state)) emulated_take(-COMM_BYTES);
    munmap(comm->memory, sizeof(shared));
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

/* ---- collectives ------------------------------------------------------------------------------------------------- */

typedef struct work {
  struct ncclComm *comm;
  cudaStream_t stream;
  int kind, dtype;
  const char *from;
  char *to;
  size_t count;
  size_t at; /* offset in the window, which must be equal on all ranks */
  int lost, fails;
  struct work *next;
} work;

static size_t size_of(int dtype) { return dtype == MS_NCCL_FLOAT32 ? 4 : 2; }

static float read_element(const char *data, int dtype, size_t i) {
  if (dtype == MS_NCCL_FLOAT32) return ((const float *)(const void *)data)[i];
  uint32_t bits = (uint32_t)((const uint16_t *)(const void *)data)[i] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void write_element(char *data, int dtype, size_t i, float value) {
  if (dtype == MS_NCCL_FLOAT32) {
    ((float *)(void *)data)[i] = value;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits += 0x7fff + (bits >> 16 & 1);
  ((uint16_t *)(void *)data)[i] = (uint16_t)(bits >> 16);
}

/* Sums elements [0, n) of all ranks' contributions to the round, from byte `at` on, in the order of ranks. */
static void sum(const struct ncclComm *comm, size_t at, char *to, int dtype, size_t n) {
  for (size_t i = 0; i < n; i++) {
    float total = 0;
    for (int p = 0; p < comm->size; p++) total += read_element(comm->memory->round[p] + at, dtype, i);
    write_element(to, dtype, i, total);
  }
}

/* Elements [first, first + n) of every rank's chunk, or for all_reduce of the whole tensor. */
static int do_round(const work *w, size_t first, size_t n) {
  struct ncclComm *comm = w->comm;
  size_t size = size_of(w->dtype);
  char *mine = comm->memory->round[comm->rank];
  if (w->kind == REDUCE_SCATTER)
    for (int p = 0; p < comm->size; p++)
      memcpy(mine + (size_t)p * n * size, w->from + ((size_t)p * w->count + first) * size, n * size);
  else memcpy(mine, w->from + first * size, n * size);
  if (barrier(comm)) return 1;
  if (w->kind == REDUCE_SCATTER) sum(comm, (size_t)comm->rank * n * size, w->to + first * size, w->dtype, n);
  if (w->kind == ALL_REDUCE) sum(comm, 0, w->to + first * size, w->dtype, n);
  for (int p = 0; w->kind == ALL_GATHER && p < comm->size; p++)
    memcpy(w->to + ((size_t)p * w->count + first) * size, comm->memory->round[p], n * size);
  return barrier(comm);
}

/* Ranks that issue different collectives would hang on GPUs; here they get an error. */
static int agree(const work *w) {
  struct ncclComm *comm = w->comm;
  uint64_t mine = ((uint64_t)w->kind << 56 | (uint64_t)w->dtype << 48 | w->count) ^ (uint64_t)w->at << 20;
  comm->memory->signature[comm->rank] = mine;
  if (barrier(comm)) return 1;
  int differs = 0;
  for (int p = 0; p < comm->size; p++) differs |= comm->memory->signature[p] != mine;
  if (differs) atomic_store(&comm->state, INVALID_USAGE);
  return barrier(comm) || differs;
}

static void run(void *argument) {
  const work *w = argument;
  struct ncclComm *comm = w->comm;
  if (w->fails) atomic_store(&comm->state, REMOTE_ERROR);
  for (int turn = 0; (w->fails || w->lost) && !atomic_load(&comm->aborted); turn++) nap(turn);
  size_t step = ROUND_BYTES / size_of(w->dtype) / (w->kind == REDUCE_SCATTER ? (size_t)comm->size : 1);
  int stopped = atomic_load(&comm->aborted) || agree(w);
  for (size_t first = 0; first < w->count && !stopped; first += step)
    stopped = do_round(w, first, w->count - first < step ? w->count - first : step);
}

static _Thread_local int depth;
static _Thread_local work *first, **last; /* of the current group; last NULL: empty */
static _Thread_local int group_size;

static void drop(void *argument) {
  work *w = argument;
  atomic_fetch_sub(&w->comm->pending, 1);
  free(w);
}

static void log_work(const work *w) {
  static const char *const names[] = {
      [ALL_GATHER] = "all_gather", [REDUCE_SCATTER] = "reduce_scatter", [ALL_REDUCE] = "all_reduce"};
  size_t bytes = w->count * size_of(w->dtype), all = bytes * (size_t)w->comm->size;
  emulated_range range[] = {{'r', w->from, w->kind == REDUCE_SCATTER ? all : bytes},
                            {'w', w->to, w->kind == ALL_GATHER ? all : bytes}};
  emulated_log_work(w->stream, names[w->kind], 2, range);
}

static int comes_again(struct ncclComm *const *comm, int i, int n) {
  for (int k = i + 1; k < n; k++)
    if (comm[k] == comm[i]) return 1;
  return 0;
}

/* Submits a group's work to streams, some time after the group has ended; until then its communicators are in
 * progress. */
static void *submit_on_thread(void *argument) {
  struct ncclComm *comm[MAX_GROUP];
  int n = 0, rc = MS_NCCL_SUCCESS;
  nap(0);
  for (work *w = argument, *next; w; w = next) {
    next = w->next;
    comm[n++] = w->comm;
    log_work(w);
    if (emulated_submit(w->stream, run, w, drop)) rc = UNHANDLED;
  }
  for (int i = 0; i < n; i++) {
    int in_progress = MS_NCCL_IN_PROGRESS;
    /* Once per communicator, because as soon as it is ready the next group may use it. */
    if (!comes_again(comm, i, n)) atomic_compare_exchange_strong(&comm[i]->state, &in_progress, rc);
    atomic_fetch_sub(&comm[i]->issuing, 1);
  }
  return NULL;
}

static int submit(void) {
  pthread_t thread;
  work *group = first;
  first = NULL;
  last = NULL;
  group_size = 0;
  if (!group) return MS_NCCL_SUCCESS;
  for (work *w = group; w; w = w->next) {
    atomic_fetch_add(&w->comm->issuing, 1);
    atomic_store(&w->comm->state, MS_NCCL_IN_PROGRESS);
  }
  if (pthread_create(&thread, NULL, submit_on_thread, group)) return SYSTEM_ERROR;
  pthread_detach(thread);
  return MS_NCCL_IN_PROGRESS;
}

/* With windows, all buffers must be in one; the buffer that all ranks share must be at equal offsets. */
static int find_in_windows(work *w) {
  size_t bytes = w->count * size_of(w->dtype), all = bytes * (size_t)w->comm->size, part;
  if (!w->comm->windowed && !emulated_window_any(w->comm)) return MS_NCCL_SUCCESS;
  const void *whole = w->kind == REDUCE_SCATTER ? w->from : w->to, *own = w->kind == REDUCE_SCATTER ? w->to : w->from;
  int found = emulated_window_has(w->comm, whole, w->kind == ALL_REDUCE ? bytes : all, &w->at) &&
              emulated_window_has(w->comm, own, bytes, &part);
  return found ? MS_NCCL_SUCCESS : INVALID_USAGE;
}

static int add(work given) {
  int before = atomic_load(&given.comm->state); /* the next call reports an error that nothing has queried */
  if (before && before != MS_NCCL_IN_PROGRESS) return before;
  if (before || find_in_windows(&given) || group_size == MAX_GROUP) return INVALID_USAGE;
  work *w = malloc(sizeof *w);
  if (!w) return SYSTEM_ERROR;
  *w = given;
  w->fails = emulated_fails("asynchronous");
  w->lost = emulated_fails("lost");
  atomic_fetch_add(&w->comm->pending, 1);
  if (last) *last = w;
  else first = w;
  last = &w->next;
  group_size++;
  return depth ? MS_NCCL_SUCCESS : submit();
}

int ncclGroupStart(void) {
  if (emulated_fails("ncclGroupStart")) return INTERNAL;
  depth++;
  return MS_NCCL_SUCCESS;
}

int ncclGroupEnd(void) {
  int fails = emulated_fails("ncclGroupEnd");
  if (--depth) return MS_NCCL_SUCCESS;
  int rc = submit();
  return fails ? INTERNAL : rc;
}

int ncclAllGather(const void *from, void *to, size_t count, int dtype, ms_nccl_comm comm, cudaStream_t stream) {
  if (emulated_fails("ncclAllGather")) return INTERNAL;
  return add((work){
      .comm = comm, .stream = stream, .kind = ALL_GATHER, .dtype = dtype, .from = from, .to = to, .count = count});
}

int ncclReduceScatter(const void *from, void *to, size_t count, int dtype, int op, ms_nccl_comm comm,
                      cudaStream_t stream) {
  if (emulated_fails("ncclReduceScatter")) return INTERNAL;
  if (op != MS_NCCL_SUM) return INVALID_ARGUMENT;
  return add((work){
      .comm = comm, .stream = stream, .kind = REDUCE_SCATTER, .dtype = dtype, .from = from, .to = to, .count = count});
}

int ncclAllReduce(const void *from, void *to, size_t count, int dtype, int op, ms_nccl_comm comm, cudaStream_t stream) {
  if (emulated_fails("ncclAllReduce")) return INTERNAL;
  if (op != MS_NCCL_SUM) return INVALID_ARGUMENT;
  return add((work){
      .comm = comm, .stream = stream, .kind = ALL_REDUCE, .dtype = dtype, .from = from, .to = to, .count = count});
}
