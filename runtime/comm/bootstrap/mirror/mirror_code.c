/* mirror_code.c - encodes and decodes the payloads of posts. */
#include "comm/bootstrap/mirror/mirror_code.h"

#include <string.h>

#include "comm/bootstrap/store/store_wire.h"

/* ---- writing ---- */

size_t ms_mirror_free(const ms_mirror_writer *writer) { return sizeof writer->data - writer->used; }

/* NULL: there is no room. The payload is then cut, which the other hosts report as invalid data. */
static uint8_t *take_room(ms_mirror_writer *writer, size_t bytes) {
  writer->full |= bytes > ms_mirror_free(writer);
  if (writer->full) return NULL;
  uint8_t *at = writer->data + writer->used;
  writer->used += bytes;
  return at;
}

void ms_mirror_put32(ms_mirror_writer *writer, uint32_t value) {
  uint8_t *at = take_room(writer, 4);
  if (at) ms_wire_put32(at, value);
}

void ms_mirror_put64(ms_mirror_writer *writer, uint64_t value) {
  ms_mirror_put32(writer, (uint32_t)value);
  ms_mirror_put32(writer, (uint32_t)(value >> 32));
}

void ms_mirror_put_bytes(ms_mirror_writer *writer, const void *data, size_t bytes) {
  ms_mirror_put32(writer, (uint32_t)bytes);
  uint8_t *at = take_room(writer, bytes);
  if (at && bytes) memcpy(at, data, bytes);
}

void ms_mirror_put_text(ms_mirror_writer *writer, const char *text, size_t capacity) {
  ms_mirror_put_bytes(writer, text, strnlen(text, capacity - 1));
}

/* ---- reading ---- */

static const uint8_t *take(ms_mirror_reader *reader, size_t bytes) {
  if (bytes > reader->left) reader->bad = 1;
  if (reader->bad) return NULL;
  const uint8_t *at = reader->at;
  reader->at += bytes;
  reader->left -= bytes;
  return at;
}

uint32_t ms_mirror_get32(ms_mirror_reader *reader) {
  const uint8_t *at = take(reader, 4);
  return at ? ms_wire_get32(at) : 0;
}

uint64_t ms_mirror_get64(ms_mirror_reader *reader) {
  uint64_t low = ms_mirror_get32(reader), high = ms_mirror_get32(reader);
  return high << 32 | low;
}

const void *ms_mirror_get_bytes(ms_mirror_reader *reader, size_t most, size_t *bytes) {
  *bytes = ms_mirror_get32(reader);
  if (*bytes > most) reader->bad = 1;
  const void *data = take(reader, *bytes);
  if (!data) *bytes = 0;
  return data;
}

void ms_mirror_get_text(ms_mirror_reader *reader, char *text, size_t capacity) {
  size_t bytes;
  const char *from = ms_mirror_get_bytes(reader, capacity - 1, &bytes);
  memset(text, 0, capacity);
  /* Texts of messages have several lines; other control characters have no place on a terminal. */
  for (size_t i = 0; i < bytes; i++) text[i] = (char)((unsigned char)from[i] >= 32 || from[i] == '\n' ? from[i] : '?');
}
