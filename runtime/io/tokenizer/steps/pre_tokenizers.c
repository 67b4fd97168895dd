/* pre_tokenizers.c - the pre-tokenizers of a tokenizer.json, which cut a text into the pieces that the model sees.
 *
 * A step takes each piece by itself. Parts that match and those between them are pieces, of which a behavior removes or
 * merges some; empty ones vanish.
 */
#include "base/error.h"
#include "io/tokenizer/tokenizer_fields.h"
#include "io/tokenizer/steps/steps.h"
#include "io/tokenizer/steps/unicode.h"

#include <string.h>

/* ---- parts, and what becomes of them ---- */

typedef struct cutter {
  ms_span text;
  enum ms_split_behavior behavior;
  int first; /* the text begins the whole one */
  ms_piece_list *out;
  int64_t begin; /* of the piece that further parts can join; < 0: none */
  int64_t end;   /* of it */
  int matched;   /* whether the part before matched */
} cutter;

static cutter cutter_of(ms_span text, enum ms_split_behavior behavior, int first, ms_piece_list *out) {
  return (cutter){.text = text, .behavior = behavior, .first = first, .out = out, .begin = -1};
}

/* The piece so far is complete. */
static int finish(cutter *c) {
  const int64_t begin = c->begin;
  c->begin = -1;
  if (begin < 0 || begin == c->end) return MS_OK;
  return ms_piece_add(c->out, (ms_span){c->text.at + begin, c->end - begin}, c->first && !begin);
}

static int begin_piece(cutter *c, int64_t begin, int64_t end) {
  MS_TRY(finish(c));
  c->begin = begin;
  c->end = end;
  return MS_OK;
}

/* The next part of the text: a match, or what is between two. */
static int part(cutter *c, int64_t begin, int64_t end, int matches) {
  const int before = c->matched;
  c->matched = matches;
  switch (c->behavior) {
    case MS_REMOVED:
      if (matches) return finish(c);
      break;
    case MS_CONTIGUOUS:
      if (c->begin >= 0 && matches == before) {
        c->end = end;
        return MS_OK;
      }
      break;
    case MS_MERGED_WITH_PREVIOUS:
      if (c->begin >= 0 && matches && !before) {
        c->end = end;
        return MS_OK;
      }
      break;
    case MS_MERGED_WITH_NEXT: /* a match waits for what follows; of several, the last */
      if (c->begin >= 0 && before && !matches) {
        c->end = end;
        return MS_OK;
      }
      break;
    case MS_ISOLATED: break;
  }
  return begin_piece(c, begin, end);
}

/* Cuts at a match: before, what lies between it and the last one. */
static int match(cutter *c, int64_t *at, int64_t begin, int64_t end, int invert) {
  if (begin > *at) MS_TRY(part(c, *at, begin, invert));
  *at = end;
  return part(c, begin, end, !invert);
}

static int end_of(cutter *c, int64_t at, int invert) {
  if (at < c->text.bytes) MS_TRY(part(c, at, c->text.bytes, invert));
  return finish(c);
}

static int cut_at_pattern(ms_encoder *e, const ms_step *step, cutter *c, int invert) {
  int64_t at = 0, from = 0;
  while (from <= c->text.bytes) {
    int64_t begin, end;
    MS_TRY(ms_piece_match(e->matcher[step->matcher], c->text, from, &begin, &end));
    if (begin < 0) break;
    MS_TRY(match(c, &at, begin, end, invert));
    from = end > begin ? end : end < c->text.bytes ? end + ms_char_bytes(c->text.at[end]) : end + 1;
  }
  return end_of(c, at, invert);
}

static int cut_at_text(const ms_step *step, cutter *c, int invert) {
  int64_t at = 0;
  for (const uint8_t *found; (found = ms_step_find(step, c->text, at));) {
    const int64_t begin = found - c->text.at;
    MS_TRY(match(c, &at, begin, begin + step->from_bytes, invert));
  }
  return end_of(c, at, invert);
}

static int cut_at_class(cutter *c, int (*is_in)(int32_t)) {
  int64_t at = 0;
  for (int64_t i = 0; i < c->text.bytes;) {
    const int64_t begin = i;
    if (is_in(ms_char_next(c->text, &i))) MS_TRY(match(c, &at, begin, i, 0));
  }
  return end_of(c, at, 0);
}

/* ---- ByteLevel ---- */

enum { PREFIX_SPACE, USE_REGEX };

