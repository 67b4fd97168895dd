/* verify.c - refuses a plan that can race. It knows instructions, streams, events and bytes, and nothing of how the plan
** was made: no lifetimes, no intentions.
**
** Three proofs a phase. Bounds: every access lies inside its buffer's place in the arena. Order: two accesses of one byte
** from different streams, one of them a write, are ordered through events (vector clocks). Reuse: two buffers that share
** bytes are not in use at the same time, in program order; with the proof of order that is the order they run in. Across
** ranks it is the order too if the same ranks gather into both, and only then.
*/
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

typedef struct touch {
  ms_access access;
  int instr, stream, place; /* place on its stream, 1 for the first */
} touch;

/* When a buffer is in use. What follows `last` is set when that is known of all. */
typedef struct span {
  int buffer, first, last;
  int arena, ranks;
  int64_t begin, end; /* bytes in the arena */
} span;

typedef struct verifier {
  const ms_plan *plan;
  const ms_plan_phase *phase;
  int phase_id;
  int (*clock)[MS_STREAMS]; /* [instr] of ms_plan_clocks */
  touch *touches;
  int n, capacity;
  span *spans; /* [buffers] */
} verifier;

static const char *describe(const ms_instr *instr, char *text, size_t size) {
  const char *what = instr->kind == MS_INSTR_KERNEL       ? ms_op_row_of(instr->call->op)->name
                     : instr->kind == MS_INSTR_COLLECTIVE ? ms_coll_name(instr->coll->kind)
                                                          : "event";
  snprintf(text, size, "%s %s on stream %s", what, instr->scope ? instr->scope : "", ms_stream_name(instr->stream));
  return text;
}

static int check_bounds(const verifier *v, int i, const ms_access *a) {
  const ms_buffer *b = &v->plan->buffer[a->buffer];
  if (a->begin >= 0 && a->begin >= b->offset && a->end <= b->offset + b->bytes &&
      a->end <= v->plan->arena_bytes[a->arena])
    return MS_OK;
  char text[192];
  return MS_FAIL(
      MS_ERACE, "phase %s: instruction %d (%s) touches bytes [%lld, %lld) of arena %s, outside its buffer [%lld, %lld)",
      ms_phase_name(v->phase_id), i, describe(&v->phase->instr[i], text, sizeof text), (long long)a->begin,
      (long long)a->end, ms_arena_name(a->arena), (long long)b->offset, (long long)(b->offset + b->bytes));
}

static int collect(verifier *v) {
  ms_access *access = NULL;
  int capacity = 0, rc = MS_OK, place[MS_STREAMS] = {0};
  for (int i = 0; i < v->phase->n; i++) {
    const ms_instr *instr = &v->phase->instr[i];
    place[instr->stream]++;
    MS_GOTO(ms_grow((void **)&access, &capacity, ms_instr_access_limit(instr), sizeof *access));
    int n = ms_instr_accesses(v->plan, instr, access, capacity);
    MS_GOTO(ms_grow((void **)&v->touches, &v->capacity, v->n + n, sizeof *v->touches));
    for (int a = 0; a < n; a++) {
      MS_GOTO(check_bounds(v, i, &access[a]));
      v->touches[v->n++] = (touch){access[a], i, instr->stream, place[instr->stream]};
      span *s = &v->spans[access[a].buffer];
      if (s->first < 0) s->first = i;
      s->last = i;
    }
  }
fail:
  free(access);
  return rc;
}

/* Buffers of all phases hold what was there before, unless the phase writes them anew: then no instruction needs it. */
static void clear_needed(verifier *v) {
  for (int i = 0; i < v->n; i++) {
    const touch *t = &v->touches[i];
    if (v->plan->buffer[t->access.buffer].phase < 0 && ms_instr_needs(&v->phase->instr[t->instr], t->access.buffer))
      v->spans[t->access.buffer].first = 0;
  }
}

