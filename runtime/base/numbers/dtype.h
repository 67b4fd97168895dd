/* dtype.h - the table of element types: their properties, and where each can be used.
 *
 * A new dtype needs a row in formats.def, a number in moonshard/base.h, and if collectives move more than its bytes,
 * its NCCL number (device/cuda/nccl.c). Code that accepts a dtype looks it up here and rejects unsupported
 * ones with MS_EDTYPE. Without MS_DTYPE_LOOPS every sum refuses it, and every op but those that move whole elements
 * (MS_OP_ANY_DTYPE of kernels/op.h).
 *
 * ms_dtype_size is 0 for packed dtypes. No value of a graph, no parameter and no part of a collective has one, which
 * ms_graph_input, ms_model_add_param and ms_comm_start check; so wherever their elements are counted in bytes, the size
 * is that of whole bytes. Code for packed elements asks ms_dtype_bytes.
 */
#ifndef MS_BASE_DTYPE_H
#define MS_BASE_DTYPE_H

#include "moonshard.h"

typedef struct ms_dtype_row {
  ms_dtype_info info;
  /* Convert n elements to f32, and back to the nearest value. widen's `from` can be the last bytes of `to`. NULL:
   * only kernels cast this dtype, or it means something only with scales. */
  void (*widen)(const void *from, int64_t n, float *to);
  void (*narrow)(const float *from, int64_t n, void *to);
} ms_dtype_row;

/* NULL if there is no such dtype. */
const ms_dtype_row *ms_dtype_row_of(int dtype);

const char *ms_dtype_name(int dtype); /* "f32"; "unknown type" if there is no such dtype */
/* Bytes of one element; 0 if there is no such type, and for packed types. */
int ms_dtype_size(int dtype);
/* Bytes of n elements of any type. MS_ESHAPE if packed elements would not fill the last byte. */
int ms_dtype_bytes(int dtype, int64_t n, int64_t *bytes);

/* 1 if the dtype exists and supports all of `uses`. */
int ms_dtype_may(int dtype, int uses);
/* MS_EDTYPE if the dtype does not support `uses`: "<what> is u8; it must be f32 or bf16". */
int ms_dtype_check(int dtype, int uses, const char *what);

enum { MS_DTYPE_LIST = 128 }; /* bytes of a list of dtype names */
/* Lists the dtypes with their bit in `set`, e.g. "f32, bf16 or i32"; returns text. */
const char *ms_dtype_names(unsigned set, char text[MS_DTYPE_LIST]);
/* Lists the dtypes that support `uses` (0: all). */
const char *ms_dtype_list(int uses, char text[MS_DTYPE_LIST]);

#endif
