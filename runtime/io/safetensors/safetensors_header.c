/* safetensors_header.c - the header of a safetensors file, every rule of the format checked.
 *
 * Rules: N within the file and at most 100,000,000; UTF-8 JSON that begins with "{"; no duplicate key; integers written
 * as integers and not negative; known element types; a shape's product checked, and equal to the bytes it was given;
 * data that covers the file's rest exactly, without hole or overlap; __metadata__ of strings. Fields beyond dtype,
 * shape and data_offsets are passed over, as the reference library does.
 */
#include "base/error.h"
#include "base/text/text.h"
#include "io/safetensors/safetensors.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

const char *ms_st_quote(const char *name, char out[MS_ST_QUOTED]) {
  enum { SHOWN = 120 };
  char cut[SHOWN + 4];
  size_t length = strnlen(name, SHOWN + 1);
  memcpy(cut, name, length > SHOWN ? SHOWN : length);
  memcpy(cut + (length > SHOWN ? SHOWN : length), length > SHOWN ? "..." : "", length > SHOWN ? 4 : 1);
  ms_text text = {0};
  ms_text_json_string(&text, cut);
  size_t shown = text.data && !text.failed ? strnlen(text.data, MS_ST_QUOTED - 1) : 0;
  memcpy(out, text.data ? text.data : "", shown);
  out[shown] = '\0';
  ms_text_free(&text);
  return out;
}

int ms_st_header_length(const char *path, const uint8_t *prefix, int64_t file_bytes, int64_t *length) {
  if (file_bytes < MS_ST_PREFIX)
    return MS_FAIL(MS_EINVAL,
                   "%s: it has only %lld bytes: a safetensors file begins with 8 bytes for the header's length", path,
                   (long long)file_bytes);
  uint64_t n = 0;
  for (int i = 0; i < MS_ST_PREFIX; i++) n |= (uint64_t)prefix[i] << (8 * i);
  if (n > MS_ST_MAX_HEADER)
    return MS_FAIL(MS_EINVAL, "%s: header length is %llu: it must be at most %d (is this a safetensors file?)", path,
                   (unsigned long long)n, MS_ST_MAX_HEADER);
  if ((int64_t)n > file_bytes - MS_ST_PREFIX)
    return MS_FAIL(MS_EINVAL,
                   "%s: header length is %llu, but the file has %lld bytes after it: it was truncated, or is not a "
                   "safetensors file",
                   path, (unsigned long long)n, (long long)(file_bytes - MS_ST_PREFIX));
  *length = (int64_t)n;
  return MS_OK;
}

/* The parser reads -0 as the integer 0, but it is no unsigned integer: looked for outside of strings. */
static int refuse_minus_zero(const char *path, const char *text, int64_t length) {
  int in_string = 0;
  for (int64_t i = 0; i < length; i++) {
    if (in_string && text[i] == '\\') i++;
    else if (text[i] == '"') in_string = !in_string;
    else if (!in_string && text[i] == '-' && i + 2 < length && text[i + 1] == '0' && !strchr(".eE", text[i + 2]))
      return MS_FAIL(MS_EINVAL, "%s: header: byte %lld: the number -0: write 0", path, (long long)i);
  }
  return MS_OK;
}

int ms_st_json(const char *path, const char *what, const char *text, int64_t length, json_t **root) {
  if (length < 1 || text[0] != '{') return MS_FAIL(MS_EINVAL, "%s: %s: it must begin with {", path, what);
  json_error_t error;
  json_t *parsed = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
  if (!parsed) {
    enum json_error_code code = json_error_code(&error);
    char quoted[MS_ST_QUOTED];
    if (code == json_error_out_of_memory) return MS_FAIL(MS_ENOMEM, "%s: %s: out of memory", path, what);
    ms_st_quote(error.text, quoted);
    return MS_FAIL(MS_EINVAL, "%s: %s: byte %d: %s: it must be JSON in UTF-8 without duplicate keys", path, what,
                   error.position, quoted);
  }
  *root = parsed;
  return MS_OK;
}

