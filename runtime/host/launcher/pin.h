/* pin.h - the cores that each rank runs on, and its number of threads. */
#ifndef MS_HOST_PIN_H
#define MS_HOST_PIN_H

#include "base/machine/cores.h"
#include "moonshard.h"

typedef struct ms_pinning {
  int ranks;
  int pinned;                        /* 1: rank r runs only on set[r]; 0: anywhere */
  int threads;                       /* per rank */
  cpu_set_t set[MS_MAX_LOCAL_RANKS]; /* disjoint */
} ms_pinning;

/* pin: NULL or "auto", "none", or a list of cores like "0-3,8", which is divided among the ranks in its order.
 * threads: the value of OMP_NUM_THREADS, 0 if not set. granted: the number of cores that a batch system grants to this
 * node's ranks (ms_grant), 0 without one. If it grants fewer cores than exist, other jobs use the rest, and auto does
 * not pin. auto pins if each rank gets at least one core and a core for each of its threads, and if only the affinity
 * mask limits the processors: a quota of processor time does not say which cores are free. Fails with MS_EINVAL for a
 * malformed list, and for a list that names a core missing from `cores` or has fewer cores than ranks. */
int ms_pinning_plan(const ms_cores *cores, int granted, const char *pin, int threads, int ranks, ms_pinning *pinning);
/* Moves the calling process to its cores, and sets OMP_NUM_THREADS for its kernels unless it is already set. */
void ms_pinning_take(const ms_pinning *pinning, int rank);

#endif
