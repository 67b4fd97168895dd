/* tokenizer.h - byte-level BPE as described by a tokenizer.json: what its reader, encoder and decoder share.
 *
 * Text is split in three steps: at added tokens, which are matched literally; then by a pattern into pieces (words,
 * numbers, blanks); and within a piece, starting from its bytes, neighbouring tokens merge, the pair with the lowest
 * rank first (Sennrich et al. 2016; bytes as the alphabet: Radford et al. 2019).
 */
#ifndef MS_IO_TOKENIZER_H
#define MS_IO_TOKENIZER_H

#include "base/handle.h"
#include "moonshard.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ms_span {
  const uint8_t *at;
  int64_t bytes;
} ms_span;

/* ---- the pattern: what pieces are ------------------------------------------------------------------------------- */

typedef struct ms_pieces ms_pieces;               /* a compiled pattern; read-only, any thread can use it */
typedef struct ms_piece_matcher ms_piece_matcher; /* one thread's working memory for matching */

/* pattern NULL: GPT-2's. MS_EINVAL names the unsupported construct. */
int ms_pieces_compile(const char *pattern, ms_pieces **pieces);
void ms_pieces_free(ms_pieces *pieces);
int ms_piece_matcher_new(const ms_pieces *pieces, ms_piece_matcher **matcher);
void ms_piece_matcher_free(ms_piece_matcher *matcher);
/* The end of the piece that begins at `from`; the text must be valid UTF-8. A stretch that the pattern does not match
 * is a piece too. */
int ms_piece_next(ms_piece_matcher *matcher, ms_span text, int64_t from, int64_t *end);

/* ---- bytes as characters: the printable ones stand for themselves, the others for U+0100 and up ----------------- */

/* Converts a token's characters to bytes; returns 0 if a character does not represent a byte. out: [strlen(token)]. */
int ms_bytes_of_token(const char *token, uint8_t *out, int64_t *bytes);

/* ---- merges ----------------------------------------------------------------------------------------------------- */

typedef struct ms_merge {
  int32_t left, right; /* -1: empty slot */
  int32_t rank, id;
} ms_merge;

typedef struct ms_merges {
  ms_merge *slot; /* hash table; the number of slots is a power of two */
  uint32_t mask;
} ms_merges;

int ms_merges_new(ms_merges *merges, int64_t count);
/* Returns 1 if the pair already exists, and leaves it unchanged. */
int ms_merges_add(ms_merges *merges, ms_merge merge);
const ms_merge *ms_merges_find(const ms_merges *merges, int32_t left, int32_t right);

/* One thread's working memory; grows as needed. */
typedef struct ms_bpe_memory {
  struct ms_bpe_node *node;
  struct ms_bpe_pair *heap;
  int nodes, pairs;
} ms_bpe_memory;

/* Merges ids [count] in place, from the tokens of single bytes. Returns the number of tokens left,
 * or -1 (MS_ENOMEM). */
int64_t ms_bpe_merge(const ms_merges *merges, ms_bpe_memory *memory, int32_t *ids, int64_t count);

/* ---- the tokenizer ---------------------------------------------------------------------------------------------- */

typedef struct ms_added_token {
  char *content;
  int64_t bytes;
  int32_t id;
  int special, late; /* late ("normalized"): matched after the other added tokens, in the text they leave */
} ms_added_token;

/* Words that are tokens without any merge, looked up by their bytes. */
typedef struct ms_word_table {
  int32_t *slot; /* id, or -1 */
  uint32_t mask;
} ms_word_table;

typedef struct ms_id_list {
  int32_t *id;
  int64_t count, room;
} ms_id_list;

typedef struct ms_around {
  int32_t *id;
  int count, room;
} ms_around;

struct ms_tokenizer {
  ms_handle handle;
  char *path;
  ms_pieces *pieces;
  ms_merges merges;
  int32_t byte_id[256];
  int ignore_merges; /* 1: a piece that is in the vocabulary is one token, without merging */
  int vocab;         /* largest id + 1 */
  ms_span *token;    /* [vocab] bytes of each id; at is NULL if there is no such token */
  uint8_t *token_bytes;
  ms_word_table words;
  ms_added_token *added;
  int n_added;
  int32_t *added_id;      /* [n_added] */
  int added_of[2];        /* number of early and of late ones */
  uint8_t begins[2][256]; /* 1: an added token (early, late) begins with this byte */
  ms_around around[2];    /* before and behind a text; encoding does not put them there */
  struct ms_encoder *own; /* used by ms_tokenizer_encode */
  ms_id_list encoded;
  char *decoded;
  int decoded_room;
};

/* Parses the text of a tokenizer.json; path is for messages. */
int ms_tokenizer_parse(const char *path, const char *text, int64_t length, ms_tokenizer **tokenizer);

/* The table of words, for at most `count` of them. A word is identified by its token id and is added once. */
int ms_words_new(ms_tokenizer *tokenizer, int64_t count);
void ms_words_add(ms_tokenizer *tokenizer, int32_t id);
int32_t ms_word_find(const ms_tokenizer *tokenizer, ms_span word);

/* An encoder for use by one thread. */
typedef struct ms_encoder ms_encoder;

int ms_encoder_new(const ms_tokenizer *tokenizer, ms_encoder **encoder);
void ms_encoder_free(ms_encoder *encoder);
/* Appends the tokens of the pieces and added tokens that begin in [begin, end); the text must be valid UTF-8, and one
 * of them must begin at `begin`. *stop: where the next one begins, at or after `end`. */
int ms_encoder_run(ms_encoder *encoder, ms_span text, int64_t begin, int64_t end, ms_id_list *ids, int64_t *stop);

/* The offset of the first byte that is not valid UTF-8; text.bytes if there is none. */
int64_t ms_utf8_invalid(ms_span text);
/* Copies the text with U+FFFD in place of each invalid sequence (the Unicode standard's "maximal subpart" practice).
 * The caller frees *clean. */
int ms_utf8_replace(ms_span text, uint8_t **clean, int64_t *bytes);

#endif
