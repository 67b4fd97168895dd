/* token_file.c - headers of token files: read with every field checked, and written. */
#include "io/tokens/token_file.h"

#include "base/error.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
  #error "token files are little-endian, and are read and written as they are"
#endif

static const ms_token_format formats[] = {{20240520, 1, 2}, {20240801, 7, 4}};

const ms_token_format *ms_token_format_of_width(int width) { return width == 2 ? &formats[0] : &formats[1]; }

static const ms_token_format *format_of_magic(int32_t magic) {
  for (int i = 0; i < 2; i++)
    if (formats[i].magic == magic) return &formats[i];
  return NULL;
}

enum { LARGE = -1 };

/* The number of tokens in a header; negative if there is none. */
static int64_t read_number(const int32_t *field) {
  if (field[2] != LARGE) return field[2];
  int64_t number;
  memcpy(&number, field + 3, sizeof number);
  return number > INT32_MAX ? number : LARGE;
}

int ms_token_header_check(const char *path, const void *header, int64_t file_bytes, int *width, int64_t *tokens) {
  int32_t field[5];
  if (file_bytes < MS_TOKEN_HEADER_BYTES)
    return MS_FAIL(MS_EINVAL, "%s: header: the file has %lld bytes, and the header of a token file has %d", path,
                   (long long)file_bytes, MS_TOKEN_HEADER_BYTES);
  memcpy(field, header, sizeof field);
  const ms_token_format *format = format_of_magic(field[0]);
  if (!format)
    return MS_FAIL(MS_EINVAL,
                   "%s: magic: it is %d; a token file begins with %d (16-bit tokens) or %d (32-bit tokens); "
                   "`moonshard tokenize` converts text",
                   path, field[0], formats[0].magic, formats[1].magic);
  if (field[1] != format->version)
    return MS_FAIL(MS_EINVAL, "%s: version: it is %d; with magic %d it must be %d", path, field[1], format->magic,
                   format->version);
  const int64_t number = read_number(field);
  if (number < 0) return MS_FAIL(MS_EINVAL, "%s: number of tokens: it is %d, which is below 0", path, field[2]);
  const int64_t room = (INT64_MAX - MS_TOKEN_HEADER_BYTES) / format->width;
  const int64_t bytes = number > room ? INT64_MAX : MS_TOKEN_HEADER_BYTES + number * format->width;
  if (file_bytes != bytes)
    return MS_FAIL(MS_EINVAL,
                   "%s: number of tokens: %lld of %d bytes make a file of %lld bytes, and it has %lld: it %s", path,
                   (long long)number, format->width, (long long)bytes, (long long)file_bytes,
                   file_bytes < bytes ? "was cut short" : "holds something else");
  *width = format->width;
  *tokens = number;
  return MS_OK;
}

void ms_token_header_fill(void *header, int width, int64_t tokens) {
  const ms_token_format *format = ms_token_format_of_width(width);
  const int is_large = tokens > INT32_MAX;
  const int32_t field[3] = {format->magic, format->version, is_large ? LARGE : (int32_t)tokens};
  memset(header, 0, MS_TOKEN_HEADER_BYTES);
  memcpy(header, field, sizeof field);
  if (is_large) memcpy((char *)header + sizeof field, &tokens, sizeof tokens);
}
