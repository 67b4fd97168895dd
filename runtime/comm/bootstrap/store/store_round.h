/* store_round.h - a gather in the store: as many bytes from each rank, until all have come. Internal to comm. */
#ifndef MS_COMM_BOOTSTRAP_STORE_ROUND_H
#define MS_COMM_BOOTSTRAP_STORE_ROUND_H

#include <stddef.h>
#include <stdint.h>

typedef struct ms_store_round {
  uint8_t *bytes, *came; /* [size][each], [size]: the rank's bytes are there */
  int size, n_came;
  int each; /* of the first that came; 0: none has */
} ms_store_round;

/* Fails with MS_ENOMEM; ms_store_round_close is safe afterwards, and on zeros. */
int ms_store_round_open(ms_store_round *round, int size);
void ms_store_round_close(ms_store_round *round);
/* 0: invalid, a rank's second bytes in this gather or another number of them than of other ranks. */
int ms_store_round_take(ms_store_round *round, int rank, const uint8_t *bytes, uint32_t n);
/* 1: all ranks' bytes are there, round->size * round->each. */
int ms_store_round_is_whole(const ms_store_round *round);
/* The next gather. */
void ms_store_round_begin(ms_store_round *round);
/* The ranks whose bytes are not there, as text; returns how many. */
int ms_store_round_list_missing(const ms_store_round *round, char *ranks, size_t bytes);

#endif
