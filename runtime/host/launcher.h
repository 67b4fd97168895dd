/* launcher.h - runs a function as N ranks: N forked processes that share a job's control segment.
**
** The launcher forks without exec, so a rank starts in about a millisecond with all code mapped; it must not have started
** threads before. It watches until every rank has ended and tells the first failure once.
*/
#ifndef MS_HOST_LAUNCHER_H
#define MS_HOST_LAUNCHER_H

typedef struct ms_launch_config {
  int ranks; /* 1 .. MS_MAX_LOCAL_RANKS */
  /* A rank's program; returns its exit status: 0, 2 for bad input, 3 for a failed run, 130 for an interrupted one, 143 for one
  ** that saved because SIGTERM asked it to end. A rank that fails first tells why by ms_world_abort; it does not print. */
  int (*rank_main)(void *context);
  void *context;
  int log_all; /* 0: rank 0's output goes straight through, the others' is dropped. 1: all lines, "[rank N] " before each */
  /* NULL, or a folder that is there: what rank N prints goes to log_dir/rank-N.log too, with timestamps, whoever sees it on
  ** the terminal. */
  const char *log_dir;
  const char *pin; /* NULL or "auto", "none", or a list of cores "0-3,8": see launcher/pin.h */
  int interactive; /* 1: SIGINT is the ranks' own business, and so is telling about errors that end them */
  /* One node of several (0 or 1: of one): each has a launcher that starts `ranks` ranks, and they meet at rendezvous, which
  ** is tcp://host:port, file:///path, env:// or, when the ranks of this launcher are all, NULL. */
  int nodes, node_rank;
  const char *rendezvous;
  /* 1: this process is rank node_rank of another launcher, and the one rank that is forked takes that place: the launcher here
  ** does no more than write its log file. Signals are passed on, and how it ends is passed back. */
  int joins;
  double grace;         /* seconds for ranks to end before SIGKILL; 0: 3 after a failure, 5 after a request to end */
  double grace_to_save; /* the same after SIGTERM; 0: 30 where ranks save before they end, else as above */
} ms_launch_config;

/* Runs the ranks to their end. A rank that fails or dies ends the others; one line on stderr says which and why, or, when
** its status is 2, why alone (all ranks then stumbled over the same input). Programs that ranks started and left behind are
** killed when the run failed.
** SIGINT, SIGTERM and SIGHUP are passed on and start the grace time; a second one kills, but for a SIGTERM within two
** seconds of another. SIGTSTP and SIGCONT stop and
** continue all. SIGKILL of the launcher kills the ranks.
** *exit_status: 0 when all ranks gave 0; 2, 130 or 143 when the first rank that failed gave it, 3 when it gave another or was
** ended by a signal; 128 + n when the run was ended by signal n to the launcher. Fails (MS_EINVAL, MS_EIO) only when the
** ranks could not be started. */
int ms_launch(const ms_launch_config *config, int *exit_status);

#endif
