/* shaped_links.h - hosts of a benchmark: network namespaces at one bridge, each behind a link of 1 Gbit/s that is
 * shaped in both directions (tc tbf). Needs root and iproute2. A process of its own, which has left the network by
 * unshare, is a host.
 */
#ifndef MS_BENCH_SHAPED_LINKS_H
#define MS_BENCH_SHAPED_LINKS_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

/* What a link of 1 Gbit/s takes, and a queue of some milliseconds. */
#define SHAPE " root tbf rate 1gbit burst 256kb latency 20ms"

/* Seconds per byte of payload at 1 Gbit/s: frames of 1,514 bytes carry 1,448. */
static const double SECONDS_PER_BYTE = 8e-9 * 1514 / 1448;
/* The share of a link that is to be used. */
static const double OF_THE_LINK = 0.95;

/* These return 0 for success. */
static inline int run(const char *format, int a, int b) {
  char command[256];
  snprintf(command, sizeof command, format, a, b);
  return system(command);
}

/* In a network of this process alone. */
static inline int make_bridge(void) {
  return unshare(CLONE_NEWNET) || system("ip link set lo up && ip link add br0 type bridge && ip link set br0 up");
}

/* Connects the namespace of a process to a port of the bridge, as its eth0. */
static inline int plug_in(int port, pid_t pid) {
  return run("ip link add port%d type veth peer name eth0 netns %d", port, (int)pid) ||
         run("ip link set port%d master br0 && ip link set port%d up", port, port) ||
         run("tc qdisc add dev port%d" SHAPE, port, 0);
}

static inline int compare_seconds(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The median of n rounds of what the slowest rank of each needed: the seconds of rank r in round k are at
 * seconds[k * of_round + r * of_rank]. slowest: [n]. */
static inline double median_of_slowest(const double *seconds, int n, int ranks, int of_round, int of_rank,
                                       double *slowest) {
  for (int round = 0; round < n; round++) {
    slowest[round] = 0;
    for (int rank = 0; rank < ranks; rank++) {
      const double one = seconds[round * of_round + rank * of_rank];
      if (one > slowest[round]) slowest[round] = one;
    }
  }
  qsort(slowest, (size_t)n, sizeof slowest[0], compare_seconds);
  return slowest[n / 2];
}

#endif
