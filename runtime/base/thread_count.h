/* thread_count.h - how many threads a rank computes with, decided in one place for launchers, plans and ranks of others. */
#ifndef MS_BASE_THREAD_COUNT_H
#define MS_BASE_THREAD_COUNT_H

#include "base/cores.h"

/* Cores that a batch system granted, as its environment says; 0: it says nothing. */
typedef struct ms_grant {
  int node; /* all ranks of this node together */
  int rank; /* this process, which the batch system started as one rank */
} ms_grant;

/* MS_EINVAL names a variable that holds no number of cores. */
int ms_grant_read(ms_grant *grant);

/* Threads of each of `ranks` ranks that share these cores: one for each physical core, at least 1. granted: the most cores
** that may be used together, 0 for all. */
int ms_threads_each(const ms_cores *cores, int granted, int ranks);

/* Threads of a rank of this process: OMP_NUM_THREADS; else what was decided when the rank joined; else an equal share of the
** cores that this process may use, for `ranks` ranks of one node. */
int ms_thread_count(int ranks, int *threads);
/* Called once by the thread that joins, before plans are made. */
void ms_thread_count_decide(int threads);

#endif
