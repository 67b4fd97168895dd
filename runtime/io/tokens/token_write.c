/* token_write.c - writes a token file, which appears under its name only when it is complete. */
#include "base/error.h"
#include "io/tokens/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFERED = 1 << 16 };

struct ms_token_writer {
  char *path, *written_as; /* written_as is NULL until this writer has created a file */
  FILE *file;
  int width;
  int64_t tokens;
  uint16_t narrow[BUFFERED];
};

static int fail(const ms_token_writer *w) { return MS_FAIL(MS_EIO, "%s: %s", w->path, strerror(errno)); }

static int create(ms_token_writer *w) {
  const size_t room = strlen(w->path) + 40;
  uint8_t header[MS_TOKEN_HEADER_BYTES] = {0};
  struct stat about;
  if (!stat(w->path, &about) && !S_ISREG(about.st_mode))
    return MS_FAIL(MS_EINVAL, "%s: the output must be a regular file", w->path);
  char *name = ms_calloc((int64_t)room, 1);
  if (!name) return MS_ENOMEM;
  snprintf(name, room, "%s.%ld.tmp", w->path, (long)getpid());
  w->file = fopen(name, "wxe");
  if (!w->file) {
    free(name);
    return fail(w);
  }
  w->written_as = name;
  return fwrite(header, sizeof header, 1, w->file) == 1 ? MS_OK : fail(w);
}

int ms_token_writer_new(const char *path, int width, ms_token_writer **writer) {
  *writer = NULL;
  ms_token_writer *w = ms_calloc(1, sizeof *w);
  if (!w) return MS_ENOMEM;
  w->width = width;
  int rc = (w->path = ms_strdup(path)) ? create(w) : MS_ENOMEM;
  if (rc) {
    ms_token_writer_abort(w);
    return rc;
  }
  *writer = w;
  return MS_OK;
}

static int put_narrow(ms_token_writer *w, const int32_t *ids, int64_t count) {
  while (count > 0) {
    const int64_t n = count < BUFFERED ? count : BUFFERED;
    for (int64_t i = 0; i < n; i++) w->narrow[i] = (uint16_t)ids[i];
    if (fwrite(w->narrow, 2, (size_t)n, w->file) != (size_t)n) return fail(w);
    ids += n;
    count -= n;
  }
  return MS_OK;
}

int ms_token_writer_put(ms_token_writer *w, const int32_t *ids, int64_t count) {
  w->tokens += count;
  if (w->width == 2) return put_narrow(w, ids, count);
  return !count || fwrite(ids, 4, (size_t)count, w->file) == (size_t)count ? MS_OK : fail(w);
}

int ms_token_writer_finish(ms_token_writer *w) {
  uint8_t header[MS_TOKEN_HEADER_BYTES];
  int rc = MS_OK;
  ms_token_header_fill(header, w->width, w->tokens);
  if (fseeko(w->file, 0, SEEK_SET) || fwrite(header, sizeof header, 1, w->file) != 1 || fflush(w->file) ||
      fsync(fileno(w->file)))
    rc = fail(w);
  if (fclose(w->file) && !rc) rc = fail(w);
  w->file = NULL;
  if (!rc && rename(w->written_as, w->path)) rc = fail(w);
  if (!rc) {
    free(w->written_as);
    w->written_as = NULL;
  }
  ms_token_writer_abort(w);
  return rc;
}

void ms_token_writer_abort(ms_token_writer *w) {
  if (!w) return;
  if (w->file) fclose(w->file);
  if (w->written_as) unlink(w->written_as);
  free(w->written_as);
  free(w->path);
  free(w);
}
