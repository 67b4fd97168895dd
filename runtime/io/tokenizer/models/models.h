/* models/models.h - the models of a tokenizer.json: how their fields are read. What they make of a piece is in the
 * file of each (ms_token_model.encode).
 */
#ifndef MS_IO_TOKENIZER_MODELS_H
#define MS_IO_TOKENIZER_MODELS_H

#include "io/tokenizer/steps/unicode.h"
#include "io/tokenizer/tokenizer.h"

#include <jansson.h>

/* Its vocabulary: how many ids, how many bytes they are spelled with, and an object of tokens and ids, which the caller
 * releases. model: an object. */
int ms_model_vocab(const json_t *model, int *ids, int64_t *bytes, json_t **vocab);
/* Reads the model, after the pre-tokenizers; *used: bytes of t->token_bytes that are taken. */
int ms_model_read(ms_tokenizer *t, const json_t *model, const json_t *vocab, int64_t *used);
/* Reads the vocabulary alone. */
int ms_vocab_read(ms_tokenizer *t, const json_t *vocab, int64_t *used);
/* Bytes of what a model of characters takes as one, which begins with `lead`: after ByteLevel a character stands for
 * each byte. */
static inline int64_t ms_model_unit(const ms_tokenizer *t, uint8_t lead) {
  return t->byte_level ? 1 : ms_char_bytes(lead);
}
/* Whether no token has a newline before its end, so that none is made across lines. */
int ms_model_ends_at_lines(const ms_tokenizer *t);

int ms_bpe_read(ms_tokenizer *t, const json_t *model, const json_t *vocab);
int ms_unigram_read(ms_tokenizer *t, const json_t *model, const json_t *vocab);
int ms_word_piece_read(ms_tokenizer *t, const json_t *model, const json_t *vocab);
int ms_word_level_read(ms_tokenizer *t, const json_t *model, const json_t *vocab);
/* The tokens "<0x00>" to "<0xFF>", which stand for single bytes; -1 of those that there are not. */
void ms_byte_tokens_find(ms_tokenizer *t);
/* The id of unk_token; -1: there is none, and what is unknown vanishes. MS_UNK_MISSING: it is not in the vocabulary,
 * which is an error for the first character that needs it. */
enum { MS_UNK_MISSING = -2 };
int ms_unk_read(ms_tokenizer *t, const json_t *model, int must);

#endif
