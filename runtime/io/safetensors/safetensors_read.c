/* safetensors_read.c - open files: reads and checks headers, and maps data, which only the caller's reads touch.
 *
 * The header is copied out of the file before it is parsed, so that checked values cannot change. The tensors of all
 * files of a model form one list, sorted by name.
 */
#include "base/config.h"
#include "base/error.h"
#include "base/handle.h"
#include "base/text/xxh3.h"
#include "io/file_read.h"
#include "io/safetensors/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct st_file {
  char *path;
  const char *name; /* as in the index; NULL without an index */
  int fd;
  int64_t bytes;
  const uint8_t *map;
  ms_st_header header;
} st_file;

typedef struct st_note {
  const char *key, *value, *path;
} st_note;

typedef struct st_place {
  ms_safetensors_tensor tensor;
  const st_file *file;
} st_place;

struct ms_safetensors {
  ms_handle handle;
  char *path; /* of the file or the index */
  ms_st_index index;
  st_file *file;
  int files;
  st_place *place; /* [n], sorted by name */
  int n;
  st_note *note;
  int notes;
};

/* ---- files ---- */

static int read_header(st_file *file) {
  uint8_t prefix[MS_ST_PREFIX] = {0};
  int64_t length;
  if (file->bytes >= MS_ST_PREFIX) MS_TRY(ms_file_read_at(file->path, file->fd, 0, MS_ST_PREFIX, prefix));
  MS_TRY(ms_st_header_length(file->path, prefix, file->bytes, &length));
  char *text = ms_calloc(length, 1);
  if (!text) return MS_ENOMEM;
  int rc = ms_file_read_at(file->path, file->fd, MS_ST_PREFIX, length, text);
  if (!rc) rc = ms_st_header_parse(file->path, text, length, file->bytes, &file->header);
  free(text);
  return rc;
}

/* Takes ownership of path. ms_free releases what was opened, also after an error. */
static int add_file(ms_safetensors *st, char *path, const char *name) {
  st_file *file = &st->file[st->files++];
  *file = (st_file){.path = path, .name = name, .fd = -1};
  if (!path) return MS_ENOMEM;
  MS_TRY(ms_file_open_regular(path, &file->fd, &file->bytes));
  MS_TRY(read_header(file));
  void *map = mmap(NULL, (size_t)file->bytes, PROT_READ, MAP_SHARED, file->fd, 0);
  if (map == MAP_FAILED)
    return MS_FAIL(MS_EIO, "%s: mapping %lld bytes: %s", path, (long long)file->bytes, strerror(errno));
  file->map = map;
  return MS_OK;
}

/* Opens every file of the index once, in the order of their first tensors. */
static int add_indexed_files(ms_safetensors *st) {
  const char *tensor;
  json_t *name, *seen = json_object();
  int rc = seen ? MS_OK : MS_FAIL(MS_ENOMEM, "out of memory: an index");
  st->file = rc ? NULL : ms_calloc((int64_t)json_object_size(st->index.weight_map), sizeof *st->file);
  if (!rc && !st->file) rc = MS_ENOMEM;
  json_object_foreach(st->index.weight_map, tensor, name) {
    const char *plain = json_string_value(name);
    if (rc || json_object_get(seen, plain)) continue;
    if (json_object_set_new(seen, plain, json_true())) rc = MS_FAIL(MS_ENOMEM, "out of memory: an index");
    else rc = add_file(st, ms_st_beside(st->path, plain), plain);
  }
  json_decref(seen);
  return rc;
}

/* ---- the list of all tensors ---- */

static int by_name(const void *a, const void *b) {
  return strcmp(((const st_place *)a)->tensor.name, ((const st_place *)b)->tensor.name);
}

