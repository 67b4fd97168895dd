/* delta_chunk.h - what both directions of the gated delta rule share on the CPU: a thread's arrays, products of
 * small matrices, and x, u and the state of a chunk.
 */
#ifndef MS_KERNELS_CPU_DELTA_CHUNK_H
#define MS_KERNELS_CPU_DELTA_CHUNK_H

#include "kernels/cpu/block.h"

#include "kernels/gated_delta_rule.h"

/* What a thread has of a chunk and of a head; all f32, in its part of the workspace. */
typedef struct ms_delta_scratch {
  float *q, *k, *weighted;      /* [C][d] */
  float *x, *u, *dy, *z, *row;  /* [C][e], and row [max(d, e)] */
  float *m, *p, *dm, *dp;       /* [C][C] */
  float *c, *beta, *dc, *dbeta; /* [C] */
  float *decay, *turned;        /* [C]; a transposed matrix */
  float *state, *dstate;        /* [d][e] */
  float *states, *dq, *dk;      /* [chunks][d][e], [t][d]: of the gradient */
} ms_delta_scratch;

/* A chunk of a head: positions [first, first + n). */
typedef struct ms_delta_chunk {
  int64_t b, h, group, first, n;
} ms_delta_chunk;

/* to[n] += factor (a[0] x[0] + a[step] x[1] + ...), of `rows` rows x [n]. */
void ms_delta_add_rows(float *restrict to, float factor, const float *a, int64_t step, const float *restrict x,
                       int64_t rows, int64_t n);
float ms_delta_dot(const float *a, const float *b, int64_t n);
void ms_delta_scale(float *x, float factor, int64_t n);
/* decay[j] = e^{from - c_j} */
void ms_delta_decays(float *decay, float from, const float *c, int64_t n);
/* to [columns][rows] of x [rows][columns] */
void ms_delta_transpose(float *to, const float *x, int64_t rows, int64_t columns);
/* to[i][j] = a_i' b_j for all i and j of n rows [length], with to [n][C]; turned: b [length][n] */
void ms_delta_pairs(float *to, const float *a, const float *turned, int64_t n, int64_t length);

/* The row of a chunk's position i among the positions of all rows of the batch. */
int64_t ms_delta_row_at(const ms_delta_rule *r, const ms_delta_chunk *at, int64_t i);
int ms_delta_begins_document(const ms_kernel_call *call, const ms_delta_rule *r, int64_t b, int64_t position);
int64_t ms_delta_end_of_chunk(const ms_kernel_call *call, const ms_delta_rule *r, int64_t b, int64_t first);
/* q, k, the sums c and beta of the chunk, and v in place of x. */
void ms_delta_load(const ms_kernel_call *call, const ms_delta_rule *r, const ms_delta_chunk *at,
                   const ms_delta_scratch *s);
/* M below its diagonal and P with its own, which have other numbers elsewhere, x and u. */
void ms_delta_solve(const ms_delta_rule *r, const ms_delta_chunk *at, const ms_delta_scratch *s);
/* weighted: rows of x [d], each times e^{from - c_i} or, without from, e^{c_i}. */
void ms_delta_weigh(const ms_delta_rule *r, const ms_delta_chunk *at, const ms_delta_scratch *s, const float *x,
                    const float *from);
void ms_delta_update_state(const ms_delta_rule *r, const ms_delta_chunk *at, const ms_delta_scratch *s);

/* The gradient of a value head: dv, dg and dbeta, and what it adds to dq and dk of its key head in the scratch, which
 * ms_delta_write_keys writes. */
void ms_delta_backward_of_head(const ms_kernel_call *call, const ms_delta_rule *r, int64_t b, int64_t h,
                               const ms_delta_scratch *s);
void ms_delta_write_keys(const ms_kernel_call *call, const ms_delta_rule *r, int64_t b, int64_t group,
                         const ms_delta_scratch *s);

#endif