/* An array of integers >= 0. */
static int read_integers(const json_t *array, const char *field, int64_t *out) {
  for (size_t i = 0; i < json_array_size(array); i++) {
    const json_t *item = json_array_get(array, i);
    if (!json_is_integer(item))
      return MS_FAIL(MS_EINVAL, "%s: entry %zu is not an integer: write it without fraction, exponent or quotes", field,
                     i);
    out[i] = json_integer_value(item);
    if (out[i] < 0)
      return MS_FAIL(MS_EINVAL, "%s: entry %zu is %lld: it must not be negative", field, i, (long long)out[i]);
  }
  return MS_OK;
}

/* One tensor's entry; its dims are written to `dims`. Offsets stay relative to the data. */
static int read_tensor(const json_t *entry, ms_safetensors_tensor *tensor, int64_t *dims) {
  if (!json_is_object(entry)) return MS_FAIL(MS_EINVAL, "it must be an object with dtype, shape and data_offsets");
  const json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape");
  const json_t *offsets = json_object_get(entry, "data_offsets");
  if (!json_is_string(dtype)) return MS_FAIL(MS_EINVAL, "dtype: must be a string, one of %s", ms_st_dtype_names());
  int row = ms_st_dtype_find(json_string_value(dtype));
  char quoted[MS_ST_QUOTED];
  if (row < 0)
    return MS_FAIL(MS_EINVAL, "dtype: %s is unknown: it must be %s", ms_st_quote(json_string_value(dtype), quoted),
                   ms_st_dtype_names());
  if (!json_is_array(shape)) return MS_FAIL(MS_EINVAL, "shape: must be an array of integers");
  if (!json_is_array(offsets) || json_array_size(offsets) != 2)
    return MS_FAIL(MS_EINVAL, "data_offsets: must be an array of two integers, begin and end");
  int64_t range[2], bytes;
  MS_TRY(read_integers(shape, "shape", dims));
  MS_TRY(read_integers(offsets, "data_offsets", range));
  tensor->dtype = ms_st_dtype_row(row)->name;
  tensor->bits = ms_st_dtype_row(row)->bits;
  tensor->ndim = (int)json_array_size(shape);
  tensor->dims = dims;
  tensor->offset = range[0];
  tensor->bytes = range[1] - range[0];
  MS_TRY(ms_st_measure(row, tensor->ndim, dims, &tensor->elements, &bytes));
  if (range[1] < range[0])
    return MS_FAIL(MS_EINVAL, "data_offsets: the end %lld is before the begin %lld", (long long)range[1],
                   (long long)range[0]);
  if (tensor->bytes != bytes)
    return MS_FAIL(MS_EINVAL, "data_offsets: %lld to %lld are %lld bytes, but its shape and dtype %s need %lld",
                   (long long)range[0], (long long)range[1], (long long)tensor->bytes, tensor->dtype, (long long)bytes);
  return MS_OK;
}

static int read_metadata(const char *path, json_t *metadata) {
  const char *key;
  json_t *value;
  char quoted[MS_ST_QUOTED];
  if (!json_is_object(metadata))
    return MS_FAIL(MS_EINVAL, "%s: " MS_ST_METADATA ": it must be an object of strings", path);
  json_object_foreach(metadata, key, value) if (!json_is_string(value)) {
    return MS_FAIL(MS_EINVAL, "%s: " MS_ST_METADATA ": the value of %s must be a string", path,
                   ms_st_quote(key, quoted));
  }
  return MS_OK;
}

static int64_t count_dims(json_t *root, int64_t *tensors) {
  const char *key;
  json_t *value;
  int64_t dims = 0;
  json_object_foreach(root, key, value) {
    if (!strcmp(key, MS_ST_METADATA)) continue;
    ++*tensors;
    dims += (int64_t)json_array_size(json_object_get(value, "shape"));
  }
  return dims;
}

