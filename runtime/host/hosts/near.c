/* near.c - the loop of a run on several hosts, on one thread that never blocks.
 *
 * All hosts answer before any starts ranks, so a host that is missing is named and leaves nothing to end. Then the
 * connections are the only ties: a host whose connection ends has lost its run, and ends by itself (far.c).
 */
#include "host/hosts/near.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/bootstrap/token.h"
#include "host/launcher/launch.h"

enum { STRAY_BYTES = 1 << 16 };
/* Seconds that hosts get to end after they were asked to; their launchers have shorter grace times. */
static const double END_SECONDS = 15.0;
/* Seconds for what an agent that has ended still holds in its pipe, which another process may keep open. */
static const double DRAIN_SECONDS = 1.0;
/* Seconds that a reader of the output may take at the end of a failed run. */
static const double PATIENCE = 1.0;

/* ---- ending ---- */

static void kill_agents(ms_near *near) {
  for (int i = 0; i < near->n; i++)
    if (near->hosts[i].pid) kill(-near->hosts[i].pid, SIGKILL);
}

/* Nothing runs there yet. */
static void give_up(ms_near_host *host) {
  ms_frame_close_queue(&host->to);
  if (host->pid) kill(-host->pid, SIGTERM);
}

static void ask_to_end(ms_near *near, const char *why) {
  if (*near->why) return;
  snprintf(near->why, sizeof near->why, "%s", why);
  near->deadline = ms_clock() + ms_wait_scale * END_SECONDS;
  for (int i = 0; i < near->n; i++) {
    ms_near_host *host = &near->hosts[i];
    if (near->started) ms_frame_put(&host->to, MS_FRAME_STOP, near->why, strlen(near->why));
    else give_up(host);
  }
}

/* The host's part is over; what its agent does now is of no interest. */
static void finish(ms_near *near, ms_near_host *host, int exit_status, int own) {
  char why[400];
  if (host->over) return;
  host->over = ++near->over;
  host->exit_status = exit_status;
  host->own = own;
  ms_frame_close_queue(&host->to);
  if (!exit_status || near->asked) return;
  const char *reason = host->reason && *host->reason ? host->reason : "its ranks ended";
  snprintf(why, sizeof why, "the run ended on host %.64s: %.300s", host->name, reason);
  ask_to_end(near, why);
}

static void lose(ms_near *near, ms_near_host *host, const char *how) {
  char *text;
  if (host->over) return;
  const char *advice = host->greeted ? ""
                                     : "; is moonshard at that path there (--remote-moonshard), and can the agent "
                                       "reach the host without a password?";
  size_t bytes = strlen(host->name) + strlen(near->agent) + strlen(how) + strlen(advice) + 128;
  host->lost = 1;
  text = ms_calloc((int64_t)bytes, 1);
  if (text)
    snprintf(text, bytes, "moonshard: host %s: %s: %s%s\n", host->name,
             host->greeted ? "the connection ended during the run" : near->agent, how, advice);
  free(host->report);
  host->report = text;
  finish(near, host, MS_STATUS_FAILED_RUN, *near->why ? 0 : 1);
}

static void lose_agent(ms_near *near, ms_near_host *host) {
  char how[160];
  if (WIFSIGNALED(host->status))
    snprintf(how, sizeof how, "the agent was killed by signal %d (%s)", WTERMSIG(host->status),
             strsignal(WTERMSIG(host->status)));
  else
    snprintf(how, sizeof how, "the agent ended with exit status %d%s", WEXITSTATUS(host->status),
             host->greeted ? "" : " before moonshard answered");
  lose(near, host, how);
}

