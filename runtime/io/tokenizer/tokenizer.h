/* tokenizer.h - a tokenizer as described by a tokenizer.json: what its reader, encoder and decoder share.
 *
 * Text becomes tokens in four steps: it is cut at added tokens, which are matched literally; normalizers change what
 * lies between them; pre-tokenizers cut that into pieces (words, numbers, blanks); and a model makes tokens of each
 * piece: BPE (Sennrich et al. 2016; bytes as the alphabet: Radford et al. 2019), Unigram (Kudo 2018), WordPiece
 * (Schuster and Nakajima 2012) or whole words. Decoders make text of tokens.
 */
#ifndef MS_IO_TOKENIZER_H
#define MS_IO_TOKENIZER_H

#include "base/handle.h"
#include "base/text/text.h"
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

#define MS_GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* MS_EINVAL names the unsupported construct. */
int ms_pieces_compile(const char *pattern, ms_pieces **pieces);
void ms_pieces_free(ms_pieces *pieces);
int ms_piece_matcher_new(const ms_pieces *pieces, ms_piece_matcher **matcher);
void ms_piece_matcher_free(ms_piece_matcher *matcher);
/* The end of the piece that begins at `from`; the text must be valid UTF-8. A stretch that the pattern does not match
 * is a piece too. */
int ms_piece_next(ms_piece_matcher *matcher, ms_span text, int64_t from, int64_t *end);
/* The first match at or after `from`; *begin: -1 without one. It can be empty. */
int ms_piece_match(ms_piece_matcher *matcher, ms_span text, int64_t from, int64_t *begin, int64_t *end);

/* ---- pieces of a text, each with its own copy ------------------------------------------------------------------- */

typedef struct ms_piece {
  int64_t begin, bytes;
  int first; /* 1: it begins the whole text */
} ms_piece;

typedef struct ms_piece_list {
  ms_text text;
  ms_piece *piece;
  int count, room;
} ms_piece_list;

/* ---- steps before and after the model (steps/steps.h) ------------------------------------------------------- */

typedef struct ms_step ms_step;

typedef struct ms_step_list {
  ms_step *step;
  int count, room;
} ms_step_list;

/* What becomes of the parts of a piece that match a pattern, and of the others between them. */
enum ms_split_behavior { MS_ISOLATED, MS_REMOVED, MS_MERGED_WITH_PREVIOUS, MS_MERGED_WITH_NEXT, MS_CONTIGUOUS };

/* ---- bytes as characters: the printable ones stand for themselves, the others for U+0100 and up ----------------- */

/* Converts a token's characters to bytes; returns 0 if a character does not represent a byte. out: [token.bytes]. */
int ms_bytes_of_token(ms_span token, uint8_t *out, int64_t *bytes);
/* Appends the characters of bytes. */
void ms_bytes_spell(ms_text *out, ms_span bytes);

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

/* Merges ids [count] in place, from the tokens of single bytes or characters. Returns the number of tokens left,
 * or -1 (MS_ENOMEM). */
int64_t ms_bpe_merge(const ms_merges *merges, ms_bpe_memory *memory, int32_t *ids, int64_t count);

/* ---- the tokenizer ---------------------------------------------------------------------------------------------- */

