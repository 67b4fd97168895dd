/* file_read.c - opens files for reading, regular files only; see file_read.h. */
#include "io/file_read.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

static int check_regular(const char *path, int fd, int64_t *bytes) {
  struct stat about;
  if (fstat(fd, &about)) return MS_FAIL(MS_EIO, "%s: %s", path, strerror(errno));
  *bytes = about.st_size;
  if (S_ISREG(about.st_mode)) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%s: it is not a regular file but %s", path,
                 S_ISDIR(about.st_mode) ? "a folder" : "a pipe or a device");
}

/* What Git LFS leaves in place of a file that was not fetched: some lines of text, at most 1,024 bytes. */
static int check_fetched(const char *path, int fd, int64_t bytes) {
  static const char POINTER[] = "version https://git-lfs.github.com/spec/v1\n";
  char beginning[sizeof POINTER - 1];
  if (bytes < (int64_t)sizeof beginning || bytes > 1024) return MS_OK;
  MS_TRY(ms_file_read_at(path, fd, 0, sizeof beginning, beginning));
  if (memcmp(beginning, POINTER, sizeof beginning) != 0) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%s: it is not the file but a pointer of Git LFS to it: fetch it with git lfs pull", path);
}

int ms_file_open_regular(const char *path, int *fd, int64_t *bytes) {
  int opened =
      open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* without O_NONBLOCK, opening a pipe waits for a writer */
  if (opened < 0) {
    /* ENXIO: a socket, or a device that does not exist. */
    int misnamed = errno == ENOENT || errno == ENOTDIR || errno == ENXIO;
    return MS_FAIL(misnamed ? MS_EINVAL : MS_EIO, "%s: %s", path, strerror(errno));
  }
  int rc = check_regular(path, opened, bytes);
  if (!rc) rc = check_fetched(path, opened, *bytes);
  if (rc) close(opened);
  else *fd = opened;
  return rc;
}

int ms_file_read_at(const char *path, int fd, int64_t at, int64_t bytes, void *out) {
  uint8_t *to = out;
  while (bytes > 0) {
    ssize_t got = pread(fd, to, (size_t)bytes, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return MS_FAIL(MS_EIO, "%s: reading at byte %lld: %s", path, (long long)at, strerror(errno));
    if (!got)
      return MS_FAIL(MS_EIO, "%s: it ends at byte %lld: it was truncated while it was open", path, (long long)at);
    to += got;
    at += got;
    bytes -= got;
  }
  return MS_OK;
}

int ms_file_read_whole(const char *path, char **text, int64_t *bytes) {
  int fd;
  MS_TRY(ms_file_open_regular(path, &fd, bytes));
  char *data = ms_calloc(*bytes + 1, 1);
  int rc = data ? ms_file_read_at(path, fd, 0, *bytes, data) : MS_ENOMEM;
  close(fd);
  if (rc) free(data);
  else *text = data;
  return rc;
}

int ms_file_read_text(const char *path, char **text, int64_t *bytes) {
  MS_GIVEN(path);
  MS_GIVEN(text);
  MS_GIVEN(bytes);
  return ms_file_read_whole(path, text, bytes);
}

void ms_file_text_free(char *text) { free(text); }
