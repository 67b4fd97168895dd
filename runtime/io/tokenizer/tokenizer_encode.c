/* tokenizer_encode.c - text to tokens: cuts out added tokens, and encodes the rest piece by piece through a cache of
 * words.
 *
 * Early added tokens are cut out of the text, late ones out of the normalized remainder. Where pieces are those of one
 * pattern (in_place), they are cut from the text as it is; otherwise each step makes copies.
 */
#include "base/error.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/steps/steps.h"

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

int ms_encoder_new(const ms_tokenizer *tokenizer, ms_encoder **encoder) {
  *encoder = NULL;
  ms_encoder *e = ms_calloc(1, sizeof *e);
  if (!e) return MS_ENOMEM;
  e->tokenizer = tokenizer;
  int rc = MS_OK;
  if (!(e->matcher = ms_calloc(tokenizer->patterns + 1, sizeof *e->matcher))) rc = MS_ENOMEM;
  for (int i = 0; !rc && i < tokenizer->patterns; i++) rc = ms_piece_matcher_new(tokenizer->pattern[i], &e->matcher[i]);
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
  for (int i = 0; e->matcher && i < e->tokenizer->patterns; i++) ms_piece_matcher_free(e->matcher[i]);
  for (int i = 0; i < 2; i++) {
    ms_text_free(&e->normalized[i]);
    ms_piece_list_free(&e->pieces[i]);
  }
  ms_text_free(&e->spelled);
  ms_text_free(&e->joined);
  free(e->matcher);
  free(e->memory.node);
  free(e->memory.heap);
  free(e->path);
  free(e->cache);
  free(e);
}

int ms_id_reserve(ms_id_list *ids, int64_t more) {
  if (ids->room - ids->count >= more) return MS_OK;
  int64_t room = ids->room ? ids->room : 4096;
  while (room - ids->count < more) room *= 2;
  int32_t *grown = realloc(ids->id, (size_t)room * sizeof *grown);
  if (!grown) return MS_FAIL(MS_ENOMEM, "out of memory: %lld tokens", (long long)room);
  ids->id = grown;
  ids->room = room;
  return MS_OK;
}

int ms_id_add(ms_id_list *ids, int32_t id) {
  MS_TRY(ms_id_reserve(ids, 1));
  ids->id[ids->count++] = id;
  return MS_OK;
}

/* ---- pieces ---- */

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
  if (piece.bytes > CACHED_BYTES) return e->tokenizer->model->encode(e, piece);
  const uint64_t hash = XXH3_64bits(piece.at, (size_t)piece.bytes) | 1u << 31;
  cached_word *slot = look_up(e, piece, hash, &found);
  if (found) {
    MS_TRY(ms_id_reserve(e->ids, CACHED_IDS));
    memcpy(e->ids->id + e->ids->count, slot->id, sizeof slot->id); /* slots past the count are overwritten later */
    e->ids->count += slot->count;
    return MS_OK;
  }
  const int64_t before = e->ids->count;
  MS_TRY(e->tokenizer->model->encode(e, piece));
  const int64_t count = e->ids->count - before;
  if (!slot || count > CACHED_IDS) return MS_OK;
  slot->hash = hash;
  slot->bytes = (uint8_t)piece.bytes;
  slot->count = (uint8_t)count;
  memcpy(slot->word, piece.at, (size_t)piece.bytes);
  memcpy(slot->id, e->ids->id + before, (size_t)count * sizeof *slot->id);
  return MS_OK;
}

/* ---- a stretch of text ---- */

/* Encodes the pieces that begin in [begin, end) of a text without added tokens. */
static int encode_in_place(ms_encoder *e, ms_span text, int64_t begin, int64_t end, int64_t *stop) {
  while (begin < end) {
    int64_t after;
    MS_TRY(ms_piece_next(e->matcher[e->tokenizer->place_matcher], text, begin, &after));
    MS_TRY(encode_cached(e, (ms_span){text.at + begin, after - begin}));
    begin = after;
  }
  *stop = begin;
  return MS_OK;
}

