/* frame.h - the frames of a connection: what tcp and ucx have in common (frame.c). Internal to transport.
 */
#ifndef MS_COMM_TRANSPORT_FRAME_H
#define MS_COMM_TRANSPORT_FRAME_H

#include "comm/transport/wire.h"

enum {
  MS_TCP_HEADER = 32,
  MS_TCP_PIECE = 256 << 10, /* bytes of a frame's body: then it is another key's turn */
  MS_TCP_REASON = 512       /* bytes of the text by which a side says why it ends the connection */
};

enum ms_tcp_kind {
  MS_TCP_CREDIT = 1,    /* a receive is posted: key, number; value: its size */
  MS_TCP_DATA = 2,      /* `bytes` bytes of send `number` of the key, from offset `value` */
  MS_TCP_CANCEL = 3,    /* this side does not use the key any more */
  MS_TCP_GOODBYE = 4,   /* this side leaves without an error */
  MS_TCP_REASON_OF = 5, /* this side ends the connection; the body is a text of `bytes` bytes that says why */
  MS_TCP_PING = 6,      /* is there anybody? */
  MS_TCP_PONG = 7       /* the answer, which every call of progress gives */
};

typedef struct ms_tcp_frame {
  uint32_t kind, bytes; /* bytes: of the body that follows */
  uint64_t key, number;
  int64_t value;
} ms_tcp_frame;

void ms_tcp_put_frame(uint8_t header[MS_TCP_HEADER], const ms_tcp_frame *frame);
/* NULL, or what is wrong with the header: an unknown kind, a body that this kind does not have. */
const char *ms_tcp_get_frame(const uint8_t header[MS_TCP_HEADER], ms_tcp_frame *frame);

#endif
