/* sync.c - inserts the events that order conflicting accesses on different streams, and no unnecessary ones.
 *
 * It walks the program with a vector clock per stream (Fidge 1988, Mattern 1989): clock[t] is the number of
 * instructions of stream t known to be done. An instruction that conflicts with an earlier one on another stream
 * waits for its event, unless its clock, or the clock gained from another of its waits, already covers it. Every
 * remaining wait therefore orders something.
 */
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

/* An earlier access, with copies of what the search reads: instructions are large and far apart in memory. */
typedef struct past {
  int64_t begin, end;
  int instr, place;
} past;

/* The earlier reads, or writes, of one stream in one arena, in program order. All are inside [begin, end), which
 * lets most searches stop immediately. */
typedef struct history {
  past *list; /* a part of synchroniser.pasts */
  int n;
  int64_t begin, end;
} history;

typedef struct synchroniser {
  const ms_plan *plan;
  const ms_plan_phase *phase;
  int streams;       /* streams of the plan, the length of every clock */
  int *now;          /* [streams][streams] current clock of each stream */
  int *done;         /* [instr][streams] clock of the stream after the instruction */
  int *place;        /* [instr] position on its stream, from 1 */
  int *event;        /* [instr] event recorded after it, or -1 */
  int *wait;         /* [instr][streams] instruction on each stream to wait for, or -1 */
  history *past;     /* [arenas][streams][2]; [0]: reads, [1]: writes */
  past *pasts;       /* storage of all histories */
  int *known;        /* [streams] scratch: clock of the current instruction, including the waits chosen so far */
  int *count;        /* [streams] number of instructions so far */
  ms_access *access; /* of all instructions, in program order */
  int *first;        /* [instr + 1] index of the instruction's first access */
  int accesses, access_capacity;
  int waits, events;
} synchroniser;

static history *history_of(const synchroniser *s, int arena, int stream, int writes) {
  return &s->past[2 * (arena * s->streams + stream) + writes];
}

static int overlap(const past *p, const ms_access *access) { return p->begin < access->end && access->begin < p->end; }

/* Bounds of the accesses of one instruction in an arena that conflict with earlier reads, or with earlier writes. */
typedef struct reach {
  int64_t begin, end;
} reach;

static void extend(reach *r, const ms_access *access) {
  if (r->end == 0 || access->begin < r->begin) r->begin = access->begin;
  if (access->end > r->end) r->end = access->end;
}

/* Returns the latest conflicting access in a history that is not known to be done, or NULL. Accesses known to be
 * done need no wait. */
static const past *find_latest(const history *h, int arena, int kind, const ms_access *access, int n, const reach *all,
                               int known) {
  if (!h->n || all->end <= h->begin || h->end <= all->begin) return NULL;
  for (const past *p = &h->list[h->n - 1]; p >= h->list && p->place > known; p--) {
    if (p->end <= all->begin || all->end <= p->begin) continue;
    for (int a = 0; a < n; a++)
      if (access[a].arena == arena && (kind || access[a].write) && overlap(p, &access[a])) return p;
  }
  return NULL;
}

/* Writes the latest conflicting instruction of each other stream to `need`. Returns the number of streams that have
 * one. */
static int find_conflicts(const synchroniser *s, int stream, const ms_access *access, int n, int *need) {
  reach all[MS_ARENAS][2] = {{{0}}}; /* by kind, as in `past`: earlier reads conflict only with writes */
  int *known = s->known, found = 0;
  memcpy(known, &s->now[stream * s->streams], (size_t)s->streams * sizeof *known);
  for (int a = 0; a < n; a++) {
    extend(&all[access[a].arena][1], &access[a]);
    if (access[a].write) extend(&all[access[a].arena][0], &access[a]);
  }
  for (int arena = 0; arena < MS_ARENAS && n; arena++) {
    for (int other = 0; other < s->streams && all[arena][1].end; other++) {
      for (int kind = 0; kind < 2 && other != stream; kind++) {
        const past *p =
            find_latest(history_of(s, arena, other, kind), arena, kind, access, n, &all[arena][kind], known[other]);
        if (!p) continue;
        found += need[other] < 0;
        need[other] = p->instr;
        known[other] = p->place;
      }
    }
  }
  return found;
}

