/* layout.c - assigns every buffer a place in an arena, so that buffers in use at the same time do not overlap.
 *
 * Lifetimes are ranges in program order; where two buffers used on different streams share bytes, sync.c adds the
 * events that enforce program order. pack.c finds the places, unless the cache has them from an earlier plan of the
 * same graph.
 *
 * Arenas are fullest at different times, so private buffers also use bytes of other arenas: activations use the
 * communication arena between its own buffers, and the gradient chunks until these are written; workspace uses the
 * activations arena. Buffers that peers read are placed first, independently of private ones, because their offsets
 * must be equal on all ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "plan/compile_cache.h"
#include "plan/lower/lower.h"
#include "plan/layout/pack.h"
#include "plan/plan.h"
#include "plan/layout/comm_arena_size.h"

enum { ALIGNMENT = 64 };

static int64_t align_up(int64_t n) { return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* The arenas that buffers of a category can use, their own arena last; the kinds are laid out in this order. */
enum { COMMUNICATED, ACTIVATIONS, WORKSPACE, GATHERED, GROUPED, RESIDENT, KINDS };
static const struct {
  int category, in[MS_PACK_ARENAS], arenas;
} kinds[KINDS] = {
    {MS_CAT_COMMUNICATION, {MS_ARENA_COMM}, 1},
    {MS_CAT_ACTIVATIONS, {MS_ARENA_COMM, MS_ARENA_STATE, MS_ARENA_ACTIVATIONS}, 3},
    {MS_CAT_WORKSPACE, {MS_ARENA_ACTIVATIONS, MS_ARENA_WORKSPACE}, 2},
    {MS_CAT_GATHERED, {MS_ARENA_GATHERED}, 1},
    {MS_CAT_GATHERED, {MS_ARENA_GROUPED}, 1},
    {MS_CAT_GATHERED, {MS_ARENA_RESIDENT}, 1},
};

typedef struct layout {
  ms_plan *plan;
  const ms_graph *traced;
  int *order;                     /* buffers sorted by phase */
  int from[MS_PHASES + 2];        /* order[from[1 + p]] is the first buffer of phase p; order[from[0]] the first one
                                   * of all phases */
  int *member;                    /* buffers that are packed together */
  ms_packing_item *item, *packed; /* one for each member */
  int *rank;                      /* [max_positions + 1] scratch: rank of a position among those where members begin
                                   * or end */
  int positions, max_positions;   /* instructions of the phase; the most of any phase */
  int64_t base[MS_ARENAS];        /* start of the part that phases reuse; in STATE: start of the gradients */
  int64_t gradients;              /* size of the gradients from there on, in bytes */
  int *begin;                     /* [phases][units] when gradients start to hold data (accesses.c) */
  int64_t communicated;           /* bytes of the communication arena that communication itself needs */
  int64_t enough;                 /* size of that arena plus activations that is good enough: slightly above the
                                   * lower bound */
} layout;

static int sort_by_phase(layout *l) {
  const ms_plan *plan = l->plan;
  l->order = ms_calloc(plan->buffers, sizeof *l->order);
  if (!l->order) return MS_ENOMEM;
  int n = 0;
  for (int phase = -1; phase < MS_PHASES; phase++) {
    l->from[1 + phase] = n;
    for (int i = 0; i < plan->buffers; i++)
      if (plan->buffer[i].phase == phase) l->order[n++] = i;
  }
  l->from[1 + MS_PHASES] = n;
  return MS_OK;
}

/* The last position at which a buffer's bytes are unavailable to private buffers: its last use, or the end of the
 * phase for buffers that only collectives touch, such as chunks between the sums over shards and over replicas.
 * Compute would otherwise wait for the last of those collectives. */
static int end_of(const layout *l, const ms_buffer *b, const ms_packing_item *item) {
  int never = item->arena >= 0 && !b->computed;
  return never || b->last > l->positions ? l->positions : b->last;
}

/* Replaces positions by their ranks, so that programs that differ only in instructions outside these lifetimes get
 * the same numbers and find the same cached packing. */
