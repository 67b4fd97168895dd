/* store_wait.c - polls a descriptor, and runs the resolver in a thread that announces its answer by one. */
#include "comm/bootstrap/store/store_wait.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "comm/bootstrap/store/store.h"

/* Interval in seconds between checks for Ctrl-C. */
static const double LONGEST_POLL = 0.1;

int ms_wire_wait(int fd, short events, double deadline, int *ready) {
  for (;;) {
    if (ms_interrupted()) return MS_FAIL(MS_EINTERRUPT, "interrupted");
    double rest = deadline - ms_clock();
    struct pollfd one = {.fd = fd, .events = events};
    int n = poll(&one, 1, rest > 0 ? (int)(1e3 * fmin(rest, LONGEST_POLL)) + 1 : 0);
    *ready = n > 0;
    if (n > 0 || rest <= 0) return MS_OK;
    if (n < 0 && errno != EINTR) return MS_FAIL(MS_EIO, "rendezvous: poll: %s", strerror(errno));
  }
}

/* ---- host names ---- */

/* One query. The caller and the resolving thread both hold it; the last one to release it frees it. */
typedef struct question {
  char host[sizeof((ms_store_place *)0)->host], port[8];
  struct addrinfo *found;
  const char *why; /* NULL: an address was found */
  int event;       /* signals that there is an answer */
  atomic_int answered, holders;
} question;

static void let_go(question *asked) {
  if (atomic_fetch_sub(&asked->holders, 1) > 1) return;
  if (asked->found) freeaddrinfo(asked->found);
  close(asked->event);
  free(asked);
}

static void look_up(const char *host, const char *port, int flags, struct addrinfo **found, const char **why) {
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
  int rc = getaddrinfo(host, port, &hints, found);
  *why = rc == EAI_SYSTEM ? strerror(errno) : rc ? gai_strerror(rc) : NULL;
  if (rc) *found = NULL;
}

static void *run_thread(void *argument) {
  question *asked = argument;
  ms_allocations_set_counted(0);
  look_up(asked->host, asked->port, 0, &asked->found, &asked->why);
  atomic_store(&asked->answered, 1);
  eventfd_write(asked->event, 1);
  let_go(asked);
  return NULL;
}

/* Signals are for the calling thread. */
static int start_thread(question *asked) {
  pthread_attr_t detached;
  pthread_t thread;
  sigset_t all, before;
  sigfillset(&all);
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  atomic_fetch_add(&asked->holders, 1);
  int failed = pthread_create(&thread, &detached, run_thread, asked);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&detached);
  if (!failed) return MS_OK;
  atomic_fetch_sub(&asked->holders, 1);
  return MS_FAIL(MS_EIO, "rendezvous: cannot start a thread to look up %s: %s", asked->host, strerror(failed));
}

static int ask(const char *host, const char *port, question **out) {
  question *asked = ms_calloc(1, sizeof *asked);
  if (!asked) return MS_ENOMEM;
  snprintf(asked->host, sizeof asked->host, "%s", host);
  snprintf(asked->port, sizeof asked->port, "%s", port);
  atomic_store(&asked->holders, 1);
  if ((asked->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
    free(asked);
    return MS_FAIL(MS_EIO, "rendezvous: eventfd: %s", strerror(errno));
  }
  int rc = start_thread(asked);
  if (rc) let_go(asked);
  else *out = asked;
  return rc;
}

int ms_resolve(const char *host, int port, double deadline, struct addrinfo **found, char *why, size_t bytes) {
  const char *text = NULL;
  char number[8];
  question *asked = NULL;
  int ready;
  *found = NULL;
  snprintf(number, sizeof number, "%d", port);
  if (ms_is_address(host)) {
    look_up(host, number, AI_NUMERICHOST, found, &text);
    if (text) snprintf(why, bytes, "%s: %s", host, text);
    return MS_OK;
  }
  MS_TRY(ask(host, number, &asked));
  int rc = ms_wire_wait(asked->event, POLLIN, deadline, &ready);
  if (!rc && !atomic_load(&asked->answered)) {
    snprintf(why, bytes, "%s: no name server has answered", host);
  } else if (!rc) {
    *found = asked->found;
    asked->found = NULL;
    if (asked->why) snprintf(why, bytes, "%s: %s", host, asked->why);
  }
  let_go(asked);
  return rc;
}
