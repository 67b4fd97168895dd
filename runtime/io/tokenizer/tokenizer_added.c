/* tokenizer_added.c - the added tokens of a tokenizer.json, and their ids.
 *
 * As in the reference library the ids that the list has do not count: a token whose content is in the vocabulary has
 * its id there, and the others are numbered in the order of the list, from the size of the vocabulary. Where the
 * vocabulary's ids leave gaps, such a number can be another token's; the reference library then mixes them up, and the
 * file is refused.
 */
#include "io/tokenizer/tokenizer_fields.h"

#include "base/error.h"
#include "io/safetensors/safetensors.h"
#include "io/tokenizer/steps/steps.h"
#include "io/tokenizer/steps/unicode.h"

#include <string.h>

static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
enum { SINGLE_WORD, LSTRIP, RSTRIP, NORMALIZED, SPECIAL, FLAGS };

static int read_flags(const json_t *entry, int value[FLAGS]) {
  for (int f = 0; f < FLAGS; f++) {
    value[f] = -1;
    MS_TRY(ms_field_flag(entry, "", flags[f], &value[f]));
    if (value[f] < 0) return MS_FAIL(MS_EINVAL, "%s is missing: it must be true or false", flags[f]);
  }
  return MS_OK;
}

/* The token of this content so far, or NULL. */
static const ms_added_token *find(const ms_tokenizer *t, const char *content) {
  for (int i = 0; i < t->n_added; i++)
    if (!strcmp(t->added[i].content, content)) return &t->added[i];
  return NULL;
}

/* Tokens that the vocabulary has do not count, wherever its ids end. */
static int32_t next_id(const ms_tokenizer *t, const json_t *vocab) {
  int32_t next = t->listed;
  for (int i = 0; i < t->n_added; i++) next += !json_object_get(vocab, t->added[i].content);
  return next;
}

static int read_entry(ms_tokenizer *t, const json_t *entry, const char *content, const json_t *vocab) {
  int value[FLAGS];
  int32_t unused;
  MS_TRY(ms_field_known(entry, "", " id content single_word lstrip rstrip normalized special "));
  MS_TRY(ms_field_id(json_object_get(entry, "id"), content, &unused));
  MS_TRY(read_flags(entry, value));
  const ms_added_token *same = find(t, content);
  if (same &&
      (same->late != value[NORMALIZED] || same->special != value[SPECIAL] || same->single_word != value[SINGLE_WORD] ||
       same->lstrip != value[LSTRIP] || same->rstrip != value[RSTRIP]))
    return MS_FAIL(MS_EINVAL, "it is there twice, with different flags");
  if (same) return MS_OK;
  const json_t *known = json_object_get(vocab, content);
  ms_added_token *to = &t->added[t->n_added];
  to->id = known ? (int32_t)json_integer_value(known) : next_id(t, vocab);
  if (to->id >= MS_TOKENIZER_MAX_IDS) return MS_FAIL(MS_EINVAL, "there are more than %d ids", MS_TOKENIZER_MAX_IDS);
  if (!(to->content = ms_strdup(content))) return MS_ENOMEM;
  t->n_added++;
  to->bytes = (int64_t)strlen(content);
  to->late = value[NORMALIZED];
  to->special = value[SPECIAL];
  to->single_word = value[SINGLE_WORD];
  to->lstrip = value[LSTRIP];
  to->rstrip = value[RSTRIP];
  return MS_OK;
}

int ms_added_read(ms_tokenizer *t, const json_t *added, const json_t *vocab, int64_t *bytes) {
  char quoted[MS_ST_QUOTED];
  size_t i;
  json_t *entry;
  if (!added) return MS_OK;
  if (!json_is_array(added)) return MS_FAIL(MS_EINVAL, "added_tokens must be a list");
  const int64_t most = (int64_t)json_array_size(added);
  if (!(t->added = ms_calloc(most, sizeof *t->added))) return MS_ENOMEM;
  if (!(t->added_id = ms_calloc(most, sizeof *t->added_id))) return MS_ENOMEM;
  if (!(t->added_flags = ms_calloc(most, sizeof *t->added_flags))) return MS_ENOMEM;
  json_array_foreach((json_t *)added, i, entry) {
    const char *content = json_string_value(json_object_get(entry, "content"));
    if (!content || !*content) return MS_FAIL(MS_EINVAL, "added_tokens: entry %zu has no content", i);
    if (read_entry(t, entry, content, vocab)) return ms_error_prefix("added_tokens: %s", ms_st_quote(content, quoted));
  }
  for (int a = 0; a < t->n_added; a++) {
    if (t->added[a].id >= t->vocab) t->vocab = t->added[a].id + 1;
    t->added_id[a] = t->added[a].id;
    t->added_flags[a] = (t->added[a].lstrip ? MS_ADDED_LSTRIP : 0) | (t->added[a].rstrip ? MS_ADDED_RSTRIP : 0) |
                        (t->added[a].single_word ? MS_ADDED_SINGLE_WORD : 0);
    *bytes += t->added[a].bytes;
  }
  return MS_OK;
}

