/* launcher.h - runs a function as N ranks: N forked processes that share a job's control segment.
**
** The launcher forks without exec, so a rank starts in about a millisecond with all code mapped; it must not have run
** OpenMP regions or other threads before. It watches until every rank has ended and tells the first failure once.
*/
#ifndef MS_HOST_LAUNCHER_H
#define MS_HOST_LAUNCHER_H

typedef struct ms_launch_config {
  int ranks; /* 1 .. MS_MAX_LOCAL_RANKS */
  /* A rank's program; returns its exit status: 0, 2 for bad input, 3 for a failed run. A rank that fails first tells why
  ** by ms_world_abort; it does not print. */
  int (*rank_main)(void *context);
  void *context;
  int log_all; /* 0: rank 0's output goes straight through, the others' is dropped. 1: all lines, "[rank N] " before each */
  double grace; /* seconds for the others to end after the first failure, before SIGKILL; 0: the default, 3 */
} ms_launch_config;

/* Runs the ranks to their end. A rank that fails or dies ends the others; one line on stderr says which and why, or, when
** its status is 2, why alone (all ranks then stumbled over the same input).
** SIGINT, SIGTERM and SIGHUP are passed on; a second one kills. SIGKILL of the launcher kills the ranks.
** *exit_status: 0 when all ranks gave 0; of the first rank that failed; 3 when a signal ended it; 128 + n when the run was
** ended by signal n to the launcher. Fails (MS_EINVAL, MS_EIO) only when the ranks could not be started. */
int ms_launch(const ms_launch_config *config, int *exit_status);

#endif
