/* watch.c - the launcher's loop: signals, ends of ranks, and output of ranks.
 *
 * A failure or a request to end starts a grace time, after which ranks that still run are killed: a rank that computes
 * in Lua or sleeps never calls the engine, and so does not notice that it should end.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "host/launcher/launch.h"

/* In seconds. GRACE_TO_SAVE is the default of Slurm and Kubernetes. */
static const double GRACE_AFTER_FAILURE = 3.0, GRACE_AFTER_REQUEST = 5.0, GRACE_TO_SAVE = 30.0;
/* Seconds after which a user who pressed Ctrl-C learns which ranks have not ended. */
static const double SILENCE_AFTER_REQUEST = 2.0;
/* Seconds that a failed run waits for a reader that makes no progress. */
static const double PATIENCE_WITH_READERS = 1.0;
enum { STUCK_BYTES = 2048 };

/* ---- signals ---- */

/* Blocks signals and receives them through a descriptor; ranks start with the previous mask. A SIGHUP that was ignored
 * (nohup) stays ignored: the descriptor would deliver it if it were blocked. */
int ms_take_signals(ms_running *run) {
  struct sigaction hang_up;
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGINT);
  sigaddset(&mask, SIGTERM);
  if (!sigaction(SIGHUP, NULL, &hang_up) && hang_up.sa_handler != SIG_IGN) sigaddset(&mask, SIGHUP);
  sigaddset(&mask, SIGTSTP);
  sigaddset(&mask, SIGWINCH);
  sigaddset(&mask, SIGCHLD);
  run->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  if (run->signals < 0) return MS_FAIL(MS_EIO, "cannot watch the ranks: signalfd: %s", strerror(errno));
  struct sigaction ordinary = {.sa_handler = SIG_DFL}; /* with an inherited SIG_IGN, waitpid would find no ranks */
  struct sigaction ignore = {.sa_handler = SIG_IGN};   /* the reader of the output can close it before the run ends */
  sigaction(SIGCHLD, &ordinary, &run->old_child_action);
  sigaction(SIGPIPE, &ignore, &run->old_pipe_action);
  sigprocmask(SIG_BLOCK, &mask, &run->old_mask);
  return MS_OK;
}

void ms_give_signals_back(ms_running *run) {
  if (run->signals < 0) return;
  close(run->signals);
  sigaction(SIGCHLD, &run->old_child_action, NULL);
  sigaction(SIGPIPE, &run->old_pipe_action, NULL);
  sigprocmask(SIG_SETMASK, &run->old_mask, NULL);
}

static void signal_all(const ms_running *run, int number) {
  for (int rank = 0; rank < run->config->ranks; rank++)
    if (run->ranks[rank].running) kill(run->ranks[rank].pid, number);
}

/* A SIGINT that carries a number keeps it (host/repl_stop.c). */
static void pass_press(const ms_running *run, const struct signalfd_siginfo *info) {
  for (int rank = 0; rank < run->config->ranks; rank++) {
    if (!run->ranks[rank].running) continue;
    if (info->ssi_code == SI_QUEUE) sigqueue(run->ranks[rank].pid, SIGINT, (union sigval){.sival_int = info->ssi_int});
    else kill(run->ranks[rank].pid, SIGINT);
  }
}

void ms_kill_ranks(ms_running *run) {
  for (int rank = 0; rank < run->config->ranks; rank++)
    if (run->ranks[rank].running) run->ranks[rank].ended_by_us = 1;
  signal_all(run, SIGKILL);
}

/* A stopped rank cannot use its grace time, and its end must not delay that of a failed run. */
static void kill_stopped(ms_running *run) {
  for (int rank = 0; rank < run->config->ranks; rank++) {
    ms_child *child = &run->ranks[rank];
    if (!child->running || !ms_control_is_stopped(run->view, ms_nodes_rank(run->config, rank))) continue;
    child->ended_by_us = 1;
    kill(child->pid, SIGKILL);
  }
}

