/* report.c - from flight recorders to sentences.
**
** Who is behind: a rank that is waited for and waits for nobody itself. Following the waits from the rank whose
** deadline passed leads there; where it leads round in a circle, the ranks disagree about what comes next. Ranks are
** looked at several times, because one that waits is awake for a moment now and then.
*/
#include "comm/diagnose/report.h"

#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "comm/collectives/comm.h"

enum { LOOKS = 5, MOST_LINES = 12 };

/* ---- one rank ---- */

static double seconds_since(uint64_t now, uint64_t then) {
  return then && now > then ? 1e-9 * (double)(now - then) : 0;
}

static uint64_t load(const _Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }

static void copy_text(char *to, const ms_recorder *recorder, uint32_t number) {
  snprintf(to, MS_RECORDER_TEXT_BYTES, "%.*s", MS_RECORDER_TEXT_BYTES - 1, ms_recorder_text(recorder, number));
}

/* 0 when the record was overwritten meanwhile. */
static int read_record(const ms_recorder *recorder, const ms_recorder_record *record, ms_rank_op *op) {
  uint64_t sequence = atomic_load_explicit(&record->sequence, memory_order_acquire);
  uint32_t kind = atomic_load_explicit(&record->kind, memory_order_relaxed);
  if (!sequence) return 0;
  op->kind = ms_coll_kind_name((int)kind);
  op->sequence = sequence;
  op->bytes = load(&record->bytes);
  op->step = atomic_load_explicit(&record->step, memory_order_relaxed);
  copy_text(op->label, recorder, atomic_load_explicit(&record->label, memory_order_relaxed));
  copy_text(op->activity, recorder, atomic_load_explicit(&record->activity, memory_order_relaxed));
  atomic_thread_fence(memory_order_acquire);
  return load(&record->sequence) == sequence;
}

/* The ranks that the ring's owner sleeps for, without those that have come since: it may not have run yet. */
static uint64_t read_missing(const ms_control *control, const ms_recorder_ring *ring) {
  uint32_t group = atomic_load_explicit(&ring->group, memory_order_relaxed);
  uint64_t missing = load(&ring->missing) & ms_report_world(control), target = load(&ring->target), absent = 0;
  for (uint64_t rest = missing; target && rest; rest &= rest - 1)
    if (ms_report_count(control, group, __builtin_ctzll(rest)) < target) absent |= rest & -rest;
  return target ? absent : missing;
}

/* The collective that the rank waits in (the one it entered first), and the one that it left last. */
static void read_rings(const ms_control *control, const ms_recorder *recorder, uint64_t now, ms_rank_status *status) {
  uint64_t waits_since = UINT64_MAX, left_at = 0;
  for (int i = 0; i < MS_RECORDER_RINGS; i++) {
    const ms_recorder_ring *ring = &recorder->ring[i];
    if (atomic_load_explicit(&ring->group, memory_order_acquire) == MS_RECORDER_FREE) return;
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire), missing = read_missing(control, ring);
    for (uint64_t back = 1; back <= 2 && back <= head; back++) {
      const ms_recorder_record *record = &ring->record[(head - back) % MS_RECORDER_RECORDS];
      uint64_t entered = load(&record->entered), left = atomic_load_explicit(&record->left, memory_order_acquire);
      ms_rank_op op = {0};
      if (!left && back == 1 && missing && entered < waits_since && read_record(recorder, record, &op)) {
        waits_since = entered;
        status->wait = op;
        status->wait.missing = missing;
        status->wait.seconds = seconds_since(now, entered);
      } else if (left > left_at && read_record(recorder, record, &op)) {
        left_at = left;
        status->last = op;
        status->last.seconds = seconds_since(now, left);
      }
    }
  }
}

static int is_stopped(int pid) {
  char path[64], state = '?';
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = fopen(path, "re");
  if (!file) return 0;
  if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = '?';
  fclose(file);
  return state == 'T' || state == 't';
}

