/* frame.h - messages between `moonshard run --hosts` and the program that it starts on each host, over the standard
 * input and output of the agent (ssh): a kind, a length and so many bytes. Neither end ever blocks on the other.
 */
#ifndef MS_HOST_FRAME_H
#define MS_HOST_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "base/text/text.h"

/* Precedes the first frame of a host, with the protocol, a space, the version of moonshard and a newline: a login shell
 * may print before. */
#define MS_FRAME_MAGIC "\1moonshard-hosts-"
#define MS_FRAME_PROTOCOL "3"

/* INPUT_AHEAD: bytes of INPUT that may be under way, or wait until rank 0 reads them. */
enum { MS_FRAME_OUTPUT = 8192, MS_FRAME_LARGEST = 1 << 22, MS_FRAME_INPUT_AHEAD = 1 << 16 };

enum ms_frame_kind {
  /* to a host */
  MS_FRAME_SETUP = 1, /* token, then the fields of remote.c; each with a NUL */
  MS_FRAME_START,     /* the place where ranks meet */
  MS_FRAME_SIGNAL,    /* its number, as one byte */
  MS_FRAME_STOP,      /* why the ranks must end */
  MS_FRAME_INPUT,     /* for rank 0 to read, at most MS_FRAME_OUTPUT bytes; none: the end of its input */
  MS_FRAME_SIZE,      /* rows and columns of the terminal, as text */
  /* from a host */
  MS_FRAME_HELLO, /* the place where ranks meet, or "" */
  MS_FRAME_OUT,   /* output, at most MS_FRAME_OUTPUT bytes */
  MS_FRAME_ERR,
  MS_FRAME_END,   /* exit status, then as ms_link_report; each with a NUL */
  MS_FRAME_TAKEN, /* how many more bytes of INPUT were passed on, as text */
  /* Both ways, twice a second: the sender and the connection work. To a host with the seconds of silence after which it
   * ends, as text. */
  MS_FRAME_ALIVE
};

/* Seconds between two of them. */
#define MS_FRAME_ALIVE_SECONDS 0.5

/* What is to be written to a descriptor. */
typedef struct ms_frame_queue {
  int fd;          /* non-blocking; -1 once it has broken */
  double alive_at; /* when the last ALIVE was put (ms_clock) */
  size_t begin;
  ms_text text;
} ms_frame_queue;

/* What was read from one. */
typedef struct ms_frame_reader {
  int fd;          /* -1 once it has ended */
  double heard_at; /* when something came last (ms_clock) */
  size_t begin;
  ms_text text;
} ms_frame_reader;

/* Queues a frame and writes as much as possible. A descriptor that has broken drops it. */
void ms_frame_put(ms_frame_queue *queue, int kind, const char *bytes, size_t n);
/* Queues an ALIVE when one is due. */
void ms_frame_put_alive(ms_frame_queue *queue, double seconds);
void ms_frame_flush(ms_frame_queue *queue);
/* Number of bytes that are not written yet. */
size_t ms_frame_waiting(const ms_frame_queue *queue);
/* Closes the descriptor and wipes what was queued. */
void ms_frame_close_queue(ms_frame_queue *queue);
/* Reads what there is now, up to a limit a call; closes the descriptor at its end. */
void ms_frame_read(ms_frame_reader *reader);
/* 1: a whole frame, whose bytes are followed by a NUL, live until the next call and may be changed. 0: none yet. -1:
 * what came is no frame. */
int ms_frame_next(ms_frame_reader *reader, int *kind, char **bytes, size_t *n);
/* Closes the descriptor and wipes what was read. */
void ms_frame_close_reader(ms_frame_reader *reader);

/* 1 while less than a few frames of output wait to be taken: otherwise the other end has to wait. */
int ms_frame_reader_is_small(const ms_frame_reader *reader);
/* Frees a text that held a secret. */
void ms_frame_wipe(ms_text *text);

/* The next text of a frame's bytes, and advances past its NUL; "" past the end. */
const char *ms_frame_field(const char **at, const char *end);

#endif
