/* pieces.c - cutting at the ends of ranges. Most ends are met again and again, since what one instruction writes others
** read: a hash table keeps each once, and only these are sorted.
*/
#include "plan/pieces.h"

#include <stdlib.h>

#include "base/error.h"

/* A place to cut at. number: its place among those that were met. */
typedef struct cut {
  int64_t at;
  int number;
} cut;

typedef struct cuts {
  cut *list;
  int n, capacity;
  int *slot; /* [1 << bits] 1 + number of a cut, or 0 */
  int bits;
} cuts;

enum { FIRST_BITS = 8 };

/* Multiplicative hashing (Knuth, The Art of Computer Programming 3, 6.4) by the golden ratio. */
static int *find_slot(const cuts *c, int64_t at) {
  unsigned mask = (1u << c->bits) - 1, slot = (unsigned)((uint64_t)at * 0x9e3779b97f4a7c15ull >> (64 - c->bits));
  while (c->slot[slot] && c->list[c->slot[slot] - 1].at != at) slot = (slot + 1) & mask;
  return &c->slot[slot];
}

static int widen(cuts *c) {
  free(c->slot);
  c->bits = c->bits ? c->bits + 1 : FIRST_BITS;
  c->slot = ms_calloc((int64_t)1 << c->bits, sizeof *c->slot);
  if (!c->slot) return MS_ENOMEM;
  for (int i = 0; i < c->n; i++) *find_slot(c, c->list[i].at) = 1 + i;
  return MS_OK;
}

/* Puts the number of the cut in place of where it is. */
static int number_cut(cuts *c, int64_t *at) {
  if (!c->bits || 2 * c->n >= 1 << c->bits) MS_TRY(widen(c));
  int *slot = find_slot(c, *at);
  if (!*slot) {
    MS_TRY(ms_grow((void **)&c->list, &c->capacity, c->n + 1, sizeof *c->list));
    c->list[c->n] = (cut){*at, c->n};
    *slot = ++c->n;
  }
  *at = *slot - 1;
  return MS_OK;
}

/* By digits of eleven bits, the lowest first. space: of the same size. */
static int sort_cuts(cuts *c) {
  enum { BITS = 11, DIGITS = 1 << BITS };
  cut *space = ms_calloc(c->n, sizeof *space);
  int64_t all = 0;
  if (!space) return MS_ENOMEM;
  for (int i = 0; i < c->n; i++) all |= c->list[i].at;
  for (int shift = 0; shift < 63 && all >> shift; shift += BITS) {
    int count[DIGITS + 1] = {0};
    for (int i = 0; i < c->n; i++) count[1 + (c->list[i].at >> shift & (DIGITS - 1))]++;
    for (int d = 0; d < DIGITS; d++) count[d + 1] += count[d];
    for (int i = 0; i < c->n; i++) space[count[c->list[i].at >> shift & (DIGITS - 1)]++] = c->list[i];
    cut *sorted = space;
    space = c->list;
    c->list = sorted;
  }
  free(space);
  return MS_OK;
}

/* rank: [cuts] of each number. */
static void tell_pieces(const cuts *c, ms_range *range, int n, int *rank, int64_t *byte) {
  for (int i = 0; i < c->n; i++) {
    rank[c->list[i].number] = i;
    byte[i] = c->list[i].at;
  }
  for (int i = 0; i < n; i++) range[i] = (ms_range){rank[range[i].begin], rank[range[i].end]};
}

int ms_cut_pieces(ms_range *range, int n, int64_t **byte, int *pieces) {
  cuts c = {0};
  int *rank = NULL, rc = MS_OK;
  *byte = NULL;
  for (int i = 0; i < n; i++) {
    MS_GOTO(number_cut(&c, &range[i].begin));
    MS_GOTO(number_cut(&c, &range[i].end));
  }
  MS_GOTO(sort_cuts(&c));
  rank = ms_calloc(c.n, sizeof *rank);
  *byte = ms_calloc(c.n, sizeof **byte);
  *pieces = c.n;
  if (!rank || !*byte) rc = MS_ENOMEM;
  if (!rc) tell_pieces(&c, range, n, rank, *byte);
fail:
  if (rc) {
    free(*byte);
    *byte = NULL;
  }
  free(rank);
  free(c.list);
  free(c.slot);
  return rc;
}
