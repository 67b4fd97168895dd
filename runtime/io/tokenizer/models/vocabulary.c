/* vocabulary.c - the vocabulary of a tokenizer.json's model: its tokens, their ids, and what they are spelled with. */
#include "io/tokenizer/models/models.h"

#include "base/error.h"
#include "io/safetensors/safetensors.h"
#include "io/tokenizer/tokenizer_fields.h"

#include <stdio.h>
#include <string.h>

/* Unigram's list of [token, score], as an object; of equal tokens the last counts. */
static int object_of_list(const json_t *list, json_t **vocab) {
  size_t i;
  json_t *entry;
  if (!(*vocab = json_object())) return MS_FAIL(MS_ENOMEM, "out of memory: a vocabulary");
  json_array_foreach((json_t *)list, i, entry) {
    const char *token = json_string_value(json_array_get(entry, 0));
    if (!token || json_array_size(entry) != 2 || !json_is_number(json_array_get(entry, 1)))
      return MS_FAIL(MS_EINVAL, "model.vocab: entry %zu must be a token and its score", i);
    if (json_object_set_new_nocheck(*vocab, token, json_integer((json_int_t)i)))
      return MS_FAIL(MS_ENOMEM, "out of memory: a vocabulary");
  }
  return MS_OK;
}

int ms_model_vocab(const json_t *model, int *ids, int64_t *bytes, json_t **vocab) {
  json_t *given = json_object_get(model, "vocab"), *value;
  const char *token;
  int32_t id;
  *ids = 0;
  *bytes = 0;
  *vocab = NULL;
  if (json_is_array(given)) {
    if (json_array_size(given) > MS_TOKENIZER_MAX_IDS)
      return MS_FAIL(MS_EINVAL, "model.vocab has more than %d tokens", MS_TOKENIZER_MAX_IDS);
    MS_TRY(object_of_list(given, vocab));
    *ids = (int)json_array_size(given);
  } else if (json_is_object(given)) {
    *vocab = json_incref(given);
  } else {
    return MS_FAIL(MS_EINVAL, "model.vocab must be an object, or Unigram's list");
  }
  json_object_foreach(*vocab, token, value) {
    if (ms_field_id(value, token, &id)) return ms_error_prefix("model.vocab");
    if (id >= *ids) *ids = id + 1;
    *bytes += (int64_t)strlen(token);
  }
  return MS_OK;
}

/* Spelled in characters that stand for bytes, a token is these bytes; one with other characters is its own text, and no
 * word. */
static int spell_token(ms_tokenizer *t, ms_span text, int32_t id, int64_t *used) {
  ms_span *to = &t->token[id];
  uint8_t *at = t->token_bytes + *used;
  *to = (ms_span){at, text.bytes};
  const int is_word = !t->byte_level || ms_bytes_of_token(text, at, &to->bytes);
  if (!t->byte_level || !is_word) memcpy(at, text.at, (size_t)text.bytes);
  if (!is_word) to->bytes = text.bytes;
  *used += to->bytes;
  if (is_word) ms_words_add(t, id);
  if (is_word && to->bytes > t->longest) t->longest = to->bytes;
  return MS_OK;
}

int ms_vocab_read(ms_tokenizer *t, const json_t *vocab, int64_t *used) {
  char quoted[MS_ST_QUOTED];
  const char *token;
  json_t *value;
  MS_TRY(ms_words_new(t, (int64_t)json_object_size(vocab)));
  json_object_foreach((json_t *)vocab, token, value) {
    const int32_t id = (int32_t)json_integer_value(value);
    if (t->token[id].at)
      return MS_FAIL(MS_EINVAL, "model.vocab: %s has the id %d of another token", ms_st_quote(token, quoted), id);
    MS_TRY(spell_token(t, (ms_span){(const uint8_t *)token, (int64_t)strlen(token)}, id, used));
  }
  return MS_OK;
}

void ms_byte_tokens_find(ms_tokenizer *t) {
  char name[8];
  for (int byte = 0; byte < 256; byte++) {
    const int length = snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
    t->byte_id[byte] = ms_word_find(t, (ms_span){(const uint8_t *)name, length});
  }
}

int ms_unk_read(ms_tokenizer *t, const json_t *model, int must) {
  const json_t *given = json_object_get(model, "unk_token");
  char quoted[MS_ST_QUOTED];
  t->unk = -1;
  if (!must && (!given || json_is_null(given))) return MS_OK;
  if (!json_is_string(given)) return MS_FAIL(MS_EINVAL, "model.unk_token must be a token");
  const char *token = json_string_value(given);
  t->unk = ms_word_find(t, (ms_span){(const uint8_t *)token, (int64_t)strlen(token)});
  if (t->unk < 0 && !must) t->unk = MS_UNK_MISSING;
  if (t->unk < 0 && must)
    return MS_FAIL(MS_EINVAL, "model.unk_token: %s is not in model.vocab", ms_st_quote(token, quoted));
  return MS_OK;
}

int ms_model_ends_at_lines(const ms_tokenizer *t) {
  for (int id = 0; id < t->vocab; id++) {
    const ms_span token = t->token[id];
    if (token.bytes > 1 && memchr(token.at, '\n', (size_t)token.bytes - 1)) return 0;
  }
  return 1;
}
