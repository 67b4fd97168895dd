/* controller.c - the loop of a run on several hosts, on one thread that never blocks.
 *
 * All hosts answer before any starts ranks, so a host that is missing is named and leaves nothing to end. Then the
 * connections are the only ties: a host whose connection ends has lost its run, and ends by itself (remote.c).
 */
#include "host/hosts/controller.h"

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
#include "base/numbers/number.h"
#include "comm/bootstrap/token.h"
#include "host/launcher/launch.h"

enum { TURN_MS = 250 };
/* Seconds that hosts get to end after they were asked to; their launchers have shorter grace times. */
static const double END_SECONDS = 15.0;
/* Seconds from the end of a host whose ranks had lost sight of another until all are asked to end: the others find that
 * out too, and can know better which host it is. */
static const double VERDICT_SECONDS = 1.0;
/* Seconds of silence, once a run has failed, after which a host is lost: it cannot be waited for. */
static const double SILENCE_AT_END = 1.5;
/* Seconds between two turns of the loop after which this process was away: that time is not counted as silence. */
static const double AWAY_SECONDS = 1.0;
/* Seconds for what an agent that has ended still holds in its pipe, which another process may keep open. */
static const double DRAIN_SECONDS = 1.0;

/* ---- ending ---- */

/* To the agent's process group. A fork that has not called setsid yet leads no group, so it gets the signal itself. */
static void signal_agent(const ms_controlled_host *host, int number) {
  if (!host->pid || !kill(-host->pid, number)) return;
  if (!kill(host->pid, number)) kill(-host->pid, number);
}

static void kill_agents(ms_controller *controller) {
  for (int i = 0; i < controller->n; i++) signal_agent(&controller->hosts[i], SIGKILL);
}

/* Nothing runs there yet. */
static void give_up(ms_controlled_host *host) {
  ms_frame_close_queue(&host->to);
  signal_agent(host, SIGTERM);
}

static void ask_to_end(ms_controller *controller, const char *why) {
  if (*controller->why) return;
  snprintf(controller->why, sizeof controller->why, "%s", why);
  controller->deadline = ms_clock() + ms_wait_scale * END_SECONDS;
  for (int i = 0; i < controller->n; i++) {
    ms_controlled_host *host = &controller->hosts[i];
    if (controller->started) ms_frame_put(&host->to, MS_FRAME_STOP, controller->why, strlen(controller->why));
    else give_up(host);
  }
}

static void end_when_due(ms_controller *controller) {
  if (controller->end_at == 0 || ms_clock() < controller->end_at) return;
  controller->end_at = 0;
  ask_to_end(controller, controller->end_why);
}

static void end_soon(ms_controller *controller, const char *why, double seconds) {
  double at = ms_clock() + ms_wait_scale * seconds;
  if (controller->end_at == 0 || at < controller->end_at) {
    controller->end_at = at;
    snprintf(controller->end_why, sizeof controller->end_why, "%s", why);
  }
  end_when_due(controller);
}

/* The host's part is over; what its agent does now is of no interest. */
static void finish(ms_controller *controller, ms_controlled_host *host, int exit_status, int began) {
  char why[400];
  if (host->over) return;
  host->over = ++controller->over;
  host->exit_status = exit_status;
  host->began = began;
  ms_frame_close_queue(&host->to);
  if (!exit_status || controller->asked) return;
  const char *reason = host->reason && *host->reason ? host->reason
                       : host->lost                  ? "the connection to it ended"
                                                     : "its ranks ended";
  snprintf(why, sizeof why, "the run ended on host %.64s: %.300s", host->name, reason);
  end_soon(controller, why, began == MS_LINK_BEGAN_HERE ? 0 : VERDICT_SECONDS);
}

static void lose(ms_controller *controller, ms_controlled_host *host, const char *how) {
  ms_text text = {0};
  if (host->over) return;
  host->lost = 1;
  ms_text_append(&text, "moonshard: host %s: %s: %s\n", host->name,
                 host->greeted ? "the connection ended during the run" : controller->agent, how);
  free(host->report);
  host->report = text.data;
  finish(controller, host, MS_STATUS_FAILED_RUN, MS_LINK_BEGAN_HERE);
}

