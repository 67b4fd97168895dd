/* file.c - the only calls that write files in this folder; see file.h. */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/testing.h"

/* ---- fault injection ---- */

enum { OP_OPEN, OP_WRITE, OP_SYNC, OP_RENAME, OP_MKDIR, OP_UNLINK, OPS, OP_ANY = OPS };

static const char *const op_names[OPS + 1] = {"open", "write", "sync", "rename", "mkdir", "unlink", "any"};

static const struct {
  const char *name;
  int number;
} failures[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EROFS", EROFS}, {"EDQUOT", EDQUOT}, {"EINVAL", EINVAL}};

enum { SHORT = -1, KILL = -2, SLOW = -3 };

/* Set by one thread before files are written; all threads count. */
static struct {
  int op, what, lasting; /* what: an errno, or one of the above */
  long number;           /* number of the call that fails, from 1; lasting: and all calls after it */
  atomic_long calls;
} order;
static atomic_int armed;

static int refuse(const char *spec) {
  return MS_FAIL(
      MS_EINVAL,
      "'%s': write CALL:N:WHAT, as in write:3:ENOSPC or any:12:kill (calls: open, write, sync, rename, mkdir, "
      "unlink, any; N: which of them, from 1, or N+: and all after it; what: ENOSPC, EIO, EROFS, EDQUOT, EINVAL, "
      "short, slow, kill)",
      spec);
}

static int read_what(const char *text, int *what) {
  if (!strcmp(text, "short")) *what = SHORT;
  else if (!strcmp(text, "kill")) *what = KILL;
  else if (!strcmp(text, "slow")) *what = SLOW;
  else {
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
      if (strcmp(text, failures[i].name)) continue;
      *what = failures[i].number;
      return 1;
    }
    return 0;
  }
  return 1;
}

int ms_inject_io(const char *spec) {
  atomic_store(&armed, 0);
  if (!spec) return MS_OK;
  const char *number = strchr(spec, ':');
  int op = -1;
  for (int i = 0; number && i <= OPS; i++)
    if (strlen(op_names[i]) == (size_t)(number - spec) && !strncmp(spec, op_names[i], strlen(op_names[i]))) op = i;
  if (op < 0) return refuse(spec);
  char *end;
  order.op = op;
  order.number = strtol(number + 1, &end, 10);
  order.lasting = *end == '+';
  if (order.lasting) end++;
  if (order.number < 1 || *end != ':' || !read_what(end + 1, &order.what)) return refuse(spec);
  atomic_store(&order.calls, 0);
  atomic_store(&armed, 1);
  return MS_OK;
}

/* The fault for this call; 0 for none. */
static int struck(int op) {
  if (!atomic_load_explicit(&armed, memory_order_acquire) || (order.op != OP_ANY && order.op != op)) return 0;
  long call = 1 + atomic_fetch_add(&order.calls, 1);
  if (call != order.number && !(order.lasting && call > order.number)) return 0;
  if (order.what == KILL) kill(getpid(), SIGKILL);
  if (order.what == SLOW) nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  return order.what;
}

/* Returns -1 and sets errno if the call must fail. */
static int failing(int op) {
  int what = struck(op);
  if (what <= 0) return 0;
  errno = what;
  return -1;
}

/* ---- the calls ---- */

int ms_file_open(const char *path, int flags, int mode) {
  return failing(OP_OPEN) ? -1 : open(path, flags | O_CLOEXEC, (mode_t)mode);
}

static ssize_t pwrite_once(int fd, const void *data, size_t bytes, int64_t at) {
  int what = struck(OP_WRITE);
  if (what > 0) {
    errno = what;
    return -1;
  }
  return pwrite(fd, data, what == SHORT && bytes > 1 ? bytes / 2 : bytes, at);
}

void ms_file_begin_sync(int fd) { sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE); }

int ms_file_sync(int fd) { return failing(OP_SYNC) ? -1 : fsync(fd); }
int ms_file_rename(const char *from, const char *to) { return failing(OP_RENAME) ? -1 : rename(from, to); }
int ms_file_mkdir(const char *path) { return failing(OP_MKDIR) ? -1 : mkdir(path, 0777); }
int ms_file_unlink(const char *path) { return failing(OP_UNLINK) ? -1 : unlink(path); }
int ms_file_unlink_at(int folder, const char *name, int flags) {
  return failing(OP_UNLINK) ? -1 : unlinkat(folder, name, flags);
}

