/* normalizers.c - the normalizers of a tokenizer.json, which change a text before it is cut into pieces. */
#include "base/error.h"
#include "io/tokenizer/tokenizer_fields.h"
#include "io/tokenizer/steps/steps.h"
#include "io/tokenizer/steps/unicode.h"

#include <string.h>

static void put(ms_text *out, ms_span text) { ms_text_raw(out, (const char *)text.at, (size_t)text.bytes); }

/* ---- Unicode's forms ---- */

#define FORM(name, form)                                                            \
  static int name(ms_encoder *e, const ms_step *step, ms_span text, ms_text *out) { \
    (void)e, (void)step;                                                            \
    return ms_text_normalize(out, text, form);                                      \
  }
FORM(nfc, MS_NFC)
FORM(nfd, MS_NFD)
FORM(nfkc, MS_NFKC)
FORM(nfkd, MS_NFKD)

/* ---- characters one by one ---- */

static int lowercase(ms_encoder *e, const ms_step *step, ms_span text, ms_text *out) {
  (void)e, (void)step;
  for (int64_t at = 0; at < text.bytes;) ms_char_put_lower(out, ms_char_next(text, &at));
  return ms_text_status(out);
}

static int strip_accents(ms_encoder *e, const ms_step *step, ms_span text, ms_text *out) {
  (void)e, (void)step;
  for (int64_t at = 0; at < text.bytes;) {
    const int32_t c = ms_char_next(text, &at);
    if (!ms_char_is_mark(c)) ms_char_put(out, c);
  }
  return ms_text_status(out);
}

