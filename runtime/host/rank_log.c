/* rank_log.c - reads a rank's pipe. Lines are written whole, so lines of several ranks never mix. */
#include "host/rank_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

int ms_rank_log_open(int rank, int target, ms_rank_log *log, int *write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC))
    return MS_FAIL(MS_EIO, "cannot make a pipe for rank %d's output: %s", rank, strerror(errno));
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  log->fd = ends[0];
  log->target = target;
  log->rank = rank;
  log->used = 0;
  *write_end = ends[1];
  return MS_OK;
}

/* A terminal that went away is no reason to stop the run: what cannot be written is dropped. */
static void write_all(int fd, const char *text, size_t bytes) {
  while (bytes) {
    ssize_t written = write(fd, text, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text += written;
    bytes -= (size_t)written;
  }
}

static void write_line(const ms_rank_log *log, const char *line, size_t bytes) {
  char whole[MS_RANK_LOG_KEEPS + 32];
  size_t used = (size_t)snprintf(whole, 32, "[rank %d] ", log->rank);
  memcpy(whole + used, line, bytes);
  used += bytes;
  if (whole[used - 1] != '\n') whole[used++] = '\n';
  write_all(log->target, whole, used);
}

/* Writes the finished lines; a line that fills the buffer is cut in two. */
static void pass_lines(ms_rank_log *log) {
  size_t begin = 0;
  for (char *end; (end = memchr(log->text + begin, '\n', log->used - begin)); begin = (size_t)(end - log->text) + 1)
    write_line(log, log->text + begin, (size_t)(end - log->text) + 1 - begin);
  if (begin == 0 && log->used == sizeof log->text) {
    write_line(log, log->text, log->used);
    begin = log->used;
  }
  log->used -= begin;
  memmove(log->text, log->text + begin, log->used);
}

/* Drops the older half, to make room for what comes. */
static void keep_end(ms_rank_log *log) {
  if (log->used < sizeof log->text) return;
  log->used = sizeof log->text / 2;
  memmove(log->text, log->text + sizeof log->text - log->used, log->used);
}

void ms_rank_log_read(ms_rank_log *log) {
  while (log->fd >= 0) {
    ssize_t bytes = read(log->fd, log->text + log->used, sizeof log->text - log->used);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && errno == EAGAIN) return;
    if (bytes <= 0) {
      ms_rank_log_close(log);
      return;
    }
    log->used += (size_t)bytes;
    if (log->target >= 0) pass_lines(log);
    else keep_end(log);
  }
}

void ms_rank_log_close(ms_rank_log *log) {
  if (log->fd < 0) return;
  close(log->fd);
  log->fd = -1;
  if (log->target < 0 || !log->used) return;
  write_line(log, log->text, log->used);
  log->used = 0;
}
