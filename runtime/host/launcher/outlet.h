/* outlet.h - a descriptor that the launcher prints to and never waits for: a pipe that is not read, or a terminal that was
** stopped with Ctrl-S, must not keep it from signals, ends of ranks and deadlines.
**
** What the descriptor does not take now is kept. While much is kept, the launcher reads no more of what ranks print there, so
** they wait in their print as they would for any reader, and nothing is lost.
*/
#ifndef MS_HOST_OUTLET_H
#define MS_HOST_OUTLET_H

#include <stddef.h>

enum {
  /* What a full text of a rank (MS_RANK_LOG_KEEPS) can become when each of its lines is one byte and gets a prefix. */
  MS_OUTLET_ROOM = 256 * 1024,
  MS_OUTLET_BYTES = 2 * MS_OUTLET_ROOM
};

typedef struct ms_outlet {
  int fd;      /* the launcher's own descriptor; not the outlet's to close */
  int writes;  /* the descriptor that is written to: `fd`, or the same file opened once more */
  int waits;   /* 1: a write may wait, so poll is asked first */
  int error;   /* errno of a write for which the disk is to blame; what came after it is lost */
  int dropped; /* pieces that found no room since it was last said how many */
  size_t begin, used;
  char text[MS_OUTLET_BYTES]; /* used - begin bytes are kept */
} ms_outlet;

void ms_outlet_open(ms_outlet *outlet, int fd);
void ms_outlet_close(ms_outlet *outlet);
/* Whether one more text of a rank finds room. */
int ms_outlet_has_room(const ms_outlet *outlet);
/* Takes a piece whole, or counts it as dropped when there is no room; writes what can be written now. */
void ms_outlet_put(ms_outlet *outlet, const char *text, size_t bytes);
void ms_outlet_say(ms_outlet *outlet, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes what can be written now; returns the bytes still kept. */
size_t ms_outlet_flush(ms_outlet *outlet);
/* What is kept is given up. */
void ms_outlet_discard(ms_outlet *outlet);

#endif
