/* descriptors.c - fills closed standard descriptors with /dev/null. */
#include "base/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

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