static int add_pattern(ms_tokenizer *t, ms_step *step, const char *pattern) {
  MS_TRY(ms_pieces_compile(pattern, &step->pattern));
  MS_TRY(ms_grow((void **)&t->pattern, &t->patterns_capacity, t->patterns + 1, sizeof(ms_pieces *)));
  step->matcher = t->patterns;
  t->pattern[t->patterns++] = step->pattern;
  return MS_OK;
}

static int read_byte_level(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  int unused;
  step->flag[PREFIX_SPACE] = step->flag[USE_REGEX] = 1; /* unless the file says otherwise */
  MS_TRY(ms_field_flag(part, where, "add_prefix_space", &step->flag[PREFIX_SPACE]));
  MS_TRY(ms_field_flag(part, where, "use_regex", &step->flag[USE_REGEX]));
  MS_TRY(ms_field_flag(part, where, "trim_offsets", &unused));
  t->byte_level = 1;
  return step->flag[USE_REGEX] ? add_pattern(t, step, MS_GPT2_PATTERN) : MS_OK;
}

static int byte_level(ms_encoder *e, const ms_step *step, ms_span text, int first, ms_piece_list *out) {
  ms_text prefixed = {0};
  if (step->flag[PREFIX_SPACE] && text.at[0] != ' ') {
    ms_text_raw(&prefixed, " ", 1);
    ms_text_raw(&prefixed, (const char *)text.at, (size_t)text.bytes);
    text = (ms_span){(const uint8_t *)prefixed.data, (int64_t)prefixed.length};
  }
  int rc = ms_text_status(&prefixed);
  if (!rc && step->pattern) {
    cutter c = cutter_of(text, MS_ISOLATED, first, out);
    rc = cut_at_pattern(e, step, &c, 0);
  } else if (!rc) {
    rc = ms_piece_add(out, text, first);
  }
  ms_text_free(&prefixed);
  return rc;
}

/* ---- Split, and character classes ---- */

static int read_behavior(ms_step *step, const json_t *part, const char *where) {
  static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  const char *given = json_string_value(json_object_get(part, "behavior"));
  for (int i = 0; given && i < (int)(sizeof names / sizeof *names); i++) {
    if (strcmp(given, names[i])) continue;
    step->behavior = (enum ms_split_behavior)i;
    return MS_OK;
  }
  return MS_FAIL(MS_EUNSUPPORTED,
                 "%s.behavior must be Isolated, Removed, MergedWithPrevious, MergedWithNext or "
                 "Contiguous",
                 where);
}

static int read_split(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  MS_TRY(read_behavior(step, part, where));
  MS_TRY(ms_field_flag(part, where, "invert", &step->flag[0]));
  return ms_step_read_pattern(t, step, part, where);
}

static int split(ms_encoder *e, const ms_step *step, ms_span text, int first, ms_piece_list *out) {
  cutter c = cutter_of(text, step->behavior, first, out);
  return step->pattern ? cut_at_pattern(e, step, &c, step->flag[0]) : cut_at_text(step, &c, step->flag[0]);
}

static int read_digits(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  (void)t;
  MS_TRY(ms_field_flag(part, where, "individual_digits", &step->flag[0]));
  step->behavior = step->flag[0] ? MS_ISOLATED : MS_CONTIGUOUS;
  return MS_OK;
}

static int digits(ms_encoder *e, const ms_step *step, ms_span text, int first, ms_piece_list *out) {
  cutter c = cutter_of(text, step->behavior, first, out);
  (void)e;
  return cut_at_class(&c, ms_char_is_number);
}

static int read_punctuation(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  (void)t;
  return json_object_get(part, "behavior") ? read_behavior(step, part, where) : MS_OK;
}

static int punctuation(ms_encoder *e, const ms_step *step, ms_span text, int first, ms_piece_list *out) {
  cutter c = cutter_of(text, step->behavior, first, out);
  (void)e;
  return cut_at_class(&c, ms_char_is_punctuation);
}

static int white_space_split(ms_encoder *e, const ms_step *step, ms_span text, int first, ms_piece_list *out) {
  cutter c = cutter_of(text, MS_REMOVED, first, out);
  (void)e, (void)step;
  return cut_at_class(&c, ms_char_is_white_space);
}

/* Words, and runs of what is neither word nor blank. */
static int words(ms_encoder *e, const ms_step *step, ms_span text, int first, ms_piece_list *out) {
  int64_t begin = 0;
  int kind = 0; /* of the piece that begins there: 0 blank, 1 word, 2 neither */
  (void)e, (void)step;
  for (int64_t at = 0; at <= text.bytes;) {
    const int64_t here = at;
    const int32_t c = at < text.bytes ? ms_char_next(text, &at) : ' ';
    const int is = ms_char_is_word(c) ? 1 : ms_char_is_white_space(c) ? 0 : 2;
    if (here == text.bytes) at++;
    if (is == kind && here < text.bytes) continue;
    if (kind) MS_TRY(ms_piece_add(out, (ms_span){text.at + begin, here - begin}, first && !begin));
    begin = here;
    kind = is;
  }
  return MS_OK;
}

