/* store_wait.c - waits for a descriptor with a deadline: for connections, and for the resolver's thread. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "comm/bootstrap/store_wire.h"

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
