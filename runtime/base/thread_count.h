/* thread_count.h - how many threads a rank computes with; launchers, plans and ranks started by other launchers all
 * ask here. */
#ifndef MS_BASE_THREAD_COUNT_H
#define MS_BASE_THREAD_COUNT_H

#include "base/cores.h"

/* Cores granted by a batch system, read from its environment variables; 0: not specified. */
typedef struct ms_grant {
  int node; /* cores for all ranks of this node together */
  int rank; /* cores for this process, if the batch system started it as a rank */
} ms_grant;

/* MS_EINVAL names the variable whose value is not a number of cores. */
int ms_grant_read(ms_grant *grant);

/* Threads per rank if `ranks` ranks share these cores: one per physical core, at least 1. granted: upper limit on the
 * cores of all ranks together, 0 for none. */
int ms_threads_each(const ms_cores *cores, int granted, int ranks);

/* Threads of a rank in this process: OMP_NUM_THREADS; otherwise the number decided when the rank joined; otherwise an
 * equal share of this process's cores for `ranks` ranks on the node. */
int ms_thread_count(int ranks, int *threads);
/* Called once, by the thread that joins the world, before any plan is compiled. */
void ms_thread_count_decide(int threads);

#endif
