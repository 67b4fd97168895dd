/* fuzz_tokenizer.c - arbitrary bytes as a tokenizer.json, and as text: refused with a reason, or the text's tokens give
 * the text again.
 */
#include "base/error.h"
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
  if (size && data[0] == '{') as_tokenizer(data, size);
  return 0;
}