static int list_tensors(ms_safetensors *st) {
  int64_t n = 0;
  char quoted[MS_ST_QUOTED];
  for (int f = 0; f < st->files; f++) n += st->file[f].header.n;
  st->place = ms_calloc(n, sizeof *st->place);
  if (!st->place) return MS_ENOMEM;
  for (int f = 0; f < st->files; f++)
    for (int i = 0; i < st->file[f].header.n; i++) {
      st_place *place = &st->place[st->n++];
      *place = (st_place){.tensor = st->file[f].header.tensor[i], .file = &st->file[f]};
      place->tensor.file = st->file[f].path;
    }
  qsort(st->place, (size_t)st->n, sizeof *st->place, by_name);
  for (int i = 1; i < st->n; i++)
    if (!by_name(&st->place[i - 1], &st->place[i]))
      return MS_FAIL(MS_EINVAL, "%s: tensor %s is in both %s and %s: it must be in one file only", st->path,
                     ms_st_quote(st->place[i].tensor.name, quoted), st->place[i - 1].file->name,
                     st->place[i].file->name);
  return MS_OK;
}

/* Checks that index and files agree. */
static int check_against_index(const ms_safetensors *st) {
  char quoted[MS_ST_QUOTED];
  const char *name;
  json_t *file;
  for (int i = 0; i < st->n; i++) {
    const st_place *place = &st->place[i];
    const char *said = json_string_value(json_object_get(st->index.weight_map, place->tensor.name));
    if (!said || strcmp(said, place->file->name))
      return MS_FAIL(MS_EINVAL, "%s: weight_map: tensor %s is in %s, but the index %s%s: they must agree", st->path,
                     ms_st_quote(place->tensor.name, quoted), place->file->name, said ? "says " : "does not list it",
                     said ? said : "");
  }
  json_object_foreach(st->index.weight_map, name, file) {
    if (ms_safetensors_find(st, name) < 0)
      return MS_FAIL(MS_EINVAL, "%s: weight_map: tensor %s is not in %s: they must agree", st->path,
                     ms_st_quote(name, quoted), json_string_value(file));
  }
  return MS_OK;
}

static void note_all(ms_safetensors *st, json_t *metadata, const char *path) {
  const char *key;
  json_t *value;
  json_object_foreach(metadata, key, value) {
    st->note[st->notes++] = (st_note){.key = key, .value = json_string_value(value), .path = path};
  }
}

static int list_metadata(ms_safetensors *st) {
  int64_t n = (int64_t)json_object_size(st->index.metadata);
  for (int f = 0; f < st->files; f++) n += (int64_t)json_object_size(st->file[f].header.metadata);
  st->note = ms_calloc(n, sizeof *st->note);
  if (!st->note) return MS_ENOMEM;
  note_all(st, st->index.metadata, st->path);
  for (int f = 0; f < st->files; f++) note_all(st, st->file[f].header.metadata, st->file[f].path);
  return MS_OK;
}

/* ---- the handle ---- */

static int open_single(ms_safetensors *st) {
  st->file = ms_calloc(1, sizeof *st->file);
  return st->file ? add_file(st, ms_strdup(st->path), NULL) : MS_ENOMEM;
}

static void destroy_safetensors(void *object) {
  ms_safetensors *st = object;
  for (int f = 0; f < st->files; f++) {
    st_file *file = &st->file[f];
    if (file->map) munmap((void *)file->map, (size_t)file->bytes);
    if (file->fd >= 0) close(file->fd);
    ms_st_header_free(&file->header);
    free(file->path);
  }
  ms_st_index_free(&st->index);
  free(st->file);
  free(st->place);
  free(st->note);
  free(st->path);
}

int ms_safetensors_open(const char *path, ms_safetensors **file, int *tensors) {
  MS_GIVEN(path);
  MS_GIVEN(file);
  int rc, indexed;
  *file = NULL;
  ms_safetensors *st = ms_handle_new(MS_HANDLE_SAFETENSORS, sizeof *st, destroy_safetensors);
  if (!st) return MS_ENOMEM;
  MS_GOTO(ms_st_locate(path, &st->path, &indexed));
  if (indexed) MS_GOTO(ms_st_index_read(st->path, &st->index));
  MS_GOTO(indexed ? add_indexed_files(st) : open_single(st));
  MS_GOTO(list_tensors(st));
  if (indexed) MS_GOTO(check_against_index(st));
  MS_GOTO(list_metadata(st));
  *file = st;
  if (tensors) *tensors = st->n;
  return MS_OK;

fail:
  ms_free(st);
  return rc;
}