static double grace_after_request(const ms_running *run, int number) {
  if (number == SIGTERM && run->config->grace_to_save > 0) return run->config->grace_to_save;
  if (run->config->grace > 0) return run->config->grace;
  return ms_wait_scale * (number == SIGTERM && ms_control_saves(run->view) ? GRACE_TO_SAVE : GRACE_AFTER_REQUEST);
}

static void give_grace(ms_running *run, double seconds) {
  if (run->kill_at > 0) return;
  run->grace = seconds;
  run->kill_at = ms_clock() + run->grace;
}

/* Ranks that wait for a save before they end get the time of one, unless the user has set the grace time. 1: not over.
 */
static int saves_go_on(ms_running *run) {
  const double more = ms_wait_scale * 0.1;
  if (run->asked_twice || run->config->grace > 0 || !ms_control_finishing(run->view)) return 0;
  if (run->grace + more > ms_wait_scale * GRACE_TO_SAVE) return 0;
  run->grace += more;
  run->kill_at += more;
  return 1;
}

/* Stops the ranks and this process with SIGTSTP, so that the shell notices; returns after SIGCONT. ranks_know: the
 * ranks have received the signal too. */
static void stop_with_ranks(const ms_running *run, int ranks_know) {
  sigset_t stop;
  if (!ranks_know) signal_all(run, SIGTSTP);
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  raise(SIGTSTP);
  sigprocmask(SIG_UNBLOCK, &stop, NULL);
  sigprocmask(SIG_BLOCK, &stop, NULL);
  signal_all(run, SIGCONT);
}

static void resize_terminals(const ms_running *run) {
  for (int rank = 0; rank < run->config->ranks; rank++)
    for (int i = 0; i < 2; i++) ms_rank_log_resize(&run->ranks[rank].log[i]);
}

/* A sender that signals all processes one by one can come to a rank before it comes to this process. */
static int a_rank_had_it_first(const ms_running *run, int number) {
  if (run->asked_to_end || run->first_failed < 0) return 0;
  const int status = run->ranks[run->first_failed].status;
  return WIFSIGNALED(status) && WTERMSIG(status) == number;
}

/* The first request is forwarded and starts the grace time; a second one, or one while a failed run ends, kills the
 * ranks. */
static void end_on_request(ms_running *run, int number, int ranks_know) {
  if (run->config->joins) { /* the other launcher sets the grace time */
    run->asked_to_end = number;
    if (!ranks_know) signal_all(run, number);
    return;
  }
  if (number == SIGTERM && run->asked_to_end == SIGTERM && ms_clock() < run->asked_at + ms_wait_scale * MS_SAME_REQUEST)
    return;
  if (run->asked_to_end || (run->first_failed >= 0 && !a_rank_had_it_first(run, number))) {
    run->asked_twice = 1;
    ms_kill_ranks(run);
    return;
  }
  run->asked_to_end = number;
  run->asked_at = ms_clock();
  if (!ranks_know) signal_all(run, number);
  give_grace(run, grace_after_request(run, number));
  const double silence = ms_wait_scale * SILENCE_AFTER_REQUEST;
  if (number == SIGINT && run->grace > silence) run->tell_to_wait = ms_clock() + silence;
}

/* A terminal sends signals to every process of the foreground group, so the ranks have received them (SI_KERNEL); a
 * signal from another process reached only the launcher. */
static void read_signals(ms_running *run) {
  struct signalfd_siginfo info;
  while (read(run->signals, &info, sizeof info) == (ssize_t)sizeof info) {
    int ranks_know = info.ssi_code == SI_KERNEL, number = (int)info.ssi_signo;
    if (number == SIGTSTP) stop_with_ranks(run, ranks_know);
    else if (number == SIGWINCH) resize_terminals(run);
    else if (number == SIGINT && run->config->interactive) {
      if (!ranks_know) pass_press(run, &info);
    } else if (number != SIGCHLD) end_on_request(run, number, ranks_know);
  }
}

