/* bpe.c - BPE: how its merges are read, and what it makes of a piece.
 *
 * A piece begins as the tokens of its bytes, or of its characters with the word's prefix and suffix; neighbours then
 * merge (merge.c). Characters that are no tokens become those of their bytes, or the unknown token.
 */
#include "base/error.h"
#include "io/safetensors/safetensors.h"
#include "io/tokenizer/tokenizer_fields.h"
#include "io/tokenizer/models/models.h"
#include "io/tokenizer/steps/unicode.h"

#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

enum { MERGE_BYTES = 4096 };

/* The two tokens of a merge: "a b", or ["a", "b"]. */
static int split_merge(const json_t *merge, char *left, char *right) {
  const char *a = json_string_value(json_array_get(merge, 0)), *b = json_string_value(json_array_get(merge, 1));
  size_t a_bytes = a ? strlen(a) : 0;
  if (json_is_string(merge)) {
    a = json_string_value(merge);
    b = strchr(a, ' ');
    a_bytes = b ? (size_t)(b - a) : 0;
    b = b ? b + 1 : NULL;
    if (b && strchr(b, ' ')) return 0;
  } else if (json_array_size(merge) != 2) {
    return 0;
  }
  if (!a || !b || !a_bytes || !*b || a_bytes >= MERGE_BYTES || strlen(b) >= MERGE_BYTES) return 0;
  memcpy(left, a, a_bytes);
  left[a_bytes] = '\0';
  strcpy(right, b);
  return 1;
}

static int32_t id_in(const json_t *vocab, const char *token) {
  const json_t *value = json_object_get(vocab, token);
  return value ? (int32_t)json_integer_value(value) : -1;
}

static int read_merges(ms_tokenizer *t, const json_t *merges, const json_t *vocab) {
  char left[2 * MERGE_BYTES], right[MERGE_BYTES], quoted[MS_ST_QUOTED];
  const size_t prefix = strlen(t->prefix);
  size_t i;
  json_t *merge;
  MS_TRY(ms_merges_new(&t->merges, (int64_t)json_array_size(merges)));
  json_array_foreach((json_t *)merges, i, merge) {
    if (!split_merge(merge, left, right))
      return MS_FAIL(MS_EINVAL, "model.merges: entry %zu must be \"a b\" or [\"a\", \"b\"]", i);
    ms_merge made = {.left = id_in(vocab, left), .right = id_in(vocab, right), .rank = (int32_t)i};
    if (made.left < 0 || made.right < 0)
      return MS_FAIL(MS_EINVAL, "model.merges: entry %zu: %s is not in model.vocab", i,
                     ms_st_quote(made.left < 0 ? left : right, quoted));
    if (strlen(right) < prefix)
      return MS_FAIL(MS_EINVAL, "model.merges: entry %zu: %s has no continuing_subword_prefix", i,
                     ms_st_quote(right, quoted));
    made.id = id_in(vocab, strcat(left, right + prefix));
    if (made.id < 0)
      return MS_FAIL(MS_EINVAL, "model.merges: entry %zu makes %s, which is not in model.vocab", i,
                     ms_st_quote(left, quoted));
    if (ms_merges_add(&t->merges, made)) return MS_FAIL(MS_EINVAL, "model.merges: entry %zu is there twice", i);
  }
  return MS_OK;
}

/* Reads a text that can be absent or null. */
static int read_affix(const json_t *model, const char *field, char **text) {
  const json_t *given = json_object_get(model, field);
  if (!given || json_is_null(given)) return MS_OK;
  if (!json_is_string(given)) return MS_FAIL(MS_EINVAL, "model.%s must be a text", field);
  free(*text);
  return (*text = ms_strdup(json_string_value(given))) ? MS_OK : MS_ENOMEM;
}

static int read_bytes(ms_tokenizer *t, const json_t *model) {
  MS_TRY(ms_field_off(model, "model", "continuing_subword_prefix"));
  MS_TRY(ms_field_off(model, "model", "end_of_word_suffix"));
  for (int byte = 0; byte < 256; byte++) {
    const uint8_t one = (uint8_t)byte;
    t->byte_id[byte] = ms_word_find(t, (ms_span){&one, 1});
    if (t->byte_id[byte] < 0)
      return MS_FAIL(MS_EUNSUPPORTED, "model.vocab: no token stands for byte 0x%02x: it must have all 256", byte);
  }
  t->model = &ms_bpe_bytes;
  return MS_OK;
}

