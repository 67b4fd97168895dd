/* store_round.c - see store_round.h. */
#include "comm/bootstrap/store/store_round.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/bootstrap/store/store.h"
#include "comm/control/rank_set.h"

int ms_store_round_open(ms_store_round *round, int size) {
  *round = (ms_store_round){.size = size};
  round->bytes = ms_calloc(size, MS_STORE_ROUND);
  round->came = ms_calloc(size, 1);
  return round->bytes && round->came ? MS_OK : MS_ENOMEM;
}

void ms_store_round_close(ms_store_round *round) {
  free(round->bytes);
  free(round->came);
}

int ms_store_round_take(ms_store_round *round, int rank, const uint8_t *bytes, uint32_t n) {
  if (!n || n > MS_STORE_ROUND || round->came[rank]) return 0;
  if (!round->each) round->each = (int)n;
  if (n != (uint32_t)round->each) return 0;
  memcpy(round->bytes + (size_t)rank * n, bytes, n);
  round->came[rank] = 1;
  round->n_came++;
  return 1;
}

int ms_store_round_is_whole(const ms_store_round *round) { return round->n_came == round->size; }

void ms_store_round_begin(ms_store_round *round) {
  memset(round->came, 0, (size_t)round->size);
  round->n_came = round->each = 0;
}

int ms_store_round_list_missing(const ms_store_round *round, char *ranks, size_t bytes) {
  uint8_t absent[MS_STORE_MAX_RANKS];
  for (int rank = 0; rank < round->size; rank++) absent[rank] = !round->came[rank];
  return ms_rank_list(absent, round->size, ranks, bytes);
}