/* ---- ends ---- */

/* A failed rank aborts the others, unless all were asked to end: then each ends by itself. Ranks that save need all of
 * them, so they are aborted if one ended without having saved. */
static void handle_end(ms_running *run, int rank, int status) {
  char why[128];
  run->ranks[rank].running = 0;
  run->ranks[rank].status = status;
  run->running--;
  if (status == 0) {
    ms_control_set_ended(run->view, ms_nodes_rank(run->config, rank));
    return;
  }
  if (run->first_failed < 0) run->first_failed = rank;
  give_grace(run, run->config->grace > 0 ? run->config->grace : ms_wait_scale * GRACE_AFTER_FAILURE);
  if (WIFSIGNALED(status))
    snprintf(why, sizeof why, "rank %d died: killed by signal %d (%s)", ms_nodes_rank(run->config, rank),
             WTERMSIG(status), strsignal(WTERMSIG(status)));
  else
    snprintf(why, sizeof why, "rank %d ended with exit status %d", ms_nodes_rank(run->config, rank),
             WEXITSTATUS(status));
  int saved = WIFEXITED(status) && WEXITSTATUS(status) == MS_STATUS_TERMINATED;
  if (!run->asked_to_end || (ms_asked_to_save(run) && !saved))
    ms_control_abort(run->view, ms_nodes_rank(run->config, rank), why);
}

static void reap(ms_running *run) {
  for (int rank = 0; rank < run->config->ranks; rank++) {
    int status;
    const ms_child *one = &run->ranks[rank];
    if (one->running && waitpid(one->pid, &status, WNOHANG) == one->pid) handle_end(run, rank, status);
  }
}

/* ---- output ---- */

/* Returns 1 when a log has unread output because its output buffer has no room. */
static int read_logs(ms_running *run) {
  int waiting = 0;
  for (int i = 0; i < 2; i++) ms_output_buffer_flush(&run->output[i]);
  for (int rank = 0; rank < run->config->ranks; rank++)
    for (int i = 0; i < 2; i++) waiting |= ms_rank_log_read(&run->ranks[rank].log[i]);
  return waiting;
}

/* A full disk under standard output or a log file ends the run, because further output would be lost. */
static void check_output(ms_running *run) {
  if (*run->lost) return;
  if (run->output[0].error || run->output[1].error)
    ms_output_buffer_tell_lost(run->output, run->lost, sizeof run->lost);
  for (int rank = 0; rank < run->config->ranks && !*run->lost; rank++)
    for (int i = 0; i < 2; i++)
      if (run->ranks[rank].log[i].error)
        snprintf(run->lost, sizeof run->lost, "log file %.400s/rank-%d.log: %s", run->config->log_dir,
                 ms_nodes_rank(run->config, rank), strerror(run->ranks[rank].log[i].error));
  if (!*run->lost) return;
  ms_control_abort(run->view, -1, run->lost);
  give_grace(run, run->config->grace > 0 ? run->config->grace : ms_wait_scale * GRACE_AFTER_FAILURE);
}

/* --hosts asks the ranks to end when those of another host failed, or when the connection broke. */
static void handle_link(ms_running *run) {
  char why[1024];
  if (!run->config->link || !ms_link_receive(run->config->link, why, sizeof why)) return;
  ms_control_abort(run->view, -1, why);
  give_grace(run, run->config->grace > 0 ? run->config->grace : ms_wait_scale * GRACE_AFTER_FAILURE);
}

static nfds_t add_outputs(const ms_running *run, struct pollfd *wanted) {
  nfds_t n = 0;
  for (int i = 0; i < 2; i++)
    if (run->output[i].begin < run->output[i].used)
      wanted[n++] = (struct pollfd){.fd = run->output[i].writes, .events = POLLOUT};
  return n;
}

static size_t unwritten_bytes(const ms_running *run) {
  size_t bytes = 0;
  for (int i = 0; i < 2; i++) bytes += run->output[i].used - run->output[i].begin;
  return bytes;
}

