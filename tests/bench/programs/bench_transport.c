/* bench_transport.c - the transports tcp and ucx: a buffer of 16 MiB exchanged between hosts that are connected by
 * links of 1 Gbit/s, against the time that the bytes need on 95 % of such a link; and bytes per second over the
 * loopback.
 *
 * The hosts are network namespaces at one bridge, shaped in both directions (tc tbf), which needs root and iproute2;
 * without them, only the loopback is measured. Each of n ranks sends 1/n of the buffer to every other one and receives
 * as much, all at once, as an all-gather or a reduce-scatter with one rank per host does.
 *
 * One JSON line per figure: {"name", "unit", "ours"[, "target"]}; medians of many rounds.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moonshard.h"

#include "base/clock.h"
#include "base/error.h"
#include "comm/transport/transport.h"
#include "tests/bench/programs/shaped_links.h"

enum { MAX = 4, BUFFER = 16 << 20, ROUNDS = 15, LOCAL_BYTES = 64 << 20 };

typedef struct shared {
  _Atomic int arrived, failed;
  uint8_t address[MAX][MS_TRANSPORT_ADDRESS];
  double seconds[MAX][ROUNDS];
} shared;

static shared *all;
static const ms_transport_api *api = &ms_transport_tcp;

/* Barrier number `turn`, from 1: everybody polls, since the ranks may not talk. ucx has the last bytes of a send that
 * is done only half sent, so its endpoint makes progress. */
static void meet(ms_endpoint *endpoint, int n, int turn) {
  atomic_fetch_add(&all->arrived, 1);
  while (atomic_load(&all->arrived) < n * turn && !atomic_load(&all->failed)) {
    api->progress(endpoint, 0);
    usleep(100);
  }
}

static void report(void *context, int peer, const char *why) {
  (void)context;
  fprintf(stderr, "bench_transport: rank %d: %s\n", peer, why);
  atomic_store(&all->failed, 1);
}

/* Sends `bytes` bytes to every peer and receives as many from it. */
static int exchange(ms_endpoint *endpoint, int rank, int n, char *memory, int64_t bytes) {
  ms_transfer move[2 * MAX] = {0};
  for (int peer = 0; peer < n; peer++)
    for (int receives = 1; receives >= 0 && peer != rank; receives--) {
      move[2 * peer + receives] = (ms_transfer){.peer = peer,
                                                .receives = receives,
                                                .key = 1,
                                                .data = memory + (receives ? 1 + peer : 0) * bytes,
                                                .bytes = bytes};
      MS_TRY(api->post(endpoint, &move[2 * peer + receives]));
    }
  for (int left = 1; left && !atomic_load(&all->failed);) {
    MS_TRY(api->progress(endpoint, 0.1));
    left = 0;
    for (int i = 0; i < 2 * n; i++) left |= move[i].state == MS_TRANSFER_POSTED;
  }
  return atomic_load(&all->failed) ? MS_EPEER : MS_OK;
}

static int measure(int rank, int n, int64_t bytes) {
  ms_transport_config config = {
      .rank = rank, .size = n, .token = "of-the-benchmark", .job = "bench", .timeout = 20, .failed = report};
  ms_endpoint *endpoint = NULL;
  int peers[MAX], count = 0;
  uint8_t addresses[MAX][MS_TRANSPORT_ADDRESS];
  char *memory = malloc((size_t)(1 + n) * (size_t)bytes);
  if (!memory) return MS_ENOMEM;
  memset(memory, 1, (size_t)(1 + n) * (size_t)bytes);
  MS_TRY(api->open(&config, &endpoint));
  MS_TRY(api->address(endpoint, all->address[rank]));
  meet(endpoint, n, 1);
  for (int peer = 0; peer < n; peer++) {
    if (peer == rank) continue;
    memcpy(addresses[count], all->address[peer], MS_TRANSPORT_ADDRESS);
    peers[count++] = peer;
  }
  MS_TRY(api->connect(endpoint, count, peers, addresses));
  MS_TRY(exchange(endpoint, rank, n, memory, bytes)); /* connections open their windows */
  for (int round = 0; round < ROUNDS; round++) {
    meet(endpoint, n, 2 + round);
    double began = ms_clock();
    MS_TRY(exchange(endpoint, rank, n, memory, bytes));
    all->seconds[rank][round] = ms_clock() - began;
  }
  meet(endpoint, n, 2 + ROUNDS);
  api->close(endpoint);
  free(memory);
  return MS_OK;
}

