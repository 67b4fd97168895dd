/* environment.h - what launchers tell a process through its environment: which rank it is, of how many, and where they
** meet. */
#ifndef MS_COMM_BOOTSTRAP_ENVIRONMENT_H
#define MS_COMM_BOOTSTRAP_ENVIRONMENT_H

#include "comm/bootstrap/store.h"

typedef struct ms_task {
  const char *source; /* who said so, by the variables' names; NULL: nobody, a world of one */
  int rank, size;
  int local_size; /* ranks that are said to be on this host; 0: nobody said */
  ms_store_place place;
  char job[MS_STORE_JOB];
  char token[64]; /* one that the launcher made; "": it made none */
} ms_task;

/* The order is: torchrun's variables (also when set by hand), Open MPI's, MVAPICH's, those of MPICH and Intel MPI, Slurm's
** (which name the hosts too, and come first where both say the same);
** where to meet is MOONSHARD_RENDEZVOUS, or what follows from the launcher. Two launchers that contradict each other are
** refused with both named, unless the inner one was started by the outer one's tasks (torchrun or mpirun in fewer tasks
** than it has ranks). place, job and token are filled when size > 1. A launcher that says "one of several" by other
** variables is refused by their names. */
int ms_environment_read(ms_task *task);
/* Rank, size and source alone: is this process one of several that another launcher started? */
int ms_environment_task(ms_task *task);

#endif
