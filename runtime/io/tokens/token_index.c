/* token_index.c - reads the index of a pair of Megatron's, and checks all of it: a wrong length or place would give
 * other tokens than were written, in silence.
 */
#include "io/tokens/token_index.h"

#include "base/error.h"
#include "io/file_read.h"
#include "io/tokens/token_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAGIC_BYTES = 9, VERSION_AT = 9, DTYPE_AT = 17, SEQUENCES_AT = 18, BOUNDARIES_AT = 26 };

static const char magic[MAGIC_BYTES] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};

/* Whether a file begins as an index does; `bytes` has the first `size` of it. */
static int begins(const void *bytes, int64_t size) { return size >= MAGIC_BYTES && !memcmp(bytes, magic, MAGIC_BYTES); }

static uint64_t u64_at(const uint8_t *bytes, int64_t at) {
  uint64_t value;
  memcpy(&value, bytes + at, sizeof value);
  return value;
}

static int64_t i64_at(const uint8_t *bytes, int64_t at) { return (int64_t)u64_at(bytes, at); }

static int32_t i32_at(const uint8_t *bytes, int64_t at) {
  int32_t value;
  memcpy(&value, bytes + at, sizeof value);
  return value;
}

/* ---- the header ---- */

static int check_dtype(const char *path, int code, ms_token_index *index) {
  index->dtype = ms_token_dtype_of_code(code);
  if (!index->dtype)
    return MS_FAIL(MS_EINVAL,
                   "%s: dtype: its code is %d; tokens have 1 (u8), 2 (i8), 3 (i16), 4 (i32), 5 (i64) or 8 "
                   "(u16)",
                   path, code);
  if (!index->dtype->copy)
    return MS_FAIL(MS_EUNSUPPORTED, "%s: dtype: its code is %d, %s: these are no tokens, which are integers", path,
                   code, index->dtype->name);
  return MS_OK;
}

static int check_header(const char *path, const uint8_t *bytes, int64_t size, ms_token_index *index) {
  if (size < MS_TOKEN_INDEX_HEADER)
    return MS_FAIL(MS_EINVAL, "%s: header: the file has %lld bytes, and the header of an index has %d", path,
                   (long long)size, MS_TOKEN_INDEX_HEADER);
  if (!begins(bytes, size))
    return MS_FAIL(MS_EINVAL, "%s: magic: the file does not begin with MMIDIDX, as Megatron's index of tokens does",
                   path);
  const uint64_t version = u64_at(bytes, VERSION_AT);
  if (version != 1)
    return MS_FAIL(MS_EUNSUPPORTED, "%s: version: it is %llu; 1 is read", path, (unsigned long long)version);
  MS_TRY(check_dtype(path, bytes[DTYPE_AT], index));
  const uint64_t sequences = u64_at(bytes, SEQUENCES_AT), boundaries = u64_at(bytes, BOUNDARIES_AT);
  const uint64_t most = (uint64_t)size; /* each has more than a byte */
  if (sequences > most || boundaries > most)
    return MS_FAIL(MS_EINVAL, "%s: number of %s: it is %llu, and the file has %lld bytes: it was cut short", path,
                   sequences > most ? "sequences" : "document boundaries",
                   (unsigned long long)(sequences > most ? sequences : boundaries), (long long)size);
  index->sequences = (int64_t)sequences;
  index->documents = (int64_t)boundaries - 1;
  const int64_t needed = MS_TOKEN_INDEX_HEADER + 12 * index->sequences + 8 * (int64_t)boundaries;
  if (size == needed + index->sequences && index->sequences)
    return MS_FAIL(MS_EUNSUPPORTED, "%s: modes: the index has one of each sequence, so the data are not only texts",
                   path);
  if (size != needed)
    return MS_FAIL(MS_EINVAL,
                   "%s: %lld sequences and %llu document boundaries make a file of %lld bytes, and it has "
                   "%lld: it %s",
                   path, (long long)sequences, (unsigned long long)boundaries, (long long)needed, (long long)size,
                   size < needed ? "was cut short" : "holds something else");
  return MS_OK;
}

/* ---- sequences and documents ---- */