static _Noreturn void become_rank(int rank, int n, int64_t bytes, int hosts, int out, int in) {
  char byte = 0;
  if (hosts) {
    if (unshare(CLONE_NEWNET | CLONE_NEWNS) || write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1) _exit(2);
    /* UCX looks for interfaces in /sys, and takes those that the kernel says are connected. */
    if (run("mount --make-rprivate / && mount -t sysfs sysfs /sys", 0, 0) ||
        run("ip link set lo up && ip addr add 10.97.0.%d/24 dev eth0 && ip link set eth0 up", rank + 1, 0) ||
        run("tc qdisc add dev eth0" SHAPE, 0, 0) ||
        run("for i in $(seq 500); do grep -q up /sys/class/net/eth0/operstate && exit 0; sleep 0.01; done; exit 1", 0,
            0))
      _exit(2);
  }
  int rc = measure(rank, n, bytes);
  if (rc) fprintf(stderr, "bench_transport: rank %d: %s\n", rank, ms_error_message());
  if (rc) atomic_store(&all->failed, 1);
  _exit(rc != 0);
}

/* Returns 0 when all ranks have measured. */
static int start(int n, int64_t bytes, int hosts) {
  int failed = 0, status, pipes[MAX][4];
  pid_t pid[MAX];
  *all = (shared){0};
  for (int rank = 0; rank < n; rank++) {
    if (pipe(pipes[rank]) || pipe(pipes[rank] + 2)) return 1;
    fflush(NULL);
    pid[rank] = fork();
    if (pid[rank] == 0) become_rank(rank, n, bytes, hosts, pipes[rank][1], pipes[rank][2]);
  }
  static int port; /* the kernel removes those of an earlier measurement a little later */
  for (int rank = 0; rank < n && hosts; rank++) {
    char byte = 0;
    failed |= read(pipes[rank][0], &byte, 1) != 1 || plug_in(port++, pid[rank]) || write(pipes[rank][3], &byte, 1) != 1;
  }
  while (wait(&status) > 0) failed |= status != 0;
  for (int rank = 0; rank < n; rank++)
    for (int i = 0; i < 4; i++) close(pipes[rank][i]);
  return failed;
}

/* The median over rounds of the slowest rank's time. */
static double median(int n) {
  double slowest[ROUNDS];
  return median_of_slowest(all->seconds[0], ROUNDS, n, 1, ROUNDS, slowest);
}

/* "transport" for tcp, whose figures came first. */
static const char *name(void) { return api == &ms_transport_tcp ? "transport" : "transport ucx"; }

static int measure_loopback(void) {
  if (start(2, LOCAL_BYTES, 0)) return 3;
  printf("{\"name\":\"%s/loopback, both ways\",\"unit\":\"GB/s\",\"ours\":%.2f}\n", name(),
         LOCAL_BYTES / median(2) / 1e9);
  return 0;
}

static int measure_links(void) {
  for (int n = 2; n <= MAX; n += 2) {
    if (start(n, BUFFER / n, 1)) return 3;
    printf("{\"name\":\"%s/16 MiB, %d hosts, 1 Gbit/s\",\"unit\":\"ms\",\"ours\":%.1f,\"target\":%.1f}\n", name(), n,
           1e3 * median(n), 1e3 * SECONDS_PER_BYTE * (n - 1) * (BUFFER / n) / OF_THE_LINK);
  }
  return 0;
}

int main(void) {
  const ms_transport_api *const apis[] = {&ms_transport_tcp, &ms_transport_ucx};
  char version[64];
  int n_apis = ms_transport_describe(MS_TRANSPORT_UCX, version, sizeof version) ? 1 : 2, failed = 0;
  if (n_apis == 1) fprintf(stderr, "bench_transport: ucx is not measured: %s\n", ms_error_message());
  all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) {
    perror("bench_transport: mmap");
    return 3;
  }
  for (int i = 0; i < n_apis && !failed; i++) {
    api = apis[i];
    failed = measure_loopback();
  }
  if (failed) return failed;
  if (geteuid() || make_bridge()) {
    fprintf(stderr, "bench_transport: links are not measured: network namespaces need root and iproute2\n");
    return 0;
  }
  for (int i = 0; i < n_apis && !failed; i++) {
    api = apis[i];
    failed = measure_links();
  }
  return failed;
}
