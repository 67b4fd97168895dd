/* pack.c - greedy packing: one buffer after the other, each at the lowest offset that is free during its lifetime, the
** largest first (Pisarchyk & Lee 2020, "Efficient memory management for deep neural net inference"). A buffer that fits
** into a gap of an arena that is there anyway goes there.
*/
#include "plan/pack.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static int by_size(const void *a, const void *b, void *items) {
  const ms_packing_item *item = items;
  int x = *(const int *)a, y = *(const int *)b;
  int64_t difference = item[y].bytes - item[x].bytes;
  if (difference) return difference < 0 ? -1 : 1;
  return x - y;
}

/* Of equal ones the last made first: what is used at the end of a phase lies lowest, so the arena is free above it when a
** gradient of an embedding, which comes last of all, looks for room. */
static int by_size_from_the_end(const void *a, const void *b, void *items) {
  const ms_packing_item *item = items;
  int x = *(const int *)a, y = *(const int *)b;
  return item[x].bytes == item[y].bytes ? y - x : by_size(a, b, items);
}

/* A buffer that has its place. A copy, since every further buffer goes through them. */
typedef struct spot {
  int64_t begin, end;
  int first, last, ranks;
} spot;

/* What is placed in an arena, in order of offset. */
typedef struct placed {
  spot *spot;
  int n;
} placed;

/* Groups of different sizes do not wait for each other: what they gather into never shares bytes. */
static int live_together(const ms_packing_item *b, const spot *other) {
  return b->ranks != other->ranks || (b->first <= other->last && other->first <= b->last);
}

/* The lowest gap that holds b. */
static int64_t find_gap(const placed *p, const ms_packing_item *b) {
  int64_t at = 0;
  for (int i = 0; i < p->n; i++) {
    const spot *other = &p->spot[i];
    if (!live_together(b, other)) continue;
    if (at + b->bytes <= other->begin) break;
    if (other->end > at) at = other->end;
  }
  return at;
}

static void put(placed *p, const ms_packing_item *b) {
  int slot = 0, end = p->n++;
  while (slot < end) {
    int middle = (slot + end) / 2;
    if (p->spot[middle].begin > b->offset) end = middle;
    else slot = middle + 1;
  }
  memmove(&p->spot[slot + 1], &p->spot[slot], (size_t)(p->n - 1 - slot) * sizeof *p->spot);
  p->spot[slot] = (spot){b->offset, b->offset + b->bytes, b->first, b->last, b->ranks};
}

static void place(placed *in, int arenas, const int64_t *room, ms_packing_item *b) {
  for (int a = 0; a < arenas; a++) {
    int last = a == arenas - 1;
    if (!last && b->bytes > room[a]) continue;
    int64_t at = find_gap(&in[a], b);
    if (!last && at + b->bytes > room[a]) continue;
    b->arena = a;
    b->offset = at;
    put(&in[a], b);
    return;
  }
}

/* Scratch of kernels, which run one after another: 1 when no two items share bytes of an arena for want of time to. */
static int live_apart(const ms_packing_item *item, const int *order, int n, int *apart) {
  int end = 0;
  for (int i = 0; i < n; i++)
    if (item[order[i]].last >= end) end = item[order[i]].last + 1;
  char *taken = ms_calloc(end, 1);
  if (!taken) return MS_ENOMEM;
  *apart = 1;
  for (int i = 0; i < n && *apart; i++) {
    const ms_packing_item *b = &item[order[i]];
    *apart = b->ranks == item[order[0]].ranks;
    for (int t = b->first; t <= b->last && *apart; t++) {
      *apart = !taken[t];
      taken[t] = 1;
    }
  }
  free(taken);
  return MS_OK;
}

/* The largest first. Of items that live apart, the first that finds no other room makes enough of the last arena for all. */
static void place_all(placed *in, int arenas, const int64_t *room, ms_packing_item *item, const int *order, int n,
                      int apart) {
  const placed *last = &in[arenas - 1];
  apart &= !last->n;
  for (int i = 0; i < n; i++) {
    ms_packing_item *b = &item[order[i]];
    if (apart && last->n) {
      b->arena = arenas - 1;
      b->offset = 0;
    } else {
      place(in, arenas, room, b);
    }
  }
}

int ms_pack(ms_packing_item *item, int n, int arenas, const int64_t *room) {
  placed in[MS_PACK_ARENAS] = {{0}};
  int *order = ms_calloc(n, sizeof *order), wanting = 0, apart, rc = order ? MS_OK : MS_ENOMEM;
  for (int a = 0; a < arenas && !rc; a++) {
    in[a].spot = ms_calloc(n, sizeof *in[a].spot);
    if (!in[a].spot) rc = MS_ENOMEM;
  }
  if (rc) goto fail;
  for (int i = 0; i < n; i++) {
    if (item[i].arena >= 0) put(&in[item[i].arena], &item[i]);
    else order[wanting++] = i;
  }
  qsort_r(order, (size_t)wanting, sizeof *order, arenas == 1 ? by_size_from_the_end : by_size, item);
  MS_GOTO(live_apart(item, order, wanting, &apart));
  place_all(in, arenas, room, item, order, wanting, apart);
fail:
  free(order);
  for (int a = 0; a < arenas; a++) free(in[a].spot);
  return rc;
}
