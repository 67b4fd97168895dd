/* output_buffer.h - a descriptor that the launcher writes to without ever blocking: an unread pipe, or a terminal
 * stopped with Ctrl-S, must not delay signals, ends of ranks or deadlines.
 *
 * Text that the descriptor does not accept now is buffered. While the buffer is nearly full, the launcher stops reading
 * the output that ranks print there. Their prints then block, as with any slow reader, and nothing is lost.
 */
#ifndef MS_HOST_OUTPUT_BUFFER_H
#define MS_HOST_OUTPUT_BUFFER_H

#include <stddef.h>

enum {
  /* The largest size of a rank's full text (MS_RANK_LOG_KEEPS) with prefixes: each of its lines can be one byte
   * long. */
  MS_OUTPUT_BUFFER_ROOM = 256 * 1024,
  MS_OUTPUT_BUFFER_BYTES = 2 * MS_OUTPUT_BUFFER_ROOM
};

typedef struct ms_output_buffer {
  int fd;      /* the launcher's descriptor; the buffer does not close it */
  int writes;  /* the descriptor to write to: `fd`, or the same file opened again */
  int waits;   /* 1: a write can block, so poll is called first */
  int error;   /* errno of a write that the disk refused (full, quota); later output is lost */
  int unread;  /* errno of any other write that failed, as without a reader; later output is lost */
  int dropped; /* pieces dropped for lack of room since the last note about it */
  size_t begin, used;
  char text[MS_OUTPUT_BUFFER_BYTES]; /* [begin, used) is buffered */
} ms_output_buffer;

void ms_output_buffer_open(ms_output_buffer *output, int fd);
void ms_output_buffer_close(ms_output_buffer *output);
/* 1 when there is room for a rank's full text (MS_OUTPUT_BUFFER_ROOM bytes). */
int ms_output_buffer_has_room(const ms_output_buffer *output);
/* Buffers a whole piece, or counts it as dropped if it does not fit; then writes as much as possible without
 * blocking. */
void ms_output_buffer_put(ms_output_buffer *output, const char *text, size_t bytes);
/* The same for formatted text. */
void ms_output_buffer_say(ms_output_buffer *output, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes as much as possible without blocking; returns the number of bytes still buffered. */
size_t ms_output_buffer_flush(ms_output_buffer *output);
/* Writes why output was lost, on standard output or standard error (outputs: [2]); "" when none was. */
void ms_output_buffer_tell_lost(const ms_output_buffer *outputs, char *text, size_t bytes);
/* Discards buffered text. */
void ms_output_buffer_discard(ms_output_buffer *output);

#endif
