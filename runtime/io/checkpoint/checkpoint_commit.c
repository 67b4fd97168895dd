/* checkpoint_commit.c - turns parts into a checkpoint: the manifest, then one rename.
 *
 * A folder with a checkpoint's name is complete and on disk, whenever the process or the machine stops: files and
 * manifest are synced before the rename, folders after it.
 */
#include "io/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text/text.h"
#include "base/text/xxh3.h"
#include "io/file.h"
#include "io/file_read.h"
#include "io/safetensors/safetensors.h"

/* The last entry of the manifest is its own checksum, over all bytes before it; so is that of a part that stays. */
#define END ",\"xxh3\":\""
enum { END_BYTES = sizeof END - 1 + 16 + 3 }; /* with 16 digits, the quote, the brace and a newline */

/* ---- text files ---- */

static int append_file(const char *path, ms_text *text) {
  char *data = NULL;
  int64_t bytes;
  MS_TRY(ms_file_read_whole(path, &data, &bytes));
  ms_text_append(text, "%s", data);
  free(data);
  return ms_text_status(text);
}

static uint64_t checksum(const char *text, size_t bytes) { return XXH3_64bits(text, bytes); }

int ms_checkpoint_end(ms_text *json) {
  MS_TRY(ms_text_status(json));
  ms_text_append(json, END "%016llx\"}\n", (unsigned long long)checksum(json->data, json->length));
  return ms_text_status(json);
}

/* ---- the manifest ---- */

static char *part_path(const char *folder, int writer) {
  char name[32];
  snprintf(name, sizeof name, "rank-%05d.json", writer);
  return ms_file_join(folder, name);
}

static int writer_of(const ms_commit *c, int i) { return c->awaits ? c->awaits[i] : i; }

/* Parts arrive in any order; each arrival restarts the deadline for the others. */
static int wait_for_parts(const ms_commit *c) {
  double began = ms_clock();
  for (int i = 0; i < c->writers;) {
    const int writer = writer_of(c, i);
    char *path = part_path(c->folder, writer);
    if (!path) return MS_ENOMEM;
    int there = !access(path, F_OK);
    free(path);
    if (atomic_load(c->stop)) return MS_FAIL(MS_EINTERRUPT, "the save was cancelled");
    if (there) {
      i++;
      began = ms_clock();
      atomic_fetch_add(c->writes, 1);
      continue;
    }
    if (ms_clock() - began > c->deadline)
      return MS_FAIL(MS_ETIMEOUT, "%s: waited %g s for the file of writer %d", c->folder, c->deadline, writer);
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
  }
  return MS_OK;
}

static int append_parts(const ms_commit *c, ms_text *text) {
  int rc = MS_OK;
  ms_text_append(text, ",\"files\":[");
  for (int i = 0; !rc && i < c->writers; i++) {
    char *part = part_path(c->folder, writer_of(c, i));
    if (i) ms_text_append(text, ",");
    rc = part ? append_file(part, text) : MS_ENOMEM;
    free(part);
  }
  ms_text_append(text, "]");
  return rc;
}

static int write_manifest(const ms_commit *c) {
  ms_text text = {0};
  char *path = ms_file_join(c->folder, MS_MANIFEST);
  int rc = path ? MS_OK : MS_ENOMEM;
  ms_text_append(&text, "%.*s", (int)strlen(c->head) - 1, c->head);
  if (!rc && !c->apart) rc = append_parts(c, &text);
  if (!rc) rc = ms_checkpoint_end(&text);
  if (!rc) rc = ms_file_write_text(path, text.data, (int64_t)text.length, 1);
  free(path);
  ms_text_free(&text);
  return rc;
}

static int remove_parts(const ms_commit *c) {
  int rc = MS_OK;
  for (int i = 0; !rc && i < c->writers; i++) {
    char *path = part_path(c->folder, writer_of(c, i));
    if (!path) return MS_ENOMEM;
    if (ms_file_unlink(path)) rc = MS_FAIL(MS_EIO, "%s: removing it: %s", path, strerror(errno));
    free(path);
  }
  return rc;
}

int ms_commit_run(const ms_commit *c) {
  MS_TRY(wait_for_parts(c));
  MS_TRY(write_manifest(c));
  if (!c->apart) MS_TRY(remove_parts(c));
  MS_TRY(ms_file_sync_folder(c->folder));
  if (ms_file_rename(c->folder, c->target)) {
    if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR)
      return MS_FAIL(MS_EIO, "%s already exists and is not a checkpoint: remove it", c->target);
    return MS_FAIL(MS_EIO, "%s: renaming it to %s: %s", c->folder, c->target, strerror(errno));
  }
  int rc = ms_file_sync_parent(c->target);
  if (rc) {
    rename(c->target,
           c->folder); /* a failed save leaves no checkpoint; if this unlink fails too, it leaves a complete one */
    return rc;
  }
  for (int i = 0; i < c->retired; i++) MS_TRY(ms_checkpoint_remove(c->retires[i]));
  return MS_OK;
}

/* Frees the path. */
static int read_checked(char *path, char **out) {
  char *text = NULL;
  int64_t bytes;
  int rc = path ? ms_file_read_whole(path, &text, &bytes) : MS_ENOMEM;
  if (!rc) {
    size_t before = bytes > END_BYTES ? (size_t)(bytes - END_BYTES) : 0;
    char end[END_BYTES + 1];
    snprintf(end, sizeof end, END "%016llx\"}\n", (unsigned long long)checksum(text, before));
    if (!before || strcmp(text + before, end))
      rc = MS_FAIL(MS_EIO, "%s: the checksum does not match: the file is damaged", path);
  }
  free(path);
  if (rc) free(text);
  else *out = text;
  return rc;
}

int ms_checkpoint_read(const char *folder, int writer, char **out) {
  MS_GIVEN(folder);
  MS_GIVEN(out);
  if (writer < -1) return MS_FAIL(MS_EINVAL, "ms_checkpoint_read: writer is %d; it must be 0 or more, or -1", writer);
  return read_checked(writer < 0 ? ms_file_join(folder, MS_MANIFEST) : part_path(folder, writer), out);
}

/* ---- folders ---- */

static int make_one(const char *path, int fresh) {
  if (!ms_file_mkdir(path)) return fresh ? MS_OK : ms_file_sync_parent(path);
  struct stat about;
  if (errno == EEXIST && !fresh && !stat(path, &about) && S_ISDIR(about.st_mode)) return MS_OK;
  return MS_FAIL(MS_EIO, "folder %s: %s", path, strerror(errno == EEXIST && !fresh ? ENOTDIR : errno));
}

int ms_checkpoint_make_folder(const char *path, int fresh) {
  MS_GIVEN(path);
  if (!*path) return MS_FAIL(MS_EINVAL, "ms_checkpoint_make_folder: path is empty");
  char *upto = ms_strdup(path);
  if (!upto) return MS_ENOMEM;
  int rc = MS_OK;
  for (char *slash = strchr(upto + 1, '/'); !rc && slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    if (access(upto, F_OK)) rc = make_one(upto, 0);
    *slash = '/';
  }
  free(upto);
  return rc ? rc : make_one(path, fresh);
}
