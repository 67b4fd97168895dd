/* safetensors_index.c - models in several files: finds the file to open in a folder, and reads indexes.
 *
 * An index is JSON: weight_map contains the file of every tensor, as a plain name in the index's folder. A name that
 * leads out of the folder is rejected.
 */
#include "base/error.h"
#include "io/file_read.h"
#include "io/safetensors/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int ends_in(const char *text, const char *end) {
  size_t length = strlen(text), tail = strlen(end);
  return length >= tail && !strcmp(text + length - tail, end);
}

static char *join(const char *folder, size_t folder_length, const char *name) {
  size_t bytes = folder_length + strlen(name) + 2;
  char *path = ms_calloc((int64_t)bytes, 1);
  if (path) snprintf(path, bytes, "%.*s/%s", (int)folder_length, folder, name);
  return path;
}

char *ms_st_beside(const char *path, const char *name) {
  const char *slash = strrchr(path, '/');
  return slash ? join(path, (size_t)(slash - path), name) : ms_strdup(name);
}

static size_t without_slashes(const char *path) {
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') length--;
  return length;
}

/* The only file with that suffix in a folder. */
static int find_only(const char *folder, char **located) {
  DIR *entries = opendir(folder);
  if (!entries) return MS_FAIL(MS_EIO, "%s: %s", folder, strerror(errno));
  int found = 0, rc = MS_OK;
  struct dirent *entry;
  while (!rc && (errno = 0, entry = readdir(entries))) {
    if (entry->d_name[0] == '.' || !ends_in(entry->d_name, ".safetensors")) continue;
    if (found++) continue;
    *located = join(folder, without_slashes(folder), entry->d_name);
    if (!*located) rc = MS_ENOMEM;
  }
  if (!rc && errno) rc = MS_FAIL(MS_EIO, "%s: %s", folder, strerror(errno));
  closedir(entries);
  if (!rc && found == 1) return rc;
  free(*located);
  *located = NULL;
  if (rc) return rc;
  if (!found)
    return MS_FAIL(MS_EINVAL,
                   "%s: this folder contains no model.safetensors, model.safetensors.index.json or other "
                   ".safetensors file",
                   folder);
  return MS_FAIL(MS_EINVAL,
                 "%s: this folder contains %d .safetensors files and no model.safetensors.index.json: name one of "
                 "them",
                 folder, found);
}

int ms_st_locate(const char *path, char **located, int *indexed) {
  static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
  struct stat about;
  *located = NULL;
  *indexed = ends_in(path, ".index.json");
  if (stat(path, &about) || !S_ISDIR(about.st_mode)) return (*located = ms_strdup(path)) ? MS_OK : MS_ENOMEM;
  for (int i = 0; i < 2; i++) {
    char *candidate = join(path, without_slashes(path), names[i]);
    if (!candidate) return MS_ENOMEM;
    *indexed = i;
    *located = candidate;
    if (!access(candidate, F_OK)) return MS_OK;
    free(candidate);
  }
  *indexed = 0;
  *located = NULL;
  return find_only(path, located);
}

/* Metadata values of an index can be any JSON ("total_size": 1234); they are kept as texts. */
static int make_texts(json_t *metadata) {
  const char *key;
  json_t *value;
  json_object_foreach(metadata, key, value) {
    if (json_is_string(value)) continue;
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    json_t *string = text ? json_string(text) : NULL;
    free(text);
    if (!string || json_object_iter_set_new(metadata, json_object_key_to_iter(key), string))
      return MS_FAIL(MS_ENOMEM, "out of memory: metadata of an index");
  }
  return MS_OK;
}

static int check_index(const char *path, const ms_st_index *index) {
  const char *name;
  json_t *file;
  char quoted[MS_ST_QUOTED], other[MS_ST_QUOTED];
  if (!json_is_object(index->weight_map) || !json_object_size(index->weight_map))
    return MS_FAIL(MS_EINVAL, "%s: weight_map: must be an object with the file of each tensor", path);
  if (index->metadata && !json_is_object(index->metadata))
    return MS_FAIL(MS_EINVAL, "%s: metadata: it must be an object", path);
  json_object_foreach(index->weight_map, name, file) {
    const char *plain = json_string_value(file);
    if (!plain)
      return MS_FAIL(MS_EINVAL, "%s: weight_map: the file of %s must be a string, the name of a file", path,
                     ms_st_quote(name, quoted));
    if (!*plain || strchr(plain, '/') || !strcmp(plain, ".") || !strcmp(plain, ".."))
      return MS_FAIL(MS_EINVAL, "%s: weight_map: the file of %s is %s: it must name a file in the folder of the index",
                     path, ms_st_quote(name, quoted), ms_st_quote(plain, other));
  }
  return MS_OK;
}

int ms_st_index_parse(const char *path, const char *text, int64_t length, ms_st_index *index) {
  int rc;
  *index = (ms_st_index){0};
  MS_GOTO(ms_st_json(path, "index", text, length, &index->root));
  index->weight_map = json_object_get(index->root, "weight_map");
  index->metadata = json_object_get(index->root, "metadata");
  MS_GOTO(check_index(path, index));
  if (index->metadata) MS_GOTO(make_texts(index->metadata));
  return MS_OK;

fail:
  ms_st_index_free(index);
  return rc;
}

int ms_st_index_read(const char *path, ms_st_index *index) {
  int fd;
  int64_t bytes;
  char *text = NULL;
  MS_TRY(ms_file_open_regular(path, &fd, &bytes));
  int rc = bytes <= MS_ST_MAX_HEADER ? MS_OK
                                     : MS_FAIL(MS_EINVAL, "%s: index of %lld bytes: it must have at most %d", path,
                                               (long long)bytes, MS_ST_MAX_HEADER);
  if (!rc && !(text = ms_calloc(bytes, 1))) rc = MS_ENOMEM;
  if (!rc) rc = ms_file_read_at(path, fd, 0, bytes, text);
  if (!rc) rc = ms_st_index_parse(path, text, bytes, index);
  free(text);
  close(fd);
  return rc;
}

void ms_st_index_free(ms_st_index *index) {
  json_decref(index->root);
  *index = (ms_st_index){0};
}