/* Blanks go, signs are pieces of their own. */
static int bert(ms_encoder *e, const ms_step *step, ms_span text, int first, ms_piece_list *out) {
  int64_t begin = 0;
  (void)e, (void)step;
  for (int64_t at = 0; at < text.bytes;) {
    const int64_t here = at;
    const int32_t c = ms_char_next(text, &at);
    const int sign = ms_char_is_punctuation(c);
    if (!sign && !ms_char_is_white_space(c)) continue;
    if (here > begin) MS_TRY(ms_piece_add(out, (ms_span){text.at + begin, here - begin}, first && !begin));
    if (sign) MS_TRY(ms_piece_add(out, (ms_span){text.at + here, at - here}, first && !here));
    begin = at;
  }
  if (begin == text.bytes) return MS_OK;
  return ms_piece_add(out, (ms_span){text.at + begin, text.bytes - begin}, first && !begin);
}

static int read_delimiter(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  (void)t;
  MS_TRY(ms_step_read_text(part, where, "delimiter", &step->from, &step->from_bytes));
  step->behavior = MS_REMOVED;
  return MS_OK;
}

/* ---- Metaspace ---- */

enum { PREPEND, PREPEND_FIRST, SPLIT };

int ms_metaspace_read(ms_step *step, const json_t *part, const char *where) {
  const char *scheme = json_string_value(json_object_get(part, "prepend_scheme"));
  int prefix = 1;
  step->flag[SPLIT] = 1;
  MS_TRY(ms_step_read_text(part, where, "replacement", &step->from, &step->from_bytes));
  if (ms_char_count((ms_span){(const uint8_t *)step->from, step->from_bytes}) != 1)
    return MS_FAIL(MS_EINVAL, "%s: replacement must be one character", where);
  MS_TRY(ms_field_flag(part, where, "add_prefix_space", &prefix));
  MS_TRY(ms_field_flag(part, where, "split", &step->flag[SPLIT]));
  if (!scheme) scheme = prefix ? "always" : "never";
  if (!prefix && strcmp(scheme, "never"))
    return MS_FAIL(MS_EINVAL, "%s: add_prefix_space is false, so prepend_scheme must be never", where);
  if (strcmp(scheme, "always") && strcmp(scheme, "first") && strcmp(scheme, "never"))
    return MS_FAIL(MS_EUNSUPPORTED, "%s.prepend_scheme must be always, first or never", where);
  step->flag[PREPEND] = strcmp(scheme, "never") != 0;
  step->flag[PREPEND_FIRST] = !strcmp(scheme, "first");
  return MS_OK;
}

static int read_metaspace(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  (void)t;
  return ms_metaspace_read(step, part, where);
}

static int metaspace(ms_encoder *e, const ms_step *step, ms_span text, int first, ms_piece_list *out) {
  ms_text marked = {0};
  (void)e;
  const int has_one =
      text.at[0] == ' ' || (text.bytes >= step->from_bytes && !memcmp(text.at, step->from, (size_t)step->from_bytes));
  if (step->flag[PREPEND] && !has_one && (first || !step->flag[PREPEND_FIRST]))
    ms_text_raw(&marked, step->from, (size_t)step->from_bytes);
  for (int64_t i = 0; i < text.bytes; i++) {
    if (text.at[i] == ' ') {
      ms_text_raw(&marked, step->from, (size_t)step->from_bytes);
    } else {
      ms_text_raw(&marked, (const char *)text.at + i, 1);
    }
  }
  int rc = ms_text_status(&marked);
  const ms_span all = {(const uint8_t *)marked.data, (int64_t)marked.length};
  if (!rc && step->flag[SPLIT]) {
    cutter c = cutter_of(all, MS_MERGED_WITH_NEXT, first, out);
    rc = cut_at_text(step, &c, 0);
  } else if (!rc) {
    rc = ms_piece_add(out, all, first);
  }
  ms_text_free(&marked);
  return rc;
}

/* ---- the table ---- */

