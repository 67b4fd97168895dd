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

typedef struct span {
  int buffer, first, last;
  int64_t end; /* of its bytes in the arena; set when the spans are sorted */
} span;

typedef struct verifier {
  const ms_plan *plan;
  const ms_plan_phase *phase;
  int phase_id;
  int (*clock)[MS_STREAMS]; /* [instr] what is known to be done when it starts */
  touch *touches;
  int n, capacity;
  span *spans; /* [buffers] */
} verifier;

static const char *describe(const ms_instr *instr, char *text, size_t size) {
  const char *what = instr->kind == MS_INSTR_KERNEL       ? ms_op_row_of(instr->call.op)->name
                     : instr->kind == MS_INSTR_COLLECTIVE ? ms_coll_name(instr->coll->kind)
                                                          : "event";
  snprintf(text, size, "%s %s on stream %s", what, instr->scope ? instr->scope : "", ms_stream_name(instr->stream));
  return text;
}

/* Vector clocks along the program; an event waited for must have been recorded above. */
static int follow_events(verifier *v) {
  int now[MS_STREAMS][MS_STREAMS] = {{0}}, rc = MS_OK;
  int(*recorded)[MS_STREAMS] = ms_calloc(v->phase->events, sizeof *recorded);
  char *known = ms_calloc(v->phase->events, 1);
  if (!recorded || !known) rc = MS_ENOMEM;
  for (int i = 0; i < v->phase->n && !rc; i++) {
    const ms_instr *instr = &v->phase->instr[i];
    int *clock = now[instr->stream];
    int is_event = instr->kind == MS_INSTR_RECORD || instr->kind == MS_INSTR_WAIT;
    if (is_event && (instr->event < 0 || instr->event >= v->phase->events))
      rc = MS_FAIL(MS_ERACE, "phase %s: instruction %d names event %d of %d", ms_phase_name(v->phase_id), i,
                   instr->event, v->phase->events);
    else if (instr->kind == MS_INSTR_WAIT && !known[instr->event])
      rc = MS_FAIL(MS_ERACE, "phase %s: instruction %d waits for event %d, which nothing above it records",
                   ms_phase_name(v->phase_id), i, instr->event);
    else if (instr->kind == MS_INSTR_WAIT)
      for (int s = 0; s < MS_STREAMS; s++)
        clock[s] = clock[s] > recorded[instr->event][s] ? clock[s] : recorded[instr->event][s];
    memcpy(v->clock[i], clock, sizeof now[0]);
    clock[instr->stream]++;
    if (instr->kind == MS_INSTR_RECORD && !rc) {
      memcpy(recorded[instr->event], clock, sizeof now[0]);
      known[instr->event] = 1;
    }
  }
  free(recorded);
  free(known);
  return rc;
}