static void number_positions(layout *l, int n) {
  memset(l->rank, 0, (size_t)(l->positions + 1) * sizeof *l->rank);
  for (int i = 0; i < n; i++) l->rank[l->item[i].first] = l->rank[l->item[i].last] = 1;
  for (int i = 0, seen = 0; i <= l->positions; i++) {
    seen += l->rank[i];
    l->rank[i] = seen;
  }
  for (int i = 0; i < n; i++) {
    l->item[i].first = l->rank[l->item[i].first];
    l->item[i].last = l->rank[l->item[i].last];
  }
}

static int is_used(const ms_buffer *b, int phase) { return b->phase == phase && b->first >= 0 && b->bytes > 0; }

/* Index of the buffer's arena among the arenas of a kind, or -1. */
static int place_in(int kind, const ms_buffer *b) {
  for (int a = 0; a < kinds[kind].arenas; a++)
    if (b->arena == kinds[kind].in[a]) return a;
  return -1;
}

static int *begin_in(const layout *l, int phase) { return &l->begin[phase * l->plan->model->units]; }

static int uses(int kind, int arena) {
  for (int a = 0; a < kinds[kind].arenas; a++)
    if (kinds[kind].in[a] == arena) return 1;
  return 0;
}

/* Adds the gradient chunks, in use from their first write on. Returns the number of bytes of STATE that are free
 * before. */
static int64_t collect_gradients(layout *l, int phase, int kind, int *members) {
  const ms_plan *plan = l->plan;
  const int *begin = begin_in(l, phase);
  int written = 0, n = *members;
  if (!l->gradients || !uses(kind, MS_ARENA_STATE)) return 0;
  for (int u = 0; u < plan->model->units; u++) written |= begin[u] > 0;
  if (!written) return 0;
  for (int u = 0; u < plan->model->units; u++) {
    const ms_buffer *b = &plan->buffer[ms_state_buffer(u, MS_SLOT_GRADIENT)];
    if (!b->bytes) continue;
    l->member[n] = ms_state_buffer(u, MS_SLOT_GRADIENT);
    l->item[n++] = (ms_packing_item){.bytes = align_up(b->bytes),
                                     .first = begin[u],
                                     .last = l->positions,
                                     .arena = place_in(kind, b),
                                     .offset = b->offset - l->base[MS_ARENA_STATE]};
  }
  *members = n;
  return l->gradients;
}

/* Lists the buffers of a phase that are in, or will be placed in, one of the kind's arenas. Returns the number to
 * place. */
static int collect(layout *l, int phase, int kind, int *members) {
  int n = 0, wanting = 0;
  for (int i = l->from[1 + phase]; i < l->from[2 + phase]; i++) {
    ms_buffer *b = &l->plan->buffer[l->order[i]];
    int arena = place_in(kind, b), wants = b->category == kinds[kind].category;
    if (arena < 0) continue;
    if (wants && !is_used(b, phase)) b->offset = l->base[b->arena];
    if (!is_used(b, phase)) continue;
    wanting += wants;
    l->member[n] = l->order[i];
    l->item[n++] = (ms_packing_item){.bytes = align_up(b->bytes),
                                     .ranks = b->ranks ? b->dim << 16 | b->ranks : 0,
                                     .arena = wants ? -1 : arena,
                                     .offset = wants ? 0 : b->offset - l->base[b->arena]};
    l->item[n - 1].first = b->first;
    l->item[n - 1].last = end_of(l, b, &l->item[n - 1]);
  }
  *members = n;
  return wanting;
}

/* Size of the kind's last arena that needs no search for a smaller one; a phase never needs to be smaller than
 * another. */
static int64_t enough_of(const layout *l, int kind) {
  const int64_t *arena = l->plan->arena_bytes;
  if (kind != ACTIVATIONS) return INT64_MAX;
  int64_t enough = l->enough - arena[MS_ARENA_COMM], other_phases = arena[MS_ARENA_ACTIVATIONS];
  return (enough > other_phases ? enough : other_phases) - l->base[MS_ARENA_ACTIVATIONS];
}