static int check_number(const ms_safetensors *st, int i) {
  if (i >= 0 && i < st->n) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%s: tensor number %d: there are %d, from 0", st->path, i, st->n);
}

int ms_safetensors_describe(const ms_safetensors *st, int i, ms_safetensors_tensor *tensor, int size) {
  MS_HANDLE(st, SAFETENSORS);
  MS_GIVEN(tensor);
  MS_TRY(check_number(st, i));
  ms_safetensors_tensor own = st->place[i].tensor;
  own.data = st->place[i].file->map + own.offset;
  MS_GIVE_INFO(tensor, size, own);
}

int ms_safetensors_find(const ms_safetensors *st, const char *name) {
  MS_HANDLE_OR(-1, st, SAFETENSORS);
  MS_GIVEN_OR(-1, name);
  st_place key = {.tensor = {.name = name}};
  const st_place *found = bsearch(&key, st->place, (size_t)st->n, sizeof key, by_name);
  return found ? (int)(found - st->place) : -1;
}

int ms_st_read(const ms_safetensors *st, int i, int64_t first, int64_t bytes, void *out) {
  MS_TRY(check_number(st, i));
  const ms_safetensors_tensor *t = &st->place[i].tensor;
  char quoted[MS_ST_QUOTED];
  if (first < 0 || bytes < 0 || first > t->bytes || bytes > t->bytes - first)
    return MS_FAIL(MS_EINVAL, "%s: tensor %s: reading %lld bytes from byte %lld: it has %lld", t->file,
                   ms_st_quote(t->name, quoted), (long long)bytes, (long long)first, (long long)t->bytes);
  return ms_file_read_at(t->file, st->place[i].file->fd, t->offset + first, bytes, out);
}

int ms_safetensors_checksum(const ms_safetensors *st, int i, int64_t first, int64_t bytes, char *hex) {
  MS_HANDLE(st, SAFETENSORS);
  MS_GIVEN(hex);
  enum { PIECE = 1 << 18 }; /* stays in the second cache level */
  MS_TRY(check_number(st, i));
  if (bytes == -1) bytes = st->place[i].tensor.bytes - first;
  uint8_t *piece = ms_calloc(bytes >= 0 && bytes < PIECE ? bytes : PIECE, 1);
  XXH3_state_t *state = XXH3_createState();
  int rc = piece && state ? MS_OK : MS_FAIL(MS_ENOMEM, "out of memory: a checksum");
  if (!rc) XXH3_64bits_reset(state);
  for (int64_t at = 0; !rc && at < bytes; at += PIECE) {
    int64_t length = bytes - at < PIECE ? bytes - at : PIECE;
    rc = ms_st_read(st, i, first + at, length, piece);
    if (!rc) XXH3_64bits_update(state, piece, (size_t)length);
  }
  if (!rc) snprintf(hex, 17, "%016llx", (unsigned long long)XXH3_64bits_digest(state));
  XXH3_freeState(state);
  free(piece);
  return rc;
}

int ms_safetensors_metadata(const ms_safetensors *st, int i, const char **key, const char **value, const char **path) {
  MS_HANDLE(st, SAFETENSORS);
  MS_GIVEN(key);
  MS_GIVEN(value);
  MS_GIVEN(path);
  MS_NOT_NEGATIVE(i);
  *key = *value = *path = NULL;
  if (i >= st->notes) return MS_OK;
  *key = st->note[i].key;
  *value = st->note[i].value;
  *path = st->note[i].path;
  return MS_OK;
}