static void pass_deadline(ms_near *near) {
  char how[96];
  if (near->deadline == 0 || ms_clock() < near->deadline) return;
  near->deadline = 0;
  if (*near->why || near->asked)
    snprintf(how, sizeof how, "it did not end within %g s: look for its processes", ms_wait_scale * END_SECONDS);
  else snprintf(how, sizeof how, "it did not answer within %g s", near->timeout);
  for (int i = 0; i < near->n; i++)
    if (*near->why || near->asked || !near->hosts[i].ready) lose(near, &near->hosts[i], how);
  if (near->over == near->n) kill_agents(near);
}

/* ---- signals ---- */

static void forward(ms_near *near, int number) {
  const char byte = (char)number;
  near->asked_again = near->asked != 0;
  near->asked = near->asked ? near->asked : number;
  if (near->asked_again || !near->started) near->deadline = ms_clock() + ms_wait_scale * END_SECONDS;
  for (int i = 0; i < near->n; i++) {
    if (near->started) ms_frame_put(&near->hosts[i].to, MS_FRAME_SIGNAL, &byte, 1);
    else give_up(&near->hosts[i]);
  }
}

static void read_signals(ms_near *near) {
  struct signalfd_siginfo info;
  while (read(near->signals, &info, sizeof info) == (ssize_t)sizeof info)
    if (info.ssi_signo != SIGCHLD) forward(near, (int)info.ssi_signo);
}

/* ---- frames ---- */

static void start_all(ms_near *near) {
  const char *place = near->hosts[0].place;
  for (int i = 0; i < near->n; i++)
    if (!near->hosts[i].ready) return;
  if (near->started || near->asked || *near->why) return;
  near->started = 1;
  near->deadline = 0;
  for (int i = 0; i < near->n; i++) ms_frame_put(&near->hosts[i].to, MS_FRAME_START, place, strlen(place));
}

static void take_end(ms_near *near, ms_near_host *host, const char *bytes, size_t n) {
  const char *at = bytes, *end = bytes + n;
  int status = atoi(ms_frame_field(&at, end)), own = atoi(ms_frame_field(&at, end));
  free(host->reason);
  free(host->report);
  host->reason = ms_strdup(ms_frame_field(&at, end));
  host->report = ms_strdup(ms_frame_field(&at, end));
  finish(near, host, status, own);
}

static void take_frame(ms_near *near, ms_near_host *host, int kind, char *bytes, size_t n) {
  if (kind == MS_FRAME_OUT && n <= MS_FRAME_OUTPUT) ms_rank_log_take(&host->log[0], bytes, n);
  else if (kind == MS_FRAME_ERR && n <= MS_FRAME_OUTPUT) ms_rank_log_take(&host->log[1], bytes, n);
  else if (kind == MS_FRAME_END) take_end(near, host, bytes, n);
  else if (kind == MS_FRAME_HELLO && !host->ready) {
    host->place = ms_strdup(bytes);
    host->ready = host->place != NULL;
  }
}

/* Finds the magic; what a login shell printed before it passes as errors. */
static void find_magic(ms_near *near, ms_near_host *host) {
  ms_frame_reader *from = &host->from;
  const char *magic =
      from->text.length ? memmem(from->text.data, from->text.length, MS_FRAME_MAGIC, sizeof MS_FRAME_MAGIC - 1) : NULL;
  if (!magic && from->text.length > STRAY_BYTES) {
    ms_frame_close_reader(from);
    lose(near, host, "what the agent printed is not from moonshard");
  }
  if (!magic) return;
  const char *stray = from->text.data;
  for (size_t left; (left = (size_t)(magic - stray)) > 0;) {
    size_t piece = left < MS_FRAME_OUTPUT ? left : MS_FRAME_OUTPUT;
    ms_rank_log_take(&host->log[2], stray, piece);
    stray += piece;
  }
  from->begin = (size_t)(magic - from->text.data) + sizeof MS_FRAME_MAGIC - 1;
  host->greeted = 1;
}

static int has_room(const ms_near *near) {
  return ms_outlet_has_room(&near->outlet[0]) && ms_outlet_has_room(&near->outlet[1]);
}

