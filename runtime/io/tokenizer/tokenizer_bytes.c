/* tokenizer_bytes.c - bytes as printable characters, as GPT-2's vocabulary writes them; what is valid UTF-8; and tokens
 * found by their bytes.
 *
 * The 188 bytes that are printable in Latin-1 stand for themselves (as code points); the others, in rising order, for
 * U+0100 to U+0143.
 */
#include "base/error.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/steps/unicode.h"

#include <string.h>
#include <xxhash.h>

static int stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* The byte of a code point, or -1. */
static int byte_of(int point) {
  if (point < 256) return stands_for_itself(point) ? point : -1;
  int at = 256;
  for (int byte = 0; byte < 256; byte++)
    if (!stands_for_itself(byte) && at++ == point) return byte;
  return -1;
}

int ms_bytes_of_token(ms_span token, uint8_t *out, int64_t *bytes) {
  int64_t n = 0;
  for (int64_t i = 0; i < token.bytes;) {
    int point = token.at[i++];
    if (point >= 0x80) { /* all characters of the alphabet have one byte or two */
      if ((point & 0xe0) != 0xc0 || i == token.bytes) return 0;
      point = (point & 0x1f) << 6 | (token.at[i++] & 0x3f);
    }
    const int byte = byte_of(point);
    if (byte < 0) return 0;
    out[n++] = (uint8_t)byte;
  }
  *bytes = n;
  return 1;
}

/* The code point of a byte. */
static int point_of(int byte) {
  if (stands_for_itself(byte)) return byte;
  int point = 256;
  for (int other = 0; other < byte; other++) point += !stands_for_itself(other);
  return point;
}

void ms_bytes_spell(ms_text *out, ms_span bytes) {
  for (int64_t i = 0; i < bytes.bytes; i++) ms_char_put(out, point_of(bytes.at[i]));
}

/* ---- UTF-8 ---- */

/* Length of the valid character at `at`, 0 when it is not one; *part: how many bytes could have begun one. */
static int character(const uint8_t *at, int64_t left, int *part) {
  const uint8_t lead = at[0];
  *part = 1;
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const int length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  for (int i = 1; i < length; i++) {
    uint8_t low = 0x80, high = 0xbf;
    if (i == 1) { /* overlong forms, surrogates, and what is beyond U+10FFFF */
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    }
    if (i >= left || at[i] < low || at[i] > high) return 0;
    *part = i + 1;
  }
  return length;
}

int64_t ms_utf8_invalid(ms_span text) {
  int64_t i = 0;
  int part;
  while (i < text.bytes) {
    uint64_t eight;
    if (text.bytes - i >= 8 && (memcpy(&eight, text.at + i, 8), !(eight & 0x8080808080808080u))) {
      i += 8;
      continue;
    }
    const int length = character(text.at + i, text.bytes - i, &part);
    if (!length) return i;
    i += length;
  }
  return text.bytes;
}

int ms_utf8_replace(ms_span text, uint8_t **clean, int64_t *bytes) {
  int64_t n = 0;
  int part;
  uint8_t *out = ms_calloc(text.bytes, 3); /* a byte becomes three at most */
  if (!out) return MS_ENOMEM;
  for (int64_t i = 0; i < text.bytes;) {
    const int length = character(text.at + i, text.bytes - i, &part);
    memcpy(out + n, length ? (const char *)text.at + i : "\xef\xbf\xbd", length ? (size_t)length : 3);
    n += length ? length : 3;
    i += length ? length : part;
  }
  *clean = out;
  *bytes = n;
  return MS_OK;
}

/* ---- words by their bytes ---- */

static uint32_t word_hash(ms_span word) { return (uint32_t)XXH3_64bits(word.at, (size_t)word.bytes); }

int32_t ms_word_find(const ms_tokenizer *t, ms_span word) {
  for (uint32_t at = word_hash(word) & t->words.mask;; at = (at + 1) & t->words.mask) {
    const int32_t id = t->words.slot[at];
    if (id < 0) return -1;
    if (t->token[id].bytes == word.bytes && !memcmp(t->token[id].at, word.at, (size_t)word.bytes)) return id;
  }
}

int ms_words_new(ms_tokenizer *t, int64_t count) {
  uint32_t slots = 16;
  while (slots < 2 * (uint64_t)count) slots *= 2;
  if (!(t->words.slot = ms_calloc(slots, sizeof *t->words.slot))) return MS_ENOMEM;
  t->words.mask = slots - 1;
  memset(t->words.slot, 0xff, slots * sizeof *t->words.slot);
  return MS_OK;
}

void ms_words_add(ms_tokenizer *t, int32_t id) {
  uint32_t at = word_hash(t->token[id]) & t->words.mask;
  while (t->words.slot[at] >= 0) at = (at + 1) & t->words.mask;
  t->words.slot[at] = id;
}
