/* token_file.h - llm.c's token files: 256 little-endian 32-bit integers (magic, version, number of tokens, zeros),
 * then the tokens with 16 or 32 bits each.
 *
 * If 32 bits cannot hold the number of tokens, that field is -1 and the next two integers hold the number, lower half
 * first. llm.c rejects such a file.
 */
#ifndef MS_IO_TOKEN_FILE_H
#define MS_IO_TOKEN_FILE_H

#include "moonshard.h"

#include <stdint.h>

enum { MS_TOKEN_HEADER_BYTES = 1024 };

typedef struct ms_token_format {
  int32_t magic, version;
  int width; /* bytes per token */
} ms_token_format;

/* The format for tokens of 2 or 4 bytes. */
const ms_token_format *ms_token_format_of_width(int width);
/* Checks a header (the part that exists, at most MS_TOKEN_HEADER_BYTES) against the file's size. MS_EINVAL names the
 * file and the wrong field. */
int ms_token_header_check(const char *path, const void *header, int64_t file_bytes, int *width, int64_t *tokens);
void ms_token_header_fill(void *header, int width, int64_t tokens);

/* ms_tokens_read for a reader that keeps a pointer to the tokens; works after the user has released them (tokens.c). */
int ms_tokens_copy(const ms_tokens *tokens, int64_t first, int64_t count, int32_t *out);

typedef struct ms_token_writer ms_token_writer;

/* Starts a temporary file in the same folder as path. width: bytes per token, 2 or 4. */
int ms_token_writer_new(const char *path, int width, ms_token_writer **writer);
/* Appends ids, each below 2^(8 width). */
int ms_token_writer_put(ms_token_writer *writer, const int32_t *ids, int64_t count);
/* Writes the file to disk and renames it to its path. Releases the writer in any case; leaves no file if it fails. */
int ms_token_writer_finish(ms_token_writer *writer);
/* Cancels and removes what was written; safe on NULL. */
void ms_token_writer_abort(ms_token_writer *writer);

#endif
