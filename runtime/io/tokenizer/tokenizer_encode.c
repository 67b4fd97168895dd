/* tokenizer_encode.c - text to tokens: cuts out added tokens, and encodes the rest piece by piece through a cache of
 * words.
 *
 * Of several added tokens that begin at the same place the longest wins, and of overlapping ones the leftmost. Early
 * ones are cut out of the text, late ones out of the remainder.
 */
#include "base/error.h"
#include "io/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { CACHED = 1 << 16, PROBES = 4, CACHED_BYTES = 48, CACHED_IDS = 8 };

typedef struct cached_word {
  uint64_t hash; /* 0: an empty slot */
  uint8_t bytes, count;
  uint8_t word[CACHED_BYTES];
  int32_t id[CACHED_IDS];
} cached_word;

struct ms_encoder {
  const ms_tokenizer *tokenizer;
  ms_piece_matcher *matcher;
  cached_word *cache; /* [CACHED] */
  ms_bpe_memory memory;
  ms_id_list *ids; /* the current call's */
};

int ms_encoder_new(const ms_tokenizer *tokenizer, ms_encoder **encoder) {
  *encoder = NULL;
  ms_encoder *e = ms_calloc(1, sizeof *e);
  if (!e) return MS_ENOMEM;
  e->tokenizer = tokenizer;
  int rc = ms_piece_matcher_new(tokenizer->pieces, &e->matcher);
  if (!rc && !(e->cache = ms_calloc(CACHED, sizeof *e->cache))) rc = MS_ENOMEM;
  if (rc) {
    ms_encoder_free(e);
    return rc;
  }
  *encoder = e;
  return MS_OK;
}

void ms_encoder_free(ms_encoder *e) {
  if (!e) return;
  ms_piece_matcher_free(e->matcher);
  free(e->memory.node);
  free(e->memory.heap);
  free(e->cache);
  free(e);
}

/* Ensures room for `more` ids. */
static int make_room(ms_id_list *ids, int64_t more) {
  if (ids->room - ids->count >= more) return MS_OK;
  int64_t room = ids->room ? ids->room : 4096;
  while (room - ids->count < more) room *= 2;
  int32_t *grown = realloc(ids->id, (size_t)room * sizeof *grown);
  if (!grown) return MS_FAIL(MS_ENOMEM, "out of memory: %lld tokens", (long long)room);
  ids->id = grown;
  ids->room = room;
  return MS_OK;
}

static int add_id(ms_id_list *ids, int32_t id) {
  MS_TRY(make_room(ids, 1));
  ids->id[ids->count++] = id;
  return MS_OK;
}

/* ---- pieces ---- */

static int encode_piece(ms_encoder *e, ms_span piece) {
  const ms_tokenizer *t = e->tokenizer;
  if (t->ignore_merges) {
    const int32_t whole = ms_word_find(t, piece);
    if (whole >= 0) return add_id(e->ids, whole);
  }
  MS_TRY(make_room(e->ids, piece.bytes));
  int32_t *ids = e->ids->id + e->ids->count;
  for (int64_t i = 0; i < piece.bytes; i++) ids[i] = t->byte_id[piece.at[i]];
  const int64_t left = ms_bpe_merge(&t->merges, &e->memory, ids, piece.bytes);
  if (left < 0) return ms_error_code();
  e->ids->count += left;
  return MS_OK;
}

/* A free slot for the word, the slot that contains it (*found), or NULL if all its places are occupied. */
static cached_word *look_up(ms_encoder *e, ms_span piece, uint64_t hash, int *found) {
  for (uint64_t probe = 0; probe < PROBES; probe++) {
    cached_word *slot = &e->cache[(hash + probe) & (CACHED - 1)];
    *found = slot->hash == hash && slot->bytes == piece.bytes && !memcmp(slot->word, piece.at, slot->bytes);
    if (*found || !slot->hash) return slot;
  }
  *found = 0;
  return NULL;
}

static int encode_cached(ms_encoder *e, ms_span piece) {
  int found;
  if (piece.bytes > CACHED_BYTES) return encode_piece(e, piece);
  const uint64_t hash = XXH3_64bits(piece.at, (size_t)piece.bytes) | 1u << 31;
  cached_word *slot = look_up(e, piece, hash, &found);
  if (found) {
    MS_TRY(make_room(e->ids, CACHED_IDS));
    memcpy(e->ids->id + e->ids->count, slot->id, sizeof slot->id); /* slots past the count are overwritten later */
    e->ids->count += slot->count;
    return MS_OK;
  }
  const int64_t before = e->ids->count;
  MS_TRY(encode_piece(e, piece));
  const int64_t count = e->ids->count - before;
  if (!slot || count > CACHED_IDS) return MS_OK;
  slot->hash = hash;
  slot->bytes = (uint8_t)piece.bytes;
  slot->count = (uint8_t)count;
  memcpy(slot->word, piece.at, (size_t)piece.bytes);
  memcpy(slot->id, e->ids->id + before, (size_t)count * sizeof *slot->id);
  return MS_OK;
}

