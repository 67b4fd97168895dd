/* frame.h - the frames of a connection: what tcp and ucx have in common (frame.c). Internal to transport.
 */
#ifndef MS_COMM_TRANSPORT_FRAME_H
#define MS_COMM_TRANSPORT_FRAME_H

#include "comm/transport/wire.h"

enum {
  MS_PEER_HEADER = 32,
  MS_PEER_PIECE = 256 << 10, /* bytes of a frame's body: then it is another key's turn */
  MS_PEER_REASON = 512       /* bytes of the text by which a side says why it ends the connection */
};

enum ms_peer_frame_kind {
  MS_PEER_CREDIT = 1,    /* a receive is posted: key, number; value: its size */
  MS_PEER_DATA = 2,      /* `bytes` bytes of send `number` of the key, from offset `value` */
  MS_PEER_CANCEL = 3,    /* this side does not use the key any more */
  MS_PEER_GOODBYE = 4,   /* this side leaves without an error */
  MS_PEER_REASON_OF = 5, /* this side ends the connection; the body is a text of `bytes` bytes that says why */
  MS_PEER_PING = 6,      /* asks for a sign of life */
  MS_PEER_PONG = 7       /* the answer, which every call of progress gives */
};

typedef struct ms_peer_frame {
  uint32_t kind, bytes; /* bytes: of the body that follows */
  uint64_t key, number;
  int64_t value;
} ms_peer_frame;

void ms_peer_put_frame(uint8_t header[MS_PEER_HEADER], const ms_peer_frame *frame);
/* NULL, or what is wrong with the header: an unknown kind, a body that this kind does not have. */
const char *ms_peer_get_frame(const uint8_t header[MS_PEER_HEADER], ms_peer_frame *frame);

#endif
