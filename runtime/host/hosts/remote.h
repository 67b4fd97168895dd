/* remote.h - the program that `moonshard run --hosts` starts on each host through its agent (ssh).
 *
 * It reads the token and its orders from standard input, forks the host's launcher as an ordinary `moonshard run
 * --nodes`, and passes the launcher's output, report and exit status on through standard output, in frames. The end of
 * standard input ends the launcher: the connection is the sign that the run still exists.
 */
#ifndef MS_HOST_REMOTE_H
#define MS_HOST_REMOTE_H

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/types.h>

#include "host/hosts/frame.h"
#include "host/hosts/remote_input.h"
#include "host/launcher/orphans.h"

typedef struct ms_remote {
  ms_frame_reader in;
  ms_frame_queue out;
  int signals;
  sigset_t old_mask;
  int input_ended;
  /* set-up */
  char *token;    /* NULL: not known yet, or already passed on */
  char head[320]; /* "first world host", for the launcher */
  char *fields;   /* the launcher's arguments, each with a NUL */
  size_t fields_bytes;
  int reserved; /* the port at which ranks meet, on the first host */
  ms_remote_input input;
  /* the launcher */
  pid_t pid; /* 0: not started, or ended */
  int ended, status;
  int stream[2], link;
  int began; /* as in ms_link_report, of which these are copies */
  char *reason, *report;
  int presses;                /* how often Ctrl-C was pressed */
  sigset_t passed;            /* the signals that were passed to it */
  char lost[160];             /* why this program ended the ranks of its own accord; "": it did not */
  double kill_at, drained_at; /* 0: not set */
  double silence;             /* seconds after which the controller, or a launcher that is stopped, is given up */
  double turned_at;           /* the last turn of the loop (ms_clock) */
  double stopped_at;          /* since when the launcher is stopped by a signal; 0: it is not */
  ms_orphans orphans;
} ms_remote;

/* Returns the exit status of the program. */
int ms_remote_main(void);
/* This host, as --hosts names it. */
static inline const char *ms_remote_host(const ms_remote *remote) { return strrchr(remote->head, ' ') + 1; }
/* remote_launcher.c: starts the launcher, to which it passes the token on. place: where the ranks meet, or "". */
int ms_remote_start_launcher(ms_remote *remote, const char *place);

#endif