static void lose_agent(ms_controller *controller, ms_controlled_host *host) {
  ms_text how = {0};
  if (WIFSIGNALED(host->status))
    ms_text_append(&how, "the agent was killed by signal %d (%s)", WTERMSIG(host->status),
                   strsignal(WTERMSIG(host->status)));
  else ms_text_append(&how, "the agent ended with exit status %d", WEXITSTATUS(host->status));
  if (!host->greeted) ms_text_append(&how, " before moonshard answered");
  if (!host->greeted && WIFEXITED(host->status)) ms_controller_advise(host, &how);
  lose(controller, host, how.data ? how.data : "the agent ended");
  ms_text_free(&how);
}

/* A host that has lost power, or whose processes are stopped, closes nothing: its silence tells. */
static void watch_silence(ms_controller *controller) {
  char how[160];
  double now = ms_clock(), limit = controller->timeout;
  int away = now > controller->turned_at + ms_wait_scale * AWAY_SECONDS || !ms_controller_has_room(controller);
  controller->turned_at = now;
  if (*controller->why) limit = fmin(limit, ms_wait_scale * SILENCE_AT_END);
  for (int i = 0; i < controller->n && controller->started; i++) {
    ms_controlled_host *host = &controller->hosts[i];
    if (host->over) continue;
    ms_frame_put_alive(&host->to, controller->timeout);
    if (away) host->from.heard_at = now;
    if (now < host->from.heard_at + limit) continue;
    ms_format(how, sizeof how,
              "nothing has come from it for %.3g s: its processes were stopped, or it or the link to it is down",
              now - host->from.heard_at);
    lose(controller, host, how);
    signal_agent(host, SIGKILL);
  }
}

static void pass_deadline(ms_controller *controller) {
  if (controller->deadline == 0 || ms_clock() < controller->deadline) return;
  controller->deadline = 0;
  int ending = *controller->why || controller->asked;
  for (int i = 0; i < controller->n; i++) {
    ms_controlled_host *host = &controller->hosts[i];
    ms_text how = {0};
    if (!ending && host->ready) continue;
    if (ending) ms_text_append(&how, "it did not end within %g s: look for its processes", ms_wait_scale * END_SECONDS);
    else ms_text_append(&how, "it did not answer within %g s", controller->timeout);
    if (!ending && !host->greeted) ms_controller_advise(host, &how);
    lose(controller, host, how.data ? how.data : "it did not answer");
    ms_text_free(&how);
  }
  if (controller->over == controller->n) kill_agents(controller);
}

/* ---- signals ---- */

/* At a prompt, Ctrl-C stops the line that runs, not the session. */
static int stops_a_line(const ms_controller *controller, int number) {
  const int at_prompt = controller->interactive && controller->started && !controller->over;
  return number == SIGINT && at_prompt && !controller->asked && !*controller->why;
}

static void forward(ms_controller *controller, int number) {
  const char byte = (char)number;
  if (stops_a_line(controller, number)) {
    for (int i = 0; i < controller->n; i++) ms_frame_put(&controller->hosts[i].to, MS_FRAME_SIGNAL, &byte, 1);
    return;
  }
  controller->asked_again = controller->asked != 0;
  controller->asked = controller->asked ? controller->asked : number;
  if (controller->asked_again || !controller->started) controller->deadline = ms_clock() + ms_wait_scale * END_SECONDS;
  for (int i = 0; i < controller->n; i++) {
    if (controller->started) ms_frame_put(&controller->hosts[i].to, MS_FRAME_SIGNAL, &byte, 1);
    else give_up(&controller->hosts[i]);
  }
}

static void read_signals(ms_controller *controller) {
  struct signalfd_siginfo info;
  while (read(controller->signals, &info, sizeof info) == (ssize_t)sizeof info)
    if (info.ssi_signo == SIGWINCH) ms_controller_input_resize(controller);
    else if (info.ssi_signo != SIGCHLD) forward(controller, (int)info.ssi_signo);
}

/* ---- frames ---- */

static void start_all(ms_controller *controller) {
  const char *place = controller->hosts[0].place;
  for (int i = 0; i < controller->n; i++)
    if (!controller->hosts[i].ready) return;
  if (controller->started || controller->asked || *controller->why) return;
  controller->started = 1;
  controller->deadline = 0;
  ms_controller_input_begin(controller);
  for (int i = 0; i < controller->n; i++) ms_frame_put(&controller->hosts[i].to, MS_FRAME_START, place, strlen(place));
}