static int layout_phase(layout *l, int phase, int kind) {
  ms_plan *plan = l->plan;
  int n;
  int64_t room[MS_PACK_ARENAS] = {0};
  l->positions = plan->phase[phase].n;
  if (!collect(l, phase, kind, &n)) return MS_OK;
  int64_t lent = collect_gradients(l, phase, kind, &n);
  number_positions(l, n);
  for (int a = 0; a < kinds[kind].arenas - 1; a++) {
    int arena = kinds[kind].in[a];
    room[a] = arena == MS_ARENA_STATE ? lent : plan->arena_bytes[arena] - l->base[arena];
  }
  room[kinds[kind].arenas - 1] = enough_of(l, kind);
  const ms_packing_item *packed = ms_cached_packing(l->traced, l->item, n, room);
  if (!packed) {
    for (int i = 0; i < n; i++) l->packed[i] = l->item[i];
    MS_TRY(ms_pack(l->packed, n, kinds[kind].arenas, room));
    MS_TRY(ms_cache_packing(l->traced, l->item, l->packed, n, room));
    packed = l->packed;
  }
  for (int i = 0; i < n; i++) {
    ms_buffer *b = &plan->buffer[l->member[i]];
    if (b->phase < 0) continue;
    b->arena = kinds[kind].in[packed[i].arena];
    b->offset = l->base[b->arena] + packed[i].offset;
    int64_t end = b->offset + packed[i].bytes;
    if (end > plan->arena_bytes[b->arena]) plan->arena_bytes[b->arena] = end;
  }
  return MS_OK;
}

/* Places the buffers that outlive a phase at the front of their arena: inputs, and what is kept between
 * micro-batches. */
static int64_t layout_lasting(const layout *l, int arena) {
  int64_t end = 0;
  for (int i = l->from[0]; i < l->from[1]; i++) {
    ms_buffer *b = &l->plan->buffer[l->order[i]];
    if (b->arena != arena) continue;
    b->offset = end;
    end += align_up(b->bytes);
  }
  return end;
}

static int layout_kind(layout *l, int kind) {
  int own = kinds[kind].in[kinds[kind].arenas - 1];
  l->plan->arena_bytes[own] = l->base[own];
  for (int phase = 0; phase < MS_PHASES; phase++) MS_TRY(layout_phase(l, phase, kind));
  return MS_OK;
}

/* ---- how large the communicated arena is ------------------------------------------------------------------------ */

/* Lower bound on the size of communication and activations together, less what gradients lend. live: [positions of
 * any phase + 2] scratch. */
static int64_t min_together(layout *l, int64_t *live) {
  int64_t most = 0;
  for (int phase = 0; phase < MS_PHASES; phase++) {
    l->positions = l->plan->phase[phase].n;
    memset(live, 0, (size_t)(l->positions + 2) * sizeof *live);
    for (int i = l->from[1 + phase]; i < l->from[2 + phase]; i++) {
      const ms_buffer *b = &l->plan->buffer[l->order[i]];
      if (!is_used(b, phase) || place_in(ACTIVATIONS, b) < 0) continue;
      live[b->first] += align_up(b->bytes);
      live[(b->last < l->positions ? b->last : l->positions) + 1] -= align_up(b->bytes);
    }
    live[0] -= l->gradients;
    for (int u = 0; u < l->plan->model->units && l->gradients; u++)
      live[begin_in(l, phase)[u]] += align_up(l->plan->buffer[ms_state_buffer(u, MS_SLOT_GRADIENT)].bytes);
    int64_t sum = 0;
    for (int i = 0; i <= l->positions; i++) {
      sum += live[i];
      if (sum > most) most = sum;
    }
  }
  most += l->base[MS_ARENA_COMM];
  return (most > l->communicated ? most : l->communicated) + l->base[MS_ARENA_ACTIVATIONS];
}

static int64_t together(const layout *l) {
  return l->plan->arena_bytes[MS_ARENA_COMM] + l->plan->arena_bytes[MS_ARENA_ACTIVATIONS];
}

/* A large activation may not fit into any gap between communication buffers. A larger communication arena costs the
 * difference but saves the activation's bytes elsewhere: tries the sizes, and keeps the one with the smallest total. */