static void give_up_output(ms_running *run) {
  for (int rank = 0; rank < run->config->ranks; rank++)
    for (int i = 0; i < 2; i++) ms_rank_log_close(&run->ranks[rank].log[i]);
  for (int i = 0; i < 2; i++) ms_output_buffer_discard(&run->output[i]);
}

void ms_finish_output(ms_running *run) {
  int asked_before = run->asked_to_end;
  int patient = run->first_failed < 0 && !asked_before && !*run->lost && !run->unread;
  double moved = ms_clock();
  while (ms_clock() < moved + ms_wait_scale * PATIENCE_WITH_READERS || patient) {
    size_t before = unwritten_bytes(run);
    int waiting = read_logs(run);
    check_output(run);
    size_t left = unwritten_bytes(run);
    if (!waiting && !left) return;
    if (left < before) moved = ms_clock();
    struct pollfd wanted[3] = {{.fd = run->signals, .events = POLLIN}};
    poll(wanted, 1 + add_outputs(run, wanted + 1), 100);
    read_signals(run);
    if (run->asked_to_end != asked_before) break;
  }
  run->unread = run->asked_to_end && run->first_failed < 0 && !*run->lost;
  give_up_output(run);
}

/* ---- the loop ---- */

static void tell_to_wait(ms_running *run) {
  char names[256];
  int one = ms_name_ranks(run, 1, names, sizeof names) == 1;
  ms_output_buffer_say(&run->output[1], "moonshard: %s %s %g s to end; Ctrl-C again ends %s at once\n", names,
                       one ? "has" : "have", run->grace, one ? "it" : "them");
  run->tell_to_wait = 0;
}

/* Milliseconds until the next deadline, for poll; -1: there is none. */
static int milliseconds_to_wait(const ms_running *run) {
  double next = run->kill_at > 0 ? run->kill_at : INFINITY;
  if (run->tell_to_wait > 0) next = fmin(next, run->tell_to_wait);
  if (isinf(next)) return -1;
  double rest = next - ms_clock();
  return rest > 0 ? (int)(1e3 * rest) + 1 : 100;
}

/* Notes where ranks that should have saved are stuck, before they are killed. */
static void keep_places(ms_running *run) {
  if (run->stuck || !ms_asked_to_save(run)) return;
  run->stuck = ms_calloc(1, STUCK_BYTES);
  if (run->stuck) ms_control_stuck(run->view, run->stuck, STUCK_BYTES);
}

void ms_watch(ms_running *run) {
  struct pollfd wanted[4 + 2 * MS_MAX_LOCAL_RANKS];
  while (run->running) {
    nfds_t n = 0;
    wanted[n++] = (struct pollfd){.fd = run->signals, .events = POLLIN};
    wanted[n++] = (struct pollfd){.fd = run->config->link ? run->config->link->fd : -1, .events = POLLIN};
    for (int rank = 0; rank < run->config->ranks; rank++)
      for (int i = 0; i < 2; i++) {
        const ms_rank_log *log = &run->ranks[rank].log[i];
        if (log->fd >= 0 && (!log->target || ms_output_buffer_has_room(log->target)))
          wanted[n++] = (struct pollfd){.fd = log->fd, .events = POLLIN};
      }
    n += add_outputs(run, wanted + n);
    poll(wanted, n, milliseconds_to_wait(run));
    read_logs(run);
    check_output(run);
    read_signals(run);
    handle_link(run);
    reap(run);
    if (run->tell_to_wait > 0 && run->running && ms_clock() >= run->tell_to_wait) tell_to_wait(run);
    if (run->kill_at > 0 && !run->asked_to_end && run->running) kill_stopped(run);
    if (run->kill_at > 0 && ms_clock() >= run->kill_at && !saves_go_on(run)) {
      keep_places(run);
      ms_kill_ranks(run);
    }
  }
}
