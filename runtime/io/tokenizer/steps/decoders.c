/* decoders.c - the decoders of a tokenizer.json, which make text of the texts of tokens.
 *
 * Each step changes the list; at the end the texts are joined, with blanks between them where the file has no decoder.
 * Of tokens that are spelled in characters for bytes the list has the bytes, so ByteLevel has nothing to do there.
 */
#include "base/error.h"
#include "io/tokenizer/tokenizer_fields.h"
#include "io/tokenizer/steps/steps.h"
#include "io/tokenizer/steps/unicode.h"

#include <stdio.h>
#include <string.h>

static int starts_with(ms_span text, const char *with, int64_t bytes) {
  return bytes <= text.bytes && !memcmp(text.at, with, (size_t)bytes);
}

/* Adds to the last piece. */
static int extend(ms_piece_list *list, const char *text, int64_t bytes) {
  list->piece[list->count - 1].bytes += bytes;
  ms_text_raw(&list->text, text, (size_t)bytes);
  return ms_text_status(&list->text);
}

static int add_empty(ms_piece_list *out) { return ms_piece_add(out, (ms_span){(const uint8_t *)"", 0}, 0); }

/* Adds a text to the last piece, with another in place of each occurrence. */
static int extend_replaced(ms_piece_list *out, ms_span text, const ms_step *step, const char *to, int64_t to_bytes) {
  int64_t at = 0;
  for (const uint8_t *found; (found = ms_step_find(step, text, at));) {
    MS_TRY(extend(out, (const char *)text.at + at, found - text.at - at));
    MS_TRY(extend(out, to, to_bytes));
    at = found - text.at + step->from_bytes;
  }
  return extend(out, (const char *)text.at + at, text.bytes - at);
}

/* ---- ByteLevel, Fuse ---- */

static int fuse(const ms_step *step, const ms_piece_list *in, ms_piece_list *out) {
  (void)step;
  MS_TRY(add_empty(out));
  for (int i = 0; i < in->count; i++) {
    const ms_span text = ms_piece_text(in, i);
    MS_TRY(extend(out, (const char *)text.at, text.bytes));
  }
  return MS_OK;
}

static int read_byte_level(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  (void)step, (void)part;
  if (t->byte_level) return MS_OK;
  return MS_FAIL(MS_EUNSUPPORTED, "%s needs the pre_tokenizer ByteLevel", where);
}

/* ---- ByteFallback ---- */

static int hexadecimal(uint8_t c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                : -1;
}