/* Whether its first thread is in a write to standard output or standard error, which a reader that does not read holds
** up. The kernel tells system calls only to who may trace the process, and where it sleeps to others too. */
static int is_printing(int pid) {
  char path[64], where[128] = "";
  long call = -1;
  unsigned long fd = 0;
  snprintf(path, sizeof path, "/proc/%d/syscall", pid);
  FILE *file = fopen(path, "re");
  int told = file && fscanf(file, "%ld %lx", &call, &fd) == 2;
  if (file) fclose(file);
  if (told) return (call == SYS_write || call == SYS_writev) && (fd == STDOUT_FILENO || fd == STDERR_FILENO);
  snprintf(path, sizeof path, "/proc/%d/wchan", pid);
  file = fopen(path, "re");
  if (!file) return 0;
  if (!fgets(where, sizeof where, file)) *where = '\0';
  fclose(file);
  return strstr(where, "pipe_write") != NULL;
}

void ms_report_status(const ms_control *control, int rank, ms_rank_status *status) {
  const ms_control_rank *row = &control->rank[rank];
  const ms_recorder *recorder = &control->recorder[rank];
  *status = (ms_rank_status){.pid = atomic_load(&row->pid), .state = atomic_load(&row->state)};
  uint64_t now = ms_recorder_now();
  copy_text(status->activity, recorder, atomic_load_explicit(&recorder->activity, memory_order_acquire));
  copy_text(status->at, recorder, atomic_load_explicit(&recorder->at, memory_order_relaxed));
  copy_text(status->doing, recorder, atomic_load_explicit(&recorder->doing, memory_order_relaxed));
  status->step = atomic_load_explicit(&recorder->step, memory_order_relaxed);
  status->done = atomic_load_explicit(&recorder->done, memory_order_relaxed);
  status->tokens_per_s = 1e-3 * (double)load(&recorder->speed);
  status->since = seconds_since(now, load(&recorder->since));
  status->outside = 1e-9 * (double)load(&recorder->outside);
  status->beat = seconds_since(now, load(&recorder->beat));
  read_rings(control, recorder, now, status);
}

/* A rank that is seen to wait in one of several looks waits: between two sleeps it is awake for a moment. */
static void look_at_all(const ms_control *control, int looks, ms_rank_status *all) {
  for (int look = 0; look < looks; look++) {
    if (look) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (int rank = 0; rank < control->size; rank++)
      if (!look || !all[rank].wait.kind) ms_report_status(control, rank, &all[rank]);
  }
  for (int rank = 0; rank < control->size; rank++)
    if (all[rank].state == MS_CONTROL_JOINED) {
      all[rank].stopped = is_stopped(all[rank].pid);
      all[rank].printing = is_printing(all[rank].pid);
    }
}

/* ---- words ---- */

void ms_report_ranks(char *text, size_t bytes, uint64_t mask) {
  size_t used = (size_t)snprintf(text, bytes, __builtin_popcountll(mask) == 1 ? "rank " : "ranks ");
  for (const char *comma = ""; mask && used < bytes; comma = ", ") {
    int first = __builtin_ctzll(mask), last = first;
    while (last < 63 && mask >> (last + 1) & 1) last++;
    mask &= last < 63 ? ~0ull << (last + 1) : 0;
    used += (size_t)snprintf(text + used, bytes - used, last > first ? "%s%d-%d" : "%s%d", comma, first, last);
  }
}

static void append_ranks(ms_text *text, uint64_t mask) {
  char ranks[512];
  ms_report_ranks(ranks, sizeof ranks, mask);
  ms_text_append(text, "%s", ranks);
}

/* "phase first of step 5", "barrier after step 5", "making the state". */
static void append_when(ms_text *text, const char *activity, int64_t step) {
  int is_phase = !strncmp(activity, "phase ", 6);
  ms_text_append(text, "%s", activity);
  if (step > 0)
    ms_text_append(text, "%s%s %lld", *activity ? " " : "", is_phase ? "of step" : "after step", (long long)step);
  else ms_text_append(text, "%s%s", *activity && !is_phase ? " " : "", is_phase ? "" : "before the first step");
}

