/* unigram.c - Unigram: of all ways to write a piece as tokens, the most probable one (Viterbi 1967).
 *
 * A character that no token begins and ends with costs ten more than the least probable token. Neighbouring unknown
 * ones become one, which is spelled in bytes if there are tokens for these.
 */
#include "base/error.h"
#include "io/tokenizer/tokenizer_fields.h"
#include "io/tokenizer/models/models.h"
#include "io/tokenizer/steps/unicode.h"

#include <string.h>

static const double UNKNOWN_COSTS = 10.0;

int ms_unigram_read(ms_tokenizer *t, const json_t *model, const json_t *vocab) {
  const json_t *list = json_object_get(model, "vocab"), *unk = json_object_get(model, "unk_id");
  size_t i;
  json_t *entry;
  (void)vocab;
  if (!json_is_array(list)) return MS_FAIL(MS_EINVAL, "model.vocab must be a list of tokens and scores");
  if (!(t->score = ms_calloc(t->vocab, sizeof *t->score))) return MS_ENOMEM;
  double least = 0;
  json_array_foreach((json_t *)list, i, entry) {
    t->score[i] = json_number_value(json_array_get(entry, 1));
    if (!i || t->score[i] < least) least = t->score[i];
  }
  t->unk_score = least - UNKNOWN_COSTS;
  t->unk = -1;
  if (unk && !json_is_null(unk)) {
    if (ms_field_id(unk, "unk_id", &t->unk)) return ms_error_prefix("model.unk_id");
    if (t->unk >= (int64_t)json_array_size(list))
      return MS_FAIL(MS_EINVAL, "model.unk_id is %d, and the vocabulary has %zu tokens", t->unk, json_array_size(list));
  }
  MS_TRY(ms_field_flag(model, "model", "byte_fallback", &t->byte_fallback));
  ms_byte_tokens_find(t);
  t->model = &ms_unigram;
  return MS_OK;
}

typedef struct ms_unigram_node {
  double score;  /* of the best way from the piece's begin to here */
  int32_t id;    /* its last token, */
  int64_t begin; /* which begins there; -1: there is no way yet */
} node;

static void offer(node *to, double score, int32_t id, int64_t begin) {
  if (to->begin >= 0 && score <= to->score) return;
  *to = (node){score, id, begin};
}

static int find_best(ms_encoder *e, ms_span piece) {
  const ms_tokenizer *t = e->tokenizer;
  node *path = e->path;
  for (int64_t i = 0; i <= piece.bytes; i++) path[i] = (node){0, -1, -1};
  for (int64_t at = 0, next; at < piece.bytes; at = next) {
    int is_token = 0;
    next = at + ms_model_unit(t, piece.at[at]);
    for (int64_t end = next; end - at <= t->longest; end += ms_model_unit(t, piece.at[end])) {
      const int32_t id = ms_word_find(t, (ms_span){piece.at + at, end - at});
      if (id >= 0) offer(&path[end], path[at].score + t->score[id], id, at);
      is_token |= id >= 0 && end == next;
      if (end >= piece.bytes) break;
    }
    if (is_token) continue;
    if (t->unk < 0)
      return MS_FAIL(MS_EINVAL, "byte %lld of a word is no token, and the tokenizer has no unk_id", (long long)at);
    offer(&path[next], path[at].score + t->unk_score, t->unk, at);
  }
  return MS_OK;
}

static int add_unknown(ms_encoder *e, ms_span text) {
  const ms_tokenizer *t = e->tokenizer;
  const int32_t whole = ms_word_find(t, text);
  if (whole >= 0) return ms_id_add(e->ids, whole);
  if (t->byte_level && t->byte_fallback) { /* the bytes of the characters that stand for bytes */
    e->spelled.length = 0;
    ms_bytes_spell(&e->spelled, text);
    MS_TRY(ms_text_status(&e->spelled));
    text = (ms_span){(const uint8_t *)e->spelled.data, (int64_t)e->spelled.length};
  }
  int all = t->byte_fallback;
  for (int64_t i = 0; i < text.bytes; i++) all = all && t->byte_id[text.at[i]] >= 0;
  if (!all) return ms_id_add(e->ids, t->unk);
  for (int64_t i = 0; i < text.bytes; i++) MS_TRY(ms_id_add(e->ids, t->byte_id[text.at[i]]));
  return MS_OK;
}

static int encode(ms_encoder *e, ms_span piece) {
  const ms_tokenizer *t = e->tokenizer;
  if (piece.bytes >= INT32_MAX)
    return MS_FAIL(MS_EINVAL, "a piece of %lld bytes is more than can be tokenized", (long long)piece.bytes);
  MS_TRY(ms_grow((void **)&e->path, &e->path_capacity, (int)piece.bytes + 1, sizeof *e->path));
  MS_TRY(find_best(e, piece));
  /* Turns the way around: each node gets the end of its token, from the last to the first. */
  node *path = e->path;
  int64_t end = piece.bytes, after = -1;
  while (end > 0) {
    const int64_t begin = path[end].begin;
    path[end].begin = after;
    after = end;
    end = begin;
  }
  for (int64_t at = 0; after > 0;) {
    int64_t stop = after;
    const int32_t id = path[stop].id;
    while (id == t->unk && path[stop].begin > 0 && path[path[stop].begin].id == t->unk) stop = path[stop].begin;
    if (id == t->unk) {
      MS_TRY(add_unknown(e, (ms_span){piece.at + at, stop - at}));
    } else {
      MS_TRY(ms_id_add(e->ids, id));
    }
    at = stop;
    after = path[stop].begin;
  }
  return MS_OK;
}

const ms_token_model ms_unigram = {"Unigram", encode};
