/* safetensors_write.c - the writer: writes the header from the declared tensors first, then data at its offset in any
 * order.
 *
 * The layout is the reference library's: by descending alignment, then by name, with a header padded with spaces to a
 * multiple of 8, or of a page if data bypasses the page cache. Files appear complete or not at all: data is written
 * to a temporary name in the same folder, and the file is renamed when it is complete.
 */
#include "base/config.h"
#include "base/error.h"
#include "base/handle.h"
#include "io/file.h"
#include "io/ranges.h"
#include "io/safetensors/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct declared {
  char *name;
  int dtype;
  int64_t offset, bytes; /* offset from the start of the data */
} declared;

struct ms_safetensors_writer {
  ms_handle handle;
  char *path, *written_as;
  int fd, atomic, sync;
  int created;     /* 1: this writer created a file named written_as */
  int failed;      /* 1: a write failed, and its bytes are missing */
  int64_t waiting; /* bytes written since the last ms_file_begin_sync */
  declared *tensor;
  const declared **order; /* in file order */
  int n;
  int64_t data_at, data_bytes;
  ms_ranges put;
};

/* ---- the header ---- */

static int by_layout(const void *a, const void *b) {
  const declared *x = *(const declared *const *)a, *y = *(const declared *const *)b;
  if (x->dtype != y->dtype) return x->dtype > y->dtype ? -1 : 1;
  return strcmp(x->name, y->name);
}

static int declare(declared *to, const ms_safetensors_tensor *from, int64_t *elements) {
  char quoted[MS_ST_QUOTED];
  to->dtype = ms_st_dtype_find(from->dtype ? from->dtype : "");
  if (to->dtype < 0)
    return MS_FAIL(MS_EINVAL, "dtype: %s is unknown: it must be %s",
                   ms_st_quote(from->dtype ? from->dtype : "", quoted), ms_st_dtype_names());
  if (from->ndim < 0) return MS_FAIL(MS_EINVAL, "shape: ndim is %d; it must be 0 or more", from->ndim);
  if (from->ndim > 0 && !from->dims) return MS_FAIL(MS_EINVAL, "shape: dims is NULL, but ndim is %d", from->ndim);
  return ms_st_measure(to->dtype, from->ndim, from->dims, elements, &to->bytes);
}

static int declare_all(ms_safetensors_writer *w, const ms_safetensors_tensor *tensors) {
  char quoted[MS_ST_QUOTED];
  int64_t elements;
  for (int i = 0; i < w->n; i++) {
    declared *to = &w->tensor[i];
    if (!tensors[i].name) return MS_FAIL(MS_EINVAL, "%s: tensor number %d has no name", w->path, i);
    if (!(to->name = ms_strdup(tensors[i].name))) return MS_ENOMEM;
    if (declare(to, &tensors[i], &elements))
      return ms_error_prefix("%s: tensor %s", w->path, ms_st_quote(to->name, quoted));
    w->order[i] = to;
  }
  qsort(w->order, (size_t)w->n, sizeof *w->order, by_layout);
  for (int i = 0; i < w->n; i++) {
    declared *to = &w->tensor[w->order[i] - w->tensor];
    to->offset = w->data_bytes;
    if (__builtin_add_overflow(w->data_bytes, to->bytes, &w->data_bytes) ||
        w->data_bytes > INT64_MAX - 2 * MS_ST_MAX_HEADER)
      return MS_FAIL(MS_EINVAL, "%s: the total size of the tensors exceeds 63 bits", w->path);
  }
  return MS_OK;
}

/* Adds a key, which must be UTF-8 and unique; takes ownership of the value. */
static int set_new(const char *path, const char *what, json_t *object, const char *key, json_t *value) {
  char quoted[MS_ST_QUOTED];
  json_t *utf8 = json_string(key);
  json_decref(utf8);
  if (!utf8 || !value) {
    json_decref(value);
    return MS_FAIL(MS_EINVAL, "%s: %s %s: names and texts must be UTF-8", path, what, ms_st_quote(key, quoted));
  }
  if (json_object_get(object, key)) {
    json_decref(value);
    return MS_FAIL(MS_EINVAL, "%s: %s %s: the name is already in use: names must be unique", path, what,
                   ms_st_quote(key, quoted));
  }
  if (json_object_set_new(object, key, value)) return MS_FAIL(MS_ENOMEM, "out of memory: a header");
  return MS_OK;
}

