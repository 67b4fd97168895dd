/* safetensors.h - the format's facts, and what its reader and its writer share.
**
** A file is 8 bytes (N, little-endian), N bytes of JSON (the header), and the tensors' bytes without a gap. Files come
** from strangers: nothing of a header is believed before it was checked, and every sum and product is checked too.
*/
#ifndef MS_IO_SAFETENSORS_H
#define MS_IO_SAFETENSORS_H

#include "moonshard.h"

#include <jansson.h>
#include <stdint.h>

enum { MS_ST_PREFIX = 8, MS_ST_MAX_HEADER = 100000000, MS_ST_QUOTED = 256 };

#define MS_ST_METADATA "__metadata__"

typedef struct ms_st_dtype {
  const char *name;
  int bits;
} ms_st_dtype;

/* Element types in the order of the reference library: alignment ascending. -1 when there is no such name. */
const ms_st_dtype *ms_st_dtype_row(int dtype);
int ms_st_dtype_find(const char *name);
/* All their names, for messages. */
const char *ms_st_dtype_names(void);

/* Elements and bytes of a shape; MS_EINVAL without a file or a name in it, for ms_error_prefix. */
int ms_st_measure(int dtype, int ndim, const int64_t *dims, int64_t *elements, int64_t *bytes);

/* A checked header. Names and metadata belong to `root`. */
typedef struct ms_st_header {
  json_t *root;
  json_t *metadata;              /* NULL when there is none */
  ms_safetensors_tensor *tensor; /* [n] in the order of the header; offsets from the file's begin; no path yet */
  int64_t *dims;                 /* of all tensors */
  int n;
} ms_st_header;

/* N from a file's first bytes (at most 8 are read), against the file's size. */
int ms_st_header_length(const char *path, const uint8_t *prefix, int64_t file_bytes, int64_t *length);
/* text: the JSON, `length` bytes. Frees what it made when it fails. */
int ms_st_header_parse(const char *path, const char *text, int64_t length, int64_t file_bytes, ms_st_header *header);
void ms_st_header_free(ms_st_header *header);

/* Parses JSON strictly: UTF-8, an object, no duplicate keys, nothing after the end. what: "header". */
int ms_st_json(const char *path, const char *what, const char *text, int64_t length, json_t **root);
/* A name from a file as it may be shown: quoted, control characters escaped, cut when it is long. */
const char *ms_st_quote(const char *name, char out[MS_ST_QUOTED]);

/* What an index says. `weight_map` (name to file) and `metadata` (NULL when there is none) belong to `root`. */
typedef struct ms_st_index {
  json_t *root, *weight_map, *metadata;
} ms_st_index;

int ms_st_index_parse(const char *path, const char *text, int64_t length, ms_st_index *index);
int ms_st_index_read(const char *path, ms_st_index *index);
void ms_st_index_free(ms_st_index *index);
/* The file of a folder to open; *indexed: it is an index. The caller frees it. */
int ms_st_locate(const char *path, char **located, int *indexed);
/* What stands beside a file: its folder, and `name` in it. NULL when there is no memory; the caller frees it. */
char *ms_st_beside(const char *path, const char *name);

/* What was declared as the i-th tensor of a file that is being written; offset is not told. */
int ms_st_declared(const ms_safetensors_writer *writer, int i, ms_safetensors_tensor *tensor);

/* Where the i-th declared tensor begins, counted from the first byte of all data. */
int64_t ms_st_offset(const ms_safetensors_writer *writer, int i);
/* Bytes [first, first + bytes) of the data of all tensors as they lie in the file: what ms_safetensors_put does tensor by
** tensor. They go past the page cache where that can be: see ms_file_write_direct. */
int ms_st_put_data(ms_safetensors_writer *writer, int64_t first, int64_t bytes, const void *data);

#endif
