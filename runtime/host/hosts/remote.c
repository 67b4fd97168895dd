/* remote.c - one host of --hosts: sets the host up, starts the launcher, and passes frames both ways on one thread.
 *
 * The launcher is a child that replaces itself with `moonshard run ... --nodes`, so `ps` shows that command. The token
 * is known to this process only while it waits for START, and reaches the launcher through a socket (launcher/link.h).
 */
#include "host/hosts/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/numbers/number.h"
#include "comm/transport/wire.h"
#include "host/hosts/frame.h"
#include "host/hosts/rendezvous_port.h"
#include "host/launcher/launch.h"
#include "host/launcher/orphans.h"
#include "host/launcher/link.h"
#include "moonshard.h"

enum { TURN_MS = 250, MAX_WAITING = 1 << 18, PLACE_BYTES = 320 };
/* Seconds that a launcher gets after it was asked to end because of another host; its own grace time is shorter. */
static const double STOP_SECONDS = 10.0;
/* Seconds between two turns of the loop after which this process was away: that time is not counted as silence. */
static const double AWAY_SECONDS = 1.0;
/* Seconds that output may still come after the launcher's end, from programs that it could not end. */
static const double DRAIN_SECONDS = 1.0;

/* ---- set-up ---- */

static void send_end(ms_remote *remote, int status, int began, const char *reason, const char *report) {
  ms_text text = {0};
  ms_text_append(&text, "%d", status);
  ms_text_raw(&text, "", 1);
  ms_text_append(&text, "%d", began);
  ms_text_raw(&text, "", 1);
  ms_text_raw(&text, reason, strlen(reason) + 1);
  ms_text_raw(&text, report, strlen(report) + 1);
  if (!text.failed) ms_frame_put(&remote->out, MS_FRAME_END, text.data, text.length);
  ms_text_free(&text);
}

static int check_folder(const char *folder, const char *recipe, const char *host) {
  static const char expected[] = "the working folder of `moonshard run --hosts` is expected on every host, as on a "
                                 "shared file system";
  if (chdir(folder))
    return MS_FAIL(MS_EINVAL, "host %s: working folder %s: %s; %s", host, folder, strerror(errno), expected);
  if (*recipe && access(recipe, R_OK))
    return MS_FAIL(MS_EINVAL, "host %s: %s in %s: %s; %s", host, recipe, folder, strerror(errno), expected);
  return MS_OK;
}

static int set_variables(const char **at, const char *end) {
  for (int n = atoi(ms_frame_field(at, end)); n > 0; n--) {
    const char *name = ms_frame_field(at, end), *value = ms_frame_field(at, end);
    if (setenv(name, value, 1)) return MS_FAIL(MS_EINVAL, "cannot set the variable %s: %s", name, strerror(errno));
  }
  return MS_OK;
}

/* The fields: token, name of the host, "first world", folder, recipe or "", "1" on the first host, place to meet or "",
 * what rank 0 reads (remote_input.h), number of variables, names and values, then the launcher's arguments. */
static int set_up(ms_remote *remote, const char *bytes, size_t n, char *place) {
  const char *at = bytes, *end = bytes + n;
  const char *token = ms_frame_field(&at, end), *host = ms_frame_field(&at, end), *ranks = ms_frame_field(&at, end);
  const char *folder = ms_frame_field(&at, end), *recipe = ms_frame_field(&at, end);
  int chooses = !strcmp(ms_frame_field(&at, end), "1");
  const char *wanted = ms_frame_field(&at, end);
  ms_remote_input_read_kind(&remote->input, ms_frame_field(&at, end));
  remote->token = ms_secret_copy(token);
  if (!remote->token) return MS_ENOMEM;
  snprintf(remote->head, sizeof remote->head, "%s %s", ranks, host);
  MS_TRY(check_folder(folder, recipe, host));
  MS_TRY(set_variables(&at, end));
  remote->fields_bytes = at < end ? (size_t)(end - at) : 0;
  remote->fields = ms_calloc((int64_t)remote->fields_bytes + 1, 1);
  if (!remote->fields) return MS_ENOMEM;
  memcpy(remote->fields, at, remote->fields_bytes);
  int rc = chooses ? ms_rendezvous_port_choose(wanted, host, place, PLACE_BYTES, &remote->reserved) : MS_OK;
  return rc ? ms_error_prefix("host %s", host) : MS_OK;
}