static int add_metadata(const char *path, json_t *root, const ms_safetensors_config *config) {
  json_t *metadata = json_object();
  int rc = MS_OK;
  for (int i = 0; metadata && i < config->metadata && !rc; i++) {
    const char *key = config->metadata_text[2 * i], *value = config->metadata_text[2 * i + 1];
    rc = set_new(path, MS_ST_METADATA, metadata, key, json_string(value));
  }
  if (rc) json_decref(metadata);
  else rc = set_new(path, "header", root, MS_ST_METADATA, metadata);
  return rc;
}

static int add_tensors(const ms_safetensors_writer *w, const ms_safetensors_tensor *tensors, json_t *root) {
  for (int i = 0; i < w->n; i++) {
    const declared *t = w->order[i];
    const ms_safetensors_tensor *from = &tensors[t - w->tensor];
    json_t *shape = json_array();
    for (int d = 0; d < from->ndim; d++)
      if (json_array_append_new(shape, json_integer(from->dims[d]))) {
        json_decref(shape);
        return MS_FAIL(MS_ENOMEM, "out of memory: a header");
      }
    if (!strcmp(t->name, MS_ST_METADATA)) {
      json_decref(shape);
      return MS_FAIL(MS_EINVAL, "%s: no tensor can be named " MS_ST_METADATA, w->path);
    }
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", ms_st_dtype_row(t->dtype)->name, "shape", shape,
                              "data_offsets", (json_int_t)t->offset, (json_int_t)(t->offset + t->bytes));
    if (!entry) return MS_FAIL(MS_ENOMEM, "out of memory: a header");
    MS_TRY(set_new(w->path, "tensor", root, t->name, entry));
  }
  return MS_OK;
}

/* Builds the start of the file, prefix and JSON; the caller frees it. Sets data_at. */
static int make_header(ms_safetensors_writer *w, const ms_safetensors_tensor *tensors,
                       const ms_safetensors_config *config, uint8_t **header) {
  json_t *root = json_object();
  char *text = NULL;
  int rc = root ? MS_OK : MS_FAIL(MS_ENOMEM, "out of memory: a header");
  if (!rc && config->metadata) rc = add_metadata(w->path, root, config);
  if (!rc) rc = add_tensors(w, tensors, root);
  if (rc) goto fail;
  text = json_dumps(root, JSON_COMPACT);
  const int64_t length = text ? (int64_t)strlen(text) : 0, unit = config->direct ? MS_FILE_PAGE : 8;
  const int64_t padded = (MS_ST_PREFIX + length + unit - 1) / unit * unit - MS_ST_PREFIX;
  if (!text) {
    rc = MS_FAIL(MS_ENOMEM, "out of memory: a header");
  } else if (padded > MS_ST_MAX_HEADER) {
    rc = MS_FAIL(MS_EINVAL, "%s: the header takes %lld bytes for %d tensors: the format allows %d", w->path,
                 (long long)padded, w->n, MS_ST_MAX_HEADER);
  } else if (!(*header = ms_calloc(MS_ST_PREFIX + padded, 1))) {
    rc = MS_ENOMEM;
  } else {
    for (int i = 0; i < MS_ST_PREFIX; i++) (*header)[i] = (uint8_t)((uint64_t)padded >> (8 * i));
    memset(*header + MS_ST_PREFIX, ' ', (size_t)padded);
    memcpy(*header + MS_ST_PREFIX, text, (size_t)length);
    w->data_at = MS_ST_PREFIX + padded;
  }

fail:
  free(text);
  json_decref(root);
  return rc;
}

/* ---- the file ---- */

