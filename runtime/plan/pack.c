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
  int slot = p->n++;
  while (slot > 0 && p->spot[slot - 1].begin > b->offset) slot--;
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

int ms_pack(ms_packing_item *item, int n, int arenas, const int64_t *room) {
  placed in[MS_PACK_ARENAS] = {{0}};
  int *order = ms_calloc(n, sizeof *order), wanting = 0, rc = order ? MS_OK : MS_ENOMEM;
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
  for (int i = 0; i < wanting; i++) place(in, arenas, room, &item[order[i]]);
fail:
  free(order);
  for (int a = 0; a < arenas; a++) free(in[a].spot);
  return rc;
}