/* "all_gather layers.3 (phase first of step 5)" */
static void append_op(ms_text *text, const ms_rank_op *op) {
  ms_text_append(text, "%s%s%s (", op->kind, *op->label ? " " : "", op->label);
  append_when(text, strcmp(op->activity, op->kind) ? op->activity : "", op->step);
  ms_text_append(text, ")");
}

/* Three digits at the most, and no powers of ten. */
static void append_number(ms_text *text, double value) {
  if (value >= 100) ms_text_append(text, "%.0f", value);
  else ms_text_append(text, "%.3g", value < 1e-3 ? 0 : value);
}

static void append_seconds(ms_text *text, double least, double most) {
  double unit = most < 1 ? 1e3 : 1;
  const char *name = most < 1 ? "ms" : "s";
  if (most < 1e-4) {
    ms_text_append(text, "less than 0.1 ms");
    return;
  }
  if (most - least >= 0.1 * most) {
    append_number(text, unit * least);
    ms_text_append(text, "-");
  }
  append_number(text, unit * most);
  ms_text_append(text, " %s", name);
}

/* Where a rank is that waits for nobody, after the verb ("is ", "was ", ""); now: the report is about this moment, not
** about an end. */
static void append_place(ms_text *text, const ms_rank_status *s, const char *verb, int now) {
  if (s->state == MS_CONTROL_ABSENT) ms_text_append(text, "%snot there yet", verb);
  else if (s->state == MS_CONTROL_LEFT && now) ms_text_append(text, "has left the run");
  else if (!*s->activity) {
    ms_text_append(text, "%soutside the engine", verb);
    if (now) {
      ms_text_append(text, " for ");
      append_seconds(text, s->since, s->since);
    }
    ms_text_append(text, " (%s ", *s->doing ? s->doing : "Lua");
    append_when(text, "", s->step);
    ms_text_append(text, ")");
  } else {
    ms_text_append(text, "%sin ", verb);
    append_when(text, s->activity, s->step);
    if (*s->at) ms_text_append(text, " at %s", s->at);
    if (now) {
      ms_text_append(text, " without a sign of life for ");
      append_seconds(text, s->beat, s->beat);
    }
  }
  if (s->printing && now) ms_text_append(text, ", blocked in print: what it prints is not read");
  if (s->stopped) ms_text_append(text, ", its process %d is stopped by a signal", s->pid);
}

/* ---- who is behind ---- */

/* The ranks without a wait of their own that can be reached from `from`; *seen: all that were passed. */
static uint64_t follow_waits(const ms_rank_status *all, uint64_t from, uint64_t *seen) {
  uint64_t behind = 0;
  for (uint64_t open = *seen = from; open;) {
    int rank = __builtin_ctzll(open);
    open &= open - 1;
    if (!all[rank].wait.kind) {
      behind |= 1ull << rank;
      continue;
    }
    uint64_t fresh = all[rank].wait.missing & ~*seen;
    *seen |= fresh;
    open |= fresh;
  }
  return behind;
}

/* What a rank is waited for in; NULL when nobody waits for it. */
static const ms_rank_op *find_missed(const ms_control *control, const ms_rank_status *all, int rank) {
  for (int other = 0; other < control->size; other++)
    if (all[other].wait.kind && all[other].wait.missing >> rank & 1) return &all[other].wait;
  return NULL;
}

static int same_op(const ms_rank_op *a, const ms_rank_op *b) {
  if (!a->kind || !b->kind) return !a->kind && !b->kind;
  return !strcmp(a->kind, b->kind) && !strcmp(a->label, b->label) && !strcmp(a->activity, b->activity) &&
         a->sequence == b->sequence && a->step == b->step;
}

