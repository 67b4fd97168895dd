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
#include "comm/transport/wire.h"
#include "host/hosts/frame.h"
#include "host/hosts/rendezvous_port.h"
#include "host/launcher/launch.h"
#include "host/launcher/leftovers.h"
#include "host/launcher/link.h"

enum { TURN_MS = 250, MOST_WAITING = 1 << 18, MOST_ARGUMENTS = 4096, PLACE_BYTES = 320 };
/* Seconds that a launcher gets after it was asked to end because of another host; its own grace time is shorter. */
static const double STOP_SECONDS = 10.0;
/* Seconds between two turns of the loop after which this process was away: that time is not counted as silence. */
static const double AWAY_SECONDS = 1.0;
/* Seconds that output may still come after the launcher's end, from programs that it could not end. */
static const double DRAIN_SECONDS = 1.0;

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
  /* the launcher */
  pid_t pid; /* 0: not started, or ended */
  int ended, status;
  int stream[2], link;
  int began; /* as in ms_link_report, of which these are copies */
  char *reason, *report;
  double kill_at, drained_at; /* 0: not set */
  double silence;             /* seconds after which the controller, or a launcher that is stopped, is given up */
  double turned_at;           /* the last turn of the loop (ms_clock) */
  double stopped_at;          /* since when the launcher is stopped by a signal; 0: it is not */
  ms_leftovers leftovers;
} ms_remote;

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
 * number of variables, names and values, then the launcher's arguments. */
static int set_up(ms_remote *remote, const char *bytes, size_t n, char *place) {
  const char *at = bytes, *end = bytes + n;
  const char *token = ms_frame_field(&at, end), *host = ms_frame_field(&at, end), *ranks = ms_frame_field(&at, end);
  const char *folder = ms_frame_field(&at, end), *recipe = ms_frame_field(&at, end);
  int chooses = !strcmp(ms_frame_field(&at, end), "1");
  const char *wanted = ms_frame_field(&at, end);
  remote->token = ms_secret_copy(token);
  if (!remote->token) return MS_ENOMEM;
  snprintf(remote->head, sizeof remote->head, "%s %s", ranks, host);
  MS_TRY(check_folder(folder, recipe, host));
  MS_TRY(set_variables(&at, end));
  remote->fields_bytes = at < end ? (size_t)(end - at) : 0;
  remote->fields = ms_calloc((int64_t)remote->fields_bytes + 1, 1);
  if (!remote->fields) return MS_ENOMEM;
  memcpy(remote->fields, at, remote->fields_bytes);
  return chooses ? ms_rendezvous_port_choose(wanted, host, place, PLACE_BYTES, &remote->reserved) : MS_OK;
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

static _Noreturn void become_launcher(ms_remote *remote, const int *write_end, int link, const char *place,
                                      pid_t parent) {
  char *arguments[MOST_ARGUMENTS] = {"moonshard"}, number[16];
  int n = 1;
  const char *at = remote->fields, *end = at + remote->fields_bytes;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(MS_STATUS_FAILED_RUN);
  while (at < end && n < MOST_ARGUMENTS - 3) arguments[n++] = (char *)ms_frame_field(&at, end);
  if (*place) {
    arguments[n++] = "--rendezvous";
    arguments[n++] = (char *)place;
  }
  int nowhere = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(nowhere, STDIN_FILENO);
  dup2(write_end[0], STDOUT_FILENO);
  dup2(write_end[1], STDERR_FILENO);
  fcntl(link, F_SETFD, 0);
  snprintf(number, sizeof number, "%d", link);
  setenv("MOONSHARD_HOST_LINK", number, 1);
  signal(SIGPIPE, SIG_DFL);
  sigprocmask(SIG_SETMASK, &remote->old_mask, NULL);
  execv("/proc/self/exe", arguments);
  _exit(MS_STATUS_FAILED_RUN);
}

/* The first message of the link; the socket's buffer holds it until the launcher reads it. */
static int pass_token_on(ms_remote *remote) {
  char message[1024];
  size_t head = strlen(remote->head) + 1, token = strlen(remote->token) + 1;
  int fits = head + token <= sizeof message;
  if (fits) {
    memcpy(message, remote->head, head);
    memcpy(message + head, remote->token, token);
    fits = send(remote->link, message, head + token, MSG_NOSIGNAL) >= 0;
    sodium_memzero(message, sizeof message);
  }
  ms_secret_free(remote->token);
  remote->token = NULL;
  return fits ? MS_OK : MS_FAIL(MS_EIO, "cannot pass the token to the launcher");
}

static int start_launcher(ms_remote *remote, const char *place) {
  int out[2], err[2], link[2];
  pid_t parent = getpid();
  if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC) || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link))
    return MS_FAIL(MS_EIO, "cannot start the launcher: %s", strerror(errno));
  remote->stream[0] = out[0];
  remote->stream[1] = err[0];
  remote->link = link[0];
  for (int i = 0; i < 2; i++) fcntl(remote->stream[i], F_SETFL, O_NONBLOCK);
  MS_TRY(pass_token_on(remote));
  pid_t pid = fork();
  if (pid == 0) become_launcher(remote, (const int[]){out[1], err[1]}, link[1], place, parent);
  close(out[1]);
  close(err[1]);
  close(link[1]);
  if (pid < 0) return MS_FAIL(MS_EIO, "cannot start the launcher: fork: %s", strerror(errno));
  remote->pid = pid;
  return MS_OK;
}