static const ms_step_type types[] = {
    {.name = "ByteLevel",
     .fields = " type add_prefix_space trim_offsets use_regex ",
     .read = read_byte_level,
     .cut = byte_level},
    {.name = "Split", .fields = " type pattern behavior invert ", .read = read_split, .cut = split},
    {.name = "Digits", .fields = " type individual_digits ", .read = read_digits, .cut = digits},
    {.name = "Punctuation", .fields = " type behavior ", .read = read_punctuation, .cut = punctuation},
    {.name = "Whitespace", .fields = " type ", .cut = words},
    {.name = "WhitespaceSplit", .fields = " type ", .cut = white_space_split},
    {.name = "BertPreTokenizer", .fields = " type ", .cut = bert},
    {.name = "CharDelimiterSplit", .fields = " type delimiter ", .read = read_delimiter, .cut = split},
    {.name = "Metaspace",
     .fields = " type replacement add_prefix_space prepend_scheme split str_rep ",
     .read = read_metaspace,
     .cut = metaspace},
    {.name = NULL},
};

static int is_byte_level(const ms_step *step) { return step->type->cut == byte_level; }

int ms_pre_tokenizers_read(ms_tokenizer *t, const json_t *part) {
  const ms_step_list *steps = &t->pre_tokenizers;
  MS_TRY(ms_steps_read(t, &t->pre_tokenizers, part, "pre_tokenizer", "pretokenizers", types));
  /* ByteLevel after ByteLevel would spell the characters of bytes in characters of bytes. */
  int spelled = 0;
  for (int i = 0; i < steps->count; i++) spelled += is_byte_level(&steps->step[i]);
  if (spelled > 1) return MS_FAIL(MS_EUNSUPPORTED, "pre_tokenizer: ByteLevel can be there once");
  /* The reference library asks where a piece began before normalizers changed the text. */
  for (int i = 1; i < steps->count && t->normalizers.count; i++)
    if (steps->step[i].type->cut == metaspace && steps->step[i].flag[PREPEND_FIRST])
      return MS_FAIL(MS_EUNSUPPORTED,
                     "pre_tokenizer: Metaspace with prepend_scheme \"first\" is not supported after another "
                     "step where there is a normalizer");
  const ms_step *last = steps->count ? &steps->step[steps->count - 1] : NULL;
  if (!last || !is_byte_level(last) || last->flag[PREFIX_SPACE]) return MS_OK;
  t->in_place = steps->count == 1
                    ? last->flag[USE_REGEX]
                    : steps->count == 2 && !last->flag[USE_REGEX] && steps->step[0].type->cut == split &&
                          steps->step[0].pattern && steps->step[0].behavior == MS_ISOLATED && !steps->step[0].flag[0];
  if (t->in_place) t->place_matcher = steps->step[0].matcher;
  return MS_OK;
}

/* After ByteLevel, later steps see bytes as the characters that stand for them, and the model bytes. */
static int spell(const ms_piece_list *in, ms_text *spelled, int i, ms_span *text) {
  spelled->length = 0;
  ms_bytes_spell(spelled, ms_piece_text(in, i));
  *text = (ms_span){(const uint8_t *)spelled->data, (int64_t)spelled->length};
  return ms_text_status(spelled);
}

static int spell_back(ms_piece_list *pieces) {
  for (int i = 0; i < pieces->count; i++) {
    ms_piece *piece = &pieces->piece[i];
    uint8_t *at = (uint8_t *)pieces->text.data + piece->begin;
    if (!ms_bytes_of_token((ms_span){at, piece->bytes}, at, &piece->bytes))
      return MS_FAIL(MS_EUNSUPPORTED, "pre_tokenizer: a step after ByteLevel made characters that stand for no byte");
  }
  return MS_OK;
}

int ms_cut(ms_encoder *e, ms_span text, int first, const ms_piece_list **pieces) {
  const ms_step_list *steps = &e->tokenizer->pre_tokenizers;
  ms_piece_list *in = &e->pieces[0], *out = &e->pieces[1];
  int spelled = 0;
  ms_pieces_clear(in);
  MS_TRY(ms_piece_add(in, text, first));
  for (int s = 0; s < steps->count; s++) {
    const ms_step *step = &steps->step[s];
    ms_pieces_clear(out);
    for (int i = 0; i < in->count; i++) {
      ms_span piece = ms_piece_text(in, i);
      if (spelled == 1) MS_TRY(spell(in, &e->spelled, i, &piece));
      MS_TRY(step->type->cut(e, step, piece, in->piece[i].first, out));
    }
    ms_piece_list *swap = in;
    in = out;
    out = swap;
    if (spelled) spelled = 2;
    if (is_byte_level(step)) spelled = 1;
  }
  if (spelled == 2) MS_TRY(spell_back(in));
  *pieces = in;
  return MS_OK;
}