/* Whether the rank has entered that very collective: then it is in it still, or ended there. */
static int has_entered(const ms_recorder *recorder, const ms_rank_op *op) {
  for (int i = 0; i < MS_RECORDER_RINGS; i++) {
    const ms_recorder_ring *ring = &recorder->ring[i];
    if (atomic_load_explicit(&ring->group, memory_order_acquire) == MS_RECORDER_FREE) return 0;
    const ms_recorder_record *record = ms_recorder_last(ring);
    ms_rank_op mine = {0};
    if (record && read_record(recorder, record, &mine) && same_op(&mine, op)) return 1;
  }
  return 0;
}

/* The op that the rank did not come to; after the meetings between steps comes what its plan begins with. */
static void append_missed(ms_text *text, const ms_control *control, const ms_rank_op *missed, int rank) {
  const ms_recorder *recorder = &control->recorder[rank];
  const char *opening = ms_recorder_text(recorder, atomic_load_explicit(&recorder->opening, memory_order_relaxed));
  int before_step = !strcmp(missed->kind, "all_gather_bytes") && !strcmp(missed->activity, missed->kind);
  ms_text_append(text, has_entered(recorder, missed) ? "and did not finish " : "and did not come to ");
  append_op(text, missed);
  if (before_step && *opening) ms_text_append(text, ", nor to %s, with which its plan begins", opening);
}

static void append_behind(ms_text *text, const char *separator, const ms_control *control, const ms_rank_status *all,
                          int rank) {
  const ms_rank_op *missed = find_missed(control, all, rank);
  ms_text_append(text, "%srank %d ", separator, rank);
  append_place(text, &all[rank], "is ", 1);
  if (!missed) return;
  ms_text_append(text, ", ");
  append_missed(text, control, missed, rank);
}

/* ---- a line for each kind of rank ---- */

typedef struct spread {
  double least, most;
} spread;

static void widen(spread *s, double seconds) {
  if (seconds < s->least) s->least = seconds;
  if (seconds > s->most) s->most = seconds;
}

static int alike(const ms_rank_status *a, const ms_rank_status *b) {
  return a->state == b->state && a->stopped == b->stopped && a->step == b->step && same_op(&a->wait, &b->wait) &&
         a->wait.missing == b->wait.missing && !strcmp(a->activity, b->activity) && !strcmp(a->at, b->at) &&
         !strcmp(a->doing, b->doing);
}

static void append_line(ms_text *text, const ms_rank_status *all, uint64_t ranks, int now) {
  const ms_rank_status *s = &all[__builtin_ctzll(ranks)];
  spread waited = {1e300, 0}, outside = {1e300, 0};
  for (uint64_t rest = ranks; rest; rest &= rest - 1) {
    const ms_rank_status *one = &all[__builtin_ctzll(rest)];
    widen(&waited, one->wait.seconds);
    widen(&outside, one->outside);
  }
  ms_text_append(text, "\n  ");
  append_ranks(text, ranks);
  ms_text_append(text, ": ");
  if (s->wait.kind) {
    ms_text_append(text, now ? "waiting " : "waited ");
    if (now) {
      append_seconds(text, waited.least, waited.most);
      ms_text_append(text, " ");
    }
    ms_text_append(text, "in ");
    append_op(text, &s->wait);
    ms_text_append(text, " for ");
    append_ranks(text, s->wait.missing);
  } else append_place(text, s, "", now);
  if (!*s->activity || s->state != MS_CONTROL_JOINED) return;
  ms_text_append(text, "; before that outside the engine for ");
  append_seconds(text, outside.least, outside.most);
}

static void append_lines(ms_text *text, const ms_control *control, const ms_rank_status *all, uint64_t skip, int now) {
  uint64_t done = skip;
  int lines = 0;
  for (int rank = 0; rank < control->size; rank++) {
    uint64_t group = 0;
    for (int other = rank; other < control->size; other++)
      if (!(done >> other & 1) && !(done >> rank & 1) && alike(&all[rank], &all[other])) group |= 1ull << other;
    if (!group) continue;
    done |= group;
    if (lines++ < MOST_LINES) append_line(text, all, group, now);
  }
  if (lines > MOST_LINES) ms_text_append(text, "\n  and %d more kinds of ranks", lines - MOST_LINES);
}

