/* remote_input.h - on the first host: what rank 0 reads, and the terminal that it has there (controller_input.c says
 * why). Nothing here blocks: what rank 0 has not read yet waits.
 */
#ifndef MS_HOST_REMOTE_INPUT_H
#define MS_HOST_REMOTE_INPUT_H

#include <stddef.h>
#include <sys/ioctl.h>

#include "host/hosts/frame.h"

enum ms_remote_input_kind { MS_INPUT_NONE = 0, MS_INPUT_PIPE, MS_INPUT_TERMINAL };

typedef struct ms_remote_input {
  enum ms_remote_input_kind kind;
  int together; /* standard error goes where standard output does */
  int fd;       /* where input is written, non-blocking; -1: not open, or nothing reads it any more */
  int ended;    /* the end has come; what waits is still written */
  struct winsize size;
  size_t begin, used;
  char text[MS_FRAME_INPUT_AHEAD]; /* [begin, used) waits to be written */
} ms_remote_input;

/* Reads the field of SETUP: "", or "pipe" or "terminal", then "apart" or "together". */
void ms_remote_input_read_kind(ms_remote_input *input, const char *text);
/* Opens what the launcher gets: stream[0] is its input (/dev/null when there is none). In a terminal stream[1] is its
 * output and *output what this process reads of it; else they are not set. All close on exec, and *output does not
 * block. Fails with MS_EIO. */
int ms_remote_input_open(ms_remote_input *input, int stream[2], int *output);
/* Takes the bytes of an INPUT; more than the controller may send are dropped. */
void ms_remote_input_take(ms_remote_input *input, const char *bytes, size_t n);
/* Writes what rank 0 can take, and says so to the controller. Returns 1 when the terminal has come to its end, which
 * its programs must be told. */
int ms_remote_input_flush(ms_remote_input *input, ms_frame_queue *out);
/* Takes a SIZE. */
void ms_remote_input_resize(ms_remote_input *input, const char *text);
/* Does what a terminal does at Ctrl-C besides the signal: shows it, and discards what was typed before. */
void ms_remote_input_interrupt(ms_remote_input *input, ms_frame_queue *out);
/* For poll: the descriptor for which input waits, or -1. */
int ms_remote_input_waits(const ms_remote_input *input);
void ms_remote_input_close(ms_remote_input *input);

#endif
