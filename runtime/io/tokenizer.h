/* tokenizer.h - byte-level BPE as a tokenizer.json describes it: what its reader, its encoder and its decoder share.
**
** Text is cut in three: at added tokens, which stand for themselves; then, by a pattern, into pieces (words, numbers,
** blanks); and within a piece neighbouring tokens merge, from its bytes on, the pair of lowest rank first (Sennrich et al.
** 2016; bytes as the alphabet: Radford et al. 2019).
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

/* ---- the pattern: what pieces are --------------------------------------------------------------------------------- */

typedef struct ms_pieces ms_pieces;               /* a compiled pattern; read-only, for all threads */
typedef struct ms_piece_matcher ms_piece_matcher; /* one thread's working memory for it */

/* pattern NULL: GPT-2's. MS_EINVAL names what is not supported. */
int ms_pieces_compile(const char *pattern, ms_pieces **pieces);
void ms_pieces_free(ms_pieces *pieces);
int ms_piece_matcher_new(const ms_pieces *pieces, ms_piece_matcher **matcher);
void ms_piece_matcher_free(ms_piece_matcher *matcher);
/* The end of the piece that begins at `from` of a text of valid UTF-8. What the pattern leaves out is a piece too. */
int ms_piece_next(ms_piece_matcher *matcher, ms_span text, int64_t from, int64_t *end);

/* ---- bytes as characters: the printable ones stand for themselves, the others for U+0100 and up -------------------- */

/* The characters of a token as bytes; 0 when one of them stands for no byte. out: [strlen(token)]. */
int ms_bytes_of_token(const char *token, uint8_t *out, int64_t *bytes);

/* ---- merges --------------------------------------------------------------------------------------------------------- */

typedef struct ms_merge {
  int32_t left, right; /* -1: an empty slot */
  int32_t rank, id;
} ms_merge;

typedef struct ms_merges {
  ms_merge *slot; /* a hash table with a power of two of slots */
  uint32_t mask;
} ms_merges;

int ms_merges_new(ms_merges *merges, int64_t count);
/* 1 when the pair was there already, and stays as it was. */
int ms_merges_add(ms_merges *merges, ms_merge merge);
const ms_merge *ms_merges_find(const ms_merges *merges, int32_t left, int32_t right);

/* Working memory of one thread, grown as needed. */
typedef struct ms_bpe_memory {
  struct ms_bpe_node *node;
  struct ms_bpe_pair *heap;
  int nodes, pairs;
} ms_bpe_memory;

/* ids: [count], the tokens of single bytes, in; merged tokens out. Gives how many are left, or -1 (MS_ENOMEM). */
int64_t ms_bpe_merge(const ms_merges *merges, ms_bpe_memory *memory, int32_t *ids, int64_t count);

/* ---- the tokenizer -------------------------------------------------------------------------------------------------- */

typedef struct ms_added_token {
  char *content;
  int64_t bytes;
  int32_t id;
  int special, late; /* late: looked for in what the others leave ("normalized") */
} ms_added_token;

/* Words that are tokens as they are, by their bytes. */
typedef struct ms_word_table {
  int32_t *slot; /* id, or -1 */
  uint32_t mask;
} ms_word_table;

typedef struct ms_id_list {
  int32_t *id;
  int64_t count, room;
} ms_id_list;

struct ms_tokenizer {
  ms_handle handle;
  char *path;
  ms_pieces *pieces;
  ms_merges merges;
  int32_t byte_id[256];
  int ignore_merges; /* a piece that is a token is that token, whatever merges say */
  int vocab;         /* largest id + 1 */
  ms_span *token;    /* [vocab] what each id stands for; at is NULL where there is no such token */
  uint8_t *token_bytes;
  ms_word_table words;
  ms_added_token *added;
  int n_added;
  int added_of[2];        /* how many there are: early ones, late ones */
  uint8_t begins[2][256]; /* which bytes they begin with */
  struct ms_encoder *own; /* of ms_tokenizer_encode */
  ms_id_list encoded;
  char *decoded;
  int decoded_room;
};

/* Of the text of a tokenizer.json; path is for messages. */
int ms_tokenizer_parse(const char *path, const char *text, int64_t length, ms_tokenizer **tokenizer);

/* The table of words, `count` of them at most; a word is the bytes of token id, and is in it once. */
int ms_words_new(ms_tokenizer *tokenizer, int64_t count);
void ms_words_add(ms_tokenizer *tokenizer, int32_t id);
int32_t ms_word_find(const ms_tokenizer *tokenizer, ms_span word);

/* One thread's encoder. */
typedef struct ms_encoder ms_encoder;

int ms_encoder_new(const ms_tokenizer *tokenizer, ms_encoder **encoder);
void ms_encoder_free(ms_encoder *encoder);
/* Adds the tokens of pieces (and added tokens) that begin in [begin, end) of a text of valid UTF-8 to a list; `begin` must be
** where one begins. *stop: where the next one begins, at `end` or behind it. */
int ms_encoder_run(ms_encoder *encoder, ms_span text, int64_t begin, int64_t end, ms_id_list *ids, int64_t *stop);

/* The first byte that is not valid UTF-8; text.bytes when there is none. */
int64_t ms_utf8_invalid(ms_span text);
/* The text with each part that is not UTF-8 as U+FFFD (the Unicode standard's "maximal subpart" practice). The caller frees
** it. */
int ms_utf8_replace(ms_span text, uint8_t **clean, int64_t *bytes);

#endif
