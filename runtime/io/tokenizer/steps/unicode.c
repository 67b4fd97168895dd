/* unicode.c - characters by utf8proc. */
#include "io/tokenizer/steps/unicode.h"

#include "base/error.h"

#include <stdlib.h>
#include <utf8proc.h>

int ms_char_bytes(uint8_t lead) { return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4; }

int32_t ms_char_next(ms_span text, int64_t *at) {
  const uint8_t *p = text.at + *at;
  const int bytes = ms_char_bytes(*p);
  *at += bytes;
  int32_t c = bytes == 1 ? *p : *p & (0xff >> (bytes + 1));
  for (int i = 1; i < bytes; i++) c = c << 6 | (p[i] & 0x3f);
  return c;
}

int32_t ms_char_before(ms_span text, int64_t end) {
  do end--;
  while ((text.at[end] & 0xc0) == 0x80);
  return ms_char_next(text, &end);
}

void ms_char_put(ms_text *out, int32_t c) {
  utf8proc_uint8_t bytes[4];
  ms_text_raw(out, (const char *)bytes, (size_t)utf8proc_encode_char(c, bytes));
}

int64_t ms_char_count(ms_span text) {
  int64_t count = 0;
  for (int64_t i = 0; i < text.bytes; i++) count += (text.at[i] & 0xc0) != 0x80;
  return count;
}

/* ---- classes ---- */

int ms_char_is_white_space(int32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static int is_between(int32_t c, utf8proc_category_t first, utf8proc_category_t last) {
  const utf8proc_category_t category = utf8proc_category(c);
  return category >= first && category <= last;
}

int ms_char_is_number(int32_t c) { return is_between(c, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO); }

int ms_char_is_punctuation(int32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~') ||
         is_between(c, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

int ms_char_is_other(int32_t c) { return is_between(c, UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CO); }

int ms_char_is_mark(int32_t c) { return is_between(c, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME); }

int ms_char_is_nonspacing(int32_t c) { return utf8proc_category(c) == UTF8PROC_CATEGORY_MN; }

/* Alphabetic, marks, decimal digits, connectors and joiners. */
int ms_char_is_word(int32_t c) {
  static const struct {
    int32_t first, last;
  } other_alphabetic[] = {{0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
  for (size_t i = 0; i < sizeof other_alphabetic / sizeof *other_alphabetic; i++)
    if (c >= other_alphabetic[i].first && c <= other_alphabetic[i].last) return 1;
  const utf8proc_category_t category = utf8proc_category(c);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) || category == UTF8PROC_CATEGORY_PC ||
         c == 0x200c || c == 0x200d;
}

int ms_char_is_ideograph(int32_t c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
         (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

void ms_char_put_lower(ms_text *out, int32_t c) {
  if (c == 0x130) {
    ms_text_raw(out, "i\xcc\x87", 3);
  } else {
    ms_char_put(out, utf8proc_tolower(c));
  }
}

/* ---- forms ---- */

static int put_normalized(ms_text *out, ms_span text, ms_normal_form form) {
  static const utf8proc_option_t options[] = {
      [MS_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
      [MS_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
      [MS_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
      [MS_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
  };
  utf8proc_uint8_t *made = NULL;
  const utf8proc_ssize_t bytes = utf8proc_map(text.at, text.bytes, &made, options[form]);
  if (bytes < 0) return MS_FAIL(MS_EINVAL, "normalizing %lld bytes: %s", (long long)text.bytes, utf8proc_errmsg(bytes));
  ms_text_raw(out, (const char *)made, (size_t)bytes);
  free(made);
  return ms_text_status(out);
}

/* Characters of ASCII stay what they are, and none joins what comes before it; the last one before others can join what
 * follows. */
int ms_text_normalize(ms_text *out, ms_span text, ms_normal_form form) {
  for (int64_t at = 0; at < text.bytes;) {
    int64_t other = at;
    while (other < text.bytes && text.at[other] < 0x80) other++;
    if (other < text.bytes && other > at) other--;
    ms_text_raw(out, (const char *)text.at + at, (size_t)(other - at));
    if ((at = other) == text.bytes) break;
    do other++;
    while (other < text.bytes && text.at[other] >= 0x80);
    MS_TRY(put_normalized(out, (ms_span){text.at + at, other - at}, form));
    at = other;
  }
  return ms_text_status(out);
}

int64_t ms_grapheme_end(ms_span text, int64_t from) {
  utf8proc_int32_t state = 0;
  int64_t at = from;
  int32_t before = ms_char_next(text, &at);
  while (at < text.bytes) {
    int64_t after = at;
    const int32_t c = ms_char_next(text, &after);
    if (utf8proc_grapheme_break_stateful(before, c, &state)) break;
    before = c;
    at = after;
  }
  return at;
}