typedef struct ms_added_token {
  char *content;
  int64_t bytes;
  uint8_t *sought; /* what is looked for: of late ones, the normalized content */
  int64_t sought_bytes;
  int32_t id;
  int special, late;  /* late ("normalized"): matched after the other added tokens, in the normalized text they leave */
  int single_word;    /* matched only where no letter, digit or mark is next to it */
  int lstrip, rstrip; /* the blanks before it, and after it, are its own */
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
  ms_step_list normalizers, pre_tokenizers, decoders;
  ms_pieces **pattern; /* [patterns] of steps, which own them */
  int patterns, patterns_capacity;
  const struct ms_token_model *model;
  int byte_level;    /* 1: tokens are spelled in characters that stand for bytes, and pieces are bytes */
  int in_place;      /* 1: pieces are those of one pattern, so that no step has to make copies */
  int place_matcher; /* of that pattern, among the encoder's */
  int by_lines;      /* 1: files can be cut between lines, of which the second does not begin with a blank */
  int vocab;         /* largest id + 1 */
  int listed;        /* number of entries of the model's vocabulary */
  ms_span *token;    /* [vocab] bytes of each id; at is NULL if there is no such token */
  ms_span *text;     /* [vocab] what each id is decoded to before the decoders: late added tokens as they are sought */
  uint8_t *token_bytes;
  ms_word_table words;

  /* BPE */
  ms_merges merges;
  int32_t byte_id[256]; /* byte_level: the token of each byte. Otherwise: of "<0x0A>" and the like, -1: none */
  int ignore_merges;    /* 1: a piece that is in the vocabulary is one token, without merging */
  int byte_fallback;    /* 1: characters that are no tokens are those of their bytes */
  int fuse_unk;         /* 1: neighbouring unknown characters are one token */
  char *prefix;         /* before the characters of a word but the first; WordPiece's, too. "": none */
  char *suffix;         /* after the last character of a word */
  int32_t unk;          /* the token of what is unknown, or -1 */
  /* Unigram */
  double *score, unk_score; /* [vocab] logarithms of probabilities */
  int64_t longest;          /* bytes of the longest token; WordPiece's, too */
  /* WordPiece */
  int64_t max_chars; /* longer words are unknown */

  ms_added_token *added;
  int n_added;
  int32_t *added_id, *added_flags; /* [n_added] */
  int added_of[2];                 /* number of early and of late ones */
  uint8_t begins[2][256];          /* 1: an added token (early, late) begins with this byte */
  ms_around around[2];             /* before and after a text; encoding does not put them there */
  struct ms_encoder *own;          /* used by ms_tokenizer_encode */
  ms_id_list encoded;
  ms_text decoded;
  ms_piece_list decoding[2]; /* tokens' texts before and after a step */
};

/* Parses the text of a tokenizer.json; path is for messages. */
int ms_tokenizer_parse(const char *path, const char *text, int64_t length, ms_tokenizer **tokenizer);

/* The table of words, for at most `count` of them. A word is identified by its token id and is added once. */
int ms_words_new(ms_tokenizer *tokenizer, int64_t count);
void ms_words_add(ms_tokenizer *tokenizer, int32_t id);
int32_t ms_word_find(const ms_tokenizer *tokenizer, ms_span word);

/* An encoder for use by one thread. */
typedef struct ms_encoder ms_encoder;

struct ms_encoder {
  const ms_tokenizer *tokenizer;
  ms_piece_matcher **matcher; /* [patterns] */
  struct cached_word *cache;
  ms_bpe_memory memory;
  struct ms_unigram_node *path; /* Unigram: the best way to each byte of a piece */
  int path_capacity;
  ms_text normalized[2];
  ms_piece_list pieces[2];
  ms_text joined;  /* normalized text, and what follows it */
  ms_text spelled; /* a word as the vocabulary has it */
  ms_id_list *ids; /* the current call's */
};

int ms_id_reserve(ms_id_list *ids, int64_t more);
int ms_id_add(ms_id_list *ids, int32_t id);

/* ---- added tokens in a text (tokenizer_added.c) ----------------------------------------------------------------- */

typedef struct ms_added_match {
  const ms_added_token *token; /* NULL: there is none */
  int64_t begin, end;          /* with the blanks that are its own */
} ms_added_match;

/* The next added token of a kind; without one, at the text's end. Of several that begin at one place the longest is
 * taken, and of overlapping ones the first. */
ms_added_match ms_added_next(const ms_tokenizer *t, ms_span text, int64_t from, int late);

/* ---- models (models/models.h) -------------------------------------------------------------------------------- */

typedef struct ms_token_model {
  const char *name;
  /* Appends the tokens of a piece, which is not empty. */
  int (*encode)(ms_encoder *e, ms_span piece);
} ms_token_model;

extern const ms_token_model ms_bpe_bytes, ms_bpe_characters, ms_unigram, ms_word_piece, ms_word_level;

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
