/* cores.h - the cores that this process may use: the kernel's affinity mask (a container's cpuset is in it), the physical
** cores that they belong to, and the processor time that control groups grant. */
#ifndef MS_BASE_CORES_H
#define MS_BASE_CORES_H

#include <sched.h>
#include <stddef.h>

typedef struct ms_cores {
  int n;                     /* cores of the mask */
  int core[CPU_SETSIZE];     /* their numbers; those that share a physical core stand beside each other */
  int physical[CPU_SETSIZE]; /* the physical core of core[i], counted from 0 in this order */
  int n_physical;
  double quota; /* cores' worth of processor time; n where nothing limits it further */
} ms_cores;

/* root: "", or the folder that stands for / in a test. What cannot be read limits nothing. */
void ms_cores_read(const char *root, ms_cores *cores);
/* Whole cores that can be kept busy: the mask's, or as many as the quota pays for, at least 1. */
int ms_cores_usable(const ms_cores *cores);
/* "0-3,8" of a set, in the order of numbers; cut when it does not fit. */
void ms_cores_text(const cpu_set_t *set, char *text, size_t bytes);

#endif
