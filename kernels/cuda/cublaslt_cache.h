/* cublaslt_cache.h - which algorithm was the fastest, kept on disk: $XDG_CACHE_HOME/moonshard/cublaslt, else ~/.cache/...; a file a
** product, of which the first that is written stays. So all ranks of a host, and all later runs, take the same algorithm, and
** with it give the same bits.
*/
#ifndef MS_KERNELS_CUDA_CUBLASLT_CACHE_H
#define MS_KERNELS_CUDA_CUBLASLT_CACHE_H

#include "kernels/cuda/cublaslt.h"

enum { MS_LT_KEY_BYTES = 768 };

/* One line that tells product, GPU and version apart from all others. */
typedef struct ms_lt_key {
  char text[MS_LT_KEY_BYTES];
} ms_lt_key;

/* A file that is being written. */
typedef struct ms_lt_draft {
  int fd;
  char path[4096], final[4096];
} ms_lt_draft;

/* 1 when an algorithm is kept for the key: a file that is damaged, or of another key, counts as none. */
int ms_lt_recall(const ms_lt_key *key, ms_lt_algo *algo);
/* 1 when something can be kept; then ms_lt_keep or ms_lt_discard must follow. */
int ms_lt_draft_open(const ms_lt_key *key, ms_lt_draft *draft);
/* 1: kept. *algo is then what is on disk, which may have been written by somebody else in the meantime. */
int ms_lt_keep(const ms_lt_key *key, ms_lt_draft *draft, ms_lt_algo *algo);
void ms_lt_discard(ms_lt_draft *draft);

#endif
