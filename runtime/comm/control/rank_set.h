/* rank_set.h - a set of ranks of the world, and its notation in messages.
 *
 * A set has room for MS_MAX_RANKS ranks, in words of 64 bits: no other limit applies to the number of ranks that can
 * wait for each other.
 */
#ifndef MS_COMM_CONTROL_RANK_SET_H
#define MS_COMM_CONTROL_RANK_SET_H

#include <stddef.h>
#include <stdint.h>

#include "moonshard.h"

enum { MS_RANK_SET_WORDS = (MS_MAX_RANKS + 63) / 64 };

typedef struct ms_rank_set {
  uint64_t word[MS_RANK_SET_WORDS];
} ms_rank_set;

static inline void ms_rank_set_add(ms_rank_set *set, int rank) { set->word[rank / 64] |= 1ull << rank % 64; }

static inline void ms_rank_set_remove(ms_rank_set *set, int rank) { set->word[rank / 64] &= ~(1ull << rank % 64); }

static inline int ms_rank_set_has(const ms_rank_set *set, int rank) { return set->word[rank / 64] >> rank % 64 & 1; }

static inline int ms_rank_set_is_empty(const ms_rank_set *set) {
  uint64_t any = 0;
  for (int i = 0; i < MS_RANK_SET_WORDS; i++) any |= set->word[i];
  return !any;
}

static inline int ms_rank_set_equal(const ms_rank_set *a, const ms_rank_set *b) {
  uint64_t differ = 0;
  for (int i = 0; i < MS_RANK_SET_WORDS; i++) differ |= a->word[i] ^ b->word[i];
  return !differ;
}

/* The lowest rank in the set that is at least `from`; -1: none. */
static inline int ms_rank_set_next(const ms_rank_set *set, int from) {
  for (int i = from / 64; i < MS_RANK_SET_WORDS; i++) {
    uint64_t word = set->word[i] & (i == from / 64 ? ~0ull << from % 64 : ~0ull);
    if (word) return 64 * i + __builtin_ctzll(word);
  }
  return -1;
}

/* Loops over the ranks of a set. The body can change the set at ranks already visited. */
#define MS_EACH_RANK(rank, set) \
  for (int rank = ms_rank_set_next(set, 0); rank >= 0; rank = ms_rank_set_next(set, rank + 1))

/* Ranks 0 to size - 1. */
ms_rank_set ms_rank_set_all(int size);
/* The intersection of both. */
ms_rank_set ms_rank_set_both(const ms_rank_set *a, const ms_rank_set *b);
int ms_rank_set_count(const ms_rank_set *set);
/* "rank 2", "ranks 0, 2-5". */
void ms_rank_set_text(const ms_rank_set *set, char *text, size_t bytes);

/* Writes "0, 2-5" for the ranks with chosen[rank] set, out of `size` ranks. A list that
 * does not fit ends in ", ...", never within a number. Returns the number of chosen ranks. */
int ms_rank_list(const uint8_t *chosen, int size, char *text, size_t bytes);

#endif
