/* cores.h - the cores that this process can use: the kernel's affinity mask (which includes a container's cpuset),
 * the physical cores behind it, and the processor time that control groups grant. */
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

#endif
