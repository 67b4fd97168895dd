/* sort.h - sorts positions by a small key: a stable radix sort with 9 bits per pass, with the same result in every run.
 *
 * A pass has three kernels: each chunk of 1024 positions counts its digits; one block turns the counts into the start
 * of each (digit, chunk); each chunk then scatters its positions, ranked among equal digits by warp matches and by the
 * order of warps. A pass moves 16 bytes per position, and 4 KiB of counts per chunk. A vocabulary of up to 2^18 tokens
 * takes two passes.
 */
#ifndef MS_KERNELS_CUDA_SORT_H
#define MS_KERNELS_CUDA_SORT_H

extern "C" {
#include "kernels/cuda/plan/embedding.h"
}

#include "kernels/cuda/launch.h"

typedef struct ms_sorted {
  const uint32_t *key;      /* [n], ascending */
  const uint32_t *position; /* [n] */
} ms_sorted;

/* The tokens that count: those of [first, first + rows), out of [0, all). */
typedef struct ms_sorted_rows {
  int64_t first, rows, all;
} ms_sorted_rows;

/* Sorts positions 0 .. n - 1 by tokens i32 [n] less `first`. A token that does not count gets the key `rows`; one
 * outside [0, all) is also recorded as a fault of `op`. The result points into the workspace. */
int ms_sort_positions(const int32_t *tokens, int64_t n, ms_sorted_rows rows, void *workspace, int op, ms_fault *fault,
                      void *stream, ms_sorted *sorted);

#endif