static void greet(ms_remote *remote, char *bytes, size_t n) {
  char place[PLACE_BYTES] = "", text[1200];
  if (remote->token || remote->pid || remote->ended) return;
  int rc = set_up(remote, bytes, n, place);
  sodium_memzero(bytes, n);
  if (!rc) {
    ms_frame_put(&remote->out, MS_FRAME_HELLO, place, strlen(place));
    return;
  }
  remote->ended = 1;
  snprintf(text, sizeof text, "moonshard: %s\n", ms_error_message());
  send_end(remote, MS_STATUS_BAD_INPUT, MS_LINK_BEGAN_HERE, "", text);
}

/* ---- the launcher ---- */

static void start(ms_remote *remote, const char *place) {
  char text[1200];
  if (!remote->token || !ms_remote_start_launcher(remote, place)) return;
  remote->ended = 1;
  snprintf(text, sizeof text, "moonshard: %s\n", ms_error_message());
  send_end(remote, MS_STATUS_FAILED_RUN, MS_LINK_BEGAN_HERE, "", text);
}

static void stop(ms_remote *remote, const char *why) {
  if (!remote->pid || remote->kill_at > 0) return;
  if (remote->link >= 0) send(remote->link, why, strlen(why), MSG_NOSIGNAL | MSG_DONTWAIT);
  remote->kill_at = ms_clock() + ms_wait_scale * STOP_SECONDS;
}

/* Not because of another host: the ranks of all hosts learn which one it is. */
static void lose(ms_remote *remote, const char *why) {
  char text[320];
  remote->input_ended = 1;
  if (!remote->pid || remote->kill_at > 0) return;
  snprintf(remote->lost, sizeof remote->lost, "%s", why);
  snprintf(text, sizeof text, "host %.80s: %s", ms_remote_host(remote), why);
  stop(remote, text);
}

/* ---- the launcher's words ---- */

static void receive_report(ms_remote *remote) {
  static char message[MS_LINK_BYTES + 1];
  ssize_t n = remote->link >= 0 ? recv(remote->link, message, sizeof message - 1, MSG_DONTWAIT) : -1;
  if (n > 0) {
    message[n] = '\0';
    const char *at = message, *end = message + n;
    remote->began = atoi(ms_frame_field(&at, end));
    free(remote->reason);
    free(remote->report);
    remote->reason = ms_strdup(ms_frame_field(&at, end));
    remote->report = ms_strdup(ms_frame_field(&at, end));
  } else if (n == 0) {
    close(remote->link);
    remote->link = -1;
  }
}

static void pass_output(ms_remote *remote, int i) {
  char bytes[MS_FRAME_OUTPUT];
  while (remote->stream[i] >= 0 && ms_frame_waiting(&remote->out) < MAX_WAITING) {
    ssize_t n = read(remote->stream[i], bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      close(remote->stream[i]);
      remote->stream[i] = -1;
    } else ms_frame_put(&remote->out, i == 0 ? MS_FRAME_OUT : MS_FRAME_ERR, bytes, (size_t)n);
  }
}

static void reap(ms_remote *remote) {
  int status;
  if (!remote->pid || waitpid(remote->pid, &status, WNOHANG | WUNTRACED | WCONTINUED) != remote->pid) return;
  if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
    remote->stopped_at = WIFSTOPPED(status) ? ms_clock() : 0;
    return;
  }
  remote->status = status;
  remote->pid = 0;
  remote->drained_at = ms_clock() + ms_wait_scale * DRAIN_SECONDS;
  ms_orphans_finish(&remote->orphans, remote->status != 0);
}

/* A rank can have failed before the connection did. */
static int ended_by_loss(const ms_remote *remote) {
  return *remote->lost && remote->status &&
         (!remote->reason || !*remote->reason || strstr(remote->reason, remote->lost));
}