/* The byte of "<0x0A>", or -1. */
static int byte_of(ms_span text) {
  if (text.bytes != 6 || !starts_with(text, "<0x", 3) || text.at[5] != '>') return -1;
  const int high = hexadecimal(text.at[3]), low = hexadecimal(text.at[4]);
  return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* Bytes that make a text become it, and others U+FFFD each. */
static int flush_bytes(ms_text *bytes, ms_piece_list *out) {
  const ms_span all = {(const uint8_t *)bytes->data, (int64_t)bytes->length};
  if (all.bytes && ms_utf8_invalid(all) == all.bytes) {
    MS_TRY(ms_piece_add(out, all, 0));
  } else {
    for (int64_t i = 0; i < all.bytes; i++) MS_TRY(ms_piece_add(out, (ms_span){(const uint8_t *)"\xef\xbf\xbd", 3}, 0));
  }
  bytes->length = 0;
  return MS_OK;
}

static int byte_fallback(const ms_step *step, const ms_piece_list *in, ms_piece_list *out) {
  ms_text bytes = {0};
  int rc = MS_OK;
  (void)step;
  for (int i = 0; i < in->count; i++) {
    const ms_span text = ms_piece_text(in, i);
    const int byte = byte_of(text);
    const char one = (char)byte;
    if (byte >= 0) {
      ms_text_raw(&bytes, &one, 1);
      MS_GOTO(ms_text_status(&bytes));
      continue;
    }
    MS_GOTO(flush_bytes(&bytes, out));
    MS_GOTO(ms_piece_add(out, text, 0));
  }
  rc = flush_bytes(&bytes, out);
fail:
  ms_text_free(&bytes);
  return rc;
}

/* ---- Replace, Strip, Metaspace ---- */

static int read_replace(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  MS_TRY(ms_step_read_pattern(t, step, part, where));
  if (step->pattern) return MS_FAIL(MS_EUNSUPPORTED, "%s.pattern: one String is supported", where);
  return ms_step_read_text(part, where, "content", &step->to, &step->to_bytes);
}

static int replace(const ms_step *step, const ms_piece_list *in, ms_piece_list *out) {
  for (int i = 0; i < in->count; i++) {
    MS_TRY(add_empty(out));
    MS_TRY(extend_replaced(out, ms_piece_text(in, i), step, step->to, step->to_bytes));
  }
  return MS_OK;
}

enum { START, STOP };

static int read_strip(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  static const char *const names[] = {"start", "stop"};
  (void)t;
  for (int side = START; side <= STOP; side++) {
    const json_t *given = json_object_get(part, names[side]);
    if (!json_is_integer(given) || json_integer_value(given) < 0 || json_integer_value(given) > INT32_MAX)
      return MS_FAIL(MS_EINVAL, "%s: %s must be a whole number", where, names[side]);
    step->flag[side] = (int)json_integer_value(given);
  }
  return ms_step_read_text(part, where, "content", &step->from, &step->from_bytes);
}

/* Takes at most so many of a character from the ends of each token. */
static int strip(const ms_step *step, const ms_piece_list *in, ms_piece_list *out) {
  const int64_t n = step->from_bytes;
  for (int i = 0; i < in->count; i++) {
    ms_span text = ms_piece_text(in, i);
    for (int k = 0; n && k < step->flag[START] && starts_with(text, step->from, n); k++)
      text = (ms_span){text.at + n, text.bytes - n};
    for (int k = 0;
         n && k < step->flag[STOP] && text.bytes >= n && !memcmp(text.at + text.bytes - n, step->from, (size_t)n); k++)
      text.bytes -= n;
    MS_TRY(ms_piece_add(out, text, 0));
  }
  return MS_OK;
}

static int read_metaspace(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  (void)t;
  return ms_metaspace_read(step, part, where);
}

/* Where it puts one before a text, those of the first token go. */
static int metaspace(const ms_step *step, const ms_piece_list *in, ms_piece_list *out) {
  for (int i = 0; i < in->count; i++) {
    MS_TRY(add_empty(out));
    MS_TRY(extend_replaced(out, ms_piece_text(in, i), step, " ", i || !step->flag[0] ? 1 : 0));
  }
  return MS_OK;
}

/* ---- WordPiece, BPEDecoder ---- */

enum { CLEANUP };

static int read_word_piece(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  (void)t;
  step->flag[CLEANUP] = 1;
  MS_TRY(ms_field_flag(part, where, "cleanup", &step->flag[CLEANUP]));
  return ms_step_read_text(part, where, "prefix", &step->from, &step->from_bytes);
}

/* Blanks before signs and shortened words, in this order, one kind after the other. */
static int clean_up(ms_piece_list *out) {
  static const char *const pairs[][2] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},    {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  ms_piece *last = &out->piece[out->count - 1];
  ms_text text = {0};
  int rc = MS_OK;
  for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++) {
    const ms_step step = {.from = (char *)pairs[p][0], .from_bytes = (int64_t)strlen(pairs[p][0])};
    text.length = 0;
    ms_text_raw(&text, out->text.data + last->begin, (size_t)last->bytes);
    MS_GOTO(ms_text_status(&text));
    out->text.length = (size_t)last->begin;
    last->bytes = 0;
    MS_GOTO(extend_replaced(out, (ms_span){(const uint8_t *)text.data, (int64_t)text.length}, &step, pairs[p][1],
                            (int64_t)strlen(pairs[p][1])));
  }
fail:
  ms_text_free(&text);
  return rc;
}

static int word_piece(const ms_step *step, const ms_piece_list *in, ms_piece_list *out) {
  for (int i = 0; i < in->count; i++) {
    ms_span text = ms_piece_text(in, i);
    MS_TRY(add_empty(out));
    if (i && starts_with(text, step->from, step->from_bytes)) {
      text = (ms_span){text.at + step->from_bytes, text.bytes - step->from_bytes};
    } else if (i) {
      MS_TRY(extend(out, " ", 1));
    }
    MS_TRY(extend(out, (const char *)text.at, text.bytes));
    if (step->flag[CLEANUP]) MS_TRY(clean_up(out));
  }
  return MS_OK;
}