/* Drops waits that another needed wait implies. */
static void drop_covered(const synchroniser *s, int *need) {
  for (int t = 0; t < s->streams; t++)
    for (int u = 0; u < s->streams && need[t] >= 0; u++)
      if (u != t && need[u] >= 0 && s->done[need[u] * s->streams + t] >= s->place[need[t]]) need[t] = -1;
}

static void take_waits(synchroniser *s, int stream, const int *need) {
  int *now = &s->now[stream * s->streams];
  for (int t = 0; t < s->streams; t++) {
    if (need[t] < 0) continue;
    const int *done = &s->done[need[t] * s->streams];
    s->waits++;
    if (s->event[need[t]] < 0) s->event[need[t]] = s->events++;
    for (int u = 0; u < s->streams; u++)
      if (done[u] > now[u]) now[u] = done[u];
  }
}

static void remember(synchroniser *s, int instr, int stream, const ms_access *access, int n) {
  for (int a = 0; a < n; a++) {
    history *h = history_of(s, access[a].arena, stream, access[a].write != 0);
    if (!h->n || access[a].begin < h->begin) h->begin = access[a].begin;
    if (!h->n || access[a].end > h->end) h->end = access[a].end;
    h->list[h->n++] = (past){access[a].begin, access[a].end, instr, s->place[instr]};
  }
}

static void walk(synchroniser *s) {
  for (int i = 0; i < s->phase->n; i++) {
    const int stream = s->phase->instr[i].stream, n = s->first[i + 1] - s->first[i];
    const ms_access *access = &s->access[s->first[i]];
    int *need = &s->wait[i * s->streams], *now = &s->now[stream * s->streams];
    for (int t = 0; t < s->streams; t++) need[t] = -1;
    if (find_conflicts(s, stream, access, n, need)) {
      drop_covered(s, need);
      take_waits(s, stream, need);
    }
    s->place[i] = now[stream] = ++s->count[stream];
    s->event[i] = -1;
    memcpy(&s->done[i * s->streams], now, (size_t)s->streams * sizeof *now);
    remember(s, i, stream, access, n);
  }
}

static int collect_accesses(synchroniser *s) {
  const int most = ms_phase_access_limit(s->phase);
  MS_TRY(ms_grow((void **)&s->access, &s->access_capacity, most, sizeof *s->access));
  for (int i = 0; i < s->phase->n; i++) {
    const ms_instr *instr = &s->phase->instr[i];
    s->first[i] = s->accesses;
    s->accesses += ms_instr_accesses(s->plan, instr, &s->access[s->accesses], most - s->accesses);
  }
  s->first[s->phase->n] = s->accesses;
  return MS_OK;
}

/* How streams use an arena, or a buffer that never shares bytes with another one. stream: 1 + the latest stream; 0:
 * none. */
typedef struct usage {
  int stream, several, written;
} usage;

static void take_note(usage *use, int stream, int write) {
  use->several |= use->stream && use->stream != 1 + stream;
  use->stream = 1 + stream;
  use->written |= write;
}

/* Bytes that only one stream touches, or that no stream writes, need no events. shared: [buffers] 1 for all others. */
static int find_shared(const synchroniser *s, char *shared) {
  const ms_plan *plan = s->plan;
  usage arena[MS_ARENAS] = {0}, *buffer = ms_calloc(plan->buffers, sizeof *buffer);
  if (!buffer) return MS_ENOMEM;
  for (int i = 0; i < s->phase->n; i++) {
    for (int a = s->first[i]; a < s->first[i + 1]; a++) {
      take_note(&arena[s->access[a].arena], s->phase->instr[i].stream, s->access[a].write);
      take_note(&buffer[s->access[a].buffer], s->phase->instr[i].stream, s->access[a].write);
    }
  }
  for (int b = 0; b < plan->buffers; b++) {
    int lends = plan->buffer[b].category == MS_CAT_GRADIENTS;
    const usage *use = plan->buffer[b].phase < 0 && !lends ? &buffer[b] : &arena[plan->buffer[b].arena];
    shared[b] = use->several && use->written;
  }
  free(buffer);
  return MS_OK;
}

