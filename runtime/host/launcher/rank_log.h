/* rank_log.h - one output stream of a rank, which the launcher reads through a pipe or a pseudo-terminal. It passes the
 * stream on, unchanged or line by line with a prefix, writes it to the rank's log file with timestamps, and keeps its
 * end for the report of a failure.
 */
#ifndef MS_HOST_RANK_LOG_H
#define MS_HOST_RANK_LOG_H

#include <stddef.h>

#include "host/launcher/output_buffer.h"

enum { MS_RANK_LOG_KEEPS = 16384, MS_RANK_LOG_PREFIX = 288 };

typedef struct ms_rank_log {
  int fd;                   /* read end, non-blocking; -1 when closed */
  int rank, stream;         /* stream: 1 stdout, 2 stderr */
  ms_output_buffer *target; /* where it is passed on; NULL: nowhere */
  const char *prefix;       /* NULL: pass on unchanged; else whole lines, each after this text, such as "[rank 3] " */
  int file;                 /* the rank's log file, which its owner closes; -1: none */
  int error;                /* errno of a failed write to that file, after which nothing is written to it */
  size_t begin;             /* where the unfinished line begins in text */
  size_t used;              /* bytes in text */
  char text[MS_RANK_LOG_KEEPS];
} ms_rank_log;

/* Opens both ends of the stream and sets fd, begin and used; the caller sets the other fields before. The rank writes
 * to *write_end. If bytes are passed unchanged to a terminal, the rank gets a pseudo-terminal of the same size, so that
 * it behaves as on the terminal itself. */
int ms_rank_log_open(ms_rank_log *log, int *write_end);
/* Reads what is available without blocking, and closes the log at the end of the stream. Returns 1 if it stopped
 * because the target has no room. */
int ms_rank_log_read(ms_rank_log *log);
/* Takes bytes that came another way than through fd; the target needs room, as for ms_rank_log_read. */
void ms_rank_log_take(ms_rank_log *log, const char *text, size_t bytes);
/* Writes an unfinished last line. */
void ms_rank_log_end_line(ms_rank_log *log);
/* Sets the size of the rank's pseudo-terminal to the terminal's, after a change. */
void ms_rank_log_resize(const ms_rank_log *log);
/* Writes an unfinished last line and closes the stream. */
void ms_rank_log_close(ms_rank_log *log);

#endif