static int by_offset(const void *a, const void *b) {
  const ms_safetensors_tensor *x = *(const ms_safetensors_tensor *const *)a;
  const ms_safetensors_tensor *y = *(const ms_safetensors_tensor *const *)b;
  if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
  return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Sorted by offset, the tensors cover the data from its first byte to its last. Ends cannot wrap: they were read as
 * integers. */
static int check_coverage(const char *path, const ms_st_header *header, int64_t data_bytes) {
  const ms_safetensors_tensor **sorted = ms_calloc(header->n, sizeof *sorted);
  char one[MS_ST_QUOTED], other[MS_ST_QUOTED];
  int64_t end = 0;
  int rc = MS_OK;
  if (!sorted) return MS_ENOMEM;
  for (int i = 0; i < header->n; i++) sorted[i] = &header->tensor[i];
  qsort(sorted, (size_t)header->n, sizeof *sorted, by_offset);
  for (int i = 0; i < header->n && !rc; i++) {
    const ms_safetensors_tensor *t = sorted[i];
    const char *before = i ? ms_st_quote(sorted[i - 1]->name, other) : "the header";
    if (t->offset != end)
      rc = MS_FAIL(MS_EINVAL,
                   "%s: tensor %s: data_offsets: it begins at %lld, but %s ends at %lld: data must be "
                   "contiguous, without %s",
                   path, ms_st_quote(t->name, one), (long long)t->offset, before, (long long)end,
                   t->offset > end ? "a hole" : "overlap");
    end = t->offset + t->bytes;
  }
  if (!rc && end != data_bytes)
    rc = MS_FAIL(MS_EINVAL, "%s: its tensors end at byte %lld of the data, but there are %lld bytes: %s", path,
                 (long long)end, (long long)data_bytes,
                 end > data_bytes ? "the file was truncated" : "no data can follow the tensors");
  free(sorted);
  return rc;
}

static int read_entries(const char *path, ms_st_header *header) {
  const char *key;
  json_t *value;
  int64_t *dims = header->dims;
  char quoted[MS_ST_QUOTED];
  json_object_foreach(header->root, key, value) {
    if (!strcmp(key, MS_ST_METADATA)) {
      MS_TRY(read_metadata(path, value));
      header->metadata = value;
      continue;
    }
    ms_safetensors_tensor *tensor = &header->tensor[header->n++];
    tensor->name = key;
    if (read_tensor(value, tensor, dims)) return ms_error_prefix("%s: tensor %s", path, ms_st_quote(key, quoted));
    dims += tensor->ndim;
  }
  return MS_OK;
}

int ms_st_header_parse(const char *path, const char *text, int64_t length, int64_t file_bytes, ms_st_header *header) {
  int64_t tensors = 0;
  int rc = MS_OK;
  *header = (ms_st_header){0};
  MS_GOTO(ms_st_json(path, "header", text, length, &header->root));
  MS_GOTO(refuse_minus_zero(path, text, length));
  int64_t dims = count_dims(header->root, &tensors);
  header->tensor = ms_calloc(tensors, sizeof *header->tensor);
  header->dims = ms_calloc(dims, sizeof *header->dims);
  if (!header->tensor || !header->dims) {
    rc = MS_ENOMEM;
    goto fail;
  }
  MS_GOTO(read_entries(path, header));
  MS_GOTO(check_coverage(path, header, file_bytes - MS_ST_PREFIX - length));
  for (int i = 0; i < header->n; i++) header->tensor[i].offset += MS_ST_PREFIX + length;
  return MS_OK;

fail:
  ms_st_header_free(header);
  return rc;
}

void ms_st_header_free(ms_st_header *header) {
  json_decref(header->root);
  free(header->tensor);
  free(header->dims);
  *header = (ms_st_header){0};
}
