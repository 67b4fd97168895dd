/* token_index.h - Megatron's pairs of files: NAME.bin has tokens and nothing else, NAME.idx says what they are.
 *
 * The index is little-endian and has no padding: a magic of 9 bytes, the version as u64, the code of the dtype as u8,
 * the number of sequences and that of document boundaries as u64; then the length of each sequence in tokens as i32,
 * where each begins in the other file in bytes as i64, and the boundaries of documents as i64: the sequence with which
 * each begins, and at the end the number of sequences.
 */
#ifndef MS_IO_TOKEN_INDEX_H
#define MS_IO_TOKEN_INDEX_H

#include "io/tokens/token_dtype.h"

enum { MS_TOKEN_INDEX_HEADER = 34 };

typedef struct ms_token_index {
  const ms_token_dtype *dtype;
  int64_t sequences, documents, tokens;
} ms_token_index;

/* Checks an index of `size` bytes against the size of the tokens' file: every length, place and boundary, so that the
 * tokens can be read as one stream. MS_EINVAL, or MS_EUNSUPPORTED of what is not read, names the file and the field. */
int ms_token_index_check(const char *path, const void *bytes, int64_t size, int64_t data_bytes, ms_token_index *index);
/* The same of a file, which is mapped as long as this lasts. */
int ms_token_index_read(const char *path, int64_t data_bytes, ms_token_index *index);
/* The two files of a pair, which the caller frees, by the name of either: NAME.idx, or NAME.bin where NAME.idx exists
 * and the file has no header of its own. *index is NULL where a path names no pair; *data is then a copy of it. */
int ms_token_index_find(const char *path, char **index, char **data);

#endif