static int read_bpe(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  (void)t;
  return ms_step_read_text(part, where, "suffix", &step->from, &step->from_bytes);
}

/* Suffixes are blanks, but at the end. */
static int bpe(const ms_step *step, const ms_piece_list *in, ms_piece_list *out) {
  for (int i = 0; i < in->count; i++) {
    MS_TRY(add_empty(out));
    MS_TRY(extend_replaced(out, ms_piece_text(in, i), step, " ", i + 1 < in->count));
  }
  return MS_OK;
}

/* ---- the table ---- */

static const ms_step_type types[] = {
    {.name = "ByteLevel",
     .fields = " type add_prefix_space trim_offsets use_regex ",
     .read = read_byte_level,
     .decode = fuse},
    {.name = "ByteFallback", .fields = " type ", .decode = byte_fallback},
    {.name = "Fuse", .fields = " type ", .decode = fuse},
    {.name = "Replace", .fields = " type pattern content ", .read = read_replace, .decode = replace},
    {.name = "Strip", .fields = " type content start stop ", .read = read_strip, .decode = strip},
    {.name = "Metaspace",
     .fields = " type replacement add_prefix_space prepend_scheme split str_rep ",
     .read = read_metaspace,
     .decode = metaspace},
    {.name = "WordPiece", .fields = " type prefix cleanup ", .read = read_word_piece, .decode = word_piece},
    {.name = "BPEDecoder", .fields = " type suffix ", .read = read_bpe, .decode = bpe},
    {.name = NULL},
};

int ms_decoders_read(ms_tokenizer *t, const json_t *part) {
  MS_TRY(ms_steps_read(t, &t->decoders, part, "decoder", "decoders", types));
  if (t->byte_level && t->decoders.count && strcmp(t->decoders.step[0].type->name, "ByteLevel"))
    return MS_FAIL(MS_EUNSUPPORTED, "decoder: %s is not supported before ByteLevel, where the pre_tokenizer has it",
                   t->decoders.step[0].type->name);
  return MS_OK;
}

/* ---- the public call ---- */

/* The texts of tokens, in the first of the two lists. */
static int list_tokens(ms_tokenizer *t, const int32_t *ids, int64_t count) {
  ms_pieces_clear(&t->decoding[0]);
  int64_t all = 0;
  for (int64_t i = 0; i < count; i++) {
    if (ids[i] < 0 || ids[i] >= t->vocab || !t->token[ids[i]].at)
      return MS_FAIL(MS_EINVAL, "%s: there is no token %d: ids are below %d", t->path, ids[i], t->vocab);
    all += t->text[ids[i]].bytes;
  }
  if (count >= INT32_MAX / 2 || all >= INT32_MAX / 2)
    return MS_FAIL(MS_EINVAL, "%lld tokens are %lld bytes of text: decode fewer at once", (long long)count,
                   (long long)all);
  for (int64_t i = 0; i < count; i++) MS_TRY(ms_piece_add(&t->decoding[0], t->text[ids[i]], 0));
  return MS_OK;
}

int ms_tokenizer_decode(ms_tokenizer *t, const int32_t *ids, int64_t count, const char **text, int64_t *bytes) {
  MS_HANDLE(t, TOKENIZER);
  MS_GIVEN(text);
  MS_GIVEN(bytes);
  MS_NOT_NEGATIVE(count);
  if (count > 0) MS_GIVEN(ids);
  MS_TRY(list_tokens(t, ids, count));
  int at = 0;
  for (int s = 0; s < t->decoders.count; s++, at = !at) {
    ms_pieces_clear(&t->decoding[!at]);
    MS_TRY(t->decoders.step[s].type->decode(&t->decoders.step[s], &t->decoding[at], &t->decoding[!at]));
  }
  const ms_piece_list *list = &t->decoding[at];
  const int joined = !t->decoders.count && !t->byte_level;
  t->decoded.length = 0;
  for (int i = 0; i < list->count; i++) {
    const ms_span piece = ms_piece_text(list, i);
    if (joined && i) ms_text_raw(&t->decoded, " ", 1);
    ms_text_raw(&t->decoded, (const char *)piece.at, (size_t)piece.bytes);
  }
  ms_text_raw(&t->decoded, "", 0);
  MS_TRY(ms_text_status(&t->decoded));
  *text = t->decoded.data;
  *bytes = (int64_t)t->decoded.length;
  return MS_OK;
}
