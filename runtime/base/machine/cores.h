/* cores.h - the cores that this process can use: the kernel's affinity mask (which includes a container's cpuset),
 * the physical cores behind it, and the processor time that control groups grant; and how many threads a rank computes
 * with there. Launchers, plans and ranks started by other launchers all ask here. */
#ifndef MS_BASE_CORES_H
#define MS_BASE_CORES_H

#include <sched.h>
#include <stddef.h>

typedef struct ms_cores {
  int n;                     /* cores in the mask */
  int core[CPU_SETSIZE];     /* [n] core numbers; cores that share a physical core are adjacent */
  int physical[CPU_SETSIZE]; /* [n] physical core of core[i], numbered from 0 in this order */
  int n_physical;
  double quota; /* processor time in cores; n if there is no further limit */
} ms_cores;

/* root: "", or in tests a folder used in place of /. A file that cannot be read imposes no limit. */
void ms_cores_read(const char *root, ms_cores *cores);
/* The number of cores that can be kept busy: all of the mask, or as many as the quota allows; at least 1. */
int ms_cores_usable(const ms_cores *cores);
/* Writes a set in ascending order, e.g. "0-3,8"; truncates it if it does not fit. */
void ms_cores_text(const cpu_set_t *set, char *text, size_t bytes);

/* ---- threads ---- */

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
