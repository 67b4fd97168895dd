/* hosts.h - runs a function as the ranks of a job over several hosts: processes of this machine that count as different
 * hosts, since MOONSHARD_NODE differs. They share no control segment and meet at a store over TCP. */
#ifndef MS_TESTS_HOSTS_H
#define MS_TESTS_HOSTS_H

#include <sys/types.h>

#include "tests/c/support/ranks/ranks.h"

enum { MAX_HOST_RANKS = 80 };

/* How a rank ended; in memory that all share. */
typedef struct ended {
  int status; /* of its body; -1: it has not returned */
  double at;  /* ms_clock */
  char message[4096];
} ended;

typedef struct hosts {
  int size, per_host;
  double timeout; /* seconds; 0: 20 */
  rank_body *body;
  void *context; /* shared memory, or constant */
} hosts;

/* Starts the ranks, waits for all, and returns their ends [size], which are valid until the next run. */
const ended *run_hosts(const hosts *how);
/* The same; fails the test when a body's status is not MS_OK. */
void expect_hosts(const hosts *how);

#endif