static void hand_over(ms_text *text, char *to, size_t bytes) {
  snprintf(to, bytes, "%s", text->data && !text->failed ? text->data : "");
  ms_text_free(text);
}

void ms_report_behind(const ms_control *control, int me, uint64_t missing, char *to, size_t bytes) {
  ms_rank_status all[MS_MAX_LOCAL_RANKS];
  ms_text text = {0};
  uint64_t seen;
  look_at_all(control, LOOKS, all);
  uint64_t behind = follow_waits(all, missing, &seen);
  for (uint64_t rest = behind; rest; rest &= rest - 1) append_behind(&text, "; ", control, all, __builtin_ctzll(rest));
  if (!behind) {
    ms_text_append(&text, "; ");
    append_ranks(&text, seen | 1ull << me);
    ms_text_append(&text, " wait for each other: they disagree about what comes next");
  }
  ms_report_noted(control, to, bytes);
  ms_text_append(&text, "%s%s", *to ? "; " : "", to);
  append_lines(&text, control, all, 0, 1);
  hand_over(&text, to, bytes);
}

void ms_report_stuck(const ms_control *control, char *to, size_t bytes) {
  ms_rank_status all[MS_MAX_LOCAL_RANKS];
  ms_text text = {0};
  uint64_t seen, behind = 0;
  look_at_all(control, LOOKS, all);
  for (int rank = 0; rank < control->size && !behind; rank++)
    if (all[rank].wait.kind) behind = follow_waits(all, 1ull << rank, &seen);
  if (!behind) behind = 1; /* nobody waits: each is busy by itself */
  const char *separator = "";
  for (uint64_t rest = behind; rest; rest &= rest - 1, separator = "; ")
    append_behind(&text, separator, control, all, __builtin_ctzll(rest));
  append_lines(&text, control, all, behind, 1);
  hand_over(&text, to, bytes);
}

void ms_report_death(const ms_control *control, int rank, char *to, size_t bytes) {
  ms_rank_status all[MS_MAX_LOCAL_RANKS];
  ms_text text = {0};
  look_at_all(control, 1, all);
  const ms_rank_status *dead = &all[rank];
  if (dead->pid == 0) {
    snprintf(to, bytes, "%s", "");
    return;
  }
  ms_text_append(&text, "rank %d ", rank);
  if (dead->wait.kind) {
    ms_text_append(&text, "waited in ");
    append_op(&text, &dead->wait);
  } else append_place(&text, dead, "was ", 0);
  const ms_rank_op *missed = find_missed(control, all, rank);
  if (missed) {
    ms_text_append(&text, ", ");
    append_missed(&text, control, missed, rank);
  } else if (dead->last.kind) {
    ms_text_append(&text, "; the last collective that it left is ");
    append_op(&text, &dead->last);
  }
  append_lines(&text, control, all, 1ull << rank, 0);
  hand_over(&text, to, bytes);
}

void ms_report_entered(const ms_control *control, int rank, uint32_t group, uint64_t sequence, char *to, size_t bytes) {
  const ms_recorder *recorder = &control->recorder[rank];
  snprintf(to, bytes, "%s", "");
  for (int i = 0; i < MS_RECORDER_RINGS; i++) {
    const ms_recorder_ring *ring = &recorder->ring[i];
    if (atomic_load_explicit(&ring->group, memory_order_acquire) != group) continue;
    for (int r = 0; r < MS_RECORDER_RECORDS; r++) {
      ms_rank_op op = {0};
      if (!read_record(recorder, &ring->record[r], &op) || op.sequence != sequence) continue;
      ms_text text = {0};
      append_op(&text, &op);
      hand_over(&text, to, bytes);
      return;
    }
  }
}
