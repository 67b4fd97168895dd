/* env.c - typed environment variables, of which unset and empty mean the same: the fallback; and closed standard
 * descriptors, filled with /dev/null. */
#include "base/env.h"

#include "base/error.h"
#include "base/numbers/number.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *ms_env_string(const char *name, const char *fallback) {
  const char *text = getenv(name);
  return text && *text ? text : fallback;
}

int ms_env_int(const char *name, int fallback, int low, int high, int *value) {
  const char *text = ms_env_string(name, NULL);
  if (!text) {
    *value = fallback;
    return MS_OK;
  }
  char *end;
  errno = 0;
  long long number = strtoll(text, &end, 10);
  if (errno || end == text || *end || number < low || number > high)
    return MS_FAIL(MS_EINVAL, "environment variable %s=\"%s\": it must be an integer from %d to %d", name, text, low,
                   high);
  *value = (int)number;
  return MS_OK;
}

int ms_env_double(const char *name, double fallback, double *value) {
  const char *text = ms_env_string(name, NULL);
  if (!text) {
    *value = fallback;
    return MS_OK;
  }
  char *end;
  double number = ms_number_read(text, &end);
  if (end == text || *end || !isfinite(number))
    return MS_FAIL(MS_EINVAL, "environment variable %s=\"%s\": it must be a finite number", name, text);
  *value = number;
  return MS_OK;
}

int ms_descriptors_fill(void) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    /* open returns the lowest free number, which is this one; child programs inherit it like
     * any standard descriptor. */
    if (open("/dev/null", O_RDWR) != fd)
      return MS_FAIL(MS_EIO, "descriptor %d is closed, and /dev/null cannot take its place: %s", fd, strerror(errno));
  }
  return MS_OK;
}
