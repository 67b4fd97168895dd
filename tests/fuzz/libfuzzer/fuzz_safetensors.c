/* fuzz_safetensors.c - arbitrary bytes as a safetensors file, and as an index: refused with a reason, or kept to the
 * rules.
 *
 * What is accepted is checked again in other words: every tensor lies inside the file, its bytes are what shape and
 * type need, and together they are the file's rest.
 */
#include "base/error.h"
#include "io/safetensors/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must_hold(int condition) {
  if (!condition) abort();
}

static void check_accepted(const ms_st_header *header, const uint8_t *data, int64_t size, int64_t length) {
  __int128 total = 0;
  uint64_t touched = 0;
  for (int i = 0; i < header->n; i++) {
    const ms_safetensors_tensor *t = &header->tensor[i];
    __int128 elements = 1;
    for (int d = 0; d < t->ndim; d++) {
      must_hold(t->dims[d] >= 0);
      elements *= t->dims[d];
      must_hold(elements <= INT64_MAX);
    }
    must_hold(elements == t->elements && elements * t->bits == (__int128)t->bytes * 8);
    must_hold(t->offset >= MS_ST_PREFIX + length && t->offset <= size && t->bytes <= size - t->offset);
    must_hold(t->name && ms_st_dtype_row(ms_st_dtype_find(t->dtype))->bits == t->bits);
    for (int64_t b = 0; b < t->bytes; b++) touched += data[t->offset + b];
    total += t->bytes;
  }
  must_hold(total == size - MS_ST_PREFIX - length);
  must_hold(touched <= 255ull * (uint64_t)size);
}

static void as_file(const uint8_t *data, size_t size) {
  int64_t length;
  ms_st_header header;
  int rc = ms_st_header_length("fuzz", data, (int64_t)size, &length);
  if (!rc) rc = ms_st_header_parse("fuzz", (const char *)data + MS_ST_PREFIX, length, (int64_t)size, &header);
  if (rc) {
    must_hold(rc == MS_EINVAL && ms_error_code() == rc && strlen(ms_error_message()) > 10);
    ms_error_clear();
    return;
  }
  check_accepted(&header, data, (int64_t)size, length);
  ms_st_header_free(&header);
}

static void as_index(const uint8_t *data, size_t size) {
  ms_st_index index;
  int rc = ms_st_index_parse("fuzz", (const char *)data, (int64_t)size, &index);
  if (rc) {
    must_hold(rc == MS_EINVAL && ms_error_code() == rc);
    ms_error_clear();
    return;
  }
  must_hold(json_object_size(index.weight_map) > 0);
  ms_st_index_free(&index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  as_file(data, size);
  if (size && data[0] == '{') as_index(data, size);
  return 0;
}
