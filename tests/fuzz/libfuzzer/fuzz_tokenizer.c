/* fuzz_tokenizer.c - arbitrary bytes as a tokenizer.json, as the header of a token file, as the index of one, and as
 * text: refused with a reason, or the text's tokens give the text again.
 */
#include "base/error.h"
#include "io/tokens/token_file.h"
#include "io/tokens/token_index.h"
#include "io/tokenizer/tokenizer.h"

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

/* Added tokens may shadow ids of others, so the text is compared only where the tokenizer says what it means. */
static void encode(ms_tokenizer *tokenizer, const uint8_t *text, size_t size) {
  const int32_t *ids;
  const char *back;
  int64_t count, bytes;
  int rc = ms_tokenizer_encode(tokenizer, (const char *)text, (int64_t)size, &ids, &count);
  if (rc) {
    must_be_told(rc);
    return;
  }
  ms_tokenizer_info info;
  must_hold(ms_tokenizer_describe(tokenizer, &info, sizeof info) == MS_OK);
  for (int64_t i = 0; i < count; i++) must_hold(ids[i] >= 0 && ids[i] < info.vocab);
  must_hold(!ms_tokenizer_decode(tokenizer, ids, count, &back, &bytes));
}

static void as_tokenizer(const uint8_t *data, size_t size) {
  static const char text[] = "They're 12345 moons,\n\n  \xe6\x9c\x88 \xf0\x9f\x8c\x99<|endoftext|>!";
  ms_tokenizer *tokenizer;
  int rc = ms_tokenizer_parse("fuzz", (const char *)data, (int64_t)size, &tokenizer);
  if (rc) {
    must_be_told(rc);
    return;
  }
  encode(tokenizer, (const uint8_t *)text, sizeof text - 1);
  ms_free(tokenizer);
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

/* By a tokenizer that is known to be good: what comes out is what went in. */
static void as_text(const uint8_t *data, size_t size) {
  static ms_tokenizer *good;
  const int32_t *ids;
  const char *back;
  int64_t count, bytes;
  if (!good && ms_tokenizer_open("tests/fixtures/tokenizer/good/llama3.json", &good)) abort();
  int rc = ms_tokenizer_encode(good, (const char *)data, (int64_t)size, &ids, &count);
  if (rc) {
    must_be_told(rc);
    return;
  }
  must_hold(!ms_tokenizer_decode(good, ids, count, &back, &bytes));
  must_hold(bytes == (int64_t)size && !memcmp(back, data, size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  as_text(data, size);
  as_token_file(data, size);
  as_token_index(data, size);
  if (size && data[0] == '{') as_tokenizer(data, size);
  return 0;
}
