/* text.c - a growing text. A failed append is silent: a dump is many appends, and one check at its end is enough. */
#include "base/text/text.h"

#include "base/error.h"
#include "base/numbers/number.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A text that has failed accepts no more characters. */
static int fail(ms_text *text) {
  text->failed = 1;
  text->capacity = 0;
  return 0;
}

int ms_text_reserve(ms_text *text, size_t more) {
  size_t need = text->length + more + 1;
  if (text->failed) return 0;
  if (need <= text->capacity) return 1;
  size_t capacity = text->capacity ? text->capacity : 256;
  while (capacity < need) capacity *= 2;
  char *data = realloc(text->data, capacity);
  if (!data) return fail(text);
  text->data = data;
  text->capacity = capacity;
  return 1;
}

void ms_text_append(ms_text *text, const char *format, ...) {
  if (!ms_text_reserve(text, 64)) return;
  size_t room = text->capacity - text->length;
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int length = ms_format_list(text->data + text->length, room, format, args);
  if (length < 0) {
    fail(text);
  } else if ((size_t)length < room) {
    text->length += (size_t)length;
  } else if (ms_text_reserve(text, (size_t)length)) {
    ms_format_list(text->data + text->length, (size_t)length + 1, format, again);
    text->length += (size_t)length;
  }
  va_end(again);
  va_end(args);
}

void ms_text_integer(ms_text *text, int64_t value) {
  char digits[20], *first = digits + sizeof digits;
  uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
  do *--first = (char)('0' + left % 10);
  while (left /= 10);
  if (value < 0) *--first = '-';
  ms_text_raw(text, first, (size_t)(digits + sizeof digits - first));
}

/* Bytes of the well-formed UTF-8 character at s (RFC 3629: no surrogates, shortest form), or 0. */
static int utf8_length(const unsigned char *s) {
  if (s[0] < 0x80) return 1;
  if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
  int length = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
  for (int i = 1; i < length; i++)
    if ((s[i] & 0xc0) != 0x80) return 0;
  if (length == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0))) return 0;
  if (length == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90))) return 0;
  return length;
}

/* Bytes that are not UTF-8 become U+FFFD, because JSON must be valid UTF-8 even for arbitrary file names. */
void ms_text_json_string(ms_text *text, const char *raw) {
  ms_text_raw(text, "\"", 1);
  for (const unsigned char *s = (const unsigned char *)raw; *s;) {
    int length = utf8_length(s);
    if (*s == '"' || *s == '\\') ms_text_append(text, "\\%c", *s);
    else if (*s == '\n') ms_text_raw(text, "\\n", 2);
    else if (*s == '\t') ms_text_raw(text, "\\t", 2);
    else if (*s < 0x20 || *s == 0x7f) ms_text_append(text, "\\u%04x", *s);
    else if (length) ms_text_raw(text, (const char *)s, (size_t)length);
    else ms_text_raw(text, "\xef\xbf\xbd", 3);
    s += length ? length : 1;
  }
  ms_text_raw(text, "\"", 1);
}

void ms_text_bytes(ms_text *text, double bytes) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  const int last = (int)(sizeof units / sizeof units[0]) - 1;
  double size = fabs(bytes);
  const char *sign = bytes < 0 ? "-" : "";
  if (!(size >= 1024)) {
    ms_text_append(text, "%s%.0f B", sign, size);
    return;
  }
  int unit = 0;
  while (size >= 999.5 && unit < last) {
    size /= 1024;
    unit++;
  }
  int decimals = size < 0.9995 ? 3 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  ms_text_append(text, "%s%.*f %s", sign, decimals, size, units[unit]);
}

int ms_text_status(const ms_text *text) {
  if (text->failed) return MS_FAIL(MS_ENOMEM, "out of memory: a text of more than %zu bytes", text->length);
  return MS_OK;
}

void ms_text_free(ms_text *text) {
  free(text->data);
  *text = (ms_text){0};
}
