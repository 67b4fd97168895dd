/* tokens.c - files of tokens, or of bytes, as one stream: mapped as a whole, so that the ranks of a host share pages,
 * and data larger than memory costs nothing until it is used. A file of tokens has a header (token_file.h), or is one
 * of a pair with an index (token_index.h).
 *
 * Reading past the end of a mapped file that was truncated kills the process, so the file's size is checked before
 * each read. Replacing a file by another of the same name is harmless: the mapping keeps the old one.
 */
#include "base/error.h"
#include "base/handle.h"
#include "io/file_read.h"
#include "io/safetensors/safetensors.h"
#include "io/tokens/token_dtype.h"
#include "io/tokens/token_file.h"
#include "io/tokens/token_index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct mapped {
  char *path;
  dev_t device;
  ino_t inode;
  int64_t bytes;       /* of the file */
  void *map;           /* NULL of an empty file */
  const uint8_t *data; /* first token */
  const ms_token_dtype *dtype;
  int64_t first, after; /* range of the stream's tokens in this file */
} mapped;

struct ms_tokens {
  ms_handle handle;
  mapped *file;
  int files;
};

static int check_header(mapped *file, int fd, int64_t *tokens, int64_t *data_at) {
  uint8_t header[MS_TOKEN_HEADER_BYTES] = {0};
  if (file->bytes >= (int64_t)sizeof header) MS_TRY(ms_file_read_at(file->path, fd, 0, sizeof header, header));
  int width;
  MS_TRY(ms_token_header_check(file->path, header, file->bytes, &width, tokens));
  file->dtype = ms_token_dtype_named(width == 2 ? "u16" : "u32");
  *data_at = MS_TOKEN_HEADER_BYTES;
  return MS_OK;
}

static int read_index(mapped *file, const char *index, int64_t *tokens) {
  ms_token_index read;
  MS_TRY(ms_token_index_read(index, file->bytes, &read));
  file->dtype = read.dtype;
  *tokens = read.tokens;
  return MS_OK;
}

static int map_open_file(mapped *file, int fd, const char *index, int kind) {
  struct stat about;
  int64_t tokens = file->bytes, data_at = 0;
  if (fstat(fd, &about)) return MS_FAIL(MS_EIO, "%s: %s", file->path, strerror(errno));
  file->device = about.st_dev;
  file->inode = about.st_ino;
  file->dtype = ms_token_dtype_named("u8");
  if (index) {
    MS_TRY(read_index(file, index, &tokens));
  } else if (kind == MS_TOKEN_FILES) {
    MS_TRY(check_header(file, fd, &tokens, &data_at));
  }
  file->after = file->first + tokens;
  if (!file->bytes) return MS_OK;
  void *map = mmap(NULL, (size_t)file->bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED)
    return MS_FAIL(MS_EIO, "%s: mapping %lld bytes: %s", file->path, (long long)file->bytes, strerror(errno));
  file->map = map;
  file->data = (const uint8_t *)map + data_at;
  return MS_OK;
}

static int map_file(mapped *file, const char *path, int kind, int64_t first) {
  int fd, rc;
  char *index = NULL;
  file->first = file->after = first;
  if (kind == MS_TOKEN_FILES) {
    MS_GOTO(ms_token_index_find(path, &index, &file->path));
  } else if (!(file->path = ms_strdup(path))) {
    return MS_ENOMEM;
  }
  MS_GOTO(ms_file_open_regular(file->path, &fd, &file->bytes));
  rc = map_open_file(file, fd, index, kind);
  close(fd);
fail:
  free(index);
  return rc;
}

static void destroy_tokens(void *object) {
  ms_tokens *tokens = object;
  for (int i = 0; i < tokens->files; i++) {
    mapped *file = &tokens->file[i];
    if (file->map) munmap(file->map, (size_t)file->bytes);
    free(file->path);
  }
  free(tokens->file);
}

int ms_tokens_open(int files, const char *const *paths, int kind, ms_tokens **tokens, int64_t *count) {
  MS_GIVEN(paths);
  MS_GIVEN(tokens);
  int rc = MS_ENOMEM;
  *tokens = NULL;
  if (files < 1) return MS_FAIL(MS_EINVAL, "ms_tokens_open: files is %d; it must be 1 or more", files);
  for (int i = 0; i < files; i++) MS_GIVEN(paths[i]);
  if (kind != MS_TOKEN_FILES && kind != MS_TOKEN_BYTES)
    return MS_FAIL(MS_EINVAL, "ms_tokens_open: kind is %d, not one of enum ms_token_kind", kind);
  ms_tokens *t = ms_handle_new(MS_HANDLE_TOKENS, sizeof *t, destroy_tokens);
  if (!t) return rc;
  if (!(t->file = ms_calloc(files, sizeof *t->file))) goto fail;
  for (int i = 0; i < files; i++) {
    t->files = i + 1;
    MS_GOTO(map_file(&t->file[i], paths[i], kind, i ? t->file[i - 1].after : 0));
  }
  *tokens = t;
  if (count) *count = t->file[files - 1].after;
  return MS_OK;
fail:
  ms_free(t);
  return rc;
}

static int check_length(const mapped *file) {
  struct stat about;
  if (stat(file->path, &about) || about.st_dev != file->device || about.st_ino != file->inode ||
      about.st_size >= file->bytes)
    return MS_OK;
  return MS_FAIL(MS_EIO, "file %s has %lld bytes and had %lld when it was opened: data must stay as it is during a run",
                 file->path, (long long)about.st_size, (long long)file->bytes);
}

/* The last file that begins at or before a token: the file that contains it, since empty files contain none. */
static int file_of(const ms_tokens *tokens, int64_t token) {
  int low = 0, high = tokens->files - 1;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (tokens->file[middle].first <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

static int widen(const mapped *file, int64_t at, int64_t count, int32_t *out) {
  const uint8_t *from = file->data + at * file->dtype->width;
  const int64_t good = file->dtype->copy(from, count, out);
  if (good == count) return MS_OK;
  int64_t value = 0;
  if (file->dtype->width == 8) {
    memcpy(&value, from + good * 8, 8);
  } else {
    value = file->dtype->name[0] == 'u' ? (int64_t)(uint32_t)out[good] : out[good];
  }
  return MS_FAIL(MS_EINVAL,
                 "%s: token %lld is %lld (%s), and tokens are 0 to %d: the file is damaged, or holds "
                 "something else",
                 file->path, (long long)(at + good), (long long)value, file->dtype->name, INT32_MAX);
}

int ms_tokens_copy(const ms_tokens *tokens, int64_t first, int64_t count, int32_t *out) {
  const int64_t all = tokens->files ? tokens->file[tokens->files - 1].after : 0;
  if (first < 0 || count < 0 || first > all || count > all - first)
    return MS_FAIL(MS_EINVAL, "cannot read %lld tokens from token %lld on: there are %lld", (long long)count,
                   (long long)first, (long long)all);
  for (int i = file_of(tokens, first); count > 0; i++) {
    const mapped *file = &tokens->file[i];
    const int64_t left = file->after - first, n = left < count ? left : count;
    if (!n) continue;
    MS_TRY(check_length(file));
    MS_TRY(widen(file, first - file->first, n, out));
    first += n;
    out += n;
    count -= n;
  }
  return MS_OK;
}

int ms_tokens_read(const ms_tokens *tokens, int64_t first, int64_t count, int32_t *out) {
  MS_HANDLE(tokens, TOKENS);
  if (count > 0) MS_GIVEN(out);
  return ms_tokens_copy(tokens, first, count, out);
}
