/* token_file.h - the token files of llm.c: 256 little-endian 32-bit integers (magic, version, number of tokens, zeros), then
** the tokens, 16 or 32 bits each.
**
** A number that 32 bits do not hold is -1 there, and stands in the two integers behind it, the lower half first. llm.c
** refuses such a file.
*/
#ifndef MS_IO_TOKEN_FILE_H
#define MS_IO_TOKEN_FILE_H

#include "moonshard.h"

#include <stdint.h>

enum { MS_TOKEN_HEADER_BYTES = 1024 };

typedef struct ms_token_format {
  int32_t magic, version;
  int width; /* bytes of a token */
} ms_token_format;

/* The format with tokens of 2 or of 4 bytes. */
const ms_token_format *ms_token_format_of_width(int width);
/* Checks a header (what is there of it: at most MS_TOKEN_HEADER_BYTES) against the size of its file. MS_EINVAL names the
** file and the field that is wrong. */
int ms_token_header_check(const char *path, const void *header, int64_t file_bytes, int *width, int64_t *tokens);
void ms_token_header_fill(void *header, int width, int64_t tokens);

/* ms_tokens_read for a reader that keeps the tokens, which may be released by then (tokens.c). */
int ms_tokens_copy(const ms_tokens *tokens, int64_t first, int64_t count, int32_t *out);

typedef struct ms_token_writer ms_token_writer;

/* Starts a file beside the path. width: 2 or 4 bytes of a token. */
int ms_token_writer_new(const char *path, int width, ms_token_writer **writer);
/* Ids below 2^(8 width). */
int ms_token_writer_put(ms_token_writer *writer, const int32_t *ids, int64_t count);
/* Writes it to disk and gives it its name; releases the writer, also when it fails: nothing is left then. */
int ms_token_writer_finish(ms_token_writer *writer);
/* Gives up and removes what was written; safe on NULL. */
void ms_token_writer_abort(ms_token_writer *writer);

#endif
