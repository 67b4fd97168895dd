/* output_buffer.c - writes without blocking.
 *
 * O_NONBLOCK on the descriptor would affect every process that shares it, including the user's shell. Opening the file
 * again through /proc gives this process its own flags. Where that is not permitted (another user's terminal, under
 * sudo), poll is called before every write, and keeps writes small.
 */
#include "host/launcher/output_buffer.h"

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

void ms_output_buffer_open(ms_output_buffer *output, int fd) {
  struct stat info;
  char path[32];
  *output = (ms_output_buffer){.fd = fd, .writes = fd};
  int known = !fstat(fd, &info);
  if (known && !S_ISFIFO(info.st_mode) && !S_ISSOCK(info.st_mode) && !isatty(fd)) return;
  output->waits = 1;
  if (!known || S_ISSOCK(info.st_mode)) return;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int again = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (again >= 0) output->writes = again;
}

void ms_output_buffer_close(ms_output_buffer *output) {
  if (output->writes != output->fd) close(output->writes);
  output->writes = output->fd;
}

int ms_output_buffer_has_room(const ms_output_buffer *output) {
  return output->used - output->begin <= MS_OUTPUT_BUFFER_BYTES - MS_OUTPUT_BUFFER_ROOM;
}

void ms_output_buffer_discard(ms_output_buffer *output) { output->begin = output->used = 0; }

/* Returns the number of bytes written, 0 if the write would block, or -1 with errno. */
static ssize_t write_now(const ms_output_buffer *output, const char *text, size_t bytes) {
  ssize_t written;
  if (output->waits && output->writes == output->fd) {
    struct pollfd ready = {.fd = output->fd, .events = POLLOUT};
    if (poll(&ready, 1, 0) <= 0) return 0;
    if (bytes > SMALL_WRITE) bytes = SMALL_WRITE;
    written = send(output->fd, text, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (written < 0 && errno == ENOTSOCK) written = write(output->fd, text, bytes);
  } else written = write(output->writes, text, bytes);
  return written < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : written;
}

static int blames_the_disk(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

size_t ms_output_buffer_flush(ms_output_buffer *output) {
  while (output->begin < output->used) {
    ssize_t written = write_now(output, output->text + output->begin, output->used - output->begin);
    if (!written) return output->used - output->begin;
    if (written < 0) { /* a closed terminal or pipe does not stop the run, but it does not end well either */
      if (blames_the_disk(errno)) output->error = errno;
      else output->unread = errno;
      break;
    }
    output->begin += (size_t)written;
  }
  ms_output_buffer_discard(output);
  return 0;
}

void ms_output_buffer_tell_lost(const ms_output_buffer *outputs, char *text, size_t bytes) {
  static const char *const names[] = {"standard output", "standard error"};
  *text = '\0';
  for (int i = 0; i < 2 && !*text; i++) {
    const int why = outputs[i].error ? outputs[i].error : outputs[i].unread;
    if (!why) continue;
    snprintf(text, bytes, "%s: %s%s", names[i], strerror(why),
             outputs[i].error ? "" : ": its reader was gone before the run ended, and part of the output is lost");
  }
}

static int keep(ms_output_buffer *output, const char *text, size_t bytes) {
  if (bytes > sizeof output->text - output->used) {
    memmove(output->text, output->text + output->begin, output->used - output->begin);
    output->used -= output->begin;
    output->begin = 0;
  }
  if (bytes > sizeof output->text - output->used) return 0;
  memcpy(output->text + output->used, text, bytes);
  output->used += bytes;
  return 1;
}

void ms_output_buffer_put(ms_output_buffer *output, const char *text, size_t bytes) {
  char count[96];
  if (ms_output_buffer_flush(output) == 0 && output->dropped) {
    int length = snprintf(count, sizeof count,
                          "moonshard: %d pieces of output were dropped, because nothing read them\n", output->dropped);
    output->dropped = 0;
    keep(output, count, (size_t)length);
  }
  if (!keep(output, text, bytes)) output->dropped++;
  ms_output_buffer_flush(output);
}

void ms_output_buffer_say(ms_output_buffer *output, const char *format, ...) {
  char text[MESSAGE_BYTES];
  va_list arguments;
  va_start(arguments, format);
  int length = ms_format_list(text, sizeof text, format, arguments);
  va_end(arguments);
  if (length > 0) ms_output_buffer_put(output, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
}