static void end(ms_remote *remote) {
  char died[320];
  remote->ended = 1;
  if (ended_by_loss(remote)) {
    snprintf(died, sizeof died, "moonshard: host %.80s: %s\n", ms_remote_host(remote), remote->lost);
    send_end(remote, MS_STATUS_FAILED_RUN, MS_LINK_BEGAN_HERE, remote->lost, died);
    return;
  }
  /* The ranks of this host can have ended because of the same signal on another one, and the launcher with them: then
   * this host's signal comes when the launcher no longer handles it. */
  const int by_request = WIFSIGNALED(remote->status) && sigismember(&remote->passed, WTERMSIG(remote->status)) == 1;
  if (!WIFSIGNALED(remote->status) || by_request) {
    send_end(remote, by_request ? 128 + WTERMSIG(remote->status) : WEXITSTATUS(remote->status),
             remote->report ? remote->began : MS_LINK_BEGAN_HERE, remote->reason ? remote->reason : "",
             remote->report ? remote->report : "");
    return;
  }
  const char *host = ms_remote_host(remote);
  int stopped = remote->stopped_at > 0 && remote->kill_at == 0;
  if (stopped)
    ms_format(died, sizeof died, "moonshard: the launcher on %.80s was stopped by a signal for %g s\n", host,
              remote->silence);
  else
    snprintf(died, sizeof died, "moonshard: the launcher on %.80s was killed by signal %d (%s)\n", host,
             WTERMSIG(remote->status), strsignal(WTERMSIG(remote->status)));
  send_end(remote, MS_STATUS_FAILED_RUN, remote->kill_at == 0 ? MS_LINK_BEGAN_HERE : MS_LINK_BEGAN_ELSEWHERE,
           stopped ? "its launcher was stopped by a signal" : "", died);
}

/* ---- the loop ---- */

/* Ctrl-C carries its number, by which ranks of all hosts know which line it was meant for (repl_stop.c). */
static void pass_signal(ms_remote *remote, int number) {
  if (number == SIGINT) ms_remote_input_interrupt(&remote->input, &remote->out);
  if (!remote->pid) return;
  sigaddset(&remote->passed, number);
  if (number == SIGINT) sigqueue(remote->pid, number, (union sigval){.sival_int = ++remote->presses});
  else kill(remote->pid, number);
}

static void take_frames(ms_remote *remote) {
  int kind, found;
  char *bytes;
  size_t n;
  ms_frame_read(&remote->in);
  while ((found = ms_frame_next(&remote->in, &kind, &bytes, &n)) > 0) {
    if (kind == MS_FRAME_SETUP) greet(remote, bytes, n);
    else if (kind == MS_FRAME_START) start(remote, bytes);
    else if (kind == MS_FRAME_STOP) stop(remote, bytes);
    else if (kind == MS_FRAME_ALIVE) remote->silence = ms_number_read(bytes, NULL);
    else if (kind == MS_FRAME_INPUT) ms_remote_input_take(&remote->input, bytes, n);
    else if (kind == MS_FRAME_SIZE) ms_remote_input_resize(&remote->input, bytes);
    else if (kind == MS_FRAME_SIGNAL && n == 1) pass_signal(remote, bytes[0]);
  }
  if (found < 0) ms_frame_close_reader(&remote->in);
  if (remote->in.fd < 0 && !remote->input_ended)
    lose(remote, "the connection to the machine that started the run has ended");
}

/* The controller's silence, and a launcher that is stopped and cannot end its ranks. */
static void watch_silence(ms_remote *remote) {
  char why[160];
  double now = ms_clock();
  if (now > remote->turned_at + ms_wait_scale * AWAY_SECONDS) {
    remote->in.heard_at = now;
    if (remote->stopped_at > 0) remote->stopped_at += now - remote->turned_at;
  }
  remote->turned_at = now;
  if (!remote->pid || !(remote->silence > 0)) return;
  ms_frame_put_alive(&remote->out, 0);
  if (now > remote->in.heard_at + remote->silence && !remote->input_ended) {
    ms_format(why, sizeof why, "nothing has come from the machine that started the run for %g s", remote->silence);
    lose(remote, why);
  }
  if (remote->stopped_at > 0 && (remote->kill_at > 0 || now > remote->stopped_at + remote->silence))
    kill(remote->pid, SIGKILL);
}

