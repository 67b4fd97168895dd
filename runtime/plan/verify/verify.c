/* verify.c - rejects a plan that can race. It uses only instructions, streams, events and byte ranges; it ignores
 * how the plan was made.
 *
 * It proves four properties of every phase. Bounds: every access is inside its buffer's place in the arena. Order:
 * two accesses of the same byte on different streams, at least one of them a write, are ordered through events
 * (vector clocks). Reuse: two buffers that share bytes are not in use at the same time in program order, which the
 * second proof makes the order of execution. Peers: ranks that share memory meet between the writes of one and the
 * reads of another (verify_peers.c).
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/layout/intervals.h"
#include "plan/plan.h"

/* An access; its bytes are in verifier.range. */
typedef struct touch {
  int instr;
  unsigned char arena, stream, write;
} touch;

/* When a buffer is in use, in positions of instructions. */
typedef struct span {
  int buffer, first, last; /* last: INT_MAX if the buffer outlives the phase */
} span;

typedef struct verifier {
  const ms_plan *plan;
  const ms_plan_phase *phase;
  int phase_id;
  int64_t base[MS_ARENAS]; /* start of each arena in one address space for all arenas, in bytes */
  int *clock;              /* [instr][streams], from ms_plan_clocks */
  touch *touch;            /* in program order */
  ms_range *range;         /* bytes of each touch */
  int n, touch_capacity, range_capacity;
  span *span; /* [buffers] */
} verifier;

static int check_bounds(const verifier *v, int i, const ms_access *a) {
  const ms_buffer *b = &v->plan->buffer[a->buffer];
  if (a->begin >= 0 && a->begin >= b->offset && a->end <= b->offset + b->bytes &&
      a->end <= v->plan->arena_bytes[a->arena])
    return MS_OK;
  char text[MS_INSTR_TEXT];
  return MS_FAIL(
      MS_ERACE, "phase %s: instruction %d (%s) touches bytes [%lld, %lld) of arena %s, outside its buffer [%lld, %lld)",
      ms_phase_name(v->phase_id), i, ms_instr_describe(&v->phase->instr[i], text), (long long)a->begin,
      (long long)a->end, ms_arena_name(a->arena), (long long)b->offset, (long long)(b->offset + b->bytes));
}

/* A buffer of all phases is in use from the start of a phase, unless the phase overwrites it: then no instruction
 * needs the previous contents. */
static void extend_span(const verifier *v, int i, int buffer) {
  span *s = &v->span[buffer];
  if (s->first < 0) s->first = i;
  s->last = i;
  int lasting = v->plan->buffer[buffer].phase < 0;
  if (lasting && s->first > 0 && ms_instr_needs(&v->phase->instr[i], buffer)) s->first = 0;
}

static int collect_instr(verifier *v, int i, const ms_access *access, int n) {
  for (const ms_access *a = access; a < access + n; a++) {
    MS_TRY(check_bounds(v, i, a));
    v->touch[v->n] = (touch){i, (unsigned char)a->arena, (unsigned char)v->phase->instr[i].stream, a->write != 0};
    v->range[v->n++] = (ms_range){v->base[a->arena] + a->begin, v->base[a->arena] + a->end};
    extend_span(v, i, a->buffer);
  }
  return MS_OK;
}

static int collect(verifier *v) {
  ms_access *access = NULL;
  int capacity = 0, rc = MS_OK;
  const int most = ms_phase_access_limit(v->phase);
  MS_TRY(ms_grow((void **)&v->touch, &v->touch_capacity, most, sizeof *v->touch));
  MS_TRY(ms_grow((void **)&v->range, &v->range_capacity, most, sizeof *v->range));
  for (int i = 0; i < v->phase->n; i++) {
    const ms_instr *instr = &v->phase->instr[i];
    MS_GOTO(ms_grow((void **)&access, &capacity, ms_instr_access_limit(instr), sizeof *access));
    MS_GOTO(collect_instr(v, i, access, ms_instr_accesses(v->plan, instr, access, capacity)));
  }
fail:
  free(access);
  return rc;
}

/* Extends the buffers that outlive the phase: buffers of all phases (the host writes inputs between phases), and
 * outputs, which the host reads. */
static void hold_lasting(verifier *v) {
  for (int b = 0; b < v->plan->buffers; b++) {
    if (v->plan->buffer[b].phase >= 0) continue;
    v->span[b].last = INT_MAX;
    if (v->span[b].first < 0) v->span[b].first = 0;
  }
  for (int o = 0; o < v->plan->outputs; o++) {
    const ms_ref *at = &v->plan->output[o].at[v->phase_id];
    if (at->buffer >= 0 && v->span[at->buffer].first >= 0) v->span[at->buffer].last = INT_MAX;
  }
}

