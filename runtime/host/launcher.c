/* launcher.c - forks the ranks, watches them, and tells the first failure.
**
** One thread, one poll loop over a signal descriptor and the ranks' output. Nothing of a job has a name: the control
** segment is a memfd, the ranks are ended by the kernel when the launcher dies, so nothing can be left behind.
*/
#include "host/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "comm/world.h"
#include "host/rank_log.h"

static const double DEFAULT_GRACE = 3.0;
enum { STATUS_FAILED_RUN = 3 };

typedef struct child {
  pid_t pid; /* 0 before it was forked */
  int running;
  int status;         /* of waitpid, once it ended */
  ms_rank_log log[2]; /* stdout, stderr; fd -1 where the launcher does not read */
} child;

typedef struct launch {
  const ms_launch_config *config;
  int job_fd;
  ms_job_view *view;
  child *ranks;
  int running;
  int signals; /* descriptor of the signals below */
  sigset_t old_mask;
  struct sigaction old_child_action;
  int first_failed; /* the first rank seen to have failed, or -1 */
  int asked_to_end; /* the signal that asked the launcher to end, or 0 */
  double kill_at;   /* 0: not yet */
} launch;

/* ---- a rank, before its program starts ---- */

static void set_variable(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

/* With a core for every rank, rank r gets the r-th share of the allowed cores, unless more threads were asked for. */
static void take_cores(int rank, int ranks) {
  cpu_set_t allowed, mine;
  int threads = 0;
  if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
  int share = CPU_COUNT(&allowed) / ranks;
  const char *asked = ms_env_string("OMP_NUM_THREADS", NULL);
  threads = asked ? atoi(asked) : share > 1 ? share : 1;
  if (!asked) set_variable("OMP_NUM_THREADS", threads);
  if (threads > 0) omp_set_num_threads(threads); /* the OpenMP library read the variable before the fork */
  if (share < 1 || threads > share) return;
  CPU_ZERO(&mine);
  for (int core = 0, nth = 0; core < CPU_SETSIZE; core++) {
    if (!CPU_ISSET(core, &allowed)) continue;
    if (nth / share == rank) CPU_SET(core, &mine);
    nth++;
  }
  sched_setaffinity(0, sizeof mine, &mine);
}

static void redirect(int to, int from) {
  if (from >= 0) dup2(from, to);
}

static void connect_output(const launch *run, int rank, const int *write_end) {
  int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (rank) redirect(STDIN_FILENO, nowhere);
  if (rank || run->config->log_all) {
    redirect(STDOUT_FILENO, write_end[0] >= 0 ? write_end[0] : nowhere);
    redirect(STDERR_FILENO, write_end[1]);
    setvbuf(stdout, NULL, _IOLBF, 0);
  }
  if (nowhere >= 0) close(nowhere);
}

/* Closes what belongs to the launcher. Pipes of ranks that were forked before are among it. */
static void drop_launcher(launch *run, const int *write_end) {
  for (int rank = 0; rank < run->config->ranks; rank++)
    for (int i = 0; i < 2; i++)
      if (run->ranks[rank].log[i].fd >= 0) close(run->ranks[rank].log[i].fd);
  for (int i = 0; i < 2; i++)
    if (write_end[i] >= 0) close(write_end[i]);
  close(run->signals);
  ms_job_close(run->view);
  free(run->ranks);
}

static _Noreturn void become_rank(launch *run, int rank, const int *write_end, pid_t launcher) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(STATUS_FAILED_RUN); /* it died before the line above */
  const ms_launch_config *config = run->config;
  connect_output(run, rank, write_end);
  sigaction(SIGCHLD, &run->old_child_action, NULL);
  sigset_t old_mask = run->old_mask;
  int job_fd = run->job_fd;
  drop_launcher(run, write_end);
  set_variable("RANK", rank);
  set_variable("WORLD_SIZE", config->ranks);
  set_variable("LOCAL_RANK", rank);
  set_variable("LOCAL_WORLD_SIZE", config->ranks);
  set_variable("MOONSHARD_JOB_FD", job_fd);
  take_cores(rank, config->ranks);
  sigprocmask(SIG_SETMASK, &old_mask, NULL);
  exit(config->rank_main(config->context));
}

/* ---- starting ---- */

static int open_logs(launch *run, int rank, int *write_end) {
  int all = run->config->log_all;
  ms_rank_log *log = run->ranks[rank].log;
  if (all) MS_TRY(ms_rank_log_open(rank, STDOUT_FILENO, &log[0], &write_end[0]));
  if (all || rank) MS_TRY(ms_rank_log_open(rank, all ? STDERR_FILENO : -1, &log[1], &write_end[1]));
  return MS_OK;
}