/* sentencepiece's: controls go, and what looks like a blank becomes one. */
static int nmt(ms_encoder *e, const ms_step *step, ms_span text, ms_text *out) {
  (void)e, (void)step;
  for (int64_t at = 0; at < text.bytes;) {
    const int32_t c = ms_char_next(text, &at);
    if ((c >= 0x01 && c <= 0x08) || c == 0x0b || (c >= 0x0e && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f)
      continue;
    const int blank = c == 0x09 || c == 0x0a || c == 0x0c || c == 0x0d || c == 0x1680 || (c >= 0x200b && c <= 0x200f) ||
                      c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd;
    ms_char_put(out, blank ? ' ' : c);
  }
  return ms_text_status(out);
}

/* ---- ends of a text ---- */

enum { LEFT, RIGHT };

static int read_strip(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  (void)t;
  MS_TRY(ms_field_flag(part, where, "strip_left", &step->flag[LEFT]));
  return ms_field_flag(part, where, "strip_right", &step->flag[RIGHT]);
}

static int strip(ms_encoder *e, const ms_step *step, ms_span text, ms_text *out) {
  (void)e;
  int64_t begin = 0, end = text.bytes;
  for (int64_t at = 0; step->flag[LEFT] && at < end && ms_char_is_white_space(ms_char_next(text, &at));) begin = at;
  while (step->flag[RIGHT] && end > begin && ms_char_is_white_space(ms_char_before(text, end))) {
    do end--;
    while ((text.at[end] & 0xc0) == 0x80);
  }
  put(out, (ms_span){text.at + begin, end - begin});
  return ms_text_status(out);
}

static int read_prepend(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  (void)t;
  return ms_step_read_text(part, where, "prepend", &step->to, &step->to_bytes);
}

static int prepend(ms_encoder *e, const ms_step *step, ms_span text, ms_text *out) {
  (void)e;
  if (text.bytes) ms_text_raw(out, step->to, (size_t)step->to_bytes);
  put(out, text);
  return ms_text_status(out);
}

/* ---- Replace ---- */

static int read_replace(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  MS_TRY(ms_step_read_pattern(t, step, part, where));
  MS_TRY(ms_step_read_text(part, where, "content", &step->to, &step->to_bytes));
  step->by_lines = !step->pattern && !strchr(step->from, '\n') && !strchr(step->to, '\n');
  return MS_OK;
}

static int replace_matches(ms_encoder *e, const ms_step *step, ms_span text, ms_text *out) {
  int64_t at = 0, from = 0;
  while (from <= text.bytes) {
    int64_t begin, end;
    MS_TRY(ms_piece_match(e->matcher[step->matcher], text, from, &begin, &end));
    if (begin < 0) break;
    put(out, (ms_span){text.at + at, begin - at});
    ms_text_raw(out, step->to, (size_t)step->to_bytes);
    at = end;
    from = end > begin ? end : end < text.bytes ? end + ms_char_bytes(text.at[end]) : end + 1;
  }
  put(out, (ms_span){text.at + at, text.bytes - at});
  return ms_text_status(out);
}

static int replace(ms_encoder *e, const ms_step *step, ms_span text, ms_text *out) {
  if (step->pattern) return replace_matches(e, step, text, out);
  int64_t at = 0;
  for (const uint8_t *found; (found = ms_step_find(step, text, at));) {
    put(out, (ms_span){text.at + at, found - text.at - at});
    ms_text_raw(out, step->to, (size_t)step->to_bytes);
    at = found - text.at + step->from_bytes;
  }
  put(out, (ms_span){text.at + at, text.bytes - at});
  return ms_text_status(out);
}

/* ---- Precompiled ---- */

static int read_precompiled(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  const json_t *given = json_object_get(part, "precompiled_charsmap");
  (void)t;
  if (!json_is_string(given)) return MS_FAIL(MS_EINVAL, "%s: precompiled_charsmap must be a text", where);
  if (ms_charsmap_read(json_string_value(given), &step->charsmap)) return ms_error_prefix("%s", where);
  return MS_OK;
}

/* Short graphemes are looked up whole; what is not found, character by character. */
static int precompiled(ms_encoder *e, const ms_step *step, ms_span text, ms_text *out) {
  enum { SHORT_BYTES = 6 };
  (void)e;
  for (int64_t at = 0, end; at < text.bytes; at = end) {
    end = ms_grapheme_end(text, at);
    const ms_span grapheme = {text.at + at, end - at};
    const ms_span whole = grapheme.bytes < SHORT_BYTES ? ms_charsmap_find(step->charsmap, grapheme) : (ms_span){0};
    if (whole.at) {
      put(out, whole);
      continue;
    }
    for (int64_t i = 0; i < grapheme.bytes;) {
      const ms_span c = {grapheme.at + i, ms_char_bytes(grapheme.at[i])};
      const ms_span found = ms_charsmap_find(step->charsmap, c);
      put(out, found.at ? found : c);
      i += c.bytes;
    }
  }
  return ms_text_status(out);
}

/* ---- BERT's ---- */

enum { CLEAN, IDEOGRAPHS, ACCENTS, LOWER };

static int read_bert(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  const json_t *accents = json_object_get(part, "strip_accents");
  (void)t;
  step->flag[CLEAN] = step->flag[IDEOGRAPHS] = step->flag[LOWER] = 1;
  MS_TRY(ms_field_flag(part, where, "clean_text", &step->flag[CLEAN]));
  MS_TRY(ms_field_flag(part, where, "handle_chinese_chars", &step->flag[IDEOGRAPHS]));
  MS_TRY(ms_field_flag(part, where, "lowercase", &step->flag[LOWER]));
  step->flag[ACCENTS] = step->flag[LOWER];
  return accents && !json_is_null(accents) ? ms_field_flag(part, where, "strip_accents", &step->flag[ACCENTS]) : MS_OK;
}

static void put_clean(const ms_step *step, int32_t c, ms_text *out) {
  const int blank = c == '\t' || c == '\n' || c == '\r';
  if (step->flag[CLEAN]) {
    if (c == 0 || c == 0xfffd || (!blank && ms_char_is_other(c))) return;
    if (blank || ms_char_is_white_space(c)) c = ' ';
  }
  const int alone = step->flag[IDEOGRAPHS] && ms_char_is_ideograph(c);
  if (alone) ms_text_raw(out, " ", 1);
  ms_char_put(out, c);
  if (alone) ms_text_raw(out, " ", 1);
}

static int bert(ms_encoder *e, const ms_step *step, ms_span text, ms_text *out) {
  ms_text decomposed = {0}, clean = {0};
  int rc = MS_OK;
  (void)e;
  for (int64_t at = 0; at < text.bytes;) put_clean(step, ms_char_next(text, &at), &clean);
  ms_span given = {(const uint8_t *)clean.data, (int64_t)clean.length};
  if (step->flag[ACCENTS]) {
    MS_GOTO(ms_text_normalize(&decomposed, given, MS_NFD));
    given = (ms_span){(const uint8_t *)decomposed.data, (int64_t)decomposed.length};
  }
  for (int64_t at = 0; at < given.bytes;) {
    const int32_t c = ms_char_next(given, &at);
    if (step->flag[ACCENTS] && ms_char_is_nonspacing(c)) continue;
    if (step->flag[LOWER]) {
      ms_char_put_lower(out, c);
    } else {
      ms_char_put(out, c);
    }
  }
  rc = ms_text_status(&clean);
  if (!rc) rc = ms_text_status(out);
fail:
  ms_text_free(&decomposed);
  ms_text_free(&clean);
  return rc;
}

/* ---- the table ---- */

static const ms_step_type types[] = {
    {.name = "NFC", .fields = " type ", .normalize = nfc, .by_lines = 1},
    {.name = "NFD", .fields = " type ", .normalize = nfd, .by_lines = 1},
    {.name = "NFKC", .fields = " type ", .normalize = nfkc, .by_lines = 1},
    {.name = "NFKD", .fields = " type ", .normalize = nfkd, .by_lines = 1},
    {.name = "Lowercase", .fields = " type ", .normalize = lowercase, .by_lines = 1},
    {.name = "StripAccents", .fields = " type ", .normalize = strip_accents, .by_lines = 1},
    {.name = "Nmt", .fields = " type ", .normalize = nmt},
    {.name = "Strip", .fields = " type strip_left strip_right ", .read = read_strip, .normalize = strip},
    {.name = "Prepend",
     .fields = " type prepend ",
     .read = read_prepend,
     .normalize = prepend,
     .by_lines = 1,
     .at_begin = 1},
    {.name = "Replace", .fields = " type pattern content ", .read = read_replace, .normalize = replace},
    {.name = "Precompiled",
     .fields = " type precompiled_charsmap ",
     .read = read_precompiled,
     .normalize = precompiled},
    {.name = "BertNormalizer",
     .fields = " type clean_text handle_chinese_chars strip_accents lowercase ",
     .read = read_bert,
     .normalize = bert},
    {.name = NULL},
};

int ms_normalizers_read(ms_tokenizer *t, const json_t *part) {
  return ms_steps_read(t, &t->normalizers, part, "normalizer", "normalizers", types);
}

int ms_normalize(ms_encoder *e, ms_span text, int goes_on, ms_span *out) {
  const ms_step_list *steps = &e->tokenizer->normalizers;
  *out = text;
  for (int i = 0; i < steps->count; i++) {
    const ms_step *step = &steps->step[i];
    ms_text *to = &e->normalized[i % 2];
    if (goes_on && step->type->at_begin) continue;
    to->length = 0;
    MS_TRY(step->type->normalize(e, step, *out, to));
    *out = (ms_span){(const uint8_t *)to->data, (int64_t)to->length};
  }
  return MS_OK;
}
