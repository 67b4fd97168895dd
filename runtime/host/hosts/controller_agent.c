/* controller_agent.c - starts an agent with pipes for its standard streams, and gives up what belongs to it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/error.h"
#include "host/hosts/controller.h"

enum { CANNOT_START = 127 };

/* In a session of its own: Ctrl-C at the terminal reaches this program alone, which forwards it in order. */
static _Noreturn void become_agent(const ms_controller *controller, const ms_controlled_host *host, const int *ends,
                                   pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(CANNOT_START);
  setsid();
  for (int i = 0; i < 3; i++) dup2(ends[i], i);
  sigaction(SIGPIPE, &controller->old_pipe_action, NULL);
  sigaction(SIGCHLD, &controller->old_child_action, NULL);
  sigprocmask(SIG_SETMASK, &controller->old_mask, NULL);
  execvp(host->command[0], (char *const *)host->command);
  fprintf(stderr, "%s: %s\n", host->command[0], strerror(errno));
  _exit(CANNOT_START);
}

static void open_logs(ms_controller *controller, ms_controlled_host *host, int error_end) {
  const int first = host == controller->hosts;
  snprintf(host->prefix, sizeof host->prefix, "[%.250s] ", host->name);
  for (int i = 0; i < 3; i++) {
    ms_rank_log *log = &host->log[i];
    *log = (ms_rank_log){.fd = -1, .file = -1, .target = &controller->output[i > 0]};
    /* Lines of the launchers' are whole if they have prefixes; those of rank 0 pass unchanged. */
    log->prefix = i == 2 ? host->prefix : controller->log_all ? "" : first ? NULL : host->prefix;
  }
  host->log[2].fd = error_end;
}

/* Also says which limit was met, where it is one. */
static int fail_to_start(const char *call, int why) {
  const char *limit = why == EMFILE   ? ": raise the limit of open files (ulimit -n)"
                      : why == EAGAIN ? ": raise the limit of processes (ulimit -u)"
                                      : "";
  return MS_FAIL(MS_EIO, "it could not be started: %s: %s%s", call, strerror(why), limit);
}

int ms_controller_start(ms_controller *controller, ms_controlled_host *host) {
  int pipes[3][2], opened = 0;
  pid_t parent = getpid();
  while (opened < 3 && !pipe2(pipes[opened], O_CLOEXEC)) opened++;
  if (opened < 3) {
    int why = errno;
    while (opened--) close(pipes[opened][0]), close(pipes[opened][1]);
    return fail_to_start("pipe", why);
  }
  const int ends[] = {pipes[0][0], pipes[1][1], pipes[2][1]};
  host->to.fd = pipes[0][1];
  host->from.fd = pipes[1][0];
  open_logs(controller, host, pipes[2][0]);
  for (int i = 0; i < 3; i++) fcntl(i == 0 ? pipes[i][1] : pipes[i][0], F_SETFL, O_NONBLOCK);
  pid_t pid = fork();
  int why = errno;
  if (pid == 0) become_agent(controller, host, ends, parent);
  for (int i = 0; i < 3; i++) close(ends[i]);
  if (pid < 0) return fail_to_start("fork", why);
  host->pid = pid;
  return MS_OK;
}

void ms_controller_close(ms_controlled_host *host) {
  ms_frame_close_queue(&host->to);
  ms_frame_close_reader(&host->from);
  for (int i = 0; i < 3; i++) {
    ms_rank_log_end_line(&host->log[i]);
    ms_rank_log_close(&host->log[i]);
  }
  free(host->place);
  free(host->reason);
  free(host->report);
  host->place = host->reason = host->report = NULL;
}
