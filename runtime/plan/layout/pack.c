/* pack.c - greedy packing: one buffer after another, each at the lowest offset that is free during its lifetime,
 * largest first (Pisarchyk & Lee 2020, "Efficient memory management for deep neural net inference"). A buffer that
 * fits into a gap of an arena that exists anyway goes there.
 *
 * If the result is larger than necessary, a second attempt places the longest lifetimes first. Buffers that stay in
 * use while gaps close, as when gradient chunks are written, are then below the others. A large short-lived buffer
 * that no longer finds a gap in that order is placed before all others in the next attempt, at the top, where gaps
 * close first.
 */
#include "plan/layout/pack.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* By size; by lifetime; by lifetime, but first the buffer that ended highest in the previous attempt. */
enum { ATTEMPTS = 3 };

static int by_size(const void *a, const void *b, void *items) {
  const ms_packing_item *item = items;
  int x = *(const int *)a, y = *(const int *)b;
  int64_t difference = item[y].bytes - item[x].bytes;
  if (difference) return difference < 0 ? -1 : 1;
  return x - y;
}

/* Among equal sizes, the last one made first: buffers used at the end of a phase are then lowest, and the arena
 * above them is free when the gradient of an embedding, the last one, needs space. */
static int by_size_from_the_end(const void *a, const void *b, void *items) {
  const ms_packing_item *item = items;
  int x = *(const int *)a, y = *(const int *)b;
  return item[x].bytes == item[y].bytes ? y - x : by_size(a, b, items);
}

static int by_lifetime(const void *a, const void *b, void *items) {
  const ms_packing_item *item = items;
  const ms_packing_item *x = &item[*(const int *)a], *y = &item[*(const int *)b];
  int difference = (y->last - y->first) - (x->last - x->first);
  return difference ? difference : by_size(a, b, items);
}

static int64_t end_of(const ms_packing_item *b) { return b->offset + b->bytes; }

/* A placed buffer. Compact copies, because every further buffer scans them. */
typedef struct spot {
  int64_t begin, end;
  int first, last, ranks;
} spot;

/* The placed buffers of an arena, in order of offset. */
typedef struct placed {
  spot *spot;
  int n;
} placed;

/* 1 when buffers must not share bytes. Groups of different sizes do not wait for each other, so buffers gathered by
 * different groups never share bytes. */
static int live_together(const ms_packing_item *b, const spot *other) {
  return b->ranks != other->ranks || (b->first <= other->last && other->first <= b->last);
}

/* The lowest offset with a gap that holds b; more than room - b's bytes if none ends below `room`. */
static int64_t find_gap(const placed *p, const ms_packing_item *b, int64_t room) {
  const int64_t most = room - b->bytes;
  int64_t at = 0;
  for (int i = 0; i < p->n && at <= most; i++) {
    const spot *other = &p->spot[i];
    if (!live_together(b, other)) continue;
    if (at + b->bytes <= other->begin) break;
    if (other->end > at) at = other->end;
  }
  return at;
}

/* The highest offset below `room` at which b fits; more than room - b's bytes if there is none. */
static int64_t find_highest_gap(const placed *p, const ms_packing_item *b, int64_t room) {
  int64_t at = 0, found = room;
  for (int i = 0; i < p->n; i++) {
    const spot *other = &p->spot[i];
    if (!live_together(b, other)) continue;
    if (at + b->bytes <= other->begin) found = other->begin - b->bytes;
    if (other->end > at) at = other->end;
  }
  return at + b->bytes <= room ? room - b->bytes : found;
}

static spot spot_of(const ms_packing_item *b) { return (spot){b->offset, end_of(b), b->first, b->last, b->ranks}; }

static void put(placed *p, const ms_packing_item *b) {
  int slot = 0, end = p->n++;
  while (slot < end) {
    int middle = (slot + end) / 2;
    if (p->spot[middle].begin > b->offset) end = middle;
    else slot = middle + 1;
  }
  memmove(&p->spot[slot + 1], &p->spot[slot], (size_t)(p->n - 1 - slot) * sizeof *p->spot);
  p->spot[slot] = spot_of(b);
}

