/* pack.c - greedy packing: one buffer after the other, each at the lowest offset that is free during its lifetime, the
** largest first (Pisarchyk & Lee 2020, "Efficient memory management for deep neural net inference").
*/
#include "plan/pack.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static const ms_packing_item *sorting; /* qsort has no context; compile runs on one thread of a process at a time */

static int by_size(const void *a, const void *b) {
  int x = *(const int *)a, y = *(const int *)b;
  int64_t difference = sorting[y].bytes - sorting[x].bytes;
  if (difference) return difference < 0 ? -1 : 1;
  return x - y;
}

/* A buffer that has its place. A copy, since every further buffer goes through them. */
typedef struct spot {
  int64_t begin, end;
  int first, last, ranks;
} spot;

/* Groups of different sizes do not wait for each other: what they gather into never shares bytes. */
static int live_together(const ms_packing_item *b, const spot *other) {
  return b->ranks != other->ranks || (b->first <= other->last && other->first <= b->last);
}

/* placed: in order of offset. Finds the lowest gap that holds b, places it, keeps the order. */
static int64_t place(const ms_packing_item *b, spot *placed, int n) {
  int64_t at = 0;
  for (int i = 0; i < n; i++) {
    const spot *other = &placed[i];
    if (!live_together(b, other)) continue;
    if (at + b->bytes <= other->begin) break;
    if (other->end > at) at = other->end;
  }
  int slot = n;
  while (slot > 0 && placed[slot - 1].begin > at) slot--;
  memmove(&placed[slot + 1], &placed[slot], (size_t)(n - slot) * sizeof *placed);
  placed[slot] = (spot){at, at + b->bytes, b->first, b->last, b->ranks};
  return at;
}

int ms_pack(const ms_packing_item *item, int n, int64_t *offset) {
  int *order = ms_calloc(n, sizeof *order);
  spot *placed = ms_calloc(n, sizeof *placed);
  int rc = order && placed ? MS_OK : MS_ENOMEM;
  if (rc) goto fail;
  for (int i = 0; i < n; i++) order[i] = i;
  sorting = item;
  qsort(order, (size_t)n, sizeof *order, by_size);
  for (int i = 0; i < n; i++) offset[order[i]] = place(&item[order[i]], placed, i);
fail:
  free(order);
  free(placed);
  return rc;
}
