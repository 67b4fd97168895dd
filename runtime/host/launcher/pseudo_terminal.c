/* pseudo_terminal.c - opens both ends of a pseudo-terminal, without setting its modes. */
#include "host/launcher/pseudo_terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int ms_pseudo_terminal_open(int ends[2]) {
  char name[64];
  ends[1] = -1;
  ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (ends[0] < 0) return -1;
  if (!grantpt(ends[0]) && !unlockpt(ends[0]) && !ptsname_r(ends[0], name, sizeof name))
    ends[1] = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (ends[1] >= 0) return 0;
  int why = errno;
  close(ends[0]);
  errno = why;
  return -1;
}