int ms_bpe_read(ms_tokenizer *t, const json_t *model, const json_t *vocab) {
  const json_t *merges = json_object_get(model, "merges");
  if (!json_is_array(merges)) return MS_FAIL(MS_EINVAL, "model.merges must be a list");
  MS_TRY(ms_field_off(model, "model", "dropout"));
  MS_TRY(ms_field_flag(model, "model", "ignore_merges", &t->ignore_merges));
  MS_TRY(ms_field_flag(model, "model", "fuse_unk", &t->fuse_unk));
  MS_TRY(ms_field_flag(model, "model", "byte_fallback", &t->byte_fallback));
  if (t->byte_level) {
    MS_TRY(read_bytes(t, model));
  } else {
    MS_TRY(read_affix(model, "continuing_subword_prefix", &t->prefix));
    MS_TRY(read_affix(model, "end_of_word_suffix", &t->suffix));
    MS_TRY(ms_unk_read(t, model, 0));
    ms_byte_tokens_find(t);
    t->model = &ms_bpe_characters;
  }
  return read_merges(t, merges, vocab);
}

/* ---- pieces ---- */

/* Takes the piece as one token, if it is one and may be. */
static int is_whole(ms_encoder *e, ms_span piece, int *whole) {
  const int32_t id = e->tokenizer->ignore_merges ? ms_word_find(e->tokenizer, piece) : -1;
  *whole = id >= 0;
  return *whole ? ms_id_add(e->ids, id) : MS_OK;
}

/* Merges the last `count` ids. */
static int merge_last(ms_encoder *e, int64_t count) {
  ms_id_list *ids = e->ids;
  const int64_t left = ms_bpe_merge(&e->tokenizer->merges, &e->memory, ids->id + ids->count - count, count);
  if (left < 0) return ms_error_code();
  ids->count -= count - left;
  return MS_OK;
}

static int encode_bytes(ms_encoder *e, ms_span piece) {
  int whole;
  MS_TRY(is_whole(e, piece, &whole));
  if (whole) return MS_OK;
  MS_TRY(ms_id_reserve(e->ids, piece.bytes));
  int32_t *ids = e->ids->id + e->ids->count;
  for (int64_t i = 0; i < piece.bytes; i++) ids[i] = e->tokenizer->byte_id[piece.at[i]];
  e->ids->count += piece.bytes;
  return merge_last(e, piece.bytes);
}

/* How the vocabulary spells a character at its place in the word. */
static ms_span spelled(ms_encoder *e, ms_span piece, ms_span c) {
  const ms_tokenizer *t = e->tokenizer;
  const int is_first = c.at == piece.at, is_last = c.at + c.bytes == piece.at + piece.bytes;
  if ((is_first || !*t->prefix) && (!is_last || !*t->suffix)) return c;
  e->spelled.length = 0;
  if (!is_first) ms_text_string(&e->spelled, t->prefix);
  ms_text_raw(&e->spelled, (const char *)c.at, (size_t)c.bytes);
  if (is_last) ms_text_string(&e->spelled, t->suffix);
  return (ms_span){(const uint8_t *)e->spelled.data, (int64_t)e->spelled.length};
}

/* The tokens of a character's bytes, as it is spelled; *found 0: some there are not. */
static int add_bytes(ms_encoder *e, ms_span c, int *found) {
  const ms_tokenizer *t = e->tokenizer;
  *found = t->byte_fallback;
  for (int64_t i = 0; i < c.bytes; i++) *found = *found && t->byte_id[c.at[i]] >= 0;
  for (int64_t i = 0; *found && i < c.bytes; i++) MS_TRY(ms_id_add(e->ids, t->byte_id[c.at[i]]));
  return MS_OK;
}

static int encode_characters(ms_encoder *e, ms_span piece) {
  const ms_tokenizer *t = e->tokenizer;
  const int64_t before = e->ids->count;
  int waits = 0, found; /* waits: an unknown character, with which later ones may fuse */
  MS_TRY(is_whole(e, piece, &found));
  if (found) return MS_OK;
  for (int64_t at = 0, end; at < piece.bytes; at = end) {
    end = at + ms_char_bytes(piece.at[at]);
    const ms_span c = {piece.at + at, end - at};
    const ms_span word = spelled(e, piece, c);
    const int32_t id = ms_word_find(t, word);
    if (id < 0) MS_TRY(add_bytes(e, word, &found));
    if (id < 0 && (found || t->unk == -1)) continue;
    if (id < 0 && t->unk == MS_UNK_MISSING)
      return MS_FAIL(MS_EINVAL, "'%.*s' is unknown, and model.unk_token is not in the vocabulary", (int)c.bytes,
                     (const char *)c.at);
    if (waits && (id >= 0 || !t->fuse_unk)) MS_TRY(ms_id_add(e->ids, t->unk));
    waits = id < 0;
    if (id >= 0) MS_TRY(ms_id_add(e->ids, id));
  }
  if (waits) MS_TRY(ms_id_add(e->ids, t->unk));
  return merge_last(e, e->ids->count - before);
}

const ms_token_model ms_bpe_bytes = {"byte-level BPE", encode_bytes}, ms_bpe_characters = {"BPE", encode_characters};
