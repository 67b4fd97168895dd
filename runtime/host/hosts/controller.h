/* controller.h - runs one command on several hosts from this machine: starts each host's launcher through an agent such
 * as ssh (remote.h), passes its output on, forwards signals, ends all hosts when one has failed, and reports the first
 * failure once.
 */
#ifndef MS_HOST_CONTROLLER_H
#define MS_HOST_CONTROLLER_H

#include <signal.h>
#include <stddef.h>
#include <sys/types.h>
#include <termios.h>

#include "host/hosts/frame.h"
#include "host/launcher/rank_log.h"

typedef struct ms_controlled_host {
  const char *name;
  const char *const *command; /* the agent's words, the host and the remote command; ends with NULL */
  const char *setup;          /* the fields of a SETUP frame after the token */
  size_t setup_bytes;
  /* while it runs */
  pid_t pid; /* 0: not started, or ended */
  int status;
  ms_frame_queue to;
  ms_frame_reader from;
  int greeted;            /* the magic has come */
  int ready, told;        /* HELLO has come; START was sent */
  int over;               /* number of hosts that ended before it, from 1; 0: it runs */
  int lost;               /* it ended without an END */
  int exit_status, began; /* began: as in launcher/link.h */
  char *place, *reason, *report;
  double lost_at;     /* when the agent ended; 0: it runs */
  ms_rank_log log[3]; /* output, errors, and what the agent prints itself */
  char prefix[MS_RANK_LOG_PREFIX - 8];
} ms_controlled_host;

/* Standard input, of which the first host gets everything while a prompt is open. */
typedef struct ms_controller_input {
  int open;              /* it is read */
  int raw;               /* it is a terminal in raw mode */
  struct termios before; /* the terminal's modes before */
  long long ahead;       /* bytes that were sent, but are not passed on to rank 0 yet */
} ms_controller_input;

typedef struct ms_controller {
  ms_controlled_host *hosts;
  int n;
  int log_all;       /* the lines of all ranks are shown, with their numbers */
  int interactive;   /* a prompt: rank 0 reads standard input, and ranks handle Ctrl-C themselves */
  const char *agent; /* for messages */
  double timeout;    /* seconds until every host has answered, and of silence after which one is lost */
  /* while it runs */
  ms_output_buffer *output;  /* [2] */
  double output_moved_at[2]; /* when the reader last took some of what waits (ms_clock) */
  int unread;                /* the end was asked for, and output that nothing read was dropped */
  ms_controller_input input;
  int signals;
  sigset_t old_mask;
  struct sigaction old_pipe_action, old_child_action;
  int started, over;      /* START was sent to all; number of hosts that have ended */
  int asked, asked_again; /* the signal that asked for the end */
  double turned_at;       /* the last turn of the loop (ms_clock) */
  double deadline;        /* for answers, then for the ends of hosts; 0: none */
  char end_why[512];      /* why all will be asked to end, at end_at */
  double end_at;          /* 0: not set */
  char why[512];          /* why all were asked to end; "": they were not */
} ms_controller;

/* controller.c. *exit_status as of ms_launch: of the first rank that failed. Fails only before it starts an agent. */
int ms_controller_run(ms_controller *controller, int *exit_status);
/* controller_output.c. has_room: 1 while another frame of output may be taken. pass: writes what the readers take now,
 * and returns the number of bytes that wait for them. wait: until they take more, or a signal comes. report: changes
 * *exit_status, and says why, if a run that ended well has lost part of its output. */
int ms_controller_has_room(const ms_controller *controller);
size_t ms_controller_output_pass(ms_controller *controller);
void ms_controller_output_wait(const ms_controller *controller);
void ms_controller_output_report(ms_controller *controller, int *exit_status);
/* controller_agent.c: starts the agent of a host. Fails with MS_EIO; the caller has then lost the host. */
int ms_controller_start(ms_controller *controller, ms_controlled_host *host);
void ms_controller_close(ms_controlled_host *host);
/* controller_greeting.c. greet: 1 once the host's greeting has come, 0 before, -1 with how if something else came.
 * advise: appends what a user can do about an agent that ended, or does not answer, before that. */
int ms_controller_greet(ms_controlled_host *host, char *how, size_t bytes);
void ms_controller_advise(const ms_controlled_host *host, ms_text *text);
/* controller_signals.c: fails with MS_EIO. Giving back does nothing if nothing was taken. */
int ms_controller_take_signals(ms_controller *controller);
void ms_controller_give_signals_back(ms_controller *controller);
/* controller_input.c: does nothing unless the run is interactive. begin: ranks start now; end: gives the terminal back.
 * fd: for poll, -1 while nothing can be taken; pass: sends what there is; taken: the bytes of a TAKEN; resize: tells
 * the size of the terminal. */
void ms_controller_input_begin(ms_controller *controller);
int ms_controller_input_fd(const ms_controller *controller);
void ms_controller_input_pass(ms_controller *controller);
void ms_controller_input_taken(ms_controller *controller, const char *bytes);
void ms_controller_input_resize(ms_controller *controller);
void ms_controller_input_end(ms_controller *controller);
/* What rank 0 reads on its host, for remote_input.h: "terminal together". */
const char *ms_controller_streams(void);
/* controller_report.c: the exit status of the run, and the lines that say why. */
void ms_controller_report(ms_controller *controller, int *exit_status);

#endif
