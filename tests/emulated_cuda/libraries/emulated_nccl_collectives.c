/* emulated_nccl_collectives.c - collectives of NCCL among processes of one host. In rounds, every rank copies its
 * contribution to memory that all ranks of the communicator map, and sums or copies its result from there.
 *
 * Work is enqueued on emulated streams; a stream sleeps in a collective until all ranks have arrived. Of sends and
 * receives there are only those that make up an all-to-all: to rank 0, from rank 0, to rank 1, and so on, of chunks
 * that follow each other. MOONSHARD_EMULATE_FAIL also accepts "asynchronous:3" (the third collective never ends, and
 * its communicator reports an error) and "lost:3" (it never ends, and no error is reported).
 */
#include <stdlib.h>
#include <string.h>

#include "emulated_log.h"
#include "emulated_nccl.h"
#include "emulated_runtime.h"
#include "emulated_window.h"

enum { MAX_GROUP = 256 };
enum { ALL_GATHER = 1, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL };

typedef struct work {
  struct ncclComm *comm;
  cudaStream_t stream;
  int kind, dtype, op;
  const char *from;
  char *to;
  size_t count;
  size_t at; /* offset in the window, which must be equal on all ranks */
  int lost, fails;
  int sends, receives; /* of an all-to-all: those that were added */
  struct work *next;
} work;

static size_t size_of(int dtype) {
  return dtype == MS_NCCL_FLOAT32 || dtype == MS_NCCL_INT32 ? 4 : dtype == MS_NCCL_BFLOAT16 ? 2 : 1;
}

static int is_summed(int dtype) { return dtype == MS_NCCL_FLOAT32 || dtype == MS_NCCL_BFLOAT16; }

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

/* Sums elements [0, n) of all ranks' contributions to the round, from byte `at` on, in the order of ranks, or takes the
 * largest. */
static void sum(const struct ncclComm *comm, size_t at, char *to, int dtype, int op, size_t n) {
  for (size_t i = 0; i < n; i++) {
    float total = read_element(comm->memory->round[0] + at, dtype, i);
    for (int p = 1; p < comm->size; p++) {
      const float x = read_element(comm->memory->round[p] + at, dtype, i);
      if (op == MS_NCCL_SUM) total += x;
      else if (x > total || x != x) total = x;
    }
    write_element(to, dtype, i, total);
  }
}

static int sends_chunks(const work *w) { return w->kind == REDUCE_SCATTER || w->kind == ALL_TO_ALL; }

/* Elements [first, first + n) of every rank's chunk, or for all_reduce of the whole tensor. */
static int do_round(const work *w, size_t first, size_t n) {
  struct ncclComm *comm = w->comm;
  size_t size = size_of(w->dtype);
  char *mine = comm->memory->round[comm->rank];
  if (sends_chunks(w))
    for (int p = 0; p < comm->size; p++)
      memcpy(mine + (size_t)p * n * size, w->from + ((size_t)p * w->count + first) * size, n * size);
  else memcpy(mine, w->from + first * size, n * size);
  if (emulated_nccl_barrier(comm)) return 1;
  if (w->kind == REDUCE_SCATTER) sum(comm, (size_t)comm->rank * n * size, w->to + first * size, w->dtype, w->op, n);
  if (w->kind == ALL_REDUCE) sum(comm, 0, w->to + first * size, w->dtype, w->op, n);
  for (int p = 0; w->kind == ALL_GATHER && p < comm->size; p++) {
    char *part = w->to + (size_t)p * w->count * size;
    /* What is in place is not written: other streams can read it meanwhile. */
    if (part != w->from) memcpy(part + first * size, comm->memory->round[p], n * size);
  }
  for (int p = 0; w->kind == ALL_TO_ALL && p < comm->size; p++)
    memcpy(w->to + ((size_t)p * w->count + first) * size, comm->memory->round[p] + (size_t)comm->rank * n * size,
           n * size);
  return emulated_nccl_barrier(comm);
}

