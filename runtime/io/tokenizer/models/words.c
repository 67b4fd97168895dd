/* words.c - WordPiece, which takes the longest token that a word begins with again and again; and WordLevel,
 * of which a word is one token. What cannot be written so is unknown, as a whole.
 */
#include "base/error.h"
#include "io/tokenizer/tokenizer_fields.h"
#include "io/tokenizer/models/models.h"
#include "io/tokenizer/steps/unicode.h"

#include <stdlib.h>
#include <string.h>

int ms_word_piece_read(ms_tokenizer *t, const json_t *model, const json_t *vocab) {
  const json_t *prefix = json_object_get(model, "continuing_subword_prefix");
  const json_t *most = json_object_get(model, "max_input_chars_per_word");
  (void)vocab;
  if (prefix && !json_is_string(prefix)) return MS_FAIL(MS_EINVAL, "model.continuing_subword_prefix must be a text");
  if (most && (!json_is_integer(most) || json_integer_value(most) < 0))
    return MS_FAIL(MS_EINVAL, "model.max_input_chars_per_word must be a whole number");
  free(t->prefix);
  if (!(t->prefix = ms_strdup(prefix ? json_string_value(prefix) : "##"))) return MS_ENOMEM;
  t->max_chars = most ? json_integer_value(most) : 100;
  t->model = &ms_word_piece;
  return ms_unk_read(t, model, 1);
}

int ms_word_level_read(ms_tokenizer *t, const json_t *model, const json_t *vocab) {
  (void)vocab;
  t->model = &ms_word_level;
  return ms_unk_read(t, model, 0);
}

/* The longest token that the rest of a word begins with: its id, or -1, and how many bytes of the word it takes. */
static int32_t longest_at(ms_encoder *e, ms_span word, int64_t at, int64_t *taken) {
  const ms_tokenizer *t = e->tokenizer;
  const size_t prefix = at ? strlen(t->prefix) : 0;
  e->spelled.length = 0;
  ms_text_raw(&e->spelled, t->prefix, prefix);
  ms_text_raw(&e->spelled, (const char *)word.at + at, (size_t)(word.bytes - at));
  if (ms_text_status(&e->spelled)) return -1;
  for (int64_t end = word.bytes; end > at; end--) {
    const int within = !t->byte_level && end < word.bytes && (word.at[end] & 0xc0) == 0x80;
    if (within) continue; /* a character */
    const int64_t bytes = (int64_t)prefix + end - at;
    if (bytes > t->longest) continue;
    const int32_t id = ms_word_find(t, (ms_span){(const uint8_t *)e->spelled.data, bytes});
    *taken = end - at;
    if (id >= 0) return id;
  }
  return -1;
}

static int encode_pieces(ms_encoder *e, ms_span word) {
  const int64_t before = e->ids->count;
  int64_t taken = 0;
  int known = (e->tokenizer->byte_level ? word.bytes : ms_char_count(word)) <= e->tokenizer->max_chars;
  for (int64_t at = 0; known && at < word.bytes; at += taken) {
    const int32_t id = longest_at(e, word, at, &taken);
    MS_TRY(ms_text_status(&e->spelled));
    known = id >= 0;
    if (known) MS_TRY(ms_id_add(e->ids, id));
  }
  if (known) return MS_OK;
  e->ids->count = before;
  return ms_id_add(e->ids, e->tokenizer->unk);
}

static int encode_word(ms_encoder *e, ms_span word) {
  const int32_t id = ms_word_find(e->tokenizer, word);
  if (id >= 0) return ms_id_add(e->ids, id);
  if (e->tokenizer->unk >= 0) return ms_id_add(e->ids, e->tokenizer->unk);
  return MS_FAIL(MS_EINVAL, "'%.*s' is not in the vocabulary, which has no unk_token",
                 (int)(word.bytes < 40 ? word.bytes : 40), (const char *)word.at);
}

const ms_token_model ms_word_piece = {"WordPiece", encode_pieces}, ms_word_level = {"WordLevel", encode_word};