/* Stops between frames while the output has no room. Returns 1 if it stopped. */
static int take_frames(ms_near *near, ms_near_host *host) {
  int kind, found = 0;
  char *bytes;
  size_t n;
  if (ms_frame_reader_is_small(&host->from)) ms_frame_read(&host->from);
  if (!host->greeted) find_magic(near, host);
  while (host->greeted) {
    if (!has_room(near)) return 1;
    found = ms_frame_next(&host->from, &kind, &bytes, &n);
    if (found <= 0) break;
    take_frame(near, host, kind, bytes, n);
  }
  if (found < 0) {
    ms_frame_close_reader(&host->from);
    lose(near, host, "what it sent is not from moonshard of this version");
  }
  return 0;
}

/* ---- the loop ---- */

static void reap(ms_near *near, ms_near_host *host) {
  if (host->pid && waitpid(host->pid, &host->status, WNOHANG) == host->pid) {
    host->pid = 0;
    host->lost_at = ms_clock() + ms_wait_scale * DRAIN_SECONDS;
  }
  if (host->lost_at == 0 || host->over) return;
  if (host->from.fd < 0 || ms_clock() >= host->lost_at) lose_agent(near, host);
}

static void look_after(ms_near *near, ms_near_host *host) {
  ms_frame_flush(&host->to);
  ms_rank_log_read(&host->log[2]);
  int waits = take_frames(near, host);
  if (!waits) reap(near, host);
  /* An agent that has closed its end, but goes on: it gets no more. */
  if (!waits && host->from.fd < 0 && host->pid) ms_frame_close_queue(&host->to);
}

static int goes_on(const ms_near *near) {
  for (int i = 0; i < near->n; i++)
    if (!near->hosts[i].over || near->hosts[i].pid) return 1;
  return 0;
}

static nfds_t list(ms_near *near, struct pollfd *wanted) {
  nfds_t n = 0;
  int room = has_room(near);
  wanted[n++] = (struct pollfd){.fd = near->signals, .events = POLLIN};
  for (int i = 0; i < 2; i++)
    if (near->outlet[i].begin < near->outlet[i].used)
      wanted[n++] = (struct pollfd){.fd = near->outlet[i].writes, .events = POLLOUT};
  for (int i = 0; i < near->n; i++) {
    ms_near_host *host = &near->hosts[i];
    if (room) wanted[n++] = (struct pollfd){.fd = host->from.fd, .events = POLLIN};
    if (room) wanted[n++] = (struct pollfd){.fd = host->log[2].fd, .events = POLLIN};
    if (ms_frame_waiting(&host->to)) wanted[n++] = (struct pollfd){.fd = host->to.fd, .events = POLLOUT};
  }
  return n;
}

static void watch(ms_near *near, struct pollfd *wanted) {
  double ended = 0; /* when all hosts were over; agents get a little longer */
  while (goes_on(near)) {
    nfds_t n = list(near, wanted);
    poll(wanted, n, near->deadline > 0 || near->over || *near->why ? 100 : -1);
    for (int i = 0; i < 2; i++) ms_outlet_flush(&near->outlet[i]);
    read_signals(near);
    for (int i = 0; i < near->n; i++) look_after(near, &near->hosts[i]);
    start_all(near);
    pass_deadline(near);
    if (near->over < near->n) continue;
    if (ended == 0) ended = ms_clock();
    if (ms_clock() > ended + ms_wait_scale * DRAIN_SECONDS) kill_agents(near);
  }
}

static void finish_output(ms_near *near) {
  double until = ms_clock() + ms_wait_scale * PATIENCE;
  int patient = !near->asked && !*near->why;
  while (ms_outlet_flush(&near->outlet[0]) + ms_outlet_flush(&near->outlet[1]) && (patient || ms_clock() < until)) {
    struct pollfd wanted[3] = {{.fd = near->signals, .events = POLLIN}};
    for (int i = 0; i < 2; i++) wanted[i + 1] = (struct pollfd){.fd = near->outlet[i].writes, .events = POLLOUT};
    poll(wanted, 3, 100);
    if (wanted[0].revents) read_signals(near);
    patient = patient && !near->asked;
  }
}

