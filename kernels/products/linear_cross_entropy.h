/* linear_cross_entropy.h - the cross entropy of x w' + b, and its gradients, without the logits in memory: rows of x
 * are processed in chunks, and only the logits of one chunk exist, in the last output. Each chunk is a sequence of
 * kernels of one device, the same that compute the loss of whole logits, so every number of a row has the bits that it
 * has there.
 *
 * The gradients of w and b are summed over the chunks, in their order. */
#ifndef MS_KERNELS_LINEAR_CROSS_ENTROPY_H
#define MS_KERNELS_LINEAR_CROSS_ENTROPY_H

#include "kernels/op.h"

/* The attribute `fused` of cross_entropy. */
enum ms_fused_loss { MS_LOSS_WHOLE = 0, MS_LOSS_CHUNKED = 1, MS_LOSS_CHUNKED_TO_SAVE = 2 };

/* The sizes of a call, and the products that it computes: of 2 rows classes dim operations each, in `chunks` parts. */
typedef struct ms_loss_sizes {
  int64_t rows, classes, dim;
  int64_t chunk, chunks; /* rows of a chunk; the last one can have fewer */
  int logits, dx, dw;    /* 1: this product */
  int db;                /* 1: the gradient of b */
  int again;             /* 1: forward has made the logits, too */
} ms_loss_sizes;

/* op: one of linear_cross_entropy_*; in: its first two inputs, x and w. */
ms_loss_sizes ms_loss_sizes_of(int op, const ms_op_attrs *attrs, const ms_value_info *in);

/* The index of input b of such an op with so many inputs, -1: it has none. */
int ms_loss_bias_of(int op, int inputs);

/* What is done for each chunk, in this order. */
enum ms_chunk_step {
  MS_CHUNK_LOGITS,  /* x w' + b */
  MS_CHUNK_PART,    /* two numbers a row: the log of the sum of exponentials, and the target's logit */
  MS_CHUNK_LSE,     /* the first of them, for the gradient */
  MS_CHUNK_DLOGITS, /* the logits' gradient, over them */
  MS_CHUNK_DW,      /* the gradient of w: written by the first chunk, added to by the others */
  MS_CHUNK_ADD_DW,
  MS_CHUNK_DB,     /* the sums of columns; those of the first chunk begin the gradient of b */
  MS_CHUNK_ADD_DB, /* those of the others are added */
  MS_CHUNK_DX,
  MS_CHUNK_STEPS
};

/* The kernels of a call. The last chunk can have fewer rows than the others: [1]. */
typedef struct ms_loss_chunks {
  ms_loss_sizes sizes;
  unsigned steps;                         /* bit s: the op takes step s */
  ms_kernel_call call[2][MS_CHUNK_STEPS]; /* pointers are not set */
  ms_kernel_call join, cast[2];           /* after the chunks, dw and db; without inputs: not needed */
  const ms_kernel *(*kernel_of)(int op);
  /* NULL, or a device's kernel for MS_CHUNK_PART to MS_CHUNK_DLOGITS with their bits: it is called as that of the last
   * one, reads no lse, and also writes what PART adds to out_data[1]. Set after preparation, where an op takes both. */
  int (*both)(const ms_kernel_call *call);
  int64_t added, lse, count, columns, sums[2], scratch; /* offsets in the workspace, bytes; sums: of dw and db */
} ms_loss_chunks;

/* call: one of the ops linear_cross_entropy_*. Prepares its kernels and requests the workspace. If it fails, nothing
 * stays prepared. */
int ms_loss_chunks_prepare(ms_kernel_call *call, const ms_kernel *(*kernel_of)(int op), ms_loss_chunks *chunks);
int ms_loss_chunks_bind(const ms_loss_chunks *chunks, const ms_kernel_call *call);
int ms_loss_chunks_run(const ms_loss_chunks *chunks, const ms_kernel_call *call);
void ms_loss_chunks_release(const ms_loss_chunks *chunks);

#endif
