/* environment.h - reads what launchers put into a process's environment: its rank, the world size, and where the ranks
 * meet. */
#ifndef MS_COMM_BOOTSTRAP_ENVIRONMENT_H
#define MS_COMM_BOOTSTRAP_ENVIRONMENT_H

#include "comm/bootstrap/store/store.h"

typedef struct ms_task {
  const char *source; /* names of the variables that say so; NULL: no launcher, a world of one */
  const char *set_by; /* a variable that the launcher has set, not a user by hand; NULL: none */
  int rank, size;
  int local_size; /* ranks on this host according to the launcher; 0: unknown */
  ms_store_place place;
  char job[MS_STORE_JOB];
  char token[64]; /* made by the launcher; "": the launcher made none */
} ms_task;

/* Reads the variables of torchrun (also when set by hand), Open MPI, MVAPICH, MPICH and Intel MPI, and Slurm, in this
 * order; Slurm's also name the hosts, and take precedence when they agree with another launcher's. The rendezvous is
 * MOONSHARD_RENDEZVOUS, or is derived from the launcher's variables.
 * Returns an error that names both launchers when two of them contradict each other, unless the tasks of the outer one
 * started the inner one (torchrun or mpirun with fewer tasks than ranks). Also rejects an unknown launcher whose
 * variables say that this process is one of several, and names these variables. place, job and token are filled only
 * when size > 1. */
int ms_environment_read(ms_task *task);
/* Reads only rank, size and source: did another launcher start this process as one of several? */
int ms_environment_task(ms_task *task);

#endif
