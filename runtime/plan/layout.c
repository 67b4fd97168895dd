/* layout.c - a place in an arena for every buffer, so that buffers that live at the same time do not overlap.
**
** Lifetimes are spans of program order; where two buffers of different streams share bytes, sync.c adds the events that
** make program order real. Places are found by pack.c, or were found for an earlier plan of the same graph.
*/
#include <stdlib.h>

#include "plan/kept.h"
#include "plan/pack.h"
#include "plan/plan.h"

enum { ALIGNMENT = 64 };

static int64_t align_up(int64_t n) { return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

typedef struct layout {
  ms_plan *plan;
  const ms_graph *traced;
  int *member;           /* buffers that want a place */
  ms_packing_item *item; /* of each member */
  int64_t *offset;
  int *rank; /* [positions + 1] of program positions among those that members begin or end at */
  int positions;
} layout;

/* Programs that differ in other arenas alone give the same numbers. */
static void number_positions(layout *l, int n) {
  for (int i = 0; i <= l->positions; i++) l->rank[i] = 0;
  for (int i = 0; i < n; i++) {
    const ms_buffer *b = &l->plan->buffer[l->member[i]];
    l->rank[b->first] = 1;
    l->rank[b->last < l->positions ? b->last : l->positions] = 1;
  }
  for (int i = 0, seen = 0; i <= l->positions; i++) {
    seen += l->rank[i];
    l->rank[i] = seen;
  }
  for (int i = 0; i < n; i++) {
    const ms_buffer *b = &l->plan->buffer[l->member[i]];
    int last = b->last < l->positions ? b->last : l->positions;
    l->item[i] = (ms_packing_item){align_up(b->bytes), l->rank[b->first], l->rank[last], b->ranks};
  }
}

static int layout_arena(layout *l, int phase, int arena, int64_t base) {
  ms_plan *plan = l->plan;
  int n = 0;
  for (int i = 0; i < plan->buffers; i++) {
    ms_buffer *b = &plan->buffer[i];
    if (b->arena != arena || b->phase != phase) continue;
    if (b->first >= 0 && b->bytes > 0) l->member[n++] = i;
    else b->offset = base;
  }
  if (!n) return MS_OK;
  number_positions(l, n);
  const int64_t *offset = ms_kept_packing(l->traced, l->item, n);
  if (!offset) {
    MS_TRY(ms_pack(l->item, n, l->offset));
    MS_TRY(ms_kept_add_packing(l->traced, l->item, l->offset, n));
    offset = l->offset;
  }
  for (int i = 0; i < n; i++) {
    plan->buffer[l->member[i]].offset = base + offset[i];
    int64_t end = base + offset[i] + l->item[i].bytes;
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

int ms_plan_layout(ms_plan *plan, const ms_graph *traced) {
  layout l = {.plan = plan, .traced = traced};
  for (int phase = 0; phase < MS_PHASES; phase++)
    if (plan->phase[phase].n > l.positions) l.positions = plan->phase[phase].n;
  l.member = ms_calloc(plan->buffers, sizeof *l.member);
  l.item = ms_calloc(plan->buffers, sizeof *l.item);
  l.offset = ms_calloc(plan->buffers, sizeof *l.offset);
  l.rank = ms_calloc(l.positions + 1, sizeof *l.rank);
  int rc = l.member && l.item && l.offset && l.rank ? MS_OK : MS_ENOMEM;
  if (rc) goto fail;
  for (int arena = MS_ARENA_ACTIVATIONS; arena < MS_ARENAS; arena++) {
    int64_t lasting = layout_lasting(plan, arena);
    plan->arena_bytes[arena] = lasting;
    for (int phase = 0; phase < MS_PHASES; phase++) MS_GOTO(layout_arena(&l, phase, arena, lasting));
  }
  plan->category_bytes[MS_CAT_ACTIVATIONS] = plan->arena_bytes[MS_ARENA_ACTIVATIONS];
  plan->category_bytes[MS_CAT_WORKSPACE] += plan->arena_bytes[MS_ARENA_WORKSPACE];
  plan->category_bytes[MS_CAT_COMMUNICATION] = plan->arena_bytes[MS_ARENA_COMM];
  plan->category_bytes[MS_CAT_GATHERED] = plan->arena_bytes[MS_ARENA_GATHERED] + plan->arena_bytes[MS_ARENA_GROUPED];
fail:
  free(l.member);
  free(l.item);
  free(l.offset);
  free(l.rank);
  return rc;
}