/* ---- added tokens ---- */

static const ms_added_token *added_at(const ms_tokenizer *t, ms_span text, int64_t at, int late) {
  const ms_added_token *longest = NULL;
  if (!t->begins[late][text.at[at]]) return NULL;
  for (int i = 0; i < t->n_added; i++) {
    const ms_added_token *a = &t->added[i];
    if (a->late == late && a->bytes <= text.bytes - at && (!longest || a->bytes > longest->bytes) &&
        !memcmp(a->content, text.at + at, (size_t)a->bytes))
      longest = a;
  }
  return longest;
}

/* The start of the next added token of a kind in [from, end of text); the text's end if there is none. */
static int64_t next_added(const ms_tokenizer *t, ms_span text, int64_t from, int late, const ms_added_token **token) {
  for (int64_t at = t->added_of[late] ? from : text.bytes; at < text.bytes; at++)
    if ((*token = added_at(t, text, at, late))) return at;
  *token = NULL;
  return text.bytes;
}

/* ---- a stretch of text ---- */

/* Encodes the pieces that begin in [begin, end) of a text without added tokens. */
static int encode_pieces(ms_encoder *e, ms_span text, int64_t begin, int64_t end, int64_t *stop) {
  while (begin < end) {
    int64_t after;
    MS_TRY(ms_piece_next(e->matcher, text, begin, &after));
    MS_TRY(encode_cached(e, (ms_span){text.at + begin, after - begin}));
    begin = after;
  }
  *stop = begin;
  return MS_OK;
}

/* Cuts out the tokens of one kind; kind 0 passes the remainder to kind 1, and that to the pieces. */
static int encode_around(ms_encoder *e, ms_span text, int64_t begin, int64_t end, int late, int64_t *stop) {
  while (begin < end) {
    const ms_added_token *token;
    const int64_t at = next_added(e->tokenizer, text, begin, late, &token);
    const ms_span plain = {text.at, at};
    const int64_t plain_end = at < end ? at : end;
    if (late) {
      MS_TRY(encode_pieces(e, plain, begin, plain_end, stop));
    } else {
      MS_TRY(encode_around(e, plain, begin, plain_end, 1, stop));
    }
    begin = *stop;
    if (begin < at || at >= end) break;
    MS_TRY(add_id(e->ids, token->id));
    begin = at + token->bytes;
  }
  *stop = begin;
  return MS_OK;
}

int ms_encoder_run(ms_encoder *e, ms_span text, int64_t begin, int64_t end, ms_id_list *ids, int64_t *stop) {
  e->ids = ids;
  *stop = begin;
  return encode_around(e, text, begin, end, 0, stop);
}

/* ---- the public calls ---- */

int ms_tokenizer_encode(ms_tokenizer *t, const char *text, int64_t bytes, const int32_t **ids, int64_t *count) {
  MS_HANDLE(t, TOKENIZER);
  MS_GIVEN(ids);
  MS_GIVEN(count);
  MS_NOT_NEGATIVE(bytes);
  if (bytes > 0) MS_GIVEN(text);
  const ms_span span = {(const uint8_t *)text, bytes};
  const int64_t invalid = ms_utf8_invalid(span);
  int64_t stop;
  if (invalid < bytes)
    return MS_FAIL(MS_EINVAL, "byte %lld of the text, 0x%02x, is not UTF-8", (long long)invalid, span.at[invalid]);
  if (!t->own) MS_TRY(ms_encoder_new(t, &t->own));
  t->encoded.count = 0;
  MS_TRY(ms_encoder_run(t->own, span, 0, bytes, &t->encoded, &stop));
  *ids = t->encoded.id;
  *count = t->encoded.count;
  return MS_OK;
}

int ms_tokenizer_decode(ms_tokenizer *t, const int32_t *ids, int64_t count, const char **text, int64_t *bytes) {
  MS_HANDLE(t, TOKENIZER);
  MS_GIVEN(text);
  MS_GIVEN(bytes);
  MS_NOT_NEGATIVE(count);
  if (count > 0) MS_GIVEN(ids);
  int64_t all = 0;
  for (int64_t i = 0; i < count; i++) {
    if (ids[i] < 0 || ids[i] >= t->vocab || !t->token[ids[i]].at)
      return MS_FAIL(MS_EINVAL, "%s: there is no token %d: ids are below %d", t->path, ids[i], t->vocab);
    all += t->token[ids[i]].bytes;
  }
  if (all >= INT32_MAX / 2)
    return MS_FAIL(MS_EINVAL, "%lld tokens are %lld bytes of text: decode fewer at once", (long long)count,
                   (long long)all);
  MS_TRY(ms_grow((void **)&t->decoded, &t->decoded_room, (int)all + 1, 1));
  char *to = t->decoded;
  for (int64_t i = 0; i < count; i++) {
    const ms_span token = t->token[ids[i]];
    memcpy(to, token.at, (size_t)token.bytes);
    to += token.bytes;
  }
  *to = '\0';
  *text = t->decoded;
  *bytes = all;
  return MS_OK;
}