static void read_signals(ms_remote *remote) {
  struct signalfd_siginfo info;
  char why[96];
  while (read(remote->signals, &info, sizeof info) == (ssize_t)sizeof info) {
    if (info.ssi_signo == SIGCHLD) continue;
    snprintf(why, sizeof why, "the connection to the machine that started the run was ended by signal %d",
             (int)info.ssi_signo);
    lose(remote, why);
  }
}

static int begin(ms_remote *remote) {
  sigset_t mask;
  sigemptyset(&mask);
  for (int i = 0; i < 4; i++) sigaddset(&mask, (const int[]){SIGCHLD, SIGTERM, SIGINT, SIGHUP}[i]);
  sigprocmask(SIG_BLOCK, &mask, &remote->old_mask);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGCHLD, SIG_DFL);
  signal(SIGHUP, SIG_DFL);
  remote->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  if (remote->signals < 0) return MS_FAIL(MS_EIO, "signalfd: %s", strerror(errno));
  for (int i = 0; i < 2; i++) fcntl(i, F_SETFL, fcntl(i, F_GETFL) | O_NONBLOCK);
  ms_orphans_adopt(&remote->orphans);
  ms_text_append(&remote->out.text, "%s %s\n", MS_FRAME_MAGIC MS_FRAME_PROTOCOL, ms_version());
  ms_frame_flush(&remote->out);
  return MS_OK;
}

/* Until the launcher has ended and all is passed on, or nothing was started and nothing can come. */
static int goes_on(const ms_remote *remote) {
  if (remote->ended) return ms_frame_waiting(&remote->out) && !remote->input_ended;
  return remote->pid || remote->drained_at > 0 || !remote->input_ended;
}

static void turn(ms_remote *remote) {
  int room = ms_frame_waiting(&remote->out) < MAX_WAITING;
  struct pollfd wanted[] = {
      {.fd = remote->signals, .events = POLLIN},
      {.fd = remote->in.fd, .events = POLLIN},
      {.fd = ms_frame_waiting(&remote->out) ? remote->out.fd : -1, .events = POLLOUT},
      {.fd = remote->link, .events = POLLIN},
      {.fd = room ? remote->stream[0] : -1, .events = POLLIN},
      {.fd = room ? remote->stream[1] : -1, .events = POLLIN},
      {.fd = ms_remote_input_waits(&remote->input), .events = POLLOUT},
  };
  poll(wanted, sizeof wanted / sizeof wanted[0],
       remote->kill_at > 0 || remote->drained_at > 0 ? 100
       : remote->pid                                 ? TURN_MS
                                                     : -1);
  ms_frame_flush(&remote->out);
  read_signals(remote);
  take_frames(remote);
  if (remote->pid && ms_remote_input_flush(&remote->input, &remote->out)) kill(remote->pid, SIGHUP);
  reap(remote);
  receive_report(remote);
  for (int i = 0; i < 2; i++) pass_output(remote, i);
  watch_silence(remote);
  if (remote->pid && remote->kill_at > 0 && ms_clock() >= remote->kill_at) kill(remote->pid, SIGKILL);
  int drained = (remote->stream[0] < 0 && remote->stream[1] < 0) || ms_clock() >= remote->drained_at;
  if (!remote->ended && remote->drained_at > 0 && drained) end(remote);
}

int ms_remote_main(void) {
  ms_remote remote = {.in.fd = STDIN_FILENO, .out.fd = STDOUT_FILENO, .signals = -1, .reserved = -1};
  remote.stream[0] = remote.stream[1] = remote.link = remote.input.fd = -1;
  remote.turned_at = ms_clock();
  sigemptyset(&remote.passed);
  int rc = begin(&remote);
  while (!rc && goes_on(&remote)) turn(&remote);
  if (rc) fprintf(stderr, "moonshard: %s\n", ms_error_message());
  ms_secret_free(remote.token);
  ms_frame_close_reader(&remote.in);
  ms_frame_close_queue(&remote.out);
  for (int i = 0; i < 2; i++)
    if (remote.stream[i] >= 0) close(remote.stream[i]);
  ms_remote_input_close(&remote.input);
  if (remote.link >= 0) close(remote.link);
  if (remote.reserved >= 0) close(remote.reserved);
  if (remote.signals >= 0) close(remote.signals);
  free(remote.fields);
  free(remote.reason);
  free(remote.report);
  return rc ? MS_STATUS_FAILED_RUN : 0;
}
