/* sort.h - positions sorted by a small key, equal keys in their order: a radix sort of 9 bits a pass, the same in every run.
**
** A pass is three kernels: each chunk of 1024 positions counts its digits; one block makes of the counts, digit by digit and
** chunk by chunk, where each (digit, chunk) begins; each chunk then scatters its positions, ranked among equal digits by
** warp matches and by the order of warps. 16 bytes a position and pass, and 4 KiB a chunk for the counts: a vocabulary up to
** 2^18 takes two passes.
*/
#ifndef MS_KERNELS_CUDA_SORT_H
#define MS_KERNELS_CUDA_SORT_H

#include "kernels/cuda/launch.h"

/* Workspace bytes for n positions: two buffers of keys, two of positions, counts. */
int64_t ms_sort_bytes(int64_t n);

typedef struct ms_sorted {
  const uint32_t *key;      /* [n], ascending */
  const uint32_t *position; /* [n] */
} ms_sorted;

/* Sorts positions 0 .. n - 1 by tokens [n]; a token outside of [0, rows) has key `rows` and is noted as a fault of `op`. The
** result lies in the workspace. */
int ms_sort_positions(const int32_t *tokens, int64_t n, int64_t rows, void *workspace, int op, ms_fault *fault,
                      void *stream, ms_sorted *sorted);

#endif
