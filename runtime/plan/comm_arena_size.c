/* comm_arena_size.c - how large the communicated arena would have to be to hold a large activation beside what is
** communicated.
**
** An activation may find no gap there though it lacks little, and then takes all of its bytes elsewhere. layout.c makes
** the arena larger where that saves more than it costs; here is what there is to choose from.
*/
#include "plan/comm_arena_size.h"

#include <stdlib.h>

/* The bytes of an activation, and the least size of the arena that in a phase holds one of that size beside what is
** communicated while it lives; 0 in a phase without one. */
typedef struct room {
  int64_t bytes, needed[MS_PHASES];
} room;

static int64_t aligned(const ms_buffer *b) { return (b->bytes + 63) / 64 * 64; }

static int is_used(const ms_buffer *b, int category) {
  return b->category == category && b->phase >= 0 && b->first >= 0 && b->bytes > 0;
}

/* Keeps the largest sizes, each once, in order. */
static void keep_size(room *room, int *rooms, int64_t bytes) {
  int at = *rooms;
  while (at > 0 && room[at - 1].bytes < bytes) at--;
  if ((at > 0 && room[at - 1].bytes == bytes) || at == MS_COMM_ARENA_ACTIVATIONS) return;
  if (*rooms < MS_COMM_ARENA_ACTIVATIONS) (*rooms)++;
  for (int i = *rooms - 1; i > at; i--) room[i] = room[i - 1];
  room[at] = (struct room){.bytes = bytes};
}

static int by_offset(const void *a, const void *b) {
  const ms_buffer *x = *(const ms_buffer *const *)a, *y = *(const ms_buffer *const *)b;
  return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Where a buffer would end at the lowest gap between those [n], which are in order of their places. */
static int64_t end_between(const ms_buffer *const *taken, int n, int64_t base, const ms_buffer *b) {
  int64_t at = base;
  for (int i = 0; i < n; i++) {
    const ms_buffer *other = taken[i];
    int lives_on = !other->computed || other->last >= b->first; /* what collectives alone touch: to the end */
    if (!lives_on || other->first > b->last || other->offset + aligned(other) <= at) continue;
    if (at + aligned(b) <= other->offset) break;
    at = other->offset + aligned(other);
  }
  return at + aligned(b);
}

/* Of the largest sizes of activations, the largest first. */
static int find_rooms(const ms_plan *plan, const int *order, const int *from, int64_t base, room *room, int *rooms) {
  const ms_buffer **taken = ms_calloc(plan->buffers, sizeof *taken);
  if (!taken) return MS_ENOMEM;
  *rooms = 0;
  for (int i = 0; i < plan->buffers; i++)
    if (is_used(&plan->buffer[i], MS_CAT_ACTIVATIONS)) keep_size(room, rooms, aligned(&plan->buffer[i]));
  for (int phase = 0; phase < MS_PHASES; phase++) {
    int n = 0;
    for (int i = from[1 + phase]; i < from[2 + phase]; i++)
      if (is_used(&plan->buffer[order[i]], MS_CAT_COMMUNICATION)) taken[n++] = &plan->buffer[order[i]];
    if (n) qsort(taken, (size_t)n, sizeof *taken, by_offset);
    for (int i = from[1 + phase]; i < from[2 + phase]; i++) {
      const ms_buffer *b = &plan->buffer[order[i]];
      if (!is_used(b, MS_CAT_ACTIVATIONS)) continue;
      for (int r = 0; r < *rooms; r++) {
        int64_t *least = &room[r].needed[phase];
        if (room[r].bytes != aligned(b) || *least == base + room[r].bytes) continue;
        int64_t end = end_between(taken, n, base, b);
        if (!*least || end < *least) *least = end;
      }
    }
  }
  free(taken);
  return MS_OK;
}

/* A phase in which the activation lies elsewhere needs no room for it there, so phases count by themselves. */
int ms_comm_arena_sizes(const ms_plan *plan, const int *order, const int *from, int64_t base, int64_t communicated,
                        int64_t *size, int *sizes) {
  room room[MS_COMM_ARENA_ACTIVATIONS];
  int rooms;
  *sizes = 0;
  MS_TRY(find_rooms(plan, order, from, base, room, &rooms));
  for (int i = 0; i < rooms * MS_PHASES; i++) {
    int64_t needed = room[i / MS_PHASES].needed[i % MS_PHASES], more = needed - communicated;
    if (more <= 0 || more >= room[i / MS_PHASES].bytes) continue;
    int k = 0;
    while (k < *sizes && size[k] != needed) k++;
    if (k == *sizes) size[(*sizes)++] = needed;
  }
  return MS_OK;
}