static int check_sequences(const char *path, const uint8_t *bytes, int64_t data_bytes, ms_token_index *index) {
  const int64_t lengths = MS_TOKEN_INDEX_HEADER, places = lengths + 4 * index->sequences;
  const int width = index->dtype->width;
  int64_t tokens = 0;
  for (int64_t i = 0; i < index->sequences; i++) {
    const int32_t length = i32_at(bytes, lengths + 4 * i);
    const int64_t place = i64_at(bytes, places + 8 * i);
    if (length < 0)
      return MS_FAIL(MS_EINVAL, "%s: length of sequence %lld: it is %d, which is below 0", path, (long long)i, length);
    if (place != tokens * width)
      return MS_FAIL(MS_EINVAL, "%s: place of sequence %lld: it is byte %lld, and those before it end at byte %lld",
                     path, (long long)i, (long long)place, (long long)(tokens * width));
    tokens += length; /* at most data_bytes before, and 2^31 more */
    if (tokens > data_bytes / width)
      return MS_FAIL(MS_EINVAL,
                     "%s: sequence %lld ends at token %lld of %d bytes, and the file of tokens has %lld "
                     "bytes: it was cut short",
                     path, (long long)i, (long long)tokens, width, (long long)data_bytes);
  }
  if (tokens * width != data_bytes)
    return MS_FAIL(MS_EINVAL,
                   "%s: its sequences have %lld tokens of %d bytes, and the file of tokens has %lld bytes: "
                   "they belong to different data",
                   path, (long long)tokens, width, (long long)data_bytes);
  index->tokens = tokens;
  return MS_OK;
}

static int check_documents(const char *path, const uint8_t *bytes, const ms_token_index *index) {
  const int64_t at = MS_TOKEN_INDEX_HEADER + 12 * index->sequences;
  int64_t before = 0;
  if (index->documents < 0) return MS_FAIL(MS_EINVAL, "%s: document boundaries: there are none; the first is 0", path);
  for (int64_t i = 0; i <= index->documents; i++) {
    const int64_t boundary = i64_at(bytes, at + 8 * i);
    if (i ? boundary < before : boundary != 0)
      return MS_FAIL(MS_EINVAL, "%s: document boundary %lld: it is sequence %lld, and the one before it %lld", path,
                     (long long)i, (long long)boundary, (long long)before);
    before = boundary;
  }
  if (before != index->sequences)
    return MS_FAIL(MS_EINVAL, "%s: document boundaries: they end with sequence %lld, and there are %lld", path,
                   (long long)before, (long long)index->sequences);
  return MS_OK;
}

int ms_token_index_check(const char *path, const void *bytes, int64_t size, int64_t data_bytes, ms_token_index *index) {
  MS_TRY(check_header(path, bytes, size, index));
  MS_TRY(check_sequences(path, bytes, data_bytes, index));
  return check_documents(path, bytes, index);
}

int ms_token_index_read(const char *path, int64_t data_bytes, ms_token_index *index) {
  int fd;
  int64_t size;
  MS_TRY(ms_file_open_regular(path, &fd, &size));
  void *map = size ? mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
  int rc =
      map == MAP_FAILED ? MS_FAIL(MS_EIO, "%s: mapping %lld bytes: %s", path, (long long)size, strerror(errno)) : MS_OK;
  close(fd);
  MS_TRY(rc);
  rc = ms_token_index_check(path, map, size, data_bytes, index);
  if (map) munmap(map, (size_t)size);
  return rc;
}

/* ---- the files of a pair ---- */

static int ends_with(const char *path, const char *end) {
  const size_t length = strlen(path), of_end = strlen(end);
  return length > of_end && !strcmp(path + length - of_end, end);
}

/* The path with another end of four characters. */
static char *renamed(const char *path, const char *end) {
  char *copy = ms_strdup(path);
  if (copy) memcpy(copy + strlen(copy) - 4, end, 4);
  return copy;
}

/* Whether a file has a header of llm.c's, and needs no index. */
static int has_header(const char *path, int *answer) {
  int fd;
  int64_t size;
  int32_t first = 0;
  MS_TRY(ms_file_open_regular(path, &fd, &size));
  int rc = size >= (int64_t)sizeof first ? ms_file_read_at(path, fd, 0, sizeof first, &first) : MS_OK;
  close(fd);
  *answer = first == ms_token_format_of_width(2)->magic || first == ms_token_format_of_width(4)->magic;
  return rc;
}

int ms_token_index_find(const char *path, char **index, char **data) {
  *index = NULL;
  *data = NULL;
  if (ends_with(path, ".idx")) {
    *index = ms_strdup(path);
    *data = renamed(path, ".bin");
    return *index && *data ? MS_OK : MS_ENOMEM;
  }
  if (!(*data = ms_strdup(path))) return MS_ENOMEM;
  if (!ends_with(path, ".bin")) return MS_OK;
  if (!(*index = renamed(path, ".idx"))) return MS_ENOMEM;
  int headed = 0;
  int rc = access(*index, F_OK) ? MS_OK : has_header(path, &headed);
  if (rc || headed || access(*index, F_OK)) {
    free(*index);
    *index = NULL;
  }
  return rc;
}