/* What outlives the phase: buffers of all phases (the host writes inputs between them), and outputs, which it reads. */
static void hold_lasting(verifier *v) {
  clear_needed(v);
  for (int b = 0; b < v->plan->buffers; b++)
    if (v->plan->buffer[b].phase < 0)
      v->spans[b] = (span){.buffer = b, .first = v->spans[b].first > 0 ? v->spans[b].first : 0, .last = INT_MAX};
  for (int o = 0; o < v->plan->outputs; o++) {
    const ms_ref *at = &v->plan->output[o].at[v->phase_id];
    if (at->buffer >= 0 && v->spans[at->buffer].first >= 0) v->spans[at->buffer].last = INT_MAX;
  }
}

/* ---- order ------------------------------------------------------------------------------------------------------ */

/* A piece of an arena between neighbouring ends of accesses, and who touched it last: the writer, and of each stream the
** reader since. Whoever came before them is ordered before the writer, which was checked when the writer came. */
typedef struct piece {
  int64_t begin;
  int writer, reader[MS_STREAMS]; /* indices of touches, or -1 */
} piece;

/* Sorts values of at least 0 by digits of eleven bits, the lowest first; both buffers hold n. Returns the sorted one. */
static int64_t *sort_values(int64_t *values, int64_t *space, int n) {
  enum { BITS = 11, DIGITS = 1 << BITS };
  int64_t all = 0;
  for (int i = 0; i < n; i++) all |= values[i];
  for (int shift = 0; shift < 63 && all >> shift; shift += BITS) {
    int count[DIGITS + 1] = {0};
    for (int i = 0; i < n; i++) count[1 + (values[i] >> shift & (DIGITS - 1))]++;
    for (int d = 0; d < DIGITS; d++) count[d + 1] += count[d];
    for (int i = 0; i < n; i++) space[count[values[i] >> shift & (DIGITS - 1)]++] = values[i];
    int64_t *sorted = space;
    space = values;
    values = sorted;
  }
  return values;
}

/* Pieces of an arena in order of their bytes; returns how many. ends: space for four an access. */
static int cut(const verifier *v, int arena, int64_t *ends, piece *pieces) {
  int n = 0, kept = 0;
  for (int i = 0; i < v->n; i++) {
    const ms_access *a = &v->touches[i].access;
    if (a->arena != arena) continue;
    ends[n++] = a->begin;
    ends[n++] = a->end;
  }
  const int64_t *sorted = sort_values(ends, ends + n, n);
  for (int i = 0; i < n; i++)
    if (!i || sorted[i] != sorted[i - 1]) pieces[kept++] = (piece){sorted[i], -1, {-1, -1, -1, -1}};
  return kept;
}

static int find_piece(const piece *pieces, int n, int64_t begin) {
  int low = 0, high = n - 1;
  while (low < high) {
    int middle = (low + high) / 2;
    if (pieces[middle].begin < begin) low = middle + 1;
    else high = middle;
  }
  return low;
}

static int check_pair(const verifier *v, int earlier, const touch *late, int64_t byte) {
  if (earlier < 0) return MS_OK;
  const touch *early = &v->touches[earlier];
  if (early->stream == late->stream || v->clock[late->instr][early->stream] >= early->place) return MS_OK;
  char first[192], second[192];
  return MS_FAIL(MS_ERACE, "phase %s: nothing orders %d (%s) and %d (%s), which both touch byte %lld of arena %s",
                 ms_phase_name(v->phase_id), early->instr,
                 describe(&v->phase->instr[early->instr], first, sizeof first), late->instr,
                 describe(&v->phase->instr[late->instr], second, sizeof second), (long long)byte,
                 ms_arena_name(late->access.arena));
}

