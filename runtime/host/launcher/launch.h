/* launch.h - a launch while it runs, as its parts see it: starting the ranks, watching them, telling how they ended. */
#ifndef MS_HOST_LAUNCH_H
#define MS_HOST_LAUNCH_H

#include <signal.h>
#include <sys/types.h>

#include "comm/diagnose/launcher_view.h"
#include "host/launcher.h"
#include "host/launcher/leftovers.h"
#include "host/launcher/nodes.h"
#include "host/launcher/outlet.h"
#include "host/launcher/pin.h"
#include "host/launcher/rank_log.h"

enum { MS_STATUS_BAD_INPUT = 2, MS_STATUS_FAILED_RUN = 3, MS_STATUS_INTERRUPTED = 130, MS_STATUS_TERMINATED = 143 };

typedef struct ms_child {
  pid_t pid; /* 0 before it was forked */
  int running;
  int status;         /* of waitpid, once it ended */
  int ended_by_us;    /* the launcher lost patience with it */
  int file;           /* its log file, or -1 */
  ms_rank_log log[2]; /* stdout, stderr; fd -1 where the launcher does not read */
} ms_child;

typedef struct ms_running {
  const ms_launch_config *config;
  int control_fd;
  ms_control_view *view;
  ms_pinning pinning;
  ms_child *ranks;
  ms_outlet *outlet; /* [2]: standard output, standard error */
  char lost[512];    /* why what ranks print cannot be written, as on a full disk; "": it can */
  int unread;        /* all ranks ended well, but a signal ended the wait for a reader of what they printed */
  int running;
  int signals; /* descriptor of the signals that the launcher takes */
  sigset_t old_mask;
  struct sigaction old_child_action, old_pipe_action;
  ms_leftovers leftovers;
  int first_failed;    /* the first rank seen to have failed, or -1 */
  int asked_to_end;    /* the signal that asked the launcher to end, or 0 */
  double asked_at;     /* when */
  int asked_twice;     /* it was asked again, and did not wait any longer */
  double grace;        /* seconds that ranks were given to end; 0: not yet */
  double kill_at;      /* 0: not yet */
  char *stuck;         /* where the ranks were that had to be killed, if they should have saved; or NULL */
  double tell_to_wait; /* when to say that ranks have not ended yet; 0: never */
} ms_running;

/* spawn.c: forks one rank, with its output connected. */
int ms_start_rank(ms_running *run, int rank);

/* watch.c: the signals that the launcher takes, and the loop until no rank runs any more. */
int ms_take_signals(ms_running *run);
void ms_give_signals_back(ms_running *run);
void ms_watch(ms_running *run);
/* All ranks have ended: waits until what they printed was read, as any program that prints does, but not for long when the
** run failed or was asked to end, and not after a signal. */
void ms_finish_output(ms_running *run);
/* SIGKILL for every rank that runs. */
void ms_kill_ranks(ms_running *run);

/* report.c: whether SIGTERM asked ranks to end that save first; the exit status of the run, and the lines on stderr that say why it failed. */
int ms_asked_to_save(const ms_running *run);
int ms_choose_status(const ms_running *run);
void ms_report(const ms_running *run, int exit_status);
/* "rank 2", "ranks 1, 3" of those that run now (running 1) or that the launcher ended (0). Returns how many. */
int ms_name_ranks(const ms_running *run, int running, char *text, size_t bytes);

#endif
