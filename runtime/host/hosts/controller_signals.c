/* controller_signals.c - receives signals through a descriptor while a run on several hosts goes on. */
#include <errno.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/error.h"
#include "host/hosts/controller.h"

int ms_controller_take_signals(ms_controller *controller) {
  struct sigaction ignore = {.sa_handler = SIG_IGN}, ordinary = {.sa_handler = SIG_DFL}, hang_up;
  sigset_t mask;
  sigemptyset(&mask);
  for (int i = 0; i < 4; i++) sigaddset(&mask, (const int[]){SIGCHLD, SIGTERM, SIGINT, SIGWINCH}[i]);
  if (!sigaction(SIGHUP, NULL, &hang_up) && hang_up.sa_handler != SIG_IGN) sigaddset(&mask, SIGHUP);
  controller->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  if (controller->signals < 0) return MS_FAIL(MS_EIO, "signalfd: %s", strerror(errno));
  sigaction(SIGPIPE, &ignore, &controller->old_pipe_action);
  sigaction(SIGCHLD, &ordinary, &controller->old_child_action);
  sigprocmask(SIG_BLOCK, &mask, &controller->old_mask);
  return MS_OK;
}

void ms_controller_give_signals_back(ms_controller *controller) {
  if (controller->signals < 0) return;
  close(controller->signals);
  sigaction(SIGPIPE, &controller->old_pipe_action, NULL);
  sigaction(SIGCHLD, &controller->old_child_action, NULL);
  sigprocmask(SIG_SETMASK, &controller->old_mask, NULL);
}
