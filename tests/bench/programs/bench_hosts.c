/* bench_hosts.c - collectives between hosts: 16 MiB gathered, scattered and summed over 2 and 4 hosts that are
 * connected by links of 1 Gbit/s, against the time that the bytes need on 95 % of such a link.
 *
 * The hosts are network namespaces at one bridge, shaped in both directions (tc tbf), which needs root and iproute2;
 * without them, nothing is measured.
 *
 * One JSON line per figure: {"name", "unit", "ours", "target"}; medians of many rounds, of the slowest rank of each.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/collectives/comm.h"
#include "comm/group/world_state.h"
#include "tests/bench/programs/shaped_links.h"

enum { MAX = 4, BUFFER = 16 << 20, ROUNDS = 15, KINDS = 3 };
static const char TOKEN[] = "of-the-benchmark", ADDRESS[] = "10.98.0.";

static const int kinds[KINDS] = {MS_COLL_ALL_GATHER, MS_COLL_REDUCE_SCATTER, MS_COLL_ALL_REDUCE};

/* What the processes share: also the buffers, of which a rank uses only those of its host. */
typedef struct shared {
  _Atomic int arrived, failed;
  double seconds[KINDS][ROUNDS][MAX];
  char source[MAX][BUFFER], result[MAX][BUFFER], own[MAX][BUFFER];
} shared;

static shared *all;

static void meet(int n, int turn) {
  atomic_fetch_add(&all->arrived, 1);
  while (atomic_load(&all->arrived) < n * turn && !atomic_load(&all->failed)) usleep(100);
}

static int run_once(ms_comm *comm, const ms_coll *coll) {
  MS_TRY(ms_comm_start(comm, coll));
  return ms_comm_wait(comm);
}

static int measure(ms_world *world, int per_host) {
  const int me = ms_world_rank(world), n = ms_world_size(world);
  int ranks[MAX];
  ms_comm *comm;
  for (int rank = 0; rank < n; rank++) ranks[rank] = rank;
  MS_TRY(ms_comm_open(world, n, ranks, 0, &comm));
  for (int k = 0, turn = 1; k < KINDS; k++) {
    void *buffers[MAX] = {0};
    const int gathers = kinds[k] == MS_COLL_ALL_GATHER;
    for (int rank = 0; rank < n; rank++)
      if (rank / per_host == me / per_host) buffers[rank] = all->source[rank];
    if (gathers) buffers[0] = all->result[me / per_host];
    ms_coll_part part = {.count = BUFFER / 4 / (kinds[k] == MS_COLL_ALL_REDUCE ? 1 : n),
                         .src_dtype = MS_F32,
                         .dst_dtype = MS_F32,
                         .src = gathers ? all->own[me] : NULL,
                         .shared = buffers,
                         .dst = kinds[k] == MS_COLL_ALL_REDUCE ? all->source[me] : all->own[me]};
    ms_coll coll = {.kind = kinds[k], .parts = 1, .part = &part, .label = "bench"};
    for (int i = 0; i < 2; i++) MS_TRY(run_once(comm, &coll)); /* connections open their windows */
    for (int round = 0; round < ROUNDS; round++) {
      meet(n, turn++);
      double began = ms_clock();
      MS_TRY(run_once(comm, &coll));
      all->seconds[k][round][me] = ms_clock() - began;
    }
  }
  ms_comm_close(comm);
  return ms_world_finish(world);
}

static void set_number(const char *name, int value) {
  char text[32];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

static _Noreturn void become_rank(int rank, int n, int per_host) {
  char address[32];
  ms_world *world = NULL;
  snprintf(address, sizeof address, "%s1", ADDRESS);
  setenv("MASTER_ADDR", address, 1);
  setenv("MOONSHARD_TOKEN", TOKEN, 1);
  setenv("MOONSHARD_TRANSPORT", "tcp", 1); /* joining opens it */
  set_number("RANK", rank);
  set_number("WORLD_SIZE", n);
  set_number("MASTER_PORT", 29500);
  set_number("MOONSHARD_NODE", rank / per_host);
  int rc = ms_world_join(NULL, &world);
  if (!rc) rc = measure(world, per_host);
  if (rc) fprintf(stderr, "bench_hosts: rank %d: %s\n", rank, ms_error_message());
  if (rc) atomic_store(&all->failed, 1);
  if (world) ms_free(world);
  exit(rc != 0);
}

static _Noreturn void become_host(int host, int hosts, int per_host, int out, int in) {
  char byte = 0;
  int failed = 0, status;
  if (unshare(CLONE_NEWNET) || write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1) exit(2);
  if (run("ip link set lo up && ip addr add 10.98.0.%d/24 dev eth0 && ip link set eth0 up", host + 1, 0) ||
      run("tc qdisc add dev eth0" SHAPE, 0, 0))
    exit(2);
  for (int rank = host * per_host; rank < (host + 1) * per_host; rank++)
    if (fork() == 0) become_rank(rank, hosts * per_host, per_host);
  while (wait(&status) > 0) failed |= status != 0;
  exit(failed);
}

/* Returns 0 when all ranks have measured. */
static int start(int hosts, int per_host) {
  int failed = 0, status, pipes[MAX][4];
  atomic_store(&all->arrived, 0);
  for (int host = 0; host < hosts; host++) {
    char byte = 0;
    if (pipe(pipes[host]) || pipe(pipes[host] + 2)) return 1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) become_host(host, hosts, per_host, pipes[host][1], pipes[host][2]);
    failed |= read(pipes[host][0], &byte, 1) != 1 || plug_in(100 * hosts + 10 * per_host + host, pid) ||
              write(pipes[host][3], &byte, 1) != 1;
  }
  while (wait(&status) > 0) failed |= status != 0;
  for (int host = 0; host < hosts; host++)
    for (int i = 0; i < 4; i++) close(pipes[host][i]);
  return failed;
}

static double median(int kind, int n) {
  double slowest[ROUNDS];
  return median_of_slowest(all->seconds[kind][0], ROUNDS, n, MAX, 1, slowest);
}

int main(void) {
  static const int shapes[][2] = {{2, 1}, {2, 2}, {4, 1}};
  all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) {
    perror("bench_hosts: mmap");
    return 3;
  }
  if (geteuid() || make_bridge()) {
    fprintf(stderr, "bench_hosts: nothing is measured: network namespaces need root and iproute2\n");
    return 0;
  }
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const int hosts = shapes[i][0], per_host = shapes[i][1];
    if (start(hosts, per_host)) return 3;
    for (int k = 0; k < KINDS; k++) {
      double bytes = (double)BUFFER * (hosts - 1) / hosts * (kinds[k] == MS_COLL_ALL_REDUCE ? 2 : 1);
      printf("{\"name\":\"hosts/%s of 16 MiB, %dx%d, 1 Gbit/s\",\"unit\":\"ms\",\"ours\":%.1f,\"target\":%.1f}\n",
             ms_coll_kind_name(kinds[k]), hosts, per_host, 1e3 * median(k, hosts * per_host),
             1e3 * SECONDS_PER_BYTE * bytes / OF_THE_LINK);
    }
  }
  return 0;
}