/* Drops accesses to buffers that are not shared, and allocates the histories for the rest. */
static int keep_shared(synchroniser *s, const char *shared) {
  int kept = 0;
  for (int i = 0, next = 0; i < s->phase->n; i++) {
    const int from = next;
    next = s->first[i + 1];
    s->first[i] = kept;
    for (int a = from; a < next; a++) {
      if (!shared[s->access[a].buffer]) continue;
      s->access[kept] = s->access[a];
      history_of(s, s->access[kept].arena, s->phase->instr[i].stream, s->access[kept].write != 0)->n++;
      kept++;
    }
  }
  s->first[s->phase->n] = kept;
  int capacity = 0;
  MS_TRY(ms_grow((void **)&s->pasts, &capacity, kept, sizeof *s->pasts));
  past *list = s->pasts;
  for (int h = 0; h < 2 * MS_ARENAS * s->streams && kept; h++) {
    s->past[h].list = list;
    list += s->past[h].n;
    s->past[h].n = 0;
  }
  return MS_OK;
}

static void put_event(ms_instr *out, int kind, int stream, int event, const char *scope) {
  memset(out, 0, sizeof *out);
  out->kind = kind;
  out->stream = stream;
  out->event = event;
  out->scope = scope;
  out->workspace = -1;
}

static int rebuild(const synchroniser *s, ms_plan_phase *phase) {
  int capacity = 0, n = 0;
  ms_instr *list = NULL;
  MS_TRY(ms_grow((void **)&list, &capacity, phase->n + s->waits + s->events, sizeof *list));
  for (int i = 0; i < phase->n; i++) {
    const ms_instr *instr = &phase->instr[i];
    for (const int *wait = &s->wait[i * s->streams]; wait < &s->wait[(i + 1) * s->streams]; wait++)
      if (*wait >= 0) put_event(&list[n++], MS_INSTR_WAIT, instr->stream, s->event[*wait], instr->scope);
    list[n++] = *instr;
    if (s->event[i] >= 0) put_event(&list[n++], MS_INSTR_RECORD, instr->stream, s->event[i], instr->scope);
  }
  free(phase->instr);
  phase->instr = list;
  phase->n = n;
  phase->capacity = capacity;
  phase->events = s->events;
  return MS_OK;
}

int ms_plan_synchronize(ms_plan *plan, int phase) {
  ms_plan_phase *p = &plan->phase[phase];
  const int64_t streams = plan->streams;
  synchroniser s = {.plan = plan, .phase = p, .streams = plan->streams};
  char *shared = ms_calloc(plan->buffers, 1);
  int rc = MS_ENOMEM;
  s.now = ms_calloc(streams * streams, sizeof *s.now);
  s.known = ms_calloc(streams, sizeof *s.known);
  s.count = ms_calloc(streams, sizeof *s.count);
  s.past = ms_calloc(2 * MS_ARENAS * streams, sizeof *s.past);
  s.done = ms_calloc(p->n * streams, sizeof *s.done);
  s.wait = ms_calloc(p->n * streams, sizeof *s.wait);
  s.place = ms_calloc(p->n, sizeof *s.place);
  s.event = ms_calloc(p->n, sizeof *s.event);
  s.first = ms_calloc(p->n + 1, sizeof *s.first);
  if (!shared || !s.now || !s.known || !s.count || !s.past || !s.first || !s.done || !s.place || !s.event || !s.wait)
    goto fail;
  MS_GOTO(collect_accesses(&s));
  MS_GOTO(find_shared(&s, shared));
  MS_GOTO(keep_shared(&s, shared));
  walk(&s);
  MS_GOTO(rebuild(&s, p));
fail:
  free(shared);
  free(s.pasts);
  free(s.access);
  free(s.now);
  free(s.known);
  free(s.count);
  free(s.past);
  free(s.first);
  free(s.done);
  free(s.place);
  free(s.event);
  free(s.wait);
  return rc;
}
