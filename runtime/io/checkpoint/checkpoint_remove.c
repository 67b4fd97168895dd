/* checkpoint_remove.c - removes a checkpoint's folder, and nothing outside of it.
 *
 * A checkpoint is renamed first, so that a folder that is partly removed is never taken for one. Entries are removed
 * through descriptors of their folders, and no symbolic link is ever followed: a link is removed itself, also one in
 * the place of the checkpoint, whose files were moved to another disk. Another file system that is mounted inside is
 * refused.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "io/checkpoint/checkpoint.h"
#include "io/file.h"

static int fail_removing(const char *path, const char *why) {
  return MS_FAIL(MS_EIO, "%s: removing it: %s", path, why);
}

static int remove_entry(int folder, const char *name, const char *path, dev_t device);

/* Removes what a folder contains. Closes its descriptor. */
static int remove_contents(int fd, const char *path, dev_t device) {
  DIR *entries = fdopendir(fd);
  int rc = MS_OK;
  if (!entries) {
    rc = fail_removing(path, strerror(errno));
    close(fd);
    return rc;
  }
  struct dirent *entry;
  while (!rc && (errno = 0, entry = readdir(entries))) {
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    char *inner = ms_file_join(path, entry->d_name);
    rc = inner ? remove_entry(fd, entry->d_name, inner, device) : MS_ENOMEM;
    free(inner);
  }
  if (!rc && errno) rc = fail_removing(path, strerror(errno));
  closedir(entries);
  return rc;
}

static int unlink_entry(int folder, const char *name, const char *path, int flags) {
  return ms_file_unlink_at(folder, name, flags) ? fail_removing(path, strerror(errno)) : MS_OK;
}

/* path: for messages. What is no folder, such as a link to one, is unlinked. */
static int remove_entry(int folder, const char *name, const char *path, dev_t device) {
  int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && (errno == ENOTDIR || errno == ELOOP)) return unlink_entry(folder, name, path, 0);
  struct stat about;
  if (fd < 0 || fstat(fd, &about)) {
    int rc = fail_removing(path, strerror(errno));
    if (fd >= 0) close(fd);
    return rc;
  }
  if (device && about.st_dev != device) {
    close(fd);
    return fail_removing(path, "another file system is mounted there");
  }
  MS_TRY(remove_contents(fd, path, about.st_dev));
  return unlink_entry(folder, name, path, AT_REMOVEDIR);
}

/* ".NAME.removed" in the same folder. */
static char *hidden_name(const char *path, const char *name) {
  size_t room = strlen(path) + 16;
  char *hidden = ms_calloc((int64_t)room, 1);
  if (hidden) snprintf(hidden, room, "%.*s.%s.removed", (int)(name - path), path, name);
  return hidden;
}

static int hide(const char *path, const char *hidden) {
  if (ms_file_rename(path, hidden)) return MS_FAIL(MS_EIO, "%s: renaming it to %s: %s", path, hidden, strerror(errno));
  return ms_file_sync_parent(path);
}

static int remove_checkpoint(const char *path, const char *name) {
  char *manifest = ms_file_join(path, MS_MANIFEST), *hidden = hidden_name(path, name);
  int rc = manifest && hidden ? MS_OK : MS_ENOMEM;
  if (!rc && access(manifest, F_OK)) rc = MS_FAIL(MS_EINVAL, "%s is not a checkpoint: it has no " MS_MANIFEST, path);
  if (!rc) rc = hide(path, hidden);
  if (!rc) rc = remove_entry(AT_FDCWD, hidden, hidden, 0);
  free(manifest);
  free(hidden);
  return rc;
}

int ms_checkpoint_remove(const char *path) {
  MS_GIVEN(path);
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
  if (!*name || !strcmp(name, ".") || !strcmp(name, ".."))
    return MS_FAIL(MS_EINVAL, "ms_checkpoint_remove: \"%s\" does not end in the name of a folder", path);
  return *name == '.' ? remove_entry(AT_FDCWD, path, path, 0) : remove_checkpoint(path, name);
}