static void take_end(ms_controller *controller, ms_controlled_host *host, const char *bytes, size_t n) {
  const char *at = bytes, *end = bytes + n;
  if (host->over) return; /* its agent had ended, and the ranks there end because of that */
  int status = atoi(ms_frame_field(&at, end)), began = atoi(ms_frame_field(&at, end));
  free(host->reason);
  free(host->report);
  host->reason = ms_strdup(ms_frame_field(&at, end));
  host->report = ms_strdup(ms_frame_field(&at, end));
  finish(controller, host, status, began);
}

static void take_frame(ms_controller *controller, ms_controlled_host *host, int kind, char *bytes, size_t n) {
  if (kind == MS_FRAME_OUT && n <= MS_FRAME_OUTPUT) ms_rank_log_take(&host->log[0], bytes, n);
  else if (kind == MS_FRAME_ERR && n <= MS_FRAME_OUTPUT) ms_rank_log_take(&host->log[1], bytes, n);
  else if (kind == MS_FRAME_TAKEN && host == controller->hosts) ms_controller_input_taken(controller, bytes);
  else if (kind == MS_FRAME_END) take_end(controller, host, bytes, n);
  else if (kind == MS_FRAME_HELLO && !host->ready) {
    host->place = ms_strdup(bytes);
    host->ready = host->place != NULL;
  }
}

/* Stops between frames while the output has no room. Returns 1 if it stopped. */
static int take_frames(ms_controller *controller, ms_controlled_host *host) {
  int kind, found = 0;
  char *bytes, how[320];
  size_t n;
  if (ms_frame_reader_is_small(&host->from)) ms_frame_read(&host->from);
  if (!host->greeted && ms_controller_greet(host, how, sizeof how) < 0) {
    ms_frame_close_reader(&host->from);
    lose(controller, host, how);
  }
  while (host->greeted) {
    if (!ms_controller_has_room(controller)) return 1;
    found = ms_frame_next(&host->from, &kind, &bytes, &n);
    if (found <= 0) break;
    take_frame(controller, host, kind, bytes, n);
  }
  if (found < 0) {
    ms_frame_close_reader(&host->from);
    lose(controller, host, "what it sent is not from moonshard of this version");
  }
  return 0;
}

/* ---- the loop ---- */

static void reap(ms_controller *controller, ms_controlled_host *host) {
  if (host->pid && waitpid(host->pid, &host->status, WNOHANG) == host->pid) {
    host->pid = 0;
    host->lost_at = ms_clock() + ms_wait_scale * DRAIN_SECONDS;
  }
  if (host->lost_at == 0 || host->over) return;
  if (host->from.fd < 0 || ms_clock() >= host->lost_at) lose_agent(controller, host);
}

static void look_after(ms_controller *controller, ms_controlled_host *host) {
  ms_frame_flush(&host->to);
  ms_rank_log_read(&host->log[2]);
  int waits = take_frames(controller, host);
  if (!waits) reap(controller, host);
  /* An agent that has closed its end, but goes on: it gets no more. */
  if (!waits && host->from.fd < 0 && host->pid) ms_frame_close_queue(&host->to);
}

static int goes_on(const ms_controller *controller) {
  for (int i = 0; i < controller->n; i++)
    if (!controller->hosts[i].over || controller->hosts[i].pid) return 1;
  return 0;
}

static nfds_t list(ms_controller *controller, struct pollfd *wanted) {
  nfds_t n = 0;
  int room = ms_controller_has_room(controller);
  wanted[n++] = (struct pollfd){.fd = controller->signals, .events = POLLIN};
  wanted[n++] = (struct pollfd){.fd = ms_controller_input_fd(controller), .events = POLLIN};
  for (int i = 0; i < 2; i++)
    if (controller->output[i].begin < controller->output[i].used)
      wanted[n++] = (struct pollfd){.fd = controller->output[i].writes, .events = POLLOUT};
  for (int i = 0; i < controller->n; i++) {
    ms_controlled_host *host = &controller->hosts[i];
    if (room) wanted[n++] = (struct pollfd){.fd = host->from.fd, .events = POLLIN};
    if (room) wanted[n++] = (struct pollfd){.fd = host->log[2].fd, .events = POLLIN};
    if (ms_frame_waiting(&host->to)) wanted[n++] = (struct pollfd){.fd = host->to.fd, .events = POLLOUT};
  }
  return n;
}

