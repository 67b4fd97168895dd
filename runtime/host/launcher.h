/* launcher.h - runs a function as N ranks: N forked processes that share a job's control segment.
 *
 * The launcher forks without exec, so a rank starts in about a millisecond with all code mapped. The process must not
 * have started threads before. The launcher waits until every rank has ended, and reports the first failure once.
 */
#ifndef MS_HOST_LAUNCHER_H
#define MS_HOST_LAUNCHER_H

typedef struct ms_launch_config {
  int ranks; /* 1 .. MS_MAX_LOCAL_RANKS */
  /* A rank's program. Returns its exit status: 0, 2 for bad input, 3 for a failed run, 130 for an interrupted run, 143
   * for a run that saved and ended after SIGTERM. The rank that fails first reports the reason with ms_world_abort and
   * does not print it. */
  int (*rank_main)(void *context);
  void *context;
  int log_all; /* 0: pass rank 0's output through, drop the others'. 1: all lines, with the prefix "[rank N] " */
  /* NULL, or an existing folder: the output of rank N is also written to log_dir/rank-N.log, with timestamps, whatever
   * log_all is. */
  const char *log_dir;
  const char *pin; /* NULL or "auto", "none", or a list of cores "0-3,8": see launcher/pin.h */
  int interactive; /* 1: the ranks handle SIGINT, and print the errors that end them, themselves */
  /* Number of nodes (0 or 1: one) and this node's index. Each node has a launcher that starts `ranks` ranks. They
   * connect at rendezvous: tcp://host:port, file:///path, env://, or NULL when there are only this launcher's ranks. */
  int nodes, node_rank;
  const char *rendezvous;
  /* 1: this process is rank node_rank of another launcher, and forks one rank that takes its place. This launcher only
   * writes the rank's log file, forwards signals to it and ends with its status. */
  int joins;
  /* NULL, or the connection to `moonshard run --hosts` (launcher/link.h): the other hosts can have different numbers of
   * ranks, rank 0 of the world alone is shown, and the report goes there instead of to stderr. */
  struct ms_launch_link *link;
  double grace;         /* seconds until ranks get SIGKILL; 0: 3 after a failure, 5 after a request to end */
  double grace_to_save; /* the same after SIGTERM; 0: 30 if ranks save before they end, else as grace */
} ms_launch_config;

/* Starts the ranks and waits until all have ended. When a rank fails or dies, the others are ended; one line on stderr
 * names the rank and the reason, or only the reason if its status is 2 (then all ranks found the same bad input). After
 * a failed run, programs that ranks started and left behind are killed.
 * SIGINT, SIGTERM and SIGHUP are forwarded and start the grace time; a second signal kills the ranks, except a SIGTERM
 * within two seconds of another. SIGTSTP and SIGCONT stop and continue all ranks. SIGKILL of the launcher kills the
 * ranks. *exit_status: 0 when all ranks returned 0; 2, 130 or 143 when the first rank that failed returned it; 3 when
 * that rank returned another status or was killed by a signal; 128 + n when signal n to the launcher ended the run. The
 * function itself fails (MS_EINVAL, MS_EIO) only if the ranks could not be started. */
int ms_launch(const ms_launch_config *config, int *exit_status);

#endif
