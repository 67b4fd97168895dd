/* dtype.h - the table of element types: what the engine knows of each, and where each may be used.
**
** A new dtype is a row of dtype.c, its number in moonshard.h, its number for NCCL (device/cuda/nccl.c), and what kernels need
** to read and write it. Whatever takes a dtype asks this table and refuses what is not in it with MS_EDTYPE.
*/
#ifndef MS_BASE_DTYPE_H
#define MS_BASE_DTYPE_H

#include "moonshard.h"

/* Where a dtype may be used. */
enum ms_dtype_use {
  MS_DTYPE_FLOAT = 1 << 0,  /* it can be NaN, and kernels compute with it */
  MS_DTYPE_CAST = 1 << 1,   /* the op cast gives it */
  MS_DTYPE_PARAM = 1 << 2,  /* kernels may read a parameter in it */
  MS_DTYPE_REDUCE = 1 << 3, /* ranks may sum in it what they reduce, each addition in f32 */
  MS_DTYPE_SUM = 1 << 4,    /* sums of micro-batches may be kept in it */
  MS_DTYPE_MOMENT = 1 << 5  /* AdamW may keep its moments in it */
};

typedef struct ms_dtype_row {
  ms_dtype_info info;
  int uses; /* of enum ms_dtype_use */
  int wire; /* what collectives send for it: itself, as long as no narrower dtype with scales stands for it */
  /* n elements to f32, and the nearest to each f32. `from` of widen may be the last bytes of `to`; NULL: kernels alone cast. */
  void (*widen)(const void *from, int64_t n, float *to);
  void (*narrow)(const float *from, int64_t n, void *to);
} ms_dtype_row;

/* NULL when there is no such dtype. */
const ms_dtype_row *ms_dtype_row_of(int dtype);

/* 1: it is a dtype, and may be used so. */
int ms_dtype_may(int dtype, int uses);
/* MS_EDTYPE unless it may: "<what> is u8; it must be f32 or bf16". */
int ms_dtype_check(int dtype, int uses, const char *what);

enum { MS_DTYPE_LIST = 96 }; /* bytes of a list of names */
/* "f32, bf16 or i32": those that may be used so (uses 0: all), into text; returns text. */
const char *ms_dtype_list(int uses, char text[MS_DTYPE_LIST]);

#endif
