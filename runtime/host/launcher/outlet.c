/* outlet.c - writes without blocking.
 *
 * O_NONBLOCK on the descriptor would affect every process that shares it, including the user's shell. Opening the file
 * again through /proc gives this process its own flags. Where that is not permitted (another user's terminal, under
 * sudo), the outlet calls poll before every write, and keeps writes small.
 */
#include "host/launcher/outlet.h"

#include "base/numbers/number.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* A pipe that poll reports as writable accepts at least a page without blocking. */
enum { SMALL_WRITE = 512, MESSAGE_BYTES = 32768 };

void ms_outlet_open(ms_outlet *outlet, int fd) {
  struct stat info;
  char path[32];
  *outlet = (ms_outlet){.fd = fd, .writes = fd};
  int known = !fstat(fd, &info);
  if (known && !S_ISFIFO(info.st_mode) && !S_ISSOCK(info.st_mode) && !isatty(fd)) return;
  outlet->waits = 1;
  if (!known || S_ISSOCK(info.st_mode)) return;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int again = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (again >= 0) outlet->writes = again;
}

void ms_outlet_close(ms_outlet *outlet) {
  if (outlet->writes != outlet->fd) close(outlet->writes);
  outlet->writes = outlet->fd;
}

int ms_outlet_has_room(const ms_outlet *outlet) {
  return outlet->used - outlet->begin <= MS_OUTLET_BYTES - MS_OUTLET_ROOM;
}

void ms_outlet_discard(ms_outlet *outlet) { outlet->begin = outlet->used = 0; }

/* Returns the number of bytes written, 0 if the write would block, or -1 with errno. */
static ssize_t write_now(const ms_outlet *outlet, const char *text, size_t bytes) {
  ssize_t written;
  if (outlet->waits && outlet->writes == outlet->fd) {
    struct pollfd ready = {.fd = outlet->fd, .events = POLLOUT};
    if (poll(&ready, 1, 0) <= 0) return 0;
    if (bytes > SMALL_WRITE) bytes = SMALL_WRITE;
    written = send(outlet->fd, text, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (written < 0 && errno == ENOTSOCK) written = write(outlet->fd, text, bytes);
  } else written = write(outlet->writes, text, bytes);
  return written < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : written;
}

static int blames_the_disk(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

size_t ms_outlet_flush(ms_outlet *outlet) {
  while (outlet->begin < outlet->used) {
    ssize_t written = write_now(outlet, outlet->text + outlet->begin, outlet->used - outlet->begin);
    if (!written) return outlet->used - outlet->begin;
    if (written < 0) { /* a closed terminal or pipe does not stop the run, but it does not end well either */
      if (blames_the_disk(errno)) outlet->error = errno;
      else outlet->unread = errno;
      break;
    }
    outlet->begin += (size_t)written;
  }
  ms_outlet_discard(outlet);
  return 0;
}

void ms_outlet_tell_lost(const ms_outlet *outlets, char *text, size_t bytes) {
  static const char *const names[] = {"standard output", "standard error"};
  *text = '\0';
  for (int i = 0; i < 2 && !*text; i++) {
    const int why = outlets[i].error ? outlets[i].error : outlets[i].unread;
    if (!why) continue;
    snprintf(text, bytes, "%s: %s%s", names[i], strerror(why),
             outlets[i].error ? "" : ": its reader was gone before the run ended, and part of the output is lost");
  }
}

static int keep(ms_outlet *outlet, const char *text, size_t bytes) {
  if (bytes > sizeof outlet->text - outlet->used) {
    memmove(outlet->text, outlet->text + outlet->begin, outlet->used - outlet->begin);
    outlet->used -= outlet->begin;
    outlet->begin = 0;
  }
  if (bytes > sizeof outlet->text - outlet->used) return 0;
  memcpy(outlet->text + outlet->used, text, bytes);
  outlet->used += bytes;
  return 1;
}

void ms_outlet_put(ms_outlet *outlet, const char *text, size_t bytes) {
  char count[96];
  if (ms_outlet_flush(outlet) == 0 && outlet->dropped) {
    int length = snprintf(count, sizeof count,
                          "moonshard: %d pieces of output were dropped, because nothing read them\n", outlet->dropped);
    outlet->dropped = 0;
    keep(outlet, count, (size_t)length);
  }
  if (!keep(outlet, text, bytes)) outlet->dropped++;
  ms_outlet_flush(outlet);
}

void ms_outlet_say(ms_outlet *outlet, const char *format, ...) {
  char text[MESSAGE_BYTES];
  va_list arguments;
  va_start(arguments, format);
  int length = ms_format_list(text, sizeof text, format, arguments);
  va_end(arguments);
  if (length > 0) ms_outlet_put(outlet, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
}
