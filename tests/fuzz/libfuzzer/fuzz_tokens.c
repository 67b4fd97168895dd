/* fuzz_tokens.c - arbitrary bytes as the header of a token file, as the index of a pair, and as tokens: refused with a
 * reason, or kept to the rules.
 */
#include "base/error.h"
#include "io/tokens/token_file.h"
#include "io/tokens/token_index.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must_hold(int condition) {
  if (!condition) abort();
}

static void must_be_told(int rc) {
  must_hold(rc == ms_error_code() && (rc == MS_EINVAL || rc == MS_EUNSUPPORTED) && strlen(ms_error_message()) > 10);
  ms_error_clear();
}

static void as_token_file(const uint8_t *data, size_t size) {
  int width;
  int64_t tokens;
  int rc = ms_token_header_check("fuzz", data, (int64_t)size, &width, &tokens);
  if (rc) {
    must_be_told(rc);
    return;
  }
  must_hold(MS_TOKEN_HEADER_BYTES + tokens * width == (int64_t)size);
}

/* The bytes that the sequences of an index would have, in other words than its reader's: an index is accepted with no
 * other number. */
static int64_t bytes_of_sequences(const uint8_t *data, size_t size, int width) {
  uint64_t sequences;
  __int128 tokens = 0;
  memcpy(&sequences, data + 18, sizeof sequences);
  for (uint64_t i = 0; i < sequences && MS_TOKEN_INDEX_HEADER + 4 * (i + 1) <= size; i++) {
    int32_t length;
    memcpy(&length, data + MS_TOKEN_INDEX_HEADER + 4 * i, sizeof length);
    tokens += length > 0 ? length : 0;
  }
  return (int64_t)(tokens * width);
}

static void as_token_index(const uint8_t *data, size_t size) {
  ms_token_index index = {.tokens = -1};
  const ms_token_dtype *dtype = size >= MS_TOKEN_INDEX_HEADER ? ms_token_dtype_of_code(data[17]) : NULL;
  const int64_t bytes = dtype ? bytes_of_sequences(data, size, dtype->width) : 0;
  int rc = ms_token_index_check("fuzz", data, (int64_t)size, bytes, &index);
  if (rc) {
    must_be_told(rc);
    return;
  }
  must_hold(index.dtype == dtype && dtype->copy && index.tokens * dtype->width == bytes);
  must_hold(index.sequences >= 0 && index.documents >= 0);
  must_hold(MS_TOKEN_INDEX_HEADER + 12 * index.sequences + 8 * (index.documents + 1) == (int64_t)size);
  must_hold(ms_token_index_check("fuzz", data, (int64_t)size, bytes + 1, &index) == MS_EINVAL);
  ms_error_clear();
}

/* The values before the first that is no token are copied, whatever they are stored as. */
static void as_tokens(const uint8_t *data, size_t size) {
  enum { MAX = 256 };
  int32_t out[MAX];
  for (int code = 0; code <= 255; code++) {
    const ms_token_dtype *dtype = ms_token_dtype_of_code(code);
    if (!dtype || !dtype->copy) continue;
    int64_t count = (int64_t)size / dtype->width;
    if (count > MAX) count = MAX;
    const int64_t good = dtype->copy(data, count, out);
    must_hold(good >= 0 && good <= count);
    for (int64_t i = 0; i < good; i++) must_hold(out[i] >= 0);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  as_token_file(data, size);
  as_token_index(data, size);
  as_tokens(data, size);
  return 0;
}