/* ---- order ------------------------------------------------------------------------------------------------------ */

/* For every interval of bytes that several streams share: who touched it last, as a row of ints. The row holds the
 * writer's stream, the writer, and for each stream its latest reader since that write. Instructions are numbered by
 * their position on their stream from 1; 0: none. Earlier accesses need no check: they were checked against that
 * writer. */
enum { WRITER_STREAM, WRITER, READERS };

/* Accesses on one stream are ordered anyway, and reads do not conflict: keeps only the accesses to arenas that
 * several streams use and one of them writes. */
static void keep_shared(verifier *v) {
  struct {
    int stream, several, written; /* stream: 1 + the first stream that touches the arena */
  } use[MS_ARENAS] = {{0}};
  int kept = 0;
  for (int i = 0; i < v->n; i++) {
    const int arena = v->touch[i].arena, stream = 1 + v->touch[i].stream;
    if (!use[arena].stream) use[arena].stream = stream;
    use[arena].several |= use[arena].stream != stream;
    use[arena].written |= v->touch[i].write;
  }
  for (int i = 0; i < v->n; i++) {
    const int arena = v->touch[i].arena;
    if (!use[arena].several || !use[arena].written) continue;
    v->touch[kept] = v->touch[i];
    v->range[kept++] = v->range[i];
  }
  v->n = kept;
}

static int find_instr(const ms_plan_phase *phase, int stream, int place) {
  int i = 0;
  while (phase->instr[i].stream != stream || --place) i++;
  return i;
}

static int unordered(const verifier *v, int stream, int place, const touch *late, int64_t byte) {
  int early = find_instr(v->phase, stream, place);
  char first[MS_INSTR_TEXT], second[MS_INSTR_TEXT];
  return MS_FAIL(MS_ERACE, "phase %s: nothing orders %d (%s) and %d (%s), which both touch byte %lld of arena %s",
                 ms_phase_name(v->phase_id), early, ms_instr_describe(&v->phase->instr[early], first), late->instr,
                 ms_instr_describe(&v->phase->instr[late->instr], second), (long long)(byte - v->base[late->arena]),
                 ms_arena_name(late->arena));
}

/* known: [streams] instructions that are certainly done when this instruction starts. */
static int touch_interval(const verifier *v, const touch *t, const int *known, int place, int64_t byte, int *last) {
  const int streams = v->plan->streams;
  if (last[WRITER] > known[last[WRITER_STREAM]]) return unordered(v, last[WRITER_STREAM], last[WRITER], t, byte);
  if (!t->write) {
    last[READERS + t->stream] = place;
    return MS_OK;
  }
  for (int s = 0; s < streams; s++)
    if (last[READERS + s] > known[s]) return unordered(v, s, last[READERS + s], t, byte);
  for (int s = 0; s < streams; s++) last[READERS + s] = 0;
  last[WRITER_STREAM] = t->stream;
  last[WRITER] = place;
  return MS_OK;
}

/* last: one row per interval; known: [streams] scratch. */
static int check_touches(const verifier *v, int *last, int *known, const int64_t *byte) {
  const int streams = v->plan->streams, row = READERS + streams;
  for (int i = 0; i < v->n; i++) {
    const touch *t = &v->touch[i];
    const int *clock = &v->clock[t->instr * streams], place = clock[t->stream] + 1;
    memcpy(known, clock, (size_t)streams * sizeof *known);
    known[t->stream] = INT_MAX;
    for (int64_t k = v->range[i].begin; k < v->range[i].end; k++)
      MS_TRY(touch_interval(v, t, known, place, byte[k], &last[k * row]));
  }
  return MS_OK;
}

static int check_order(verifier *v) {
  const int streams = v->plan->streams;
  int64_t *byte;
  int n, rc;
  keep_shared(v);
  MS_TRY(ms_cut_intervals(v->range, v->n, &byte, &n));
  int *last = ms_calloc((int64_t)n * (READERS + streams), sizeof *last), *known = ms_calloc(streams, sizeof *known);
  rc = last && known ? check_touches(v, last, known, byte) : MS_ENOMEM;
  free(last);
  free(known);
  free(byte);
  return rc;
}

/* ---- reuse ------------------------------------------------------------------------------------------------------ */

/* Two buffers that share bytes must not be in use at the same time in program order. Across ranks, program order is
 * the order of execution only if the same ranks gather into both buffers: ranks of different groups do not wait for
 * each other, so buffers gathered by different groups must never share bytes at all.
 *
 * Buffers are checked in the order in which they begin, so only the latest earlier user of an interval can still be
 * in use. */
