/* launcher_watch.c - a thread that sleeps until the launcher's process ends, which a pidfd shows. Kernels before Linux
 * 5.3 have none: there the thread looks into /proc every second. */
#include "comm/bootstrap/launcher_watch.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/bootstrap/host_id.h"

/* Seconds for errors to be printed, and for what a recipe does at its end; and while ranks of this host wait for their
 * saves. */
static const double GRACE = 5, GRACE_TO_SAVE = 30;
enum { LOOK_MS = 1000, TURN_MS = 100 };

struct ms_launcher_watch {
  pthread_t thread;
  int launcher, stop; /* a pidfd (-1: the kernel has none) and an eventfd */
  int pid;
  uint64_t start; /* of that process: its number can be another's later */
  ms_control *control;
  char why[128];
};

/* 1 when the rank has ended (stop) within the time that it has. */
static int ends_in_time(const ms_launcher_watch *watch) {
  struct pollfd stop = {.fd = watch->stop, .events = POLLIN};
  const double began = ms_clock();
  for (;;) {
    const int ready = poll(&stop, 1, TURN_MS);
    if (ready > 0) return 1;
    const double most = atomic_load(&watch->control->finishing) > 0 ? GRACE_TO_SAVE : GRACE;
    if (ready == 0 && ms_clock() > began + ms_wait_scale * most) return 0;
  }
}

static void *watch_launcher(void *argument) {
  ms_launcher_watch *watch = argument;
  /* poll ignores a descriptor of -1. */
  struct pollfd wanted[] = {{.fd = watch->stop, .events = POLLIN}, {.fd = watch->launcher, .events = POLLIN}};
  const int pause = watch->launcher < 0 ? LOOK_MS : -1;
  do {
    while (poll(wanted, 2, pause) < 0 && errno == EINTR) continue;
    if (wanted[0].revents) return NULL;
  } while (!wanted[1].revents && ms_process_start(watch->pid) == watch->start);
  ms_control_give_up(watch->control, MS_CONTROL_LAUNCHER, -1, watch->why);
  if (!ends_in_time(watch)) kill(getpid(), SIGKILL);
  return NULL;
}

static void name_process(int pid, char *name, size_t bytes) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/comm", pid);
  FILE *file = fopen(path, "re");
  if (!file || !fgets(name, (int)bytes, file)) snprintf(name, bytes, "unknown");
  if (file) fclose(file);
  name[strcspn(name, "\n")] = '\0';
}

/* ESRCH: the process has ended, perhaps long before this one asked. */
static int open_process(ms_launcher_watch *watch) {
  watch->launcher = (int)syscall(SYS_pidfd_open, watch->pid, 0);
  if (ms_process_start(watch->pid) == watch->start) return 0;
  if (watch->launcher >= 0) close(watch->launcher); /* another process has its number */
  watch->launcher = -1;
  return ESRCH;
}

static int start_thread(ms_launcher_watch *watch) {
  sigset_t all, old;
  watch->stop = eventfd(0, EFD_CLOEXEC);
  if (watch->stop < 0) return errno;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int why = pthread_create(&watch->thread, NULL, watch_launcher, watch);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (why) close(watch->stop);
  return why;
}

int ms_launcher_watch_start(const char *variable, ms_control *control, ms_launcher_watch **watch) {
  uint64_t start;
  char name[32];
  int why, pid = ms_process_starter(variable, &start);
  *watch = NULL;
  if (!pid) return MS_OK;
  ms_launcher_watch *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  made->control = control, made->pid = pid, made->start = start;
  name_process(pid, name, sizeof name);
  snprintf(made->why, sizeof made->why, "the launcher was killed, or ended before its ranks: process %d (%s)", pid,
           name);
  why = open_process(made);
  if (!why) why = start_thread(made);
  if (!why) {
    *watch = made;
    return MS_OK;
  }
  if (made->launcher >= 0) close(made->launcher);
  free(made);
  return MS_FAIL(MS_EIO, "cannot watch the launcher, process %d (%s): %s", pid, name, strerror(why));
}

void ms_launcher_watch_stop(ms_launcher_watch *watch) {
  const uint64_t one = 1;
  if (!watch) return;
  while (write(watch->stop, &one, sizeof one) < 0 && errno == EINTR) continue;
  pthread_join(watch->thread, NULL);
  close(watch->stop);
  if (watch->launcher >= 0) close(watch->launcher);
  free(watch);
}
