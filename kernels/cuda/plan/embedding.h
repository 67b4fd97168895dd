/* embedding.h - how embedding_backward divides its positions: chunks of the radix sort by token (sort.h), and runs of
 * sorted positions whose rows it sums. */
#ifndef MS_KERNELS_CUDA_PLAN_EMBEDDING_H
#define MS_KERNELS_CUDA_PLAN_EMBEDDING_H

#include <stdint.h>

/* Positions of a chunk; bits of a digit, of which a pass sorts one; positions of a block's run. */
enum { MS_SORT_CHUNK = 1024, MS_SORT_BITS = 9, MS_SORT_DIGITS = 1 << MS_SORT_BITS, MS_EMBEDDING_RUN = 32 };

int64_t ms_sort_chunks(int64_t n);
/* A buffer of n keys, or of n positions. */
int64_t ms_sort_buffer_bytes(int64_t n);
/* Workspace in bytes for n positions: two buffers of keys, two of positions, and counts. */
int64_t ms_sort_bytes(int64_t n);

int64_t ms_embedding_blocks(int64_t n);

#endif