static int touch_piece(const verifier *v, int i, piece *p) {
  const touch *t = &v->touches[i];
  MS_TRY(check_pair(v, p->writer, t, p->begin));
  if (!t->access.write) {
    p->reader[t->stream] = i;
    return MS_OK;
  }
  for (int s = 0; s < MS_STREAMS; s++) {
    MS_TRY(check_pair(v, p->reader[s], t, p->begin));
    p->reader[s] = -1;
  }
  p->writer = i;
  return MS_OK;
}

/* Accesses of one stream are in order, and so are reads: 1 when the arena has others. */
static int is_shared(const verifier *v, int arena) {
  int seen = -1, several = 0, written = 0;
  for (int i = 0; i < v->n && !(several && written); i++) {
    const touch *t = &v->touches[i];
    if (t->access.arena != arena) continue;
    several |= seen >= 0 && seen != t->stream;
    seen = t->stream;
    written |= t->access.write;
  }
  return several && written;
}

/* Touches stand in program order. */
static int check_order(verifier *v) {
  piece *pieces = NULL;
  int64_t *ends = NULL;
  int piece_capacity = 0, end_capacity = 0;
  int rc = ms_grow((void **)&pieces, &piece_capacity, 2 * v->n + 1, sizeof *pieces);
  if (!rc) rc = ms_grow((void **)&ends, &end_capacity, 4 * v->n + 1, sizeof *ends);
  for (int arena = 0; arena < MS_ARENAS && !rc; arena++) {
    if (!is_shared(v, arena)) continue;
    int n = cut(v, arena, ends, pieces);
    for (int i = 0; i < v->n && !rc; i++) {
      const ms_access *a = &v->touches[i].access;
      if (a->arena != arena) continue;
      for (int k = find_piece(pieces, n, a->begin); pieces[k].begin < a->end && !rc; k++)
        rc = touch_piece(v, i, &pieces[k]);
    }
  }
  free(pieces);
  free(ends);
  return rc;
}

/* ---- reuse ------------------------------------------------------------------------------------------------------ */

/* Spans by when they begin, or end: a counting sort over the program. count: [instructions + 2]. */
static void sort_by_time(const verifier *v, int used, int by_last, int *count, const span **sorted) {
  int times = v->phase->n + 1;
  memset(count, 0, (size_t)(times + 1) * sizeof *count);
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < used; i++) {
      const span *s = &v->spans[i];
      int at = by_last ? s->last : s->first, time = at < times ? at : times - 1;
      if (!round) count[time + 1]++;
      else sorted[count[time]++] = s;
    }
    for (int t = 0; t < times && !round; t++) count[t + 1] += count[t];
  }
}