static void start(ms_remote *remote, const char *place) {
  char text[1200];
  if (!remote->token || !start_launcher(remote, place)) return;
  remote->ended = 1;
  snprintf(text, sizeof text, "moonshard: %s\n", ms_error_message());
  send_end(remote, MS_STATUS_FAILED_RUN, MS_LINK_BEGAN_HERE, "", text);
}

static void stop(ms_remote *remote, const char *why) {
  if (!remote->pid || remote->kill_at > 0) return;
  if (remote->link >= 0) send(remote->link, why, strlen(why), MSG_NOSIGNAL | MSG_DONTWAIT);
  remote->kill_at = ms_clock() + ms_wait_scale * STOP_SECONDS;
}

/* ---- the launcher's words ---- */

static void hear_report(ms_remote *remote) {
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
  while (remote->stream[i] >= 0 && ms_frame_waiting(&remote->out) < MOST_WAITING) {
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
  ms_leftovers_finish(&remote->leftovers, remote->status != 0);
}

static void end(ms_remote *remote) {
  char died[160];
  remote->ended = 1;
  if (!WIFSIGNALED(remote->status)) {
    send_end(remote, WEXITSTATUS(remote->status), remote->report ? remote->began : MS_LINK_BEGAN_HERE,
             remote->reason ? remote->reason : "", remote->report ? remote->report : "");
    return;
  }
  const char *host = strrchr(remote->head, ' ') + 1;
  int stopped = remote->stopped_at > 0 && remote->kill_at == 0;
  if (stopped)
    snprintf(died, sizeof died, "moonshard: the launcher on %.80s was stopped by a signal for %g s\n", host,
             remote->silence);
  else
    snprintf(died, sizeof died, "moonshard: the launcher on %.80s was killed by signal %d (%s)\n", host,
             WTERMSIG(remote->status), strsignal(WTERMSIG(remote->status)));
  send_end(remote, MS_STATUS_FAILED_RUN, remote->kill_at == 0 ? MS_LINK_BEGAN_HERE : MS_LINK_BEGAN_ELSEWHERE,
           stopped ? "its launcher was stopped by a signal" : "", died);
}

/* ---- the loop ---- */

static void take_frames(ms_remote *remote) {
  int kind, found;
  char *bytes;
  size_t n;
  ms_frame_read(&remote->in);
  while ((found = ms_frame_next(&remote->in, &kind, &bytes, &n)) > 0) {
    if (kind == MS_FRAME_SETUP) greet(remote, bytes, n);
    else if (kind == MS_FRAME_START) start(remote, bytes);
    else if (kind == MS_FRAME_STOP) stop(remote, bytes);
    else if (kind == MS_FRAME_ALIVE) remote->silence = strtod(bytes, NULL);
    else if (kind == MS_FRAME_SIGNAL && remote->pid && n == 1) kill(remote->pid, bytes[0]);
  }
  if (found < 0) ms_frame_close_reader(&remote->in);
  if (remote->in.fd < 0 && !remote->input_ended) {
    remote->input_ended = 1;
    stop(remote, "the connection to the machine that started the run has ended");
  }
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
    remote->input_ended = 1;
    snprintf(why, sizeof why, "nothing has come from the machine that started the run for %g s", remote->silence);
    stop(remote, why);
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
    stop(remote, why);
    remote->input_ended = 1;
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
  ms_leftovers_adopt(&remote->leftovers);
  ms_text_string(&remote->out.text, MS_FRAME_MAGIC);
  ms_frame_flush(&remote->out);
  return MS_OK;
}

/* Until the launcher has ended and all is passed on, or nothing was started and nothing can come. */
static int goes_on(const ms_remote *remote) {
  if (remote->ended) return ms_frame_waiting(&remote->out) && !remote->input_ended;
  return remote->pid || remote->drained_at > 0 || !remote->input_ended;
}

static void turn(ms_remote *remote) {
  int room = ms_frame_waiting(&remote->out) < MOST_WAITING;
  struct pollfd wanted[] = {
      {.fd = remote->signals, .events = POLLIN},
      {.fd = remote->in.fd, .events = POLLIN},
      {.fd = ms_frame_waiting(&remote->out) ? remote->out.fd : -1, .events = POLLOUT},
      {.fd = remote->link, .events = POLLIN},
      {.fd = room ? remote->stream[0] : -1, .events = POLLIN},
      {.fd = room ? remote->stream[1] : -1, .events = POLLIN},
  };
  poll(wanted, sizeof wanted / sizeof wanted[0],
       remote->kill_at > 0 || remote->drained_at > 0 ? 100
       : remote->pid                                 ? TURN_MS
                                                     : -1);
  ms_frame_flush(&remote->out);
  read_signals(remote);
  take_frames(remote);
  reap(remote);
  hear_report(remote);
  for (int i = 0; i < 2; i++) pass_output(remote, i);
  watch_silence(remote);
  if (remote->pid && remote->kill_at > 0 && ms_clock() >= remote->kill_at) kill(remote->pid, SIGKILL);
  int drained = (remote->stream[0] < 0 && remote->stream[1] < 0) || ms_clock() >= remote->drained_at;
  if (!remote->ended && remote->drained_at > 0 && drained) end(remote);
}

int ms_remote_main(void) {
  ms_remote remote = {.in.fd = STDIN_FILENO, .out.fd = STDOUT_FILENO, .signals = -1, .reserved = -1};
  remote.stream[0] = remote.stream[1] = remote.link = -1;
  remote.turned_at = ms_clock();
  int rc = begin(&remote);
  while (!rc && goes_on(&remote)) turn(&remote);
  if (rc) fprintf(stderr, "moonshard: %s\n", ms_error_message());
  ms_secret_free(remote.token);
  ms_frame_close_reader(&remote.in);
  ms_frame_close_queue(&remote.out);
  for (int i = 0; i < 2; i++)
    if (remote.stream[i] >= 0) close(remote.stream[i]);
  if (remote.link >= 0) close(remote.link);
  if (remote.reserved >= 0) close(remote.reserved);
  if (remote.signals >= 0) close(remote.signals);
  free(remote.fields);
  free(remote.reason);
  free(remote.report);
  return rc ? MS_STATUS_FAILED_RUN : 0;
}