static int share_bytes(const verifier *v, const span *x, const span *y) {
  const ms_buffer *first = &v->plan->buffer[x->buffer], *second = &v->plan->buffer[y->buffer];
  return MS_FAIL(
      MS_ERACE, "phase %s: buffers %d (%s) and %d (%s) share bytes of arena %s and are in use at the same time",
      ms_phase_name(v->phase_id), x->buffer, first->label, y->buffer, second->label, ms_arena_name(first->arena));
}

static int check_place(const verifier *v, const ms_buffer *b, int buffer) {
  if (b->offset >= 0 && b->offset + b->bytes <= v->plan->arena_bytes[b->arena]) return MS_OK;
  return MS_FAIL(MS_ERACE, "phase %s: buffer %d (%s) occupies bytes [%lld, %lld), outside arena %s of %lld bytes",
                 ms_phase_name(v->phase_id), buffer, b->label, (long long)b->offset, (long long)(b->offset + b->bytes),
                 ms_arena_name(b->arena), (long long)v->plan->arena_bytes[b->arena]);
}

/* Sorts the spans that have bytes by their beginning: a counting sort over the program. count: [instructions + 2],
 * of zeros. Returns the number of spans. */
static int sort_spans(const verifier *v, int *count, const span **sorted) {
  int used = 0;
  for (int b = 0; b < v->plan->buffers; b++)
    if (v->span[b].first >= 0 && v->plan->buffer[b].bytes > 0) count[v->span[b].first + 1]++;
  for (int i = 0; i <= v->phase->n; i++) count[i + 1] += count[i];
  for (int b = 0; b < v->plan->buffers; b++) {
    if (v->span[b].first < 0 || v->plan->buffer[b].bytes <= 0) continue;
    sorted[count[v->span[b].first]++] = &v->span[b];
    used++;
  }
  return used;
}

static int are_apart(const verifier *v, const span *earlier, const span *later) {
  const ms_buffer *buffer = v->plan->buffer;
  return earlier->last < later->first && buffer[earlier->buffer].ranks == buffer[later->buffer].ranks;
}

/* user: [intervals] the latest span that used each interval. */
static int check_spans(const verifier *v, const span *const *spans, const ms_range *range, int n, const span **user) {
  for (int i = 0; i < n; i++) {
    for (int64_t k = range[i].begin; k < range[i].end; k++) {
      if (user[k] && !are_apart(v, user[k], spans[i])) return share_bytes(v, user[k], spans[i]);
      user[k] = spans[i];
    }
  }
  return MS_OK;
}

static int check_all(const verifier *v, const span *const *spans, ms_range *range, int n) {
  int64_t *byte = NULL;
  int intervals;
  for (int i = 0; i < n; i++) {
    const ms_buffer *b = &v->plan->buffer[spans[i]->buffer];
    MS_TRY(check_place(v, b, spans[i]->buffer));
    range[i].begin = v->base[b->arena] + b->offset;
    range[i].end = range[i].begin + b->bytes;
  }
  MS_TRY(ms_cut_intervals(range, n, &byte, &intervals));
  free(byte);
  const span **user = ms_calloc(intervals, sizeof *user);
  int rc = user ? check_spans(v, spans, range, n, user) : MS_ENOMEM;
  free(user);
  return rc;
}

static int check_reuse(const verifier *v) {
  int *count = ms_calloc(v->phase->n + 2, sizeof *count);
  const span **sorted = ms_calloc(v->plan->buffers, sizeof *sorted);
  ms_range *range = ms_calloc(v->plan->buffers, sizeof *range);
  int rc = count && sorted && range ? check_all(v, sorted, range, sort_spans(v, count, sorted)) : MS_ENOMEM;
  free(count);
  free(sorted);
  free(range);
  return rc;
}

int ms_plan_verify(const ms_plan *plan, int phase) {
  verifier v = {.plan = plan, .phase = &plan->phase[phase], .phase_id = phase};
  int rc = MS_ENOMEM;
  for (int arena = 1; arena < MS_ARENAS; arena++) v.base[arena] = v.base[arena - 1] + plan->arena_bytes[arena - 1];
  v.clock = ms_calloc((int64_t)v.phase->n * plan->streams, sizeof *v.clock);
  v.span = ms_calloc(plan->buffers, sizeof *v.span);
  if (!v.clock || !v.span) goto fail;
  for (int b = 0; b < plan->buffers; b++) v.span[b] = (span){b, -1, -1};
  MS_GOTO(ms_plan_clocks(v.plan, phase, v.clock));
  MS_GOTO(collect(&v));
  hold_lasting(&v);
  MS_GOTO(check_order(&v));
  MS_GOTO(check_reuse(&v));
  MS_GOTO(ms_plan_verify_peers(plan, phase, v.clock));
fail:
  free(v.clock);
  free(v.touch);
  free(v.range);
  free(v.span);
  return rc;
}
