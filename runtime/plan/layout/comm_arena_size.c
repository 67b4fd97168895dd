/* comm_arena_size.c - sizes of the communication arena at which a large activation fits between communication
 * buffers.
 *
 * An activation can fail to fit by a few bytes, and then takes all of its bytes in another arena. layout.c enlarges
 * the communication arena where that saves more than it costs; this file lists the candidates.
 */
#include "plan/layout/comm_arena_size.h"

#include <stdlib.h>

/* A size of activations, and for each phase the smallest arena in which an activation of that size fits together with
 * the communication buffers in use during its lifetime; 0 in a phase without one. All in bytes. */
typedef struct room {
  int64_t bytes, needed[MS_PHASES];
} room;

static int64_t aligned(const ms_buffer *b) { return (b->bytes + 63) / 64 * 64; }

static int is_used(const ms_buffer *b, int category) {
  return b->category == category && b->phase >= 0 && b->first >= 0 && b->bytes > 0;
}

/* Keeps the largest sizes, in descending order, without duplicates. */
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

/* Where a buffer would end in the lowest gap between taken[n], which is sorted by offset. */
static int64_t end_between(const ms_buffer *const *taken, int n, int64_t base, const ms_buffer *b) {
  int64_t at = base;
  for (int i = 0; i < n; i++) {
    const ms_buffer *other = taken[i];
    int lives_on = !other->computed || other->last >= b->first; /* buffers that only collectives touch stay in use
                                                                 * until the end of the phase */
    if (!lives_on || other->first > b->last || other->offset + aligned(other) <= at) continue;
    if (at + aligned(b) <= other->offset) break;
    at = other->offset + aligned(other);
  }
  return at + aligned(b);
}

/* Fills room with the largest sizes of activations, in descending order. */
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

/* Each phase gives its own candidates: a phase that places the activation elsewhere needs no larger arena for it. */
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
