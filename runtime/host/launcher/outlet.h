/* outlet.h - a descriptor that the launcher writes to without ever blocking: an unread pipe, or a terminal stopped with
 * Ctrl-S, must not delay signals, ends of ranks or deadlines.
 *
 * Text that the descriptor does not accept now is buffered. While the buffer is nearly full, the launcher stops reading
 * the output that ranks print there. Their prints then block, as with any slow reader, and nothing is lost.
 */
#ifndef MS_HOST_OUTLET_H
#define MS_HOST_OUTLET_H

#include <stddef.h>

enum {
  /* The largest size of a rank's full text (MS_RANK_LOG_KEEPS) with prefixes: each of its lines can be one byte
   * long. */
  MS_OUTLET_ROOM = 256 * 1024,
  MS_OUTLET_BYTES = 2 * MS_OUTLET_ROOM
};

typedef struct ms_outlet {
  int fd;      /* the launcher's descriptor; the outlet does not close it */
  int writes;  /* the descriptor to write to: `fd`, or the same file opened again */
  int waits;   /* 1: a write can block, so poll is called first */
  int error;   /* errno of a write that the disk refused (full, quota); later output is lost */
  int unread;  /* errno of any other write that failed, as without a reader; later output is lost */
  int dropped; /* pieces dropped for lack of room since the last note about it */
  size_t begin, used;
  char text[MS_OUTLET_BYTES]; /* [begin, used) is buffered */
} ms_outlet;

void ms_outlet_open(ms_outlet *outlet, int fd);
void ms_outlet_close(ms_outlet *outlet);
/* 1 when there is room for a rank's full text (MS_OUTLET_ROOM bytes). */
int ms_outlet_has_room(const ms_outlet *outlet);
/* Buffers a whole piece, or counts it as dropped if it does not fit; then writes as much as possible without
 * blocking. */
void ms_outlet_put(ms_outlet *outlet, const char *text, size_t bytes);
/* The same for formatted text. */
void ms_outlet_say(ms_outlet *outlet, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes as much as possible without blocking; returns the number of bytes still buffered. */
size_t ms_outlet_flush(ms_outlet *outlet);
/* Writes why output of outlets [2], standard output and standard error, was lost; "" when none was. */
void ms_outlet_tell_lost(const ms_outlet *outlets, char *text, size_t bytes);
/* Discards buffered text. */
void ms_outlet_discard(ms_outlet *outlet);

#endif