/* A full disk under the output ends the run, as it does without --hosts. */
static void check_output(ms_controller *controller) {
  char lost[256];
  if (*controller->why || (!controller->output[0].error && !controller->output[1].error)) return;
  ms_output_buffer_tell_lost(controller->output, lost, sizeof lost);
  ask_to_end(controller, lost);
}

static void watch(ms_controller *controller, struct pollfd *wanted) {
  double ended = 0; /* when all hosts were over; agents get a little longer */
  while (goes_on(controller)) {
    nfds_t n = list(controller, wanted);
    poll(wanted, n, controller->deadline > 0 || controller->over || *controller->why ? 100 : TURN_MS);
    ms_controller_output_pass(controller);
    check_output(controller);
    read_signals(controller);
    ms_controller_input_pass(controller);
    for (int i = 0; i < controller->n; i++) look_after(controller, &controller->hosts[i]);
    start_all(controller);
    if (controller->over || *controller->why) ms_controller_input_end(controller);
    watch_silence(controller);
    end_when_due(controller);
    pass_deadline(controller);
    if (controller->over < controller->n) continue;
    if (ended == 0) ended = ms_clock();
    if (ms_clock() > ended + ms_wait_scale * DRAIN_SECONDS) kill_agents(controller);
  }
}

/* ---- the run ---- */

static int send_setup(ms_controlled_host *host, const char *token) {
  ms_text text = {0};
  ms_text_raw(&text, token, strlen(token) + 1);
  ms_text_raw(&text, host->setup, host->setup_bytes);
  int rc = ms_text_status(&text);
  if (!rc) ms_frame_put(&host->to, MS_FRAME_SETUP, text.data, text.length);
  ms_frame_wipe(&text);
  return rc;
}

/* A host whose agent cannot start is lost, and those after it have no part in the run. */
static void start_agents(ms_controller *controller, const char *token) {
  for (int i = 0; i < controller->n; i++) {
    ms_controlled_host *host = &controller->hosts[i];
    if (*controller->why) finish(controller, host, 0, 0);
    else if (ms_controller_start(controller, host) || send_setup(host, token)) {
      lose(controller, host, ms_error_message());
      ms_error_clear();
    }
  }
}

int ms_controller_run(ms_controller *controller, int *exit_status) {
  int rc;
  const char *token;
  struct pollfd *wanted = ms_calloc(4 + 3 * (int64_t)controller->n, sizeof *wanted);
  controller->signals = -1;
  controller->output = ms_calloc(2, sizeof *controller->output);
  for (int i = 0; i < controller->n; i++) controller->hosts[i].to.fd = controller->hosts[i].from.fd = -1;
  for (int i = 0; i < controller->n; i++)
    for (int k = 0; k < 3; k++) controller->hosts[i].log[k] = (ms_rank_log){.fd = -1, .file = -1};
  if (!wanted || !controller->output) MS_GOTO(MS_ENOMEM);
  for (int i = 0; i < 2; i++) ms_output_buffer_open(&controller->output[i], i == 0 ? STDOUT_FILENO : STDERR_FILENO);
  MS_GOTO(ms_token_make());
  MS_GOTO(ms_token_get(&token));
  MS_GOTO(ms_controller_take_signals(controller));
  controller->turned_at = controller->output_moved_at[0] = controller->output_moved_at[1] = ms_clock();
  controller->deadline = controller->turned_at + controller->timeout;
  start_agents(controller, token);
  watch(controller, wanted);
  for (int i = 0; i < controller->n; i++)
    for (int k = 0; k < 3; k++) ms_rank_log_end_line(&controller->hosts[i].log[k]);
  ms_controller_report(controller, exit_status);
  while (ms_controller_output_pass(controller)) {
    ms_controller_output_wait(controller);
    read_signals(controller);
  }
  ms_controller_output_report(controller, exit_status);
fail:
  ms_controller_input_end(controller);
  for (int i = 0; i < controller->n; i++) ms_controller_close(&controller->hosts[i]);
  for (int i = 0; controller->output && i < 2; i++) ms_output_buffer_close(&controller->output[i]);
  ms_controller_give_signals_back(controller);
  free(controller->output);
  free(wanted);
  return rc;
}