/* Ranks that issue different collectives would hang on GPUs; here they get an error. */
static int agree(const work *w) {
  struct ncclComm *comm = w->comm;
  uint64_t mine =
      ((uint64_t)w->kind << 56 | (uint64_t)w->dtype << 48 | (uint64_t)w->op << 44 | w->count) ^ (uint64_t)w->at << 20;
  comm->memory->signature[comm->rank] = mine;
  if (emulated_nccl_barrier(comm)) return 1;
  int differs = 0;
  for (int p = 0; p < comm->size; p++) differs |= comm->memory->signature[p] != mine;
  if (differs) atomic_store(&comm->state, INVALID_USAGE);
  return emulated_nccl_barrier(comm) || differs;
}

static void run(void *argument) {
  const work *w = argument;
  struct ncclComm *comm = w->comm;
  if (w->fails) atomic_store(&comm->state, REMOTE_ERROR);
  for (int turn = 0; (w->fails || w->lost) && !atomic_load(&comm->aborted); turn++) emulated_nccl_nap(turn);
  size_t step = ROUND_BYTES / size_of(w->dtype) / (sends_chunks(w) ? (size_t)comm->size : 1);
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
  static const char *const names[] = {[ALL_GATHER] = "all_gather",
                                      [REDUCE_SCATTER] = "reduce_scatter",
                                      [ALL_REDUCE] = "all_reduce",
                                      [ALL_TO_ALL] = "all_to_all"};
  size_t bytes = w->count * size_of(w->dtype), all = bytes * (size_t)w->comm->size;
  emulated_range range[] = {{'r', w->from, sends_chunks(w) ? all : bytes},
                            {'w', w->to, w->kind == ALL_GATHER || w->kind == ALL_TO_ALL ? all : bytes}};
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
  emulated_nccl_nap(0);
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
  if (w->kind == ALL_TO_ALL) return MS_NCCL_SUCCESS; /* sends and receives need none */
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

/* The all-to-all of the current group to which a send or receive belongs; NULL: there is none. */
static work *find_exchange(ms_nccl_comm comm) {
  work *latest = NULL;
  for (work *w = first; w; w = w->next) latest = w;
  if (!latest || latest->kind != ALL_TO_ALL || latest->comm != comm) return NULL;
  return latest->receives < comm->size ? latest : NULL;
}

int ncclSend(const void *from, size_t count, int dtype, int peer, ms_nccl_comm comm, cudaStream_t stream) {
  if (emulated_fails("ncclSend")) return INTERNAL;
  work *w = find_exchange(comm);
  if (!depth || peer != (w ? w->sends : 0)) return INVALID_USAGE;
  if (!w)
    return add((work){
        .comm = comm, .stream = stream, .kind = ALL_TO_ALL, .dtype = dtype, .from = from, .count = count, .sends = 1});
  const char *chunk = w->from + (size_t)peer * count * size_of(dtype);
  if (from != chunk || count != w->count || dtype != w->dtype || stream != w->stream) return INVALID_USAGE;
  w->sends++;
  return MS_NCCL_SUCCESS;
}

int ncclRecv(void *to, size_t count, int dtype, int peer, ms_nccl_comm comm, cudaStream_t stream) {
  if (emulated_fails("ncclRecv")) return INTERNAL;
  work *w = find_exchange(comm);
  if (!depth || !w || peer != w->receives || peer != w->sends - 1) return INVALID_USAGE;
  if (peer == 0) w->to = to;
  if ((char *)to != w->to + (size_t)peer * count * size_of(dtype) || count != w->count || dtype != w->dtype ||
      stream != w->stream)
    return INVALID_USAGE;
  w->receives++;
  return MS_NCCL_SUCCESS;
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
  if (op != MS_NCCL_SUM || !is_summed(dtype)) return INVALID_ARGUMENT;
  return add((work){
      .comm = comm, .stream = stream, .kind = REDUCE_SCATTER, .dtype = dtype, .from = from, .to = to, .count = count});
}

int ncclAllReduce(const void *from, void *to, size_t count, int dtype, int op, ms_nccl_comm comm, cudaStream_t stream) {
  if (emulated_fails("ncclAllReduce")) return INTERNAL;
  if ((op != MS_NCCL_SUM && op != MS_NCCL_MAX) || !is_summed(dtype)) return INVALID_ARGUMENT;
  return add((work){.comm = comm,
                    .stream = stream,
                    .kind = ALL_REDUCE,
                    .dtype = dtype,
                    .op = op,
                    .from = from,
                    .to = to,
                    .count = count});
}