/* The reference library finds a token among the blanks that the one before has taken, and then takes the rest of them
 * again. */
static int refuse_overlaps(const ms_tokenizer *t) {
  char quoted[MS_ST_QUOTED];
  const ms_added_token *strips = NULL;
  int blank = 0;
  for (int i = 0; i < t->n_added; i++) {
    int64_t at = 0;
    const ms_span text = {(const uint8_t *)t->added[i].content, t->added[i].bytes};
    blank |= ms_char_is_white_space(ms_char_next(text, &at));
    if (t->added[i].rstrip) strips = &t->added[i];
  }
  if (!blank || !strips) return MS_OK;
  return MS_FAIL(MS_EUNSUPPORTED,
                 "added_tokens: %s has rstrip, which is not supported next to tokens that begin with a blank",
                 ms_st_quote(strips->content, quoted));
}

/* Late tokens are looked for in normalized text, and so are they as that text has them. */
int ms_added_prepare(ms_tokenizer *t, ms_encoder *encoder) {
  MS_TRY(refuse_overlaps(t));
  for (int i = 0; i < t->n_added; i++) {
    ms_added_token *a = &t->added[i];
    ms_span text = {(const uint8_t *)a->content, a->bytes};
    if (a->late) MS_TRY(ms_normalize(encoder, text, 0, &text));
    a->sought_bytes = text.bytes;
    if (!(a->sought = ms_calloc(text.bytes + 1, 1))) return MS_ENOMEM;
    memcpy(a->sought, text.at, (size_t)text.bytes);
    if (a->late) t->text[a->id] = (ms_span){a->sought, a->sought_bytes};
    if (!text.bytes) continue; /* nothing is left of it that could be found */
    t->added_of[a->late]++;
    t->begins[a->late][a->sought[0]] = 1;
  }
  return MS_OK;
}

/* ---- in a text ---- */

/* The first added token of a kind that begins at `at`: the longest, and of equal ones the first. */
static const ms_added_token *added_at(const ms_tokenizer *t, ms_span text, int64_t at, int late) {
  const ms_added_token *longest = NULL;
  if (!t->begins[late][text.at[at]]) return NULL;
  for (int i = 0; i < t->n_added; i++) {
    const ms_added_token *a = &t->added[i];
    if (a->late == late && a->sought_bytes && a->sought_bytes <= text.bytes - at &&
        (!longest || a->sought_bytes > longest->sought_bytes) &&
        !memcmp(a->sought, text.at + at, (size_t)a->sought_bytes))
      longest = a;
  }
  return longest;
}

static int is_alone(ms_span text, int64_t begin, int64_t end) {
  int64_t at = end;
  return (!begin || !ms_char_is_word(ms_char_before(text, begin))) &&
         (end == text.bytes || !ms_char_is_word(ms_char_next(text, &at)));
}

ms_added_match ms_added_next(const ms_tokenizer *t, ms_span text, int64_t from, int late) {
  for (int64_t at = t->added_of[late] ? from : text.bytes; at < text.bytes; at++) {
    const ms_added_token *a = added_at(t, text, at, late);
    if (!a) continue;
    ms_added_match match = {a, at, at + a->sought_bytes};
    if (a->single_word && !is_alone(text, match.begin, match.end)) {
      at = match.end - 1;
      continue;
    }
    while (a->lstrip && match.begin > from && ms_char_is_white_space(ms_char_before(text, match.begin))) do
        match.begin--;
      while ((text.at[match.begin] & 0xc0) == 0x80);
    for (int64_t next = match.end; a->rstrip && next < text.bytes && ms_char_is_white_space(ms_char_next(text, &next));)
      match.end = next;
    return match;
  }
  return (ms_added_match){NULL, text.bytes, text.bytes};
}

int ms_added_store(ms_tokenizer *t, const json_t *vocab, int64_t *used) {
  char quoted[MS_ST_QUOTED];
  for (int i = 0; i < t->n_added; i++) {
    const ms_added_token *a = &t->added[i];
    ms_span *to = &t->token[a->id];
    const int same = to->bytes == a->bytes && to->at && !memcmp(to->at, a->content, (size_t)a->bytes);
    if (to->at && !same && json_object_get(vocab, a->content))
      return MS_FAIL(MS_EUNSUPPORTED, "added_tokens: %s, which model.vocab has as other bytes, is not supported",
                     ms_st_quote(a->content, quoted));
    if (to->at && !same)
      return MS_FAIL(MS_EUNSUPPORTED,
                     "added_tokens: the reference library gives %s the id %d, which is that of another "
                     "token of model.vocab, whose ids have gaps",
                     ms_st_quote(a->content, quoted), a->id);
    *to = (ms_span){t->token_bytes + *used, a->bytes};
    memcpy(t->token_bytes + *used, a->content, (size_t)a->bytes);
    *used += a->bytes;
  }
  return MS_OK;
}