static int start_rank(launch *run, int rank) {
  int write_end[2] = {-1, -1};
  pid_t launcher = getpid();
  int rc = open_logs(run, rank, write_end);
  if (!rc) {
    pid_t pid = fork();
    if (pid == 0) become_rank(run, rank, write_end, launcher);
    if (pid < 0)
      rc = MS_FAIL(MS_EIO, "cannot start rank %d of %d: fork: %s", rank, run->config->ranks, strerror(errno));
    else {
      run->ranks[rank].pid = pid;
      run->ranks[rank].running = 1;
      run->running++;
      ms_job_set_pid(run->view, rank, (int)pid);
    }
  }
  for (int i = 0; i < 2; i++)
    if (write_end[i] >= 0) close(write_end[i]);
  return rc;
}

/* Signals arrive through a descriptor while the ranks run; children start with the mask that was there before. */
static int take_signals(launch *run) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGINT);
  sigaddset(&mask, SIGTERM);
  sigaddset(&mask, SIGHUP);
  sigaddset(&mask, SIGCHLD);
  run->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  if (run->signals < 0) return MS_FAIL(MS_EIO, "cannot watch the ranks: signalfd: %s", strerror(errno));
  struct sigaction ordinary = {.sa_handler = SIG_DFL}; /* an inherited SIG_IGN would reap the ranks unseen */
  sigaction(SIGCHLD, &ordinary, &run->old_child_action);
  sigprocmask(SIG_BLOCK, &mask, &run->old_mask);
  return MS_OK;
}

static void give_signals_back(launch *run) {
  if (run->signals < 0) return;
  close(run->signals);
  sigaction(SIGCHLD, &run->old_child_action, NULL);
  sigprocmask(SIG_SETMASK, &run->old_mask, NULL);
}

/* ---- watching ---- */

static void signal_all(launch *run, int number) {
  for (int rank = 0; rank < run->config->ranks; rank++)
    if (run->ranks[rank].running) kill(run->ranks[rank].pid, number);
}

static void give_grace(launch *run) {
  if (run->kill_at == 0) run->kill_at = ms_clock() + (run->config->grace > 0 ? run->config->grace : DEFAULT_GRACE);
}

