/* sum.h - the data movement of collectives over shared memory. Internal to comm.
**
** Both functions write whole results in one pass over memory. Large results are stored past the caches (non-temporal),
** which saves reading the destination first; a store fence ends such a call, so that publishing the result afterwards
** is safe.
*/
#ifndef MS_COMM_COLLECTIVES_SUM_H
#define MS_COMM_COLLECTIVES_SUM_H

#include <stddef.h>
#include <stdint.h>

/* dst [n] = src [n], cast between f32 and bf16 where the types differ; any type where they do not. */
void ms_copy_arrays(void *dst, int dst_dtype, const void *src, int src_dtype, int64_t n);

/* Sums n_src arrays [n] of f32 or bf16 in the order of src, in f32, and stores the sum (accumulate: adds it) to each of
** the n_dst arrays [n] of f32 or bf16. A dst may be one of the src; it must not overlap them otherwise. */
void ms_sum_arrays(void *const *dst, int n_dst, int dst_dtype, const void *const *src, int n_src, int src_dtype,
                   int64_t n, int accumulate);

#endif