/* ---- the run ---- */

static int send_setup(ms_near_host *host, const char *token) {
  ms_text text = {0};
  ms_text_raw(&text, token, strlen(token) + 1);
  ms_text_raw(&text, host->setup, host->setup_bytes);
  int rc = ms_text_status(&text);
  if (!rc) ms_frame_put(&host->to, MS_FRAME_SETUP, text.data, text.length);
  ms_frame_wipe(&text);
  return rc;
}

static int take_signals(ms_near *near) {
  struct sigaction ignore = {.sa_handler = SIG_IGN}, ordinary = {.sa_handler = SIG_DFL}, hang_up;
  sigset_t mask;
  sigemptyset(&mask);
  for (int i = 0; i < 3; i++) sigaddset(&mask, (const int[]){SIGCHLD, SIGTERM, SIGINT}[i]);
  if (!sigaction(SIGHUP, NULL, &hang_up) && hang_up.sa_handler != SIG_IGN) sigaddset(&mask, SIGHUP);
  near->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  if (near->signals < 0) return MS_FAIL(MS_EIO, "signalfd: %s", strerror(errno));
  sigaction(SIGPIPE, &ignore, &near->old_pipe_action);
  sigaction(SIGCHLD, &ordinary, &near->old_child_action);
  sigprocmask(SIG_BLOCK, &mask, &near->old_mask);
  return MS_OK;
}

static void give_signals_back(ms_near *near) {
  if (near->signals < 0) return;
  close(near->signals);
  sigaction(SIGPIPE, &near->old_pipe_action, NULL);
  sigaction(SIGCHLD, &near->old_child_action, NULL);
  sigprocmask(SIG_SETMASK, &near->old_mask, NULL);
}

int ms_near_run(ms_near *near, int *exit_status) {
  int rc;
  const char *token;
  struct pollfd *wanted = ms_calloc(4 + 3 * (int64_t)near->n, sizeof *wanted);
  near->signals = -1;
  near->outlet = ms_calloc(2, sizeof *near->outlet);
  for (int i = 0; i < near->n; i++) near->hosts[i].to.fd = near->hosts[i].from.fd = -1;
  for (int i = 0; i < near->n; i++)
    for (int k = 0; k < 3; k++) near->hosts[i].log[k] = (ms_rank_log){.fd = -1, .file = -1};
  if (!wanted || !near->outlet) MS_GOTO(MS_ENOMEM);
  for (int i = 0; i < 2; i++) ms_outlet_open(&near->outlet[i], i == 0 ? STDOUT_FILENO : STDERR_FILENO);
  MS_GOTO(ms_token_make());
  MS_GOTO(ms_token_get(&token));
  MS_GOTO(take_signals(near));
  near->deadline = ms_clock() + near->timeout;
  for (int i = 0; i < near->n; i++) {
    MS_GOTO(ms_near_start(near, &near->hosts[i]));
    MS_GOTO(send_setup(&near->hosts[i], token));
  }
  watch(near, wanted);
  for (int i = 0; i < near->n; i++)
    for (int k = 0; k < 3; k++) ms_rank_log_end_line(&near->hosts[i].log[k]);
  ms_near_report(near, exit_status);
  finish_output(near);
fail:
  if (rc) kill_agents(near);
  for (int i = 0; i < near->n; i++) {
    if (near->hosts[i].pid) waitpid(near->hosts[i].pid, NULL, 0);
    ms_near_close(&near->hosts[i]);
  }
  for (int i = 0; near->outlet && i < 2; i++) ms_outlet_close(&near->outlet[i]);
  give_signals_back(near);
  free(near->outlet);
  free(wanted);
  return rc;
}