static int encode_pieces(ms_encoder *e, ms_span text, int first) {
  const ms_piece_list *pieces;
  MS_TRY(ms_cut(e, text, first, &pieces));
  for (int i = 0; i < pieces->count; i++) MS_TRY(encode_cached(e, ms_piece_text(pieces, i)));
  return MS_OK;
}

/* Cuts late tokens out of normalized text. first: it begins the whole text. */
static int encode_late(ms_encoder *e, ms_span text, int64_t begin, int64_t end, int first, int64_t *stop) {
  while (begin < end) {
    const ms_added_match match = ms_added_next(e->tokenizer, text, begin, 1);
    const int64_t plain_end = match.begin < end ? match.begin : end;
    *stop = plain_end;
    if (e->tokenizer->in_place) {
      MS_TRY(encode_in_place(e, (ms_span){text.at, match.begin}, begin, plain_end, stop));
    } else if (plain_end > begin) {
      MS_TRY(encode_pieces(e, (ms_span){text.at + begin, plain_end - begin}, first && !begin));
    }
    begin = *stop;
    if (begin < match.begin || match.begin >= end) break;
    MS_TRY(ms_id_add(e->ids, match.token->id));
    begin = match.end;
  }
  *stop = begin;
  return MS_OK;
}

/* Normalizes [begin, end) and, if pieces may look at it, what follows. *limit: where the second begins. */
static int normalize_around(ms_encoder *e, ms_span text, int64_t begin, int64_t end, int goes_on, ms_span *out,
                            int64_t *limit) {
  MS_TRY(ms_normalize(e, (ms_span){text.at + begin, end - begin}, goes_on, out));
  *limit = out->bytes;
  if (!e->tokenizer->in_place || end == text.bytes) return MS_OK;
  e->joined.length = 0;
  ms_text_raw(&e->joined, (const char *)out->at, (size_t)out->bytes);
  MS_TRY(ms_normalize(e, (ms_span){text.at + end, text.bytes - end}, 1, out));
  ms_text_raw(&e->joined, (const char *)out->at, (size_t)out->bytes);
  *out = (ms_span){(const uint8_t *)e->joined.data, (int64_t)e->joined.length};
  return ms_text_status(&e->joined);
}

/* Encodes [begin, end) of a text without early tokens. goes_on: it follows another stretch of it. Where a piece goes on
 * past the end, the rest is encoded with it, since a place in normalized text has none in the text. */
static int encode_plain(ms_encoder *e, ms_span text, int64_t begin, int64_t end, int goes_on, int64_t *stop) {
  const ms_tokenizer *t = e->tokenizer;
  if (t->in_place && !t->normalizers.count) return encode_late(e, text, begin, end, 0, stop);
  const int64_t before = e->ids->count;
  ms_span normalized;
  int64_t limit, reached = 0;
  *stop = end;
  if (begin == end) return MS_OK;
  MS_TRY(normalize_around(e, text, begin, end, goes_on, &normalized, &limit));
  MS_TRY(encode_late(e, normalized, 0, limit, !begin, &reached));
  if (reached <= limit) return MS_OK;
  e->ids->count = before;
  return encode_plain(e, text, begin, text.bytes, goes_on, stop);
}

int ms_encoder_run(ms_encoder *e, ms_span text, int64_t begin, int64_t end, ms_id_list *ids, int64_t *stop) {
  int goes_on = begin > 0;
  e->ids = ids;
  *stop = begin;
  while (begin < end) {
    const ms_added_match match = ms_added_next(e->tokenizer, text, begin, 0);
    const int64_t plain_end = match.begin < end ? match.begin : end;
    MS_TRY(encode_plain(e, (ms_span){text.at, match.begin}, begin, plain_end, goes_on, stop));
    goes_on = 0;
    begin = *stop;
    if (begin < match.begin || match.begin >= end) break;
    MS_TRY(ms_id_add(ids, match.token->id));
    begin = match.end;
  }
  *stop = begin;
  return MS_OK;
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
  t->encoded.count = 0;
  MS_TRY(ms_encoder_run(t->own, span, 0, bytes, &t->encoded, &stop));
  *ids = t->encoded.id;
  *count = t->encoded.count;
  return MS_OK;
}
