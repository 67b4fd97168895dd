/* spawn.c - forks a rank and sets up its streams, environment and cores, and its death with the launcher. On one of
 * several nodes each has a launcher, and the ranks of all nodes form one world.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/bootstrap/store/store.h"
#include "comm/bootstrap/token.h"
#include "host/launcher/launch.h"

/* ---- nodes ---- */

int ms_nodes_prepare(const ms_launch_config *config) {
  const char *token;
  ms_store_place place;
  if (!config->rendezvous) return MS_OK;
  if (strcmp(config->rendezvous, "env://")) MS_TRY(ms_store_place_parse(config->rendezvous, &place));
  if (config->nodes == 1) return ms_token_make();
  MS_TRY(ms_token_get(&token));
  return strcmp(config->rendezvous, "env://") ? ms_token_check(&place, token) : MS_OK;
}

int ms_nodes_rank(const ms_launch_config *config, int local_rank) {
  return (config->link ? config->link->first : config->node_rank * config->ranks) + local_rank;
}

int ms_nodes_world(const ms_launch_config *config) {
  return config->link ? config->link->world : config->ranks * (config->nodes ? config->nodes : 1);
}

/* The first rank of each node, but of all hosts of --hosts only rank 0. */
static int is_shown(const ms_running *run, int rank) {
  return rank == 0 && (!run->config->link || ms_nodes_rank(run->config, rank) == 0);
}

/* ---- in the rank, before its program starts ---- */

static void redirect(int to, int from) {
  if (from >= 0) dup2(from, to);
}

/* Only rank 0 reads standard input. Output that is not read and not shown goes to /dev/null. */
static void connect_output(int rank, int shown, const int *write_end) {
  static char line[BUFSIZ];
  int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (rank) redirect(STDIN_FILENO, nowhere);
  if (!shown || write_end[0] >= 0) redirect(STDOUT_FILENO, write_end[0] >= 0 ? write_end[0] : nowhere);
  /* Line-buffered even into a file, so that output before a kill is not lost. A separate buffer, because one that the
   * C library already uses would keep its old mode. */
  setvbuf(stdout, line, _IOLBF, sizeof line);
  redirect(STDERR_FILENO, write_end[1]);
  if (nowhere >= 0) close(nowhere);
}

/* Closes what belongs to the launcher, including the pipes of ranks that were forked earlier. */
static void drop_launcher(ms_running *run, const int *write_end) {
  for (int rank = 0; rank < run->config->ranks; rank++) {
    for (int i = 0; i < 2; i++)
      if (run->ranks[rank].log[i].fd >= 0) close(run->ranks[rank].log[i].fd);
    if (run->ranks[rank].file >= 0) close(run->ranks[rank].file);
  }
  for (int i = 0; i < 2; i++)
    if (write_end[i] >= 0) close(write_end[i]);
  for (int i = 0; i < 2; i++) ms_output_buffer_close(&run->output[i]);
  close(run->signals);
  if (run->config->link && run->config->link->fd >= 0) close(run->config->link->fd);
  ms_control_view_close(run->view);
  free(run->ranks);
  free(run->output);
}

static void set_variable(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

/* From which the rank learns who it is, and where to connect to other nodes. */
static void set_variables(const ms_launch_config *config, int local_rank) {
  set_variable("RANK", ms_nodes_rank(config, local_rank));
  set_variable("WORLD_SIZE", ms_nodes_world(config));
  set_variable("LOCAL_RANK", local_rank);
  set_variable("LOCAL_WORLD_SIZE", config->ranks);
  if (config->nodes) set_variable("MOONSHARD_NODE", config->node_rank);
  if (config->link) setenv("MOONSHARD_HOST_NAME", config->link->host, 1);
  if (config->rendezvous) setenv("MOONSHARD_RENDEZVOUS", config->rendezvous, 1);
  else unsetenv("MOONSHARD_RENDEZVOUS"); /* it was meant for this launcher, not for its ranks */
}

static _Noreturn void become_rank(ms_running *run, int rank, const int *write_end, pid_t launcher) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  /* Where ptrace is restricted to ancestors: lets other ranks check whether this one blocks in print
   * (comm/diagnose/report.c). */
  prctl(PR_SET_PTRACER, (unsigned long)launcher, 0, 0, 0);
  if (getppid() != launcher) _exit(MS_STATUS_FAILED_RUN); /* the launcher died before prctl */
  const ms_launch_config *config = run->config;
  char job[16];
  connect_output(rank, is_shown(run, rank), write_end);
  sigaction(SIGCHLD, &run->old_child_action, NULL);
  sigaction(SIGPIPE, &run->old_pipe_action, NULL);
  sigset_t old_mask = run->old_mask;
  int control_fd = run->control_fd;
  if (!config->joins) ms_pinning_take(&run->pinning, rank);
  drop_launcher(run, write_end);
  if (!config->joins) {
    set_variables(config, rank);
    snprintf(job, sizeof job, "%d", control_fd);
    setenv("MOONSHARD_JOB_FD", job, 1);
  }
  sigprocmask(SIG_SETMASK, &old_mask, NULL);
  exit(config->rank_main(config->context));
}

/* ---- in the launcher ---- */

static int open_log_file(ms_running *run, int rank) {
  char path[4096];
  snprintf(path, sizeof path, "%s/rank-%d.log", run->config->log_dir, ms_nodes_rank(run->config, rank));
  int file = run->ranks[rank].file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) return MS_FAIL(MS_EIO, "log file %s: %s", path, strerror(errno));
  /* The kernel unlocks it when this run has ended, in any way. A file system without locks has another errno. */
  if (flock(file, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
    return MS_FAIL(MS_EIO, "log file %s: another run writes it: give each run a --log-dir of its own", path);
  if (ftruncate(file, 0) && errno != EINVAL) /* a pipe or a device has nothing to lose */
    return MS_FAIL(MS_EIO, "log file %s: %s", path, strerror(errno));
  return MS_OK;
}

int ms_open_log_files(ms_running *run) {
  for (int rank = 0; run->config->log_dir && rank < run->config->ranks; rank++) MS_TRY(open_log_file(run, rank));
  return MS_OK;
}

/* Without log_all and a log file, rank 0 uses the launcher's own streams; the other ranks' stdout is dropped, and the
 * end of their stderr is kept. */
static int open_logs(ms_running *run, int rank, int *write_end) {
  ms_child *child = &run->ranks[rank];
  int all = run->config->log_all;
  snprintf(child->prefix, sizeof child->prefix, "[rank %d] ", ms_nodes_rank(run->config, rank));
  for (int i = 0; i < 2; i++) {
    int own = i == 0 ? STDOUT_FILENO : STDERR_FILENO;
    ms_rank_log *log = &child->log[i];
    log->rank = ms_nodes_rank(run->config, rank);
    log->stream = own;
    log->prefix = all ? child->prefix : NULL;
    log->target = all || is_shown(run, rank) ? &run->output[i] : NULL;
    log->file = child->file;
    int wanted = all || child->file >= 0 || (own == STDERR_FILENO && !is_shown(run, rank));
    if (wanted) MS_TRY(ms_rank_log_open(log, &write_end[i]));
  }
  return MS_OK;
}

int ms_start_rank(ms_running *run, int rank) {
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
      if (!run->config->joins) ms_control_set_process(run->view, ms_nodes_rank(run->config, rank), (int)pid);
    }
  }
  for (int i = 0; i < 2; i++)
    if (write_end[i] >= 0) close(write_end[i]);
  return rc;
}
