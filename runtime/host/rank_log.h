/* rank_log.h - one output stream of a rank, read by the launcher through a pipe: passed on line by line with a prefix, or
** kept quietly, its end only, for the report of a failure. */
#ifndef MS_HOST_RANK_LOG_H
#define MS_HOST_RANK_LOG_H

#include <stddef.h>

enum { MS_RANK_LOG_KEEPS = 16384 };

typedef struct ms_rank_log {
  int fd;     /* read end, non-blocking; -1 when closed */
  int target; /* descriptor that lines go to; -1: the end is kept */
  int rank;
  size_t used;
  char text[MS_RANK_LOG_KEEPS];
} ms_rank_log;

/* A pipe for a rank's stream; the rank writes to *write_end. */
int ms_rank_log_open(int rank, int target, ms_rank_log *log, int *write_end);
/* Takes what is there without waiting; closes the log at its end. */
void ms_rank_log_read(ms_rank_log *log);
/* Passes an unfinished last line on, and closes. */
void ms_rank_log_close(ms_rank_log *log);

#endif