/* A temporary name in the same folder; never the name of a file left by a killed process. */
static int create_beside(ms_safetensors_writer *w) {
  enum { NAMES = 1000 };
  size_t room = strlen(w->path) + 40;
  if (!(w->written_as = ms_calloc((int64_t)room, 1))) return MS_ENOMEM;
  for (int i = 0; i < NAMES && w->fd < 0; i++) {
    snprintf(w->written_as, room, "%s.%ld.%d.tmp", w->path, (long)getpid(), i);
    w->fd = ms_file_open(w->written_as, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (w->fd < 0 && errno != EEXIST) break;
  }
  return MS_OK;
}

static int create_file(ms_safetensors_writer *w) {
  if (w->atomic) {
    MS_TRY(create_beside(w));
  } else {
    if (!(w->written_as = ms_strdup(w->path))) return MS_ENOMEM;
    w->fd = ms_file_open(w->path, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK, 0666);
  }
  if (w->fd < 0) return MS_FAIL(MS_EIO, "%s: %s", w->written_as, strerror(errno));
  struct stat about;
  if (fstat(w->fd, &about)) return MS_FAIL(MS_EIO, "%s: %s", w->written_as, strerror(errno));
  if (!S_ISREG(about.st_mode)) return MS_FAIL(MS_EINVAL, "%s: it is not a regular file: choose another path", w->path);
  w->created = 1; /* from here on an abort removes it; never a device that the user named */
  if (ftruncate(w->fd, w->data_at + w->data_bytes))
    return MS_FAIL(MS_EIO, "%s: creating a file of %lld bytes: %s", w->written_as,
                   (long long)(w->data_at + w->data_bytes), strerror(errno));
  return MS_OK;
}

static int sync_folder(const char *path) {
  char *folder = ms_st_beside(path, ".");
  int rc = folder ? ms_file_sync_folder(folder) : MS_ENOMEM;
  free(folder);
  return rc;
}

static void destroy_writer(void *object) {
  ms_safetensors_writer *w = object;
  if (w->fd >= 0) close(w->fd);
  if (w->created) unlink(w->written_as);
  for (int i = 0; i < w->n; i++) free(w->tensor[i].name);
  free(w->tensor);
  free(w->order);
  ms_ranges_free(&w->put);
  free(w->written_as);
  free(w->path);
}

/* ---- the public calls ---- */

/* The caller's rows as this library knows them; the caller frees them. */
static int take_tensors(int n, const ms_safetensors_tensor *given, int size, ms_safetensors_tensor **own) {
  *own = ms_calloc(n, sizeof **own);
  if (!*own) return MS_ENOMEM;
  for (int i = 0; i < n; i++)
    MS_TRY(
        ms_info_take(&(*own)[i], sizeof **own, (const char *)given + (int64_t)i * size, size, "ms_safetensors_create"));
  return MS_OK;
}

int ms_safetensors_create(const char *path, int n, const ms_safetensors_tensor *given_tensors, int size,
                          const ms_safetensors_config *given, ms_safetensors_writer **writer) {
  MS_GIVEN(path);
  MS_GIVEN(writer);
  if (n > 0) MS_GIVEN(given_tensors);
  ms_safetensors_config own;
  ms_safetensors_tensor *tensors = NULL;
  const ms_safetensors_config *config = &own;
  uint8_t *header = NULL;
  int rc = MS_OK;
  *writer = NULL;
  MS_TRY(ms_config_default("ms_safetensors_config", &own, sizeof own));
  if (given) MS_TRY(ms_config_take(&own, sizeof own, given, "ms_safetensors_config"));
  if (own.metadata < 0) return MS_FAIL(MS_EINVAL, "%s: metadata must be 0 or more, not %d", path, own.metadata);
  if (own.metadata && !own.metadata_text)
    return MS_FAIL(MS_EINVAL, "%s: metadata_text is NULL, with metadata %d", path, own.metadata);
  if (n < 0) return MS_FAIL(MS_EINVAL, "%s: the number of tensors must be 0 or more, not %d", path, n);
  ms_safetensors_writer *w = ms_handle_new(MS_HANDLE_SAFETENSORS_WRITER, sizeof *w, destroy_writer);
  if (!w) return MS_ENOMEM;
  w->fd = -1;
  w->atomic = config->atomic;
  w->sync = config->sync;
  w->path = ms_strdup(path);
  w->tensor = ms_calloc(n, sizeof *w->tensor);
  w->order = ms_calloc(n, sizeof *w->order);
  if (!w->path || !w->tensor || !w->order) {
    rc = MS_ENOMEM;
    goto fail;
  }
  w->n = n;
  MS_GOTO(take_tensors(n, given_tensors, size, &tensors));
  MS_GOTO(declare_all(w, tensors));
  MS_GOTO(make_header(w, tensors, config, &header));
  MS_GOTO(create_file(w));
  MS_GOTO(ms_file_write_at(w->written_as, w->fd, 0, w->data_at, header));
  *writer = w;

fail:
  free(tensors);
  free(header);
  if (rc) ms_free(w);
  return rc;
}

static int check_number(const ms_safetensors_writer *w, int i) {
  if (i >= 0 && i < w->n) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%s: tensor number %d does not exist: there are %d, from 0", w->path, i, w->n);
}

int ms_st_declared(const ms_safetensors_writer *w, int i, ms_safetensors_tensor *tensor) {
  MS_TRY(check_number(w, i));
  const declared *t = &w->tensor[i];
  const ms_st_dtype *dtype = ms_st_dtype_row(t->dtype);
  *tensor = (ms_safetensors_tensor){.name = t->name,
                                    .dtype = dtype->name,
                                    .bits = dtype->bits,
                                    .bytes = t->bytes,
                                    .elements = t->bytes / dtype->bits * 8 + t->bytes % dtype->bits * 8 / dtype->bits,
                                    .file = w->path};
  return MS_OK;
}

/* Lets the disk write while more data arrives. */
static void begin_sync(ms_safetensors_writer *w, int64_t bytes) {
  enum { STRETCH = 4 << 20 };
  w->waiting += bytes;
  if (!w->sync || w->waiting < STRETCH) return;
  ms_file_begin_sync(w->fd);
  w->waiting = 0;
}

int ms_st_write(ms_safetensors_writer *w, int i, int64_t first, int64_t bytes, const void *data) {
  char quoted[MS_ST_QUOTED];
  int taken;
  MS_TRY(check_number(w, i));
  const declared *t = &w->tensor[i];
  if (first < 0 || bytes < 0 || first > t->bytes || bytes > t->bytes - first)
    return MS_FAIL(MS_EINVAL, "%s: tensor %s: writing %lld bytes from byte %lld: it has %lld", w->path,
                   ms_st_quote(t->name, quoted), (long long)bytes, (long long)first, (long long)t->bytes);
  if (!bytes) return MS_OK;
  MS_TRY(ms_ranges_add(&w->put, t->offset + first, t->offset + first + bytes, &taken));
  if (taken)
    return MS_FAIL(MS_EINVAL, "%s: tensor %s: some of bytes %lld to %lld were already written: write each byte once",
                   w->path, ms_st_quote(t->name, quoted), (long long)first, (long long)(first + bytes));
  int rc = ms_file_write_at(w->written_as, w->fd, w->data_at + t->offset + first, bytes, data);
  if (rc) w->failed = 1;
  else begin_sync(w, bytes);
  return rc;
}

int64_t ms_st_offset(const ms_safetensors_writer *w, int i) { return w->tensor[i].offset; }

int ms_st_put_data(ms_safetensors_writer *w, int64_t first, int64_t bytes, const void *data) {
  int taken;
  if (first < 0 || bytes < 0 || first > w->data_bytes || bytes > w->data_bytes - first)
    return MS_FAIL(MS_EINVAL, "%s: writing %lld bytes from byte %lld of all data, which has %lld", w->path,
                   (long long)bytes, (long long)first, (long long)w->data_bytes);
  if (!bytes) return MS_OK;
  MS_TRY(ms_ranges_add(&w->put, first, first + bytes, &taken));
  if (taken)
    return MS_FAIL(MS_EINVAL, "%s: some of bytes %lld to %lld of all data were already written: write each byte once",
                   w->path, (long long)first, (long long)(first + bytes));
  int rc = ms_file_write_direct(w->written_as, w->fd, w->data_at + first, bytes, data);
  if (rc) w->failed = 1;
  else begin_sync(w, bytes);
  return rc;
}

static int check_complete(const ms_safetensors_writer *w) {
  char quoted[MS_ST_QUOTED];
  ms_range gap;
  if (w->failed) return MS_FAIL(MS_EIO, "%s: an earlier write failed: the file cannot be finished", w->path);
  if (!ms_ranges_gap(&w->put, w->data_bytes, &gap)) return MS_OK;
  int i = 0;
  while (w->order[i]->offset + w->order[i]->bytes <= gap.begin) i++;
  const declared *t = w->order[i];
  int64_t end = gap.end < t->offset + t->bytes ? gap.end : t->offset + t->bytes;
  return MS_FAIL(MS_EINVAL, "%s: tensor %s: bytes %lld to %lld were not written: all %lld are required", w->path,
                 ms_st_quote(t->name, quoted), (long long)(gap.begin - t->offset), (long long)(end - t->offset),
                 (long long)t->bytes);
}

static int close_file(ms_safetensors_writer *w) {
  if (w->sync && ms_file_sync(w->fd))
    return MS_FAIL(MS_EIO, "%s: writing it to disk: %s", w->written_as, strerror(errno));
  int failed = close(w->fd);
  w->fd = -1;
  if (failed) return MS_FAIL(MS_EIO, "%s: closing it: %s", w->written_as, strerror(errno));
  if (w->atomic && ms_file_rename(w->written_as, w->path))
    return MS_FAIL(MS_EIO, "%s: renaming it to %s: %s", w->written_as, w->path, strerror(errno));
  return MS_OK;
}

int ms_safetensors_finish(ms_safetensors_writer *w) {
  MS_HANDLE(w, SAFETENSORS_WRITER);
  int rc = check_complete(w);
  if (!rc) rc = close_file(w);
  if (!rc) w->created = 0; /* now under its final name */
  if (!rc && w->sync) rc = sync_folder(w->path);
  ms_free(w);
  return rc;
}