/* "killed by signal 9 (Killed)", "ended with exit status 3". */
static void describe_end(int status, char *text, size_t bytes) {
  if (WIFSIGNALED(status))
    snprintf(text, bytes, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
  else snprintf(text, bytes, "ended with exit status %d", WEXITSTATUS(status));
}

/* A rank that failed ends the others, unless all were asked to end: then each tells its own. */
static void handle_end(launch *run, int rank, int status) {
  char end[96], why[128];
  run->ranks[rank].running = 0;
  run->ranks[rank].status = status;
  run->running--;
  if (status == 0) {
    ms_job_set_ended(run->view, rank);
    if (run->asked_to_end) give_grace(run);
    return;
  }
  if (run->first_failed < 0) run->first_failed = rank;
  give_grace(run);
  describe_end(status, end, sizeof end);
  snprintf(why, sizeof why, WIFSIGNALED(status) ? "rank %d died: %s" : "rank %d %s", rank, end);
  if (!run->asked_to_end) ms_job_abort(run->view, rank, why);
}

static void reap(launch *run) {
  for (int rank = 0; rank < run->config->ranks; rank++) {
    int status;
    child *one = &run->ranks[rank];
    if (one->running && waitpid(one->pid, &status, WNOHANG) == one->pid) handle_end(run, rank, status);
  }
}

/* A terminal sends Ctrl-C to every process of the foreground group, so the ranks have it; a signal from a process came
** to the launcher alone and is passed on. */
static void handle_request(launch *run, const struct signalfd_siginfo *info) {
  int number = (int)info->ssi_signo;
  if (run->asked_to_end) {
    signal_all(run, SIGKILL);
    return;
  }
  run->asked_to_end = number;
  if (info->ssi_code != SI_KERNEL) signal_all(run, number);
  if (number != SIGINT) give_grace(run);
}

static void read_signals(launch *run) {
  struct signalfd_siginfo info;
  while (read(run->signals, &info, sizeof info) == (ssize_t)sizeof info)
    if (info.ssi_signo != SIGCHLD) handle_request(run, &info);
  reap(run);
}

static void read_logs(launch *run) {
  for (int rank = 0; rank < run->config->ranks; rank++)
    for (int i = 0; i < 2; i++) ms_rank_log_read(&run->ranks[rank].log[i]);
}

static void watch(launch *run) {
  struct pollfd wanted[1 + 2 * MS_MAX_LOCAL_RANKS];
  while (run->running) {
    nfds_t n = 0;
    wanted[n++] = (struct pollfd){.fd = run->signals, .events = POLLIN};
    for (int rank = 0; rank < run->config->ranks; rank++)
      for (int i = 0; i < 2; i++)
        if (run->ranks[rank].log[i].fd >= 0)
          wanted[n++] = (struct pollfd){.fd = run->ranks[rank].log[i].fd, .events = POLLIN};
    double rest = run->kill_at > 0 ? run->kill_at - ms_clock() : -1;
    int milliseconds = run->kill_at == 0 ? -1 : rest > 0 ? (int)(1e3 * rest) + 1 : 100;
    poll(wanted, n, milliseconds);
    read_logs(run);
    read_signals(run);
    if (run->kill_at > 0 && ms_clock() >= run->kill_at) signal_all(run, SIGKILL);
  }
  read_logs(run);
}

/* ---- telling ---- */

/* The rank that failed first: who gave up first knows better than the order in which processes ended. */
static int find_culprit(const launch *run) {
  int blamed;
  if (ms_job_abort_reason(run->view, &blamed) && blamed >= 0 && run->ranks[blamed].status != 0) return blamed;
  return run->first_failed;
}

static int choose_status(const launch *run) {
  if (run->first_failed < 0) return 0;
  if (run->asked_to_end) return 128 + run->asked_to_end;
  int status = run->ranks[find_culprit(run)].status;
  return WIFEXITED(status) ? WEXITSTATUS(status) : STATUS_FAILED_RUN;
}

static void report(const launch *run, int exit_status) {
  if (!exit_status) return;
  if (run->asked_to_end) {
    fprintf(stderr, "moonshard: %s\n", run->asked_to_end == SIGINT ? "interrupted" : "terminated");
    return;
  }
  char end[96];
  int culprit = find_culprit(run);
  const child *rank = &run->ranks[culprit];
  const char *why = ms_job_rank_reason(run->view, culprit);
  describe_end(rank->status, end, sizeof end);
  if (why && WIFEXITED(rank->status) && (exit_status == 2 || run->config->ranks == 1))
    fprintf(stderr, "moonshard: %s\n", why);
  else if (WIFSIGNALED(rank->status))
    fprintf(stderr, "moonshard: rank %d died: %s%s%s\n", culprit, end, why ? "; its last error: " : "", why ? why : "");
  else fprintf(stderr, "moonshard: rank %d %s%s%s\n", culprit, end, why ? ": " : "", why ? why : "");
  /* What a crash or a sanitizer wrote before it ended the rank. */
  const ms_rank_log *kept = &rank->log[1];
  if (kept->target < 0 && kept->used && (!why || WIFSIGNALED(rank->status)))
    fprintf(stderr, "moonshard: the end of rank %d's stderr:\n%.*s", culprit, (int)kept->used, kept->text);
}

static void close_launch(launch *run) {
  give_signals_back(run);
  for (int rank = 0; run->ranks && rank < run->config->ranks; rank++)
    for (int i = 0; i < 2; i++) ms_rank_log_close(&run->ranks[rank].log[i]);
  free(run->ranks);
  ms_job_close(run->view);
  if (run->job_fd >= 0) close(run->job_fd);
}

static int prepare(launch *run) {
  MS_TRY(ms_job_create(run->config->ranks, &run->job_fd));
  MS_TRY(ms_job_open(run->job_fd, &run->view));
  run->ranks = ms_calloc(run->config->ranks, sizeof *run->ranks);
  if (!run->ranks) return MS_ENOMEM;
  for (int rank = 0; rank < run->config->ranks; rank++)
    for (int i = 0; i < 2; i++) run->ranks[rank].log[i].fd = run->ranks[rank].log[i].target = -1;
  return take_signals(run);
}

int ms_launch(const ms_launch_config *config, int *exit_status) {
  int rc;
  launch run = {.config = config, .job_fd = -1, .signals = -1, .first_failed = -1};
  MS_GOTO(prepare(&run));
  fflush(NULL); /* what is buffered now would otherwise be written by every rank */
  for (int rank = 0; rank < config->ranks; rank++) MS_GOTO(start_rank(&run, rank));
  watch(&run);
  *exit_status = choose_status(&run);
  report(&run, *exit_status);
fail:
  if (run.running) { /* not all could be started */
    signal_all(&run, SIGKILL);
    watch(&run);
  }
  close_launch(&run);
  return rc;
}