static int by_begin(const void *a, const void *b) {
  const span *x = *(const span *const *)a, *y = *(const span *const *)b;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

static int share_bytes(const verifier *v, const span *x, const span *y) {
  return MS_FAIL(MS_ERACE, "phase %s: buffers %d (%s) and %d (%s) share bytes of arena %s and are in use at once",
                 ms_phase_name(v->phase_id), x->buffer, v->plan->buffer[x->buffer].label, y->buffer,
                 v->plan->buffer[y->buffer].label, ms_arena_name(x->arena));
}

/* Where a span stands, or would stand, among those in use, which are in order of their bytes. */
static int place_among(const span *const *in_use, int n, const span *s) {
  int low = 0, high = n;
  while (low < high) {
    int middle = (low + high) / 2;
    if (in_use[middle]->begin < s->begin) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* Goes through the program: what comes into use in an arena must lie clear of its neighbours among what is in use. */
static int check_in_time(const verifier *v, int arena, const span *const *begin, const span *const *end, int used,
                         const span **in_use) {
  int n = 0, ended = 0;
  for (int i = 0; i < used; i++) {
    const span *s = begin[i];
    if (s->arena != arena) continue;
    for (; end[ended]->last < s->first; ended++) {
      if (end[ended]->arena != arena) continue;
      int at = place_among(in_use, n, end[ended]);
      memmove(&in_use[at], &in_use[at + 1], (size_t)(--n - at) * sizeof *in_use);
    }
    int at = place_among(in_use, n, s);
    if (at > 0 && in_use[at - 1]->end > s->begin) return share_bytes(v, in_use[at - 1], s);
    if (at < n && in_use[at]->begin < s->end) return share_bytes(v, in_use[at], s);
    memmove(&in_use[at + 1], &in_use[at], (size_t)(n++ - at) * sizeof *in_use);
    in_use[at] = s;
  }
  return MS_OK;
}

/* Ranks of different groups do not wait for each other: what they gather into must never share bytes. `reach`: of what came
** before in the order of bytes, what ends last, and what ends last of the others' groups. */
static int check_groups(const verifier *v, int used, const span **placed) {
  const span *reach[2] = {NULL, NULL};
  int n = 0;
  for (int i = 0; i < used; i++)
    if (v->spans[i].arena == MS_ARENA_GROUPED) placed[n++] = &v->spans[i];
  if (n) qsort(placed, (size_t)n, sizeof *placed, by_begin);
  for (int i = 0; i < n; i++) {
    const span *s = placed[i];
    for (int k = 0; k < 2; k++)
      if (reach[k] && reach[k]->ranks != s->ranks && reach[k]->end > s->begin) return share_bytes(v, reach[k], s);
    if (!reach[0] || s->end > reach[0]->end) {
      if (reach[0] && reach[0]->ranks != s->ranks) reach[1] = reach[0];
      reach[0] = s;
    } else if (s->ranks != reach[0]->ranks && (!reach[1] || s->end > reach[1]->end)) {
      reach[1] = s;
    }
  }
  return MS_OK;
}

static int check_reuse(verifier *v) {
  int used = 0, rc = MS_OK;
  for (int b = 0; b < v->plan->buffers; b++) {
    const ms_buffer *buffer = &v->plan->buffer[b];
    if (v->spans[b].first < 0 || buffer->bytes <= 0) continue;
    span *s = &v->spans[used++];
    *s = v->spans[b];
    s->arena = buffer->arena;
    s->ranks = buffer->ranks;
    s->begin = buffer->offset;
    s->end = buffer->offset + buffer->bytes;
  }
  const span **begin = ms_calloc(used, sizeof *begin), **end = ms_calloc(used, sizeof *end);
  const span **in_use = ms_calloc(used, sizeof *in_use);
  int *count = ms_calloc(v->phase->n + 2, sizeof *count);
  if (!begin || !end || !in_use || !count) rc = MS_ENOMEM;
  if (rc) goto fail;
  sort_by_time(v, used, 0, count, begin);
  sort_by_time(v, used, 1, count, end);
  for (int arena = 0; arena < MS_ARENAS; arena++) MS_GOTO(check_in_time(v, arena, begin, end, used, in_use));
  MS_GOTO(check_groups(v, used, in_use));
fail:
  free(begin);
  free(end);
  free(in_use);
  free(count);
  return rc;
}

int ms_plan_verify(const ms_plan *plan, int phase) {
  verifier v = {.plan = plan, .phase = &plan->phase[phase], .phase_id = phase};
  int rc = MS_ENOMEM;
  v.clock = ms_calloc(v.phase->n, sizeof *v.clock);
  v.spans = ms_calloc(plan->buffers, sizeof *v.spans);
  if (!v.clock || !v.spans) goto fail;
  for (int b = 0; b < plan->buffers; b++) v.spans[b] = (span){.buffer = b, .first = -1, .last = -1};
  MS_GOTO(ms_plan_clocks(v.plan, phase, v.clock));
  MS_GOTO(collect(&v));
  hold_lasting(&v);
  MS_GOTO(check_order(&v));
  MS_GOTO(check_reuse(&v));
fail:
  free(v.clock);
  free(v.touches);
  free(v.spans);
  return rc;
}
