/* safetensors.h - facts of the format, and what its reader and its writer share.
 *
 * A file consists of 8 bytes (N, little-endian), N bytes of JSON (the header), and the tensors' data without gaps.
 * Files are untrusted: every value of a header is checked before use, and every sum and product for overflow.
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

/* Element types in the reference library's order, by ascending alignment. ms_st_dtype_find returns -1 for an unknown
 * name. */
const ms_st_dtype *ms_st_dtype_row(int dtype);
int ms_st_dtype_find(const char *name);
/* All type names, for messages. */
const char *ms_st_dtype_names(void);

/* Computes the elements and bytes of a shape. MS_EINVAL contains neither file nor name; the caller adds them with
 * ms_error_prefix. */
int ms_st_measure(int dtype, int ndim, const int64_t *dims, int64_t *elements, int64_t *bytes);

/* A checked header. `root` owns names and metadata. */
typedef struct ms_st_header {
  json_t *root;
  json_t *metadata;              /* NULL if there is none */
  ms_safetensors_tensor *tensor; /* [n] in header order; offsets from the start of the file; path is not set */
  int64_t *dims;                 /* dims of all tensors */
  int n;
} ms_st_header;

/* Reads N from a file's first bytes (at most 8) and checks it against the file's size. */
int ms_st_header_length(const char *path, const uint8_t *prefix, int64_t file_bytes, int64_t *length);
/* text: the JSON, `length` bytes. Leaves nothing allocated if it fails. */
int ms_st_header_parse(const char *path, const char *text, int64_t length, int64_t file_bytes, ms_st_header *header);
void ms_st_header_free(ms_st_header *header);

/* Parses JSON strictly: UTF-8, an object, no duplicate keys, no trailing data. what: "header", for messages. */
int ms_st_json(const char *path, const char *what, const char *text, int64_t length, json_t **root);
/* Formats a name from a file for messages: quoted, control characters escaped, truncated if long. */
const char *ms_st_quote(const char *name, char out[MS_ST_QUOTED]);

/* The contents of an index; `root` owns `weight_map` (name to file) and `metadata` (NULL if there is none). */
typedef struct ms_st_index {
  json_t *root, *weight_map, *metadata;
} ms_st_index;

int ms_st_index_parse(const char *path, const char *text, int64_t length, ms_st_index *index);
int ms_st_index_read(const char *path, ms_st_index *index);
void ms_st_index_free(ms_st_index *index);
/* Finds the file to open for a path, which can be a folder; *indexed = 1: it is an index. The caller frees *located. */
int ms_st_locate(const char *path, char **located, int *indexed);
/* The path of `name` in the folder that contains the file `path`. NULL: out of memory. The caller frees it. */
char *ms_st_beside(const char *path, const char *name);

/* The declaration of tensor i of a file being written; does not set the offset. */
int ms_st_declared(const ms_safetensors_writer *writer, int i, ms_safetensors_tensor *tensor);

/* Read and write bytes [first, first + bytes) of tensor i, as the public calls do without a view. */
int ms_st_read(const ms_safetensors *file, int i, int64_t first, int64_t bytes, void *out);
int ms_st_write(ms_safetensors_writer *writer, int i, int64_t first, int64_t bytes, const void *data);

/* The offset of tensor i in bytes from the start of the data section. */
int64_t ms_st_offset(const ms_safetensors_writer *writer, int i);
/* Writes bytes [first, first + bytes) of the data section as stored in the file; ms_st_write does the same for
 * one tensor. Bypasses the page cache if possible: see ms_file_write_direct. */
int ms_st_put_data(ms_safetensors_writer *writer, int64_t first, int64_t bytes, const void *data);

#endif
