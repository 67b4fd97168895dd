/* mirror_code.h - encodes and decodes the payloads of posts: little-endian integers, texts and bytes with their length.
 * Internal to comm. */
#ifndef MS_COMM_BOOTSTRAP_MIRROR_CODE_H
#define MS_COMM_BOOTSTRAP_MIRROR_CODE_H

#include "comm/bootstrap/store/store.h"

typedef struct ms_mirror_writer {
  uint8_t data[MS_STORE_POST];
  size_t used;
  int full; /* something did not fit: the payload is invalid */
} ms_mirror_writer;

/* The caller knows that there is room (ms_mirror_free). */
void ms_mirror_put32(ms_mirror_writer *writer, uint32_t value);
void ms_mirror_put64(ms_mirror_writer *writer, uint64_t value);
void ms_mirror_put_bytes(ms_mirror_writer *writer, const void *data, size_t bytes);
/* At most capacity - 1 bytes of it. */
void ms_mirror_put_text(ms_mirror_writer *writer, const char *text, size_t capacity);
size_t ms_mirror_free(const ms_mirror_writer *writer);

typedef struct ms_mirror_reader {
  const uint8_t *at;
  size_t left;
  int bad; /* the payload ended too early, or something did not fit */
} ms_mirror_reader;

/* 0, "" or no bytes once the payload is bad. */
uint32_t ms_mirror_get32(ms_mirror_reader *reader);
uint64_t ms_mirror_get64(ms_mirror_reader *reader);
/* The bytes lie in the payload; *bytes is at most `most`. */
const void *ms_mirror_get_bytes(ms_mirror_reader *reader, size_t most, size_t *bytes);
/* Fills text [capacity], zero-terminated. */
void ms_mirror_get_text(ms_mirror_reader *reader, char *text, size_t capacity);

#endif
