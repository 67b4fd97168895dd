/* launch.h - the state of a running launch, shared by its parts: starting ranks, watching them, reporting how they
 * ended. All of it runs on the launcher's one thread. */
#ifndef MS_HOST_LAUNCH_H
#define MS_HOST_LAUNCH_H

#include <signal.h>
#include <sys/types.h>

#include "base/text/text.h"
#include "comm/diagnose/launcher_view.h"
#include "host/launcher.h"
#include "host/launcher/orphans.h"
#include "host/launcher/link.h"
#include "host/launcher/output_buffer.h"
#include "host/launcher/pin.h"
#include "host/launcher/rank_log.h"

/* Said where a signal ended the wait for a reader, which was all that a run still did. */
#define MS_NOT_ALL_READ "all ranks have ended, but not everything that they printed was read"

enum { MS_STATUS_BAD_INPUT = 2, MS_STATUS_FAILED_RUN = 3, MS_STATUS_INTERRUPTED = 130, MS_STATUS_TERMINATED = 143 };

typedef struct ms_child {
  pid_t pid; /* 0 before the fork */
  int running;
  int status;         /* from waitpid, once it has ended */
  int ended_by_us;    /* the launcher killed it */
  int file;           /* its log file, or -1 */
  char prefix[24];    /* "[rank 3] " */
  ms_rank_log log[2]; /* stdout, stderr; fd -1: the launcher does not read this stream */
} ms_child;

typedef struct ms_running {
  const ms_launch_config *config;
  int control_fd;
  ms_control_view *view;
  ms_pinning pinning;
  ms_child *ranks;
  ms_output_buffer *output; /* [2]: the launcher's standard output and standard error */
  char lost[512];           /* why output of ranks could not be written, as on a full disk; "": no error */
  int unread;               /* all ranks succeeded, but after a signal their output was given up for lack of a reader */
  char gone[256]; /* all ranks succeeded, but their reader was gone before that: why output is lost; "": none is */
  int running;    /* number of ranks that run */
  int signals;    /* the signalfd */
  sigset_t old_mask;
  struct sigaction old_child_action, old_pipe_action;
  ms_orphans orphans;
  int first_failed;    /* the first rank whose failed end was seen, or -1 */
  int asked_to_end;    /* the signal that requested the end, or 0 */
  double asked_at;     /* when it arrived, as ms_clock */
  int asked_twice;     /* a second request arrived, and the ranks were killed at once */
  double grace;        /* seconds that ranks get to end; 0: not set yet */
  double kill_at;      /* when ranks get SIGKILL, as ms_clock; 0: not set yet */
  ms_text *said;       /* collects the report for config->link */
  char *stuck;         /* where ranks that should have saved, but were killed, were stuck; or NULL */
  double tell_to_wait; /* when to print that ranks have not ended yet; 0: never */
} ms_running;

/* spawn.c. ms_nodes_prepare reads the job's token before the ranks are forked, so that they inherit it in memory; on a
 * single node, it makes a random token. Fails with MS_EINVAL if the rendezvous is malformed, or if other hosts can
 * reach it and there is no token. ms_nodes_rank: the global rank of a local rank; node 0's ranks come first, then node
 * 1's. ms_start_rank forks one rank and connects its output. */
int ms_nodes_prepare(const ms_launch_config *config);
int ms_nodes_rank(const ms_launch_config *config, int local_rank);
/* Number of ranks of all nodes. */
int ms_nodes_world(const ms_launch_config *config);
int ms_start_rank(ms_running *run, int rank);
/* Before any rank is started: fails if one cannot be written, or if another run writes it. */
int ms_open_log_files(ms_running *run);

/* watch.c: handles signals by a signalfd and restores them; ms_watch loops until no rank runs. */
int ms_take_signals(ms_running *run);
void ms_give_signals_back(ms_running *run);
void ms_watch(ms_running *run);
/* After all ranks have ended: waits until their output has been read, as for any program that prints; but only briefly
 * if the run failed or was asked to end, and not after a signal. */
void ms_finish_output(ms_running *run);
/* Sends SIGKILL to every running rank. */
void ms_kill_ranks(ms_running *run);

/* report.c. ms_asked_to_save: SIGTERM ended the run, and the ranks save before they end. ms_report prints on stderr why
 * the run failed. */
int ms_asked_to_save(const ms_running *run);
int ms_choose_status(const ms_running *run);
void ms_report(const ms_running *run, int exit_status);
/* text: "rank 2" or "ranks 1, 3": the ranks that run (running 1), or that the launcher killed (0). Returns their
 * number. */
int ms_name_ranks(const ms_running *run, int running, char *text, size_t bytes);

#endif
