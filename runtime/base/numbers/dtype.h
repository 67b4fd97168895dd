/* dtype.h - the table of element types: their properties, and where each can be used.
 *
 * A new dtype needs a row in dtype.c, a number in moonshard.h, and its NCCL number (device/cuda/nccl.c). Code that
 * accepts a dtype looks it up here and rejects unsupported ones with MS_EDTYPE. Without MS_DTYPE_LOOPS every sum
 * refuses it, and every op but those that move whole elements (MS_OP_ANY_DTYPE of kernels/op.h).
 *
 * ms_dtype_size is 0 for packed dtypes. No value of a graph, no parameter and no part of a collective has one, which
 * ms_graph_input, ms_model_add_param and ms_comm_start check; so wherever their elements are counted in bytes, the size
 * is that of whole bytes. Code for packed elements asks ms_dtype_bytes.
 */
#ifndef MS_BASE_DTYPE_H
#define MS_BASE_DTYPE_H

#include "moonshard.h"

/* Where a dtype can be used, as flags. */
enum ms_dtype_use {
  MS_DTYPE_FLOAT = 1 << 0,    /* floating point that kernels compute with, and that has gradients */
  MS_DTYPE_CAST = 1 << 1,     /* result of the op cast */
  MS_DTYPE_PARAM = 1 << 2,    /* parameters as kernels read them */
  MS_DTYPE_REDUCE = 1 << 3,   /* reductions over ranks; each addition is in f32 */
  MS_DTYPE_SUM = 1 << 4,      /* sums of micro-batches */
  MS_DTYPE_MOMENT = 1 << 5,   /* AdamW's moments */
  MS_DTYPE_PIECES = 1 << 8,   /* quantised sums over ranks (kernels/formats/pieces.h) */
  MS_DTYPE_GATHERED = 1 << 9, /* codes of masters that shards gather (ms_param_config.gather_dtype) */
  /* Kernels and sums read and write it. Their loops over floats exist for f32 and bf16: what is not the one is the
   * other. So nothing else may reach them, and every call is checked for this flag before it is prepared. */
  MS_DTYPE_LOOPS = 1 << 6,
  MS_DTYPE_STORED = 1 << 7 /* records of frozen parameters (kernels/formats/storage.h) */
};

typedef struct ms_dtype_row {
  ms_dtype_info info;
  int uses; /* flags of enum ms_dtype_use */
  int wire; /* the dtype that collectives send: itself, until a narrower dtype with scales replaces it */
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
/* Lists the dtypes that support `uses` (0: all), e.g. "f32, bf16 or i32"; returns text. */
const char *ms_dtype_list(int uses, char text[MS_DTYPE_LIST]);

#endif