/* ---- complete writes ---- */

static int fail_write(const char *path, int64_t at, int64_t bytes, ssize_t done) {
  return MS_FAIL(MS_EIO, "%s: writing %lld bytes at byte %lld: %s", path, (long long)bytes, (long long)at,
                 done ? strerror(errno) : "nothing was written");
}

int ms_file_write_at(const char *path, int fd, int64_t at, int64_t bytes, const void *data) {
  const uint8_t *from = data;
  while (bytes > 0) {
    ssize_t done = pwrite_once(fd, from, (size_t)bytes, at);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return fail_write(path, at, bytes, done);
    from += done;
    at += done;
    bytes -= done;
  }
  return MS_OK;
}

static int is_page(int64_t place) { return place % MS_FILE_PAGE == 0; }

/* Writes whole pages, as many as the file system accepts directly; *written is their bytes. */
static int write_pages(const char *path, int fd, int64_t at, int64_t bytes, const uint8_t *data, int64_t *written) {
  for (*written = 0; *written < bytes && is_page(*written);) {
    int64_t left = bytes - *written;
    ssize_t done = pwrite_once(fd, data + *written, (size_t)left, at + *written);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EINVAL) return MS_OK; /* the file system requires larger multiples */
    if (done <= 0) return fail_write(path, at + *written, left, done);
    *written += done;
  }
  return MS_OK;
}

int ms_file_write_direct(const char *path, int fd, int64_t at, int64_t bytes, const void *data) {
  const int flags = fcntl(fd, F_GETFL);
  const int64_t whole = is_page(at) && is_page((intptr_t)data) ? bytes / MS_FILE_PAGE * MS_FILE_PAGE : 0;
  int64_t written = 0;
  if (whole && flags >= 0 && !fcntl(fd, F_SETFL, flags | O_DIRECT)) {
    int rc = write_pages(path, fd, at, whole, data, &written);
    if (fcntl(fd, F_SETFL, flags) && !rc)
      rc = MS_FAIL(MS_EIO, "%s: switching back to the page cache: %s", path, strerror(errno));
    if (rc) return rc;
  }
  return ms_file_write_at(path, fd, at + written, bytes - written, (const uint8_t *)data + written);
}

int ms_file_sync_folder(const char *path) {
  int fd = ms_file_open(path, O_RDONLY | O_DIRECTORY, 0);
  int failed = fd < 0 || ms_file_sync(fd), rc = MS_OK;
  if (failed) rc = MS_FAIL(MS_EIO, "%s: writing the folder to disk: %s", path, strerror(errno));
  if (fd >= 0) close(fd);
  return rc;
}

char *ms_file_join(const char *folder, const char *name) {
  size_t room = strlen(folder) + strlen(name) + 2;
  char *path = ms_calloc((int64_t)room, 1);
  if (path) snprintf(path, room, "%s/%s", folder, name);
  return path;
}

int ms_file_sync_parent(const char *path) {
  const char *slash = strrchr(path, '/');
  char *folder = slash ? ms_strdup(path) : ms_strdup(".");
  if (!folder) return MS_ENOMEM;
  if (slash) folder[slash == path ? 1 : slash - path] = '\0';
  int rc = ms_file_sync_folder(folder);
  free(folder);
  return rc;
}

int ms_file_write_text(const char *path, const char *text, int64_t bytes, int sync) {
  int fd = ms_file_open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
  if (fd < 0) return MS_FAIL(MS_EIO, "%s: %s", path, strerror(errno));
  int rc = ms_file_write_at(path, fd, 0, bytes, text);
  if (!rc && sync && ms_file_sync(fd)) rc = MS_FAIL(MS_EIO, "%s: writing it to disk: %s", path, strerror(errno));
  if (close(fd) && !rc) rc = MS_FAIL(MS_EIO, "%s: closing it: %s", path, strerror(errno));
  if (rc) unlink(path);
  return rc;
}
