/* thread_count.c - reads the cores granted by a batch system and divides cores among ranks. */
#include "base/thread_count.h"

#include <stdatomic.h>
#include <stddef.h>

#include "base/env.h"
#include "moonshard.h"

enum { MOST_THREADS = 1024, MOST_CORES = 1 << 16 };

/* Slurm; PBS Professional; Torque; Grid Engine. */
static const char *const NODE_VARIABLES[] = {"SLURM_CPUS_ON_NODE", "NCPUS", "PBS_NUM_PPN", "NSLOTS"};
static const char *const RANK_VARIABLES[] = {"SLURM_CPUS_PER_TASK"};

static int read_first(const char *const *names, size_t n, int *value) {
  *value = 0;
  for (size_t i = 0; i < n && !*value; i++)
    if (ms_env_string(names[i], NULL)) return ms_env_int(names[i], 0, 1, MOST_CORES, value);
  return MS_OK;
}

int ms_grant_read(ms_grant *grant) {
  int rc = read_first(NODE_VARIABLES, sizeof NODE_VARIABLES / sizeof *NODE_VARIABLES, &grant->node);
  return rc ? rc : read_first(RANK_VARIABLES, sizeof RANK_VARIABLES / sizeof *RANK_VARIABLES, &grant->rank);
}

int ms_threads_each(const ms_cores *cores, int granted, int ranks) {
  int usable = ms_cores_usable(cores);
  if (granted > 0 && granted < usable) usable = granted;
  if (usable > cores->n_physical) usable = cores->n_physical;
  return usable > ranks ? usable / ranks : 1;
}

static _Atomic int decided;

void ms_thread_count_decide(int threads) { atomic_store(&decided, threads); }

int ms_thread_count(int ranks, int *threads) {
  ms_cores cores;
  ms_grant grant;
  int joined = atomic_load(&decided), rc;
  if (joined || ms_env_string("OMP_NUM_THREADS", NULL))
    return ms_env_int("OMP_NUM_THREADS", joined, 1, MOST_THREADS, threads);
  if ((rc = ms_grant_read(&grant))) return rc;
  ms_cores_read("", &cores);
  *threads = ms_threads_each(&cores, ranks == 1 && grant.rank ? grant.rank : grant.node, ranks);
  return MS_OK;
}
