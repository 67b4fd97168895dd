/* layout.c - a place in an arena for every buffer, so that buffers that live at the same time do not overlap.
**
** Greedy by size: the largest buffer first, each at the lowest offset that is free during its lifetime (Pisarchyk & Lee
** 2020, "Efficient memory management for deep neural net inference"). Lifetimes are spans of program order; where two
** buffers of different streams share bytes, sync.c adds the events that make program order real.
*/
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

enum { ALIGNMENT = 64 };

static int64_t align_up(int64_t n) { return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static const ms_buffer *sorting; /* qsort has no context; compile runs on one thread of a process at a time */

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
static int live_together(const ms_buffer *b, const spot *other) {
  return b->ranks != other->ranks || (b->first <= other->last && other->first <= b->last);
}

/* placed: in order of offset. Finds the lowest gap that holds b, places it, keeps the order. */
static void place(ms_buffer *b, int64_t base, spot *placed, int n) {
  int64_t at = base, bytes = align_up(b->bytes);
  for (int i = 0; i < n; i++) {
    const spot *other = &placed[i];
    if (!live_together(b, other)) continue;
    if (at + bytes <= other->begin) break;
    if (other->end > at) at = other->end;
  }
  b->offset = at;
  int slot = n;
  while (slot > 0 && placed[slot - 1].begin > at) slot--;
  memmove(&placed[slot + 1], &placed[slot], (size_t)(n - slot) * sizeof *placed);
  placed[slot] = (spot){at, at + bytes, b->first, b->last, b->ranks};
}

static int layout_arena(ms_plan *plan, int phase, int arena, int64_t base, int *order, spot *placed) {
  int n = 0;
  for (int i = 0; i < plan->buffers; i++) {
    const ms_buffer *b = &plan->buffer[i];
    if (b->arena == arena && b->phase == phase && b->first >= 0 && b->bytes > 0) order[n++] = i;
    else if (b->arena == arena && b->phase == phase) plan->buffer[i].offset = base;
  }
  sorting = plan->buffer;
  qsort(order, (size_t)n, sizeof *order, by_size);
  for (int i = 0; i < n; i++) {
    place(&plan->buffer[order[i]], base, placed, i);
    const ms_buffer *b = &plan->buffer[order[i]];
    int64_t end = b->offset + align_up(b->bytes);
    if (end > plan->arena_bytes[arena]) plan->arena_bytes[arena] = end;
  }
  return MS_OK;
}

/* What outlives a phase lies at the front of its arena: inputs, and what stays between micro-batches. */
static int64_t layout_lasting(ms_plan *plan, int arena) {
  int64_t end = 0;
  for (int i = 0; i < plan->buffers; i++) {
    ms_buffer *b = &plan->buffer[i];
    if (b->arena != arena || b->phase >= 0) continue;
    b->offset = end;
    end += align_up(b->bytes);
  }
  return end;
}

int ms_plan_layout(ms_plan *plan) {
  int *order = ms_calloc(plan->buffers, sizeof *order);
  spot *placed = ms_calloc(plan->buffers, sizeof *placed);
  int rc = order && placed ? MS_OK : MS_ENOMEM;
  if (rc) goto fail;
  for (int arena = MS_ARENA_ACTIVATIONS; arena < MS_ARENAS; arena++) {
    int64_t lasting = layout_lasting(plan, arena);
    plan->arena_bytes[arena] = lasting;
    for (int phase = 0; phase < MS_PHASES; phase++) MS_GOTO(layout_arena(plan, phase, arena, lasting, order, placed));
  }
  plan->category_bytes[MS_CAT_ACTIVATIONS] = plan->arena_bytes[MS_ARENA_ACTIVATIONS];
  plan->category_bytes[MS_CAT_WORKSPACE] += plan->arena_bytes[MS_ARENA_WORKSPACE];
  plan->category_bytes[MS_CAT_COMMUNICATION] = plan->arena_bytes[MS_ARENA_COMM];
  plan->category_bytes[MS_CAT_GATHERED] = plan->arena_bytes[MS_ARENA_GATHERED] + plan->arena_bytes[MS_ARENA_GROUPED];
fail:
  free(order);
  free(placed);
  return rc;
}
