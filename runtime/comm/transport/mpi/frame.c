/* frame.c - frames of the MPI transport: 32 bytes, little-endian. */
#include "comm/transport/mpi/mpi.h"

enum { BYTES_AT = 4, KEY_AT = 8, NUMBER_AT = 16, VALUE_AT = 24, TAG_SHIFT = 16 };

void ms_mpi_put_frame(uint8_t at[MS_MPI_FRAME], const ms_mpi_frame *frame) {
  ms_wire_put32(at, frame->kind | (uint32_t)frame->tag << TAG_SHIFT);
  ms_wire_put32(at + BYTES_AT, frame->bytes);
  ms_wire_put64(at + KEY_AT, frame->key);
  ms_wire_put64(at + NUMBER_AT, frame->number);
  ms_wire_put64(at + VALUE_AT, (uint64_t)frame->value);
}

const char *ms_mpi_get_frame(const uint8_t at[MS_MPI_FRAME], ms_mpi_frame *frame) {
  const uint32_t word = ms_wire_get32(at), bytes = ms_wire_get32(at + BYTES_AT);
  *frame = (ms_mpi_frame){.kind = (uint16_t)word,
                          .tag = (uint16_t)(word >> TAG_SHIFT),
                          .bytes = bytes,
                          .key = ms_wire_get64(at + KEY_AT),
                          .number = ms_wire_get64(at + NUMBER_AT),
                          .value = (int64_t)ms_wire_get64(at + VALUE_AT)};
  const int is_data = frame->kind == MS_MPI_DATA, has_text = frame->kind == MS_MPI_REASON_OF;
  const uint32_t most = is_data ? MS_MPI_PIECE : has_text ? MS_MPI_REASON : 0;
  if (frame->kind < MS_MPI_HELLO || frame->kind > MS_MPI_PONG) return "a frame of an unknown kind";
  if (bytes > most || (most && !bytes)) return "a frame of an invalid size";
  if (is_data ? frame->tag < 1 || frame->tag > MS_MPI_UNDER_WAY : frame->tag) return "a frame with an invalid tag";
  if (frame->value < 0) return "a frame with a negative size or offset";
  return NULL;
}