static int layout_activations(layout *l) {
  int64_t *arena = l->plan->arena_bytes, best = l->communicated;
  int64_t *live = ms_calloc(l->max_positions + 2, sizeof *live);
  if (!live) return MS_ENOMEM;
  int64_t least = min_together(l, live);
  free(live);
  l->enough = least + least / 100;
  MS_TRY(layout_kind(l, ACTIVATIONS));
  int64_t fewest = together(l);
  if (l->communicated == l->base[MS_ARENA_COMM] || fewest <= l->enough) return MS_OK;
  int64_t size[MS_COMM_ARENA_SIZES];
  int sizes;
  MS_TRY(ms_comm_arena_sizes(l->plan, l->order, l->from, l->base[MS_ARENA_COMM], l->communicated, size, &sizes));
  for (int i = 0; i < sizes && fewest > l->enough; i++) {
    arena[MS_ARENA_COMM] = size[i];
    MS_TRY(layout_kind(l, ACTIVATIONS));
    if (together(l) >= fewest) continue;
    fewest = together(l);
    best = size[i];
  }
  if (arena[MS_ARENA_COMM] == best) return MS_OK;
  arena[MS_ARENA_COMM] = best;
  return layout_kind(l, ACTIVATIONS);
}

/* The gradient chunks of all units are contiguous in STATE. */
static void find_gradients(layout *l) {
  for (int phase = 0; phase < MS_PHASES; phase++) ms_gradients_begin(l->plan, phase, begin_in(l, phase));
  for (int u = 0; u < l->plan->model->units; u++) {
    const ms_buffer *b = &l->plan->buffer[ms_state_buffer(u, MS_SLOT_GRADIENT)];
    if (!b->bytes) continue;
    if (!l->gradients) l->base[MS_ARENA_STATE] = b->offset;
    l->gradients = b->offset + align_up(b->bytes) - l->base[MS_ARENA_STATE];
  }
}

static int layout_all(layout *l) {
  find_gradients(l);
  for (int arena = MS_ARENA_ACTIVATIONS; arena < MS_ARENAS; arena++)
    l->plan->arena_bytes[arena] = l->base[arena] = layout_lasting(l, arena);
  MS_TRY(layout_kind(l, COMMUNICATED));
  l->communicated = l->base[MS_ARENA_COMM] + ms_outer_bytes(l->plan, ALIGNMENT);
  if (l->communicated < l->plan->arena_bytes[MS_ARENA_COMM]) l->communicated = l->plan->arena_bytes[MS_ARENA_COMM];
  l->plan->arena_bytes[MS_ARENA_COMM] = l->communicated;
  MS_TRY(layout_activations(l));
  for (int kind = WORKSPACE; kind < KINDS; kind++) MS_TRY(layout_kind(l, kind));
  return MS_OK;
}

int ms_plan_layout(ms_plan *plan, const ms_graph *traced) {
  layout l = {.plan = plan, .traced = traced};
  for (int phase = 0; phase < MS_PHASES; phase++)
    if (plan->phase[phase].n > l.max_positions) l.max_positions = plan->phase[phase].n;
  l.begin = ms_calloc(MS_PHASES * plan->model->units, sizeof *l.begin);
  l.member = ms_calloc(plan->buffers, sizeof *l.member);
  l.item = ms_calloc(plan->buffers, sizeof *l.item);
  l.packed = ms_calloc(plan->buffers, sizeof *l.packed);
  l.rank = ms_calloc(l.max_positions + 1, sizeof *l.rank);
  int rc = l.begin && l.member && l.item && l.packed && l.rank ? sort_by_phase(&l) : MS_ENOMEM;
  if (!rc) rc = layout_all(&l);
  plan->category_bytes[MS_CAT_ACTIVATIONS] =
      plan->arena_bytes[MS_ARENA_ACTIVATIONS] + plan->arena_bytes[MS_ARENA_COMM] - l.communicated;
  plan->category_bytes[MS_CAT_WORKSPACE] += plan->arena_bytes[MS_ARENA_WORKSPACE];
  plan->category_bytes[MS_CAT_COMMUNICATION] = l.communicated;
  plan->category_bytes[MS_CAT_GATHERED] =
      plan->arena_bytes[MS_ARENA_GATHERED] + plan->arena_bytes[MS_ARENA_GROUPED] + plan->arena_bytes[MS_ARENA_RESIDENT];
  free(l.begin);
  free(l.order);
  free(l.member);
  free(l.item);
  free(l.packed);
  free(l.rank);
  return rc;
}
