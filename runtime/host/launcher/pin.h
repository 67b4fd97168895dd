/* pin.h - which cores each rank runs on, and how many threads it gets. */
#ifndef MS_HOST_PIN_H
#define MS_HOST_PIN_H

#include "base/thread_count.h"
#include "moonshard.h"

typedef struct ms_pinning {
  int ranks;
  int pinned;                        /* 1: rank r runs on set[r] alone; 0: anywhere */
  int threads;                       /* of a rank */
  cpu_set_t set[MS_MAX_LOCAL_RANKS]; /* disjoint */
} ms_pinning;

/* pin: NULL or "auto", "none", or a list of cores like "0-3,8" that the ranks divide among them in its order.
** threads: what OMP_NUM_THREADS asks for, 0 when it is not set. granted: cores that a batch system leaves to this node's ranks
** (ms_grant), 0 when there is none; where it grants fewer than there are, others use the rest, and auto does not pin.
** auto pins where each rank gets at least a core and all of its threads, and nothing but the mask limits the processors;
** a quota of processor time says nothing of where that time is best spent. Fails with MS_EINVAL for a list that is none, or
** names a core that `cores` does not have, or has fewer cores than ranks. */
int ms_pinning_plan(const ms_cores *cores, int granted, const char *pin, int threads, int ranks, ms_pinning *pinning);
/* Moves the calling process to its cores and sets OMP_NUM_THREADS for its plans, unless it is set. */
void ms_pinning_take(const ms_pinning *pinning, int rank);

#endif