static int check_bounds(const verifier *v, int i, const ms_access *a) {
  const ms_buffer *b = &v->plan->buffer[a->buffer];
  if (a->begin >= b->offset && a->end <= b->offset + b->bytes && a->end <= v->plan->arena_bytes[a->arena]) return MS_OK;
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

/* What outlives the phase: buffers of all phases (the host writes inputs between them), and outputs, which it reads. */
static void hold_lasting(verifier *v) {
  for (int b = 0; b < v->plan->buffers; b++)
    if (v->plan->buffer[b].phase < 0) v->spans[b] = (span){b, 0, INT_MAX, 0};
  for (int o = 0; o < v->plan->outputs; o++) {
    const ms_ref *at = &v->plan->output[o].at[v->phase_id];
    if (at->buffer >= 0 && v->spans[at->buffer].first >= 0) v->spans[at->buffer].last = INT_MAX;
  }
}

static int by_place(const void *a, const void *b) {
  const touch *x = a, *y = b;
  if (x->access.arena != y->access.arena) return x->access.arena - y->access.arena;
  if (x->access.begin != y->access.begin) return x->access.begin < y->access.begin ? -1 : 1;
  return x->instr - y->instr;
}

static int ordered(const verifier *v, const touch *x, const touch *y) {
  const touch *early = x->instr < y->instr ? x : y, *late = early == x ? y : x;
  return v->clock[late->instr][early->stream] >= early->place;
}

/* Which arenas more than one stream touches: in the others all accesses are in order. */
static void find_shared(const verifier *v, char *shared) {
  int seen[MS_ARENAS];
  for (int a = 0; a < MS_ARENAS; a++) seen[a] = -1;
  for (int i = 0; i < v->n; i++) {
    const touch *t = &v->touches[i];
    if (seen[t->access.arena] >= 0 && seen[t->access.arena] != t->stream) shared[t->access.arena] = 1;
    seen[t->access.arena] = t->stream;
  }
}

/* Sweeps each arena from its first byte; `open` holds the accesses that reach beyond the current one's begin. */
static int check_order(verifier *v) {
  if (v->n) qsort(v->touches, (size_t)v->n, sizeof *v->touches, by_place);
  touch *open = ms_calloc(v->n, sizeof *open); /* copies: they are gone through for every access */
  char shared[MS_ARENAS] = {0};
  int n_open = 0;
  if (!open) return MS_ENOMEM;
  int rc = MS_OK;
  find_shared(v, shared);
  for (int i = 0; i < v->n && !rc; i++) {
    const touch *t = &v->touches[i];
    int kept = 0;
    if (!shared[t->access.arena]) continue;
    for (int k = 0; k < n_open; k++) {
      const touch *other = &open[k];
      if (other->access.arena != t->access.arena || other->access.end <= t->access.begin) continue;
      if (kept != k) open[kept] = *other;
      other = &open[kept++];
      int conflict = other->stream != t->stream && (other->access.write || t->access.write);
      if (rc || !conflict || ordered(v, other, t)) continue;
      char first[192], second[192];
      rc = MS_FAIL(MS_ERACE, "phase %s: nothing orders %d (%s) and %d (%s), which both touch byte %lld of arena %s",
                   ms_phase_name(v->phase_id), other->instr,
                   describe(&v->phase->instr[other->instr], first, sizeof first), t->instr,
                   describe(&v->phase->instr[t->instr], second, sizeof second), (long long)t->access.begin,
                   ms_arena_name(t->access.arena));
    }
    open[kept++] = *t;
    n_open = kept;
  }
  free(open);
  return rc;
}

static const ms_buffer *sorting; /* qsort has no context; compile runs on one thread of a process at a time */

static int by_offset(const void *a, const void *b) {
  const ms_buffer *x = &sorting[((const span *)a)->buffer], *y = &sorting[((const span *)b)->buffer];
  if (x->arena != y->arena) return x->arena - y->arena;
  return x->offset != y->offset ? (x->offset < y->offset ? -1 : 1) : 0;
}

static int check_reuse(verifier *v) {
  int used = 0;
  for (int b = 0; b < v->plan->buffers; b++)
    if (v->spans[b].first >= 0 && v->plan->buffer[b].bytes > 0) {
      v->spans[used] = v->spans[b];
      v->spans[used++].end = v->plan->buffer[b].offset + v->plan->buffer[b].bytes;
    }
  sorting = v->plan->buffer;
  qsort(v->spans, (size_t)used, sizeof *v->spans, by_offset);
  span *open = ms_calloc(used, sizeof *open); /* copies: they are gone through for every buffer */
  int n_open = 0, arena = -1, rc = open ? MS_OK : MS_ENOMEM;
  for (int i = 0; i < used && !rc; i++) {
    const span *s = &v->spans[i];
    const ms_buffer *b = &v->plan->buffer[s->buffer];
    int kept = 0;
    if (b->arena != arena) n_open = 0;
    arena = b->arena;
    for (int k = 0; k < n_open; k++) {
      if (open[k].end <= b->offset) continue;
      if (kept != k) open[kept] = open[k];
      const span *t = &open[kept++];
      int other_ranks = v->plan->buffer[t->buffer].ranks != b->ranks;
      if (!rc && (other_ranks || (s->first <= t->last && t->first <= s->last)))
        rc = MS_FAIL(MS_ERACE, "phase %s: buffers %d (%s) and %d (%s) share bytes of arena %s and are in use at once",
                     ms_phase_name(v->phase_id), t->buffer, v->plan->buffer[t->buffer].label, s->buffer, b->label,
                     ms_arena_name(b->arena));
    }
    open[kept++] = *s;
    n_open = kept;
  }
  free(open);
  return rc;
}

int ms_plan_verify(const ms_plan *plan, int phase) {
  verifier v = {.plan = plan, .phase = &plan->phase[phase], .phase_id = phase};
  int rc = MS_ENOMEM;
  v.clock = ms_calloc(v.phase->n, sizeof *v.clock);
  v.spans = ms_calloc(plan->buffers, sizeof *v.spans);
  if (!v.clock || !v.spans) goto fail;
  for (int b = 0; b < plan->buffers; b++) v.spans[b] = (span){b, -1, -1, 0};
  MS_GOTO(follow_events(&v));
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
