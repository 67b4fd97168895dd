/* rank_log.h - one output stream of a rank, read by the launcher through a pipe or a pseudo-terminal: passed on, as it comes
** or line by line with a prefix; written to the rank's log file with timestamps; and its end kept for the report of a failure.
*/
#ifndef MS_HOST_RANK_LOG_H
#define MS_HOST_RANK_LOG_H

#include <stddef.h>

#include "host/launcher/outlet.h"

enum { MS_RANK_LOG_KEEPS = 16384 };

typedef struct ms_rank_log {
  int fd;            /* read end, non-blocking; -1 when closed */
  int rank, stream;  /* stream: 1 stdout, 2 stderr */
  ms_outlet *target; /* what it is passed on to; NULL: nothing */
  int prefix;        /* 1: in whole lines, "[rank N] " before each; 0: as it comes */
  int file;          /* descriptor of the rank's log file, which is not this log's to close; -1: none */
  int error;         /* errno of a write to that file; what came after it is not in it */
  size_t begin;      /* of the line that is not finished yet */
  size_t used;
  char text[MS_RANK_LOG_KEEPS];
} ms_rank_log;

/* Opens the stream's two ends; the rank writes to *write_end. What fd, begin and used say is set here, the rest before. Where
** bytes are passed on as they come to a terminal, the rank gets a pseudo-terminal of the same size, so that it behaves as it
** would on the terminal itself. */
int ms_rank_log_open(ms_rank_log *log, int *write_end);
/* Takes what is there without waiting; closes the log at its end. 1: there may be more, and its target has no room. */
int ms_rank_log_read(ms_rank_log *log);
/* Gives the rank's pseudo-terminal the size of the terminal, after that changed. */
void ms_rank_log_resize(const ms_rank_log *log);
/* Writes an unfinished last line where lines go, and closes. */
void ms_rank_log_close(ms_rank_log *log);

#endif
