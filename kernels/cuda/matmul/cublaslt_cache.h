/* cublaslt_cache.h - stores the fastest algorithms on disk, in $XDG_CACHE_HOME/moonshard/cublaslt, otherwise in
 * ~/.cache/moonshard/cublaslt. There is one file per product, and the first one written is kept. All ranks of a host
 * and all later runs therefore use the same algorithm and produce the same bits. */
#ifndef MS_KERNELS_CUDA_CUBLASLT_CACHE_H
#define MS_KERNELS_CUDA_CUBLASLT_CACHE_H

#include "kernels/cuda/matmul/cublaslt.h"

enum { MS_LT_KEY_BYTES = 768 };

/* One line that identifies the product, the GPU and the library version. */
typedef struct ms_lt_key {
  char text[MS_LT_KEY_BYTES];
} ms_lt_key;

/* A file being written. */
typedef struct ms_lt_draft {
  int fd;
  char path[4096], final[4096];
} ms_lt_draft;

/* Returns 1 if an algorithm is stored for the key; a damaged file, or one with another key, counts as missing. */
int ms_lt_recall(const ms_lt_key *key, ms_lt_algo *algo);
/* Returns 1 if an algorithm can be stored; the caller must then call ms_lt_keep or ms_lt_discard. */
int ms_lt_draft_open(const ms_lt_key *key, ms_lt_draft *draft);
/* Returns 1 if stored; *algo is then the algorithm on disk, which another process may have written in the meantime. */
int ms_lt_keep(const ms_lt_key *key, ms_lt_draft *draft, ms_lt_algo *algo);
void ms_lt_discard(ms_lt_draft *draft);

#endif