static int by_offset(const void *a, const void *b) {
  const spot *x = a, *y = b;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Items to place, in order, and the items placed so far in each arena. */
typedef struct packing {
  ms_packing_item *item;
  int n, arenas;
  const int64_t *room;
  placed in[MS_PACK_ARENAS];
  int *order, wanting; /* item indices: first those to place, then those that already had a place */
  int ahead;           /* this many of the first items are placed as high as possible */
  int apart;           /* 1: the lifetimes of the items to place do not overlap */
} packing;

static void place(packing *p, ms_packing_item *b, int high) {
  for (int a = 0; a < p->arenas; a++) {
    const int last = a == p->arenas - 1;
    if (!last && b->bytes > p->room[a]) continue;
    const int64_t room = last ? INT64_MAX : p->room[a];
    int64_t at = high && !last ? find_highest_gap(&p->in[a], b, room) : find_gap(&p->in[a], b, room);
    if (at > room - b->bytes) continue;
    b->arena = a;
    b->offset = at;
    put(&p->in[a], b);
    return;
  }
}

/* Finds out whether the items to place are never in use together, as scratch of kernels, which run one after
 * another. */
static int find_apart(packing *p) {
  int end = 0;
  for (int i = 0; i < p->wanting; i++)
    if (p->item[p->order[i]].last >= end) end = p->item[p->order[i]].last + 1;
  char *taken = ms_calloc(end, 1);
  if (!taken) return MS_ENOMEM;
  p->apart = 1;
  for (int i = 0; i < p->wanting && p->apart; i++) {
    const ms_packing_item *b = &p->item[p->order[i]];
    p->apart = b->ranks == p->item[p->order[0]].ranks;
    for (int t = b->first; t <= b->last && p->apart; t++) {
      p->apart = !taken[t];
      taken[t] = 1;
    }
  }
  free(taken);
  return MS_OK;
}

/* Starts the arenas with the items that already had a place: sorted once, as each `put` moves half of what is there. */
static void start_arenas(packing *p) {
  for (int a = 0; a < p->arenas; a++) p->in[a].n = 0;
  for (int i = p->wanting; i < p->n; i++) {
    const ms_packing_item *b = &p->item[p->order[i]];
    placed *in = &p->in[b->arena];
    in->spot[in->n++] = spot_of(b);
  }
  for (int a = 0; a < p->arenas; a++) qsort(p->in[a].spot, (size_t)p->in[a].n, sizeof *p->in[a].spot, by_offset);
}

/* Places all items and returns the one that ends highest in the last arena, or -1 when it has none. If the items are
 * never in use together, the first one in the last arena makes that arena large enough for all others. */
static int place_all(packing *p) {
  const int own = p->arenas - 1;
  int highest = -1;
  start_arenas(p);
  const int all_at_once = p->apart && !p->in[own].n;
  for (int i = 0; i < p->wanting; i++) {
    ms_packing_item *b = &p->item[p->order[i]];
    if (all_at_once && p->in[own].n) {
      b->arena = own;
      b->offset = 0;
    } else {
      place(p, b, i < p->ahead);
    }
    if (b->arena == own && (highest < 0 || end_of(b) > end_of(&p->item[highest]))) highest = p->order[i];
  }
  return highest;
}

static void move_to_front(int *order, int item) {
  int at = 0;
  while (order[at] != item) at++;
  memmove(order + 1, order, (size_t)at * sizeof *order);
  order[0] = item;
}

/* Keeps the best of a few attempts. best: [n] scratch for its items. */
static void attempt_all(packing *p, ms_packing_item *best) {
  const int64_t enough = p->room[p->arenas - 1];
  const size_t wanting = (size_t)p->wanting;
  int64_t least = INT64_MAX;
  int highest = -1;
  for (int i = 0; i < ATTEMPTS; i++) {
    if (i == 0) qsort_r(p->order, wanting, sizeof *p->order, p->arenas == 1 ? by_size_from_the_end : by_size, p->item);
    if (i == 1) qsort_r(p->order, wanting, sizeof *p->order, by_lifetime, p->item);
    p->ahead = i > 1 ? i - 1 : 0;
    if (p->ahead) move_to_front(p->order, highest);
    highest = place_all(p);
    int64_t end = highest < 0 ? 0 : end_of(&p->item[highest]);
    if (i == 0 || end < least) {
      least = end;
      memcpy(best, p->item, (size_t)p->n * sizeof *best);
    }
    if (least <= enough || highest < 0) break;
  }
  memcpy(p->item, best, (size_t)p->n * sizeof *best);
}

int ms_pack(ms_packing_item *item, int n, int arenas, const int64_t *room) {
  packing p = {.item = item, .n = n, .arenas = arenas, .room = room, .order = ms_calloc(n, sizeof *p.order)};
  ms_packing_item *best = ms_calloc(n, sizeof *best);
  int rc = p.order && best ? MS_OK : MS_ENOMEM;
  for (int a = 0; a < arenas && !rc; a++) {
    p.in[a].spot = ms_calloc(n, sizeof *p.in[a].spot);
    if (!p.in[a].spot) rc = MS_ENOMEM;
  }
  if (rc) goto fail;
  for (int i = 0, placed = n; i < n; i++) p.order[item[i].arena < 0 ? p.wanting++ : --placed] = i;
  MS_GOTO(find_apart(&p));
  attempt_all(&p, best);
fail:
  free(p.order);
  free(best);
  for (int a = 0; a < arenas; a++) free(p.in[a].spot);
  return rc;
}
