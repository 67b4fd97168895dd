/* sum.h - the data movement of collectives over shared memory. Internal to comm.
 *
 * Both functions write whole results in one pass over memory. Large results bypass the caches (non-temporal stores),
 * which saves reading the destination first; a store fence ends such a call, so the result can be published safely
 * afterwards.
 */
#ifndef MS_COMM_COLLECTIVES_SUM_H
#define MS_COMM_COLLECTIVES_SUM_H

#include <stddef.h>
#include <stdint.h>

/* dst [n] = src [n], cast between f32 and bf16 if the types differ; equal types can be of any kind. */
void ms_copy_arrays(void *dst, int dst_dtype, const void *src, int src_dtype, int64_t n);

/* Sums n_src arrays [n] of f32 or bf16 in the order of src, in f32, and stores the sum in (accumulate: adds it to) each
 * of the n_dst arrays [n] of f32 or bf16. A dst can be one of the src arrays, but must not overlap them otherwise. */
void ms_sum_arrays(void *const *dst, int n_dst, int dst_dtype, const void *const *src, int n_src, int src_dtype,
                   int64_t n, int accumulate);
/* The same with the largest element instead of the sum; NaN where one of them is NaN. */
void ms_max_arrays(void *const *dst, int n_dst, int dst_dtype, const void *const *src, int n_src, int src_dtype,
                   int64_t n);
/* One or the other. */
static inline void ms_combine_arrays(int largest, void *const *dst, int n_dst, int dst_dtype, const void *const *src,
                                     int n_src, int src_dtype, int64_t n, int accumulate) {
  if (largest) ms_max_arrays(dst, n_dst, dst_dtype, src, n_src, src_dtype, n);
  else ms_sum_arrays(dst, n_dst, dst_dtype, src, n_src, src_dtype, n, accumulate);
}

#endif
