/* text.h - a growing text for dumps and messages. A failed allocation is remembered; ms_text_status reports it. */
#ifndef MS_BASE_TEXT_H
#define MS_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct ms_text {
  char *data; /* NUL-terminated once anything was appended, NULL before */
  size_t length, capacity;
  int failed;
} ms_text;

void ms_text_append(ms_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* 1: there is room for `more` characters and the NUL. 0: the text has failed. */
int ms_text_reserve(ms_text *text, size_t more);
static inline void ms_text_raw(ms_text *text, const char *data, size_t length) {
  if (text->capacity <= text->length + length && !ms_text_reserve(text, length)) return;
  memcpy(text->data + text->length, data, length);
  text->length += length;
  text->data[text->length] = '\0';
}
/* Faster forms of appending "%s" and "%lld", for texts with very many of them. */
static inline void ms_text_string(ms_text *text, const char *string) { ms_text_raw(text, string, strlen(string)); }
void ms_text_integer(ms_text *text, int64_t value);
/* Appends a JSON string, quoted and escaped. */
void ms_text_json_string(ms_text *text, const char *raw);
/* Appends a size such as "21.4 MiB": three significant digits, binary units. */
void ms_text_bytes(ms_text *text, double bytes);
int ms_text_status(const ms_text *text); /* MS_OK or MS_ENOMEM */
void ms_text_free(ms_text *text);

#endif
