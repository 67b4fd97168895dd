/* frame.c - headers of frames: 32 bytes, little-endian. */
#include "comm/transport/frame.h"

enum { MARK = 0x4d530000, MARK_MASK = 0x7fff0000 }; /* "MS" above the kind */
enum { BYTES_AT = 4, KEY_AT = 8, NUMBER_AT = 16, VALUE_AT = 24 };

void ms_peer_put_frame(uint8_t header[MS_PEER_HEADER], const ms_peer_frame *frame) {
  ms_wire_put32(header, MARK | frame->kind);
  ms_wire_put32(header + BYTES_AT, frame->bytes);
  ms_wire_put64(header + KEY_AT, frame->key);
  ms_wire_put64(header + NUMBER_AT, frame->number);
  ms_wire_put64(header + VALUE_AT, (uint64_t)frame->value);
}

/* The most and the fewest bytes of a body; 0: an unknown kind. */
static int body_of(uint32_t kind, uint32_t *least, uint32_t *most) {
  *least = *most = 0;
  switch (kind) {
    case MS_PEER_CREDIT:
    case MS_PEER_CANCEL:
    case MS_PEER_PING:
    case MS_PEER_PONG:
    case MS_PEER_GOODBYE: return 1;
    case MS_PEER_DATA: *least = 1, *most = MS_PEER_PIECE; return 1;
    case MS_PEER_REASON_OF: *least = 1, *most = MS_PEER_REASON; return 1;
    default: return 0;
  }
}

const char *ms_peer_get_frame(const uint8_t header[MS_PEER_HEADER], ms_peer_frame *frame) {
  uint32_t mark = ms_wire_get32(header), least, most;
  *frame = (ms_peer_frame){.kind = mark & ~(uint32_t)MARK_MASK,
                           .bytes = ms_wire_get32(header + BYTES_AT),
                           .key = ms_wire_get64(header + KEY_AT),
                           .number = ms_wire_get64(header + NUMBER_AT),
                           .value = (int64_t)ms_wire_get64(header + VALUE_AT)};
  if ((mark & MARK_MASK) != MARK || !body_of(frame->kind, &least, &most)) return "a frame of an unknown kind";
  if (frame->bytes < least || frame->bytes > most) return "a frame of an invalid size";
  if (frame->value < 0) return "a frame with a negative size or offset";
  return NULL;
}
