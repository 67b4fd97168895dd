/* rank_log.c - reads a rank's stream. Lines are written whole, so lines of different ranks never mix.
 *
 * `text` holds the end of the stream, including finished lines; the unfinished line begins at `begin`. When it is full,
 * its older half is dropped; a line that fills it is split in two.
 */
#include "host/launcher/rank_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "host/launcher/pseudo_terminal.h"

enum { STAMP_BYTES = 40 };

/* ---- the two ends ---- */

void ms_rank_log_resize(const ms_rank_log *log) {
  struct winsize size;
  if (log->fd >= 0 && isatty(log->fd) && !ioctl(log->target->fd, TIOCGWINSZ, &size)) ioctl(log->fd, TIOCSWINSZ, &size);
}

/* Opens a raw pseudo-terminal, which passes bytes unchanged. */
static int open_raw_terminal(int *ends) {
  struct termios raw;
  if (ms_pseudo_terminal_open(ends)) return -1;
  if (tcgetattr(ends[1], &raw)) {
    close(ends[1]);
    close(ends[0]);
    return -1;
  }
  cfmakeraw(&raw);
  tcsetattr(ends[1], TCSANOW, &raw);
  return 0;
}

int ms_rank_log_open(ms_rank_log *log, int *write_end) {
  int ends[2];
  int terminal = log->target && !log->prefix && isatty(log->target->fd) && !open_raw_terminal(ends);
  if (!terminal && pipe2(ends, O_CLOEXEC))
    return MS_FAIL(MS_EIO, "cannot make a pipe for rank %d's output: %s", log->rank, strerror(errno));
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  log->fd = ends[0];
  log->begin = log->used = 0;
  *write_end = ends[1];
  ms_rank_log_resize(log);
  return MS_OK;
}

/* ---- output ---- */

/* Joins head and line for a single write, and adds a newline if there is none. head is shorter than
 * MS_RANK_LOG_PREFIX. */
static size_t join_line(char *whole, const char *head, const char *line, size_t bytes) {
  size_t used = strlen(head);
  memcpy(whole, head, used);
  memcpy(whole + used, line, bytes);
  used += bytes;
  if (whole[used - 1] != '\n') whole[used++] = '\n';
  return used;
}

/* Blocking is fine for a file. The launcher reports errors such as a full disk. */
static void write_all(ms_rank_log *log, const char *text, size_t bytes) {
  while (bytes && !log->error) {
    ssize_t written = write(log->file, text, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      log->error = written < 0 ? errno : EIO;
      return;
    }
    text += written;
    bytes -= (size_t)written;
  }
}

/* The last version of a redrawn line: the text after the last carriage return, without the code that clears the
 * rest. */
static const char *last_drawing(const char *line, size_t *bytes) {
  static const char clear[] = "\33[K";
  size_t end = *bytes, begin = end;
  while (end && (line[end - 1] == '\n' || line[end - 1] == '\r')) end--;
  if (end >= sizeof clear - 1 && !memcmp(line + end - (sizeof clear - 1), clear, sizeof clear - 1))
    end -= sizeof clear - 1;
  for (begin = end; begin && line[begin - 1] != '\r';) begin--;
  *bytes = end - begin;
  return line + begin;
}

/* "2026-03-01T12:00:00.123Z out  loss 0.51": in UTC, so that the files of several hosts can be merged by sort. */
static void write_to_file(ms_rank_log *log, const char *line, size_t bytes) {
  char stamp[STAMP_BYTES], whole[MS_RANK_LOG_KEEPS + STAMP_BYTES + 1];
  struct timespec now;
  struct tm utc;
  clock_gettime(CLOCK_REALTIME, &now);
  gmtime_r(&now.tv_sec, &utc);
  size_t used = strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
  snprintf(stamp + used, sizeof stamp - used, ".%03ldZ %s  ", now.tv_nsec / 1000000, log->stream == 2 ? "err" : "out");
  line = last_drawing(line, &bytes);
  write_all(log, whole, join_line(whole, stamp, line, bytes));
}

static void write_line(ms_rank_log *log, const char *line, size_t bytes) {
  char whole[MS_RANK_LOG_KEEPS + MS_RANK_LOG_PREFIX + 1];
  if (log->target && log->prefix) ms_output_buffer_put(log->target, whole, join_line(whole, log->prefix, line, bytes));
  if (log->file >= 0) write_to_file(log, line, bytes);
}

static void take_lines(ms_rank_log *log) {
  for (char *end; (end = memchr(log->text + log->begin, '\n', log->used - log->begin));) {
    size_t next = (size_t)(end - log->text) + 1;
    write_line(log, log->text + log->begin, next - log->begin);
    log->begin = next;
  }
}

/* Drops the older half of a full text; splits a line that fills it. */
static void drop_older_half(ms_rank_log *log) {
  if (log->used < sizeof log->text) return;
  if (log->begin == 0) {
    write_line(log, log->text, log->used);
    log->begin = log->used;
  }
  size_t dropped = log->begin < sizeof log->text / 2 ? log->begin : sizeof log->text / 2;
  log->begin -= dropped;
  log->used -= dropped;
  memmove(log->text, log->text + dropped, log->used);
}

/* Bytes lie after the text. */
static void keep(ms_rank_log *log, size_t bytes) {
  log->used += bytes;
  take_lines(log);
  drop_older_half(log);
}

int ms_rank_log_read(ms_rank_log *log) {
  while (log->fd >= 0) {
    if (log->target && !ms_output_buffer_has_room(log->target)) return 1;
    ssize_t bytes = read(log->fd, log->text + log->used, sizeof log->text - log->used);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && errno == EAGAIN) return 0;
    if (bytes <= 0) { /* the end; a pseudo-terminal without writers gives EIO */
      ms_rank_log_close(log);
      return 0;
    }
    if (log->target && !log->prefix) ms_output_buffer_put(log->target, log->text + log->used, (size_t)bytes);
    keep(log, (size_t)bytes);
  }
  return 0;
}

void ms_rank_log_take(ms_rank_log *log, const char *text, size_t bytes) {
  if (log->target && !log->prefix) ms_output_buffer_put(log->target, text, bytes);
  for (size_t piece; bytes; text += piece, bytes -= piece) {
    piece = sizeof log->text - log->used; /* above 0: a full text has lost its older half */
    if (piece > bytes) piece = bytes;
    memcpy(log->text + log->used, text, piece);
    keep(log, piece);
  }
}

void ms_rank_log_close(ms_rank_log *log) {
  if (log->fd < 0) return;
  close(log->fd);
  log->fd = -1;
  ms_rank_log_end_line(log);
}

void ms_rank_log_end_line(ms_rank_log *log) {
  if (log->used > log->begin) write_line(log, log->text + log->begin, log->used - log->begin);
  log->begin = log->used;
}
