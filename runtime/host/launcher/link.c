/* link.c - the messages between a launcher and the program that started it for --hosts. The first is
 * "first world host\0token\0", later ones are reasons to end; the report is where it began, reason and text, each with
 * a NUL.
 */
#include "host/launcher/link.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/env.h"
#include "base/error.h"

enum { MAX_DESCRIPTORS = 1 << 20 };

static ms_launch_link taken = {.fd = -1};
static int is_taken;

ms_launch_link *ms_link_get(void) { return is_taken ? &taken : NULL; }

static int read_first(char *message, size_t bytes) {
  ssize_t n;
  do n = recv(taken.fd, message, bytes - 1, 0);
  while (n < 0 && errno == EINTR);
  const char *token = n > 0 ? memchr(message, '\0', (size_t)n) : NULL;
  if (!token || sscanf(message, "%d %d %255s", &taken.first, &taken.world, taken.host) != 3)
    return MS_FAIL(MS_EINVAL, "MOONSHARD_HOST_LINK is set by `moonshard run --hosts` only: unset it");
  message[n] = '\0';
  if (token[1] && setenv("MOONSHARD_TOKEN", token + 1, 1)) return MS_FAIL(MS_ENOMEM, "out of memory: the environment");
  return MS_OK;
}

int ms_link_take(void) {
  char message[1024];
  MS_TRY(ms_env_int("MOONSHARD_HOST_LINK", -1, 3, MAX_DESCRIPTORS, &taken.fd));
  if (taken.fd < 0) return MS_OK;
  unsetenv("MOONSHARD_HOST_LINK");
  int rc = read_first(message, sizeof message);
  sodium_memzero(message, sizeof message);
  if (rc) return rc;
  fcntl(taken.fd, F_SETFD, FD_CLOEXEC);
  is_taken = 1;
  return MS_OK;
}

int ms_link_receive(ms_launch_link *link, char *why, size_t bytes) {
  ssize_t n = link->fd >= 0 ? recv(link->fd, why, bytes - 1, MSG_DONTWAIT) : -1;
  if (n > 0) {
    why[n] = '\0';
    return 1;
  }
  if (n == 0) { /* the kernel kills this process together with the other end */
    close(link->fd);
    link->fd = -1;
  }
  return 0;
}

void ms_link_report(ms_launch_link *link, int began, const char *reason, const char *text) {
  char message[MS_LINK_BYTES];
  int used = snprintf(message, sizeof message, "%d%c%.16000s%c%.40000s", began, '\0', reason, '\0', text);
  if (link->fd < 0 || used < 0) return;
  while (send(link->fd, message, (size_t)used + 1, MSG_NOSIGNAL) < 0 && errno == EINTR) continue;
}
