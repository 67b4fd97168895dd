/* stragglers.c - writes reports from the flight recorders: which ranks hold up the others, and where each rank is.
 *
 * A rank is behind if others wait for it while it waits for none. Following the waits from the rank whose deadline
 * passed leads to it; if they form a circle, the ranks disagree about what to do next. Ranks are read several times,
 * because a waiting rank is awake for a moment now and then.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/text.h"
#include "comm/diagnose/phrases.h"

enum { LOOKS = 5, MAX_LINES = 12 };

/* ---- who is behind ---- */

/* The ranks that can be reached from `from` and do not wait, or cannot even wake up; *seen: all ranks visited. */
static ms_rank_set follow_waits(const ms_rank_status *all, const ms_rank_set *from, ms_rank_set *seen) {
  ms_rank_set behind = {{0}}, open = *from;
  *seen = *from;
  for (int rank; (rank = ms_rank_set_next(&open, 0)) >= 0;) {
    ms_rank_set_remove(&open, rank);
    if (!all[rank].wait.kind || all[rank].stopped) {
      ms_rank_set_add(&behind, rank);
      continue;
    }
    MS_EACH_RANK(next, &all[rank].wait.missing) {
      if (ms_rank_set_has(seen, next)) continue;
      ms_rank_set_add(seen, next);
      ms_rank_set_add(&open, next);
    }
  }
  return behind;
}

/* The collective in which another rank waits for this one; NULL when there is none. */
static const ms_rank_op *find_missed(const ms_control *control, const ms_rank_status *all, int rank) {
  for (int other = 0; other < control->size; other++)
    if (all[other].wait.kind && ms_rank_set_has(&all[other].wait.missing, rank)) return &all[other].wait;
  return NULL;
}

static int same_op(const ms_rank_op *a, const ms_rank_op *b) {
  if (!a->kind || !b->kind) return !a->kind && !b->kind;
  return !strcmp(a->kind, b->kind) && !strcmp(a->label, b->label) && !strcmp(a->activity, b->activity) &&
         a->sequence == b->sequence && a->step == b->step;
}

/* Whether the rank has entered that same collective: then it is still inside, or failed there. */
static int has_entered(const ms_recorder *recorder, const ms_rank_op *op) {
  for (int i = 0; i < MS_RECORDER_RINGS; i++) {
    const ms_recorder_ring *ring = &recorder->ring[i];
    if (atomic_load_explicit(&ring->group, memory_order_acquire) == MS_RECORDER_FREE) return 0;
    const ms_recorder_record *record = ms_recorder_last(ring);
    ms_rank_op mine = {0};
    if (record && ms_report_read(recorder, record, &mine) && same_op(&mine, op)) return 1;
  }
  return 0;
}

/* Appends the collective that the rank did not enter; if it is the gather between steps, also the first one of its
 * plan. */
static void append_missed(ms_text *text, const ms_control *control, const ms_rank_op *missed, int rank, int now) {
  const ms_recorder *recorder = ms_recorder_in(control, rank);
  const char *opening = ms_recorder_text(recorder, atomic_load_explicit(&recorder->opening, memory_order_relaxed));
  int before_step = !strcmp(missed->kind, "all_gather_bytes") && !strcmp(missed->activity, missed->kind);
  ms_text_append(text, "and %s not %s ", now ? "has" : "had", has_entered(recorder, missed) ? "finished" : "entered");
  ms_append_op(text, missed);
  if (before_step && *opening) ms_text_append(text, ", nor %s, the first collective of its plan", opening);
}

/* A rank of another host, of which this one knows nothing. */
static int is_unknown(const ms_control *control, int rank) {
  const ms_control_rank *row = &control->rank[rank];
  return control->local < control->size && !atomic_load(&row->pid) && !atomic_load(&row->seen);
}

static void append_behind(ms_text *text, const char *separator, const ms_control *control, const ms_rank_status *all,
                          int rank) {
  const ms_rank_op *missed = find_missed(control, all, rank);
  ms_text_append(text, "%srank %d ", separator, rank);
  if (is_unknown(control, rank)) {
    ms_text_append(text, "is on another host, which has not reported its state");
    return;
  }
  ms_append_place(text, &all[rank], "has been ", 1);
  if (!missed) return;
  ms_text_append(text, ", ");
  append_missed(text, control, missed, rank, 1);
}

/* ---- one line per group of ranks in the same place ---- */

typedef struct spread {
  double least, most;
} spread;

static void widen(spread *s, double seconds) {
  if (seconds < s->least) s->least = seconds;
  if (seconds > s->most) s->most = seconds;
}

static int alike(const ms_rank_status *a, const ms_rank_status *b) {
  return a->state == b->state && a->stopped == b->stopped && a->step == b->step && same_op(&a->wait, &b->wait) &&
         ms_rank_set_equal(&a->wait.missing, &b->wait.missing) && !strcmp(a->activity, b->activity) &&
         !strcmp(a->at, b->at) && !strcmp(a->doing, b->doing);
}

static void append_line(ms_text *text, const ms_rank_status *all, const ms_rank_set *ranks, int now) {
  const ms_rank_status *s = &all[ms_rank_set_next(ranks, 0)];
  spread waited = {1e300, 0}, outside = {1e300, 0};
  MS_EACH_RANK(rank, ranks) {
    widen(&waited, all[rank].wait.seconds);
    widen(&outside, all[rank].outside);
  }
  ms_text_append(text, "\n  ");
  ms_append_ranks(text, ranks);
  ms_text_append(text, ": ");
  if (s->wait.kind) {
    ms_text_append(text, now ? "waiting " : "waited ");
    if (now) {
      ms_append_seconds(text, waited.least, waited.most);
      ms_text_append(text, " ");
    }
    ms_text_append(text, "in ");
    ms_append_op(text, &s->wait);
    ms_text_append(text, " for ");
    ms_append_ranks(text, &s->wait.missing);
  } else ms_append_place(text, s, "", now);
  if (!*s->activity || s->state != MS_CONTROL_JOINED) return;
  ms_text_append(text, "; before that outside the engine for ");
  ms_append_seconds(text, outside.least, outside.most);
}

static void append_lines(ms_text *text, const ms_control *control, const ms_rank_status *all, const ms_rank_set *skip,
                         int now) {
  ms_rank_set done = skip ? *skip : (ms_rank_set){{0}};
  int lines = 0;
  for (int rank = 0; rank < control->size; rank++) {
    ms_rank_set same = {{0}};
    if (ms_rank_set_has(&done, rank) || is_unknown(control, rank)) continue;
    for (int other = rank; other < control->size; other++) {
      if (ms_rank_set_has(&done, other) || !alike(&all[rank], &all[other])) continue;
      ms_rank_set_add(&same, other);
      ms_rank_set_add(&done, other);
    }
    if (lines++ < MAX_LINES) append_line(text, all, &same, now);
  }
  if (lines > MAX_LINES) ms_text_append(text, "\n  and %d more groups of ranks", lines - MAX_LINES);
}

static void hand_over(ms_text *text, char *to, size_t bytes) {
  snprintf(to, bytes, "%s", text->data && !text->failed ? text->data : "");
  ms_text_free(text);
}

/* ---- reports ---- */

/* [ranks of the world]; the caller frees it. NULL: there is no memory for a report. */
static ms_rank_status *look(const ms_control *control, int looks) {
  ms_rank_status *all = calloc((size_t)control->size, sizeof *all);
  if (all) ms_report_look(control, looks, all);
  return all;
}

/* The suffix for the error of rank `me` that waited for the world ranks in `missing`: which ranks are behind, where
 * they are, what they did not enter, and a line per kind of rank for what the others wait for. */
static void describe_behind(const ms_control *control, int me, const ms_rank_set *missing, char *to, size_t bytes) {
  ms_rank_status *all = look(control, LOOKS);
  ms_text text = {0};
  ms_rank_set seen;
  snprintf(to, bytes, "%s", "");
  if (!all) return;
  ms_rank_set behind = follow_waits(all, missing, &seen);
  MS_EACH_RANK(rank, &behind) append_behind(&text, "; ", control, all, rank);
  if (ms_rank_set_is_empty(&behind)) {
    ms_rank_set_add(&seen, me);
    ms_text_append(&text, "; ");
    ms_append_ranks(&text, &seen);
    ms_text_append(&text, " wait for each other: they disagree about what to do next");
  }
  ms_report_noted(control, to, bytes);
  ms_text_append(&text, "%s%s", *to ? "; " : "", to);
  append_lines(&text, control, all, NULL, 1);
  free(all);
  hand_over(&text, to, bytes);
}

void ms_report_stuck(const ms_control *control, char *to, size_t bytes) {
  ms_rank_status *all = look(control, LOOKS);
  ms_text text = {0};
  ms_rank_set seen, behind = {{0}};
  snprintf(to, bytes, "%s", "");
  if (!all) return;
  for (int rank = 0; rank < control->size && ms_rank_set_is_empty(&behind); rank++) {
    ms_rank_set from = {{0}};
    ms_rank_set_add(&from, rank);
    if (all[rank].wait.kind) behind = follow_waits(all, &from, &seen);
  }
  if (ms_rank_set_is_empty(&behind)) ms_rank_set_add(&behind, 0); /* no rank waits: each is busy by itself */
  const char *separator = "";
  MS_EACH_RANK(rank, &behind) {
    append_behind(&text, separator, control, all, rank);
    separator = "; ";
  }
  append_lines(&text, control, all, &behind, 1);
  free(all);
  hand_over(&text, to, bytes);
}

void ms_report_death(const ms_control *control, int rank, char *to, size_t bytes) {
  ms_text text = {0};
  snprintf(to, bytes, "%s", "");
  ms_rank_status *all = atomic_load(&control->rank[rank].pid) ? look(control, 1) : NULL;
  if (!all) return;
  const ms_rank_status *dead = &all[rank];
  ms_text_append(&text, "rank %d ", rank);
  if (dead->wait.kind) {
    ms_text_append(&text, "waited in ");
    ms_append_op(&text, &dead->wait);
  } else ms_append_place(&text, dead, "was ", 0);
  const ms_rank_op *missed = find_missed(control, all, rank);
  if (missed) {
    ms_text_append(&text, ", ");
    append_missed(&text, control, missed, rank, 0);
  } else if (dead->last.kind) {
    ms_text_append(&text, "; the last collective that it left was ");
    ms_append_op(&text, &dead->last);
  }
  ms_rank_set itself = {{0}};
  ms_rank_set_add(&itself, rank);
  append_lines(&text, control, all, &itself, 0);
  free(all);
  hand_over(&text, to, bytes);
}

void ms_report_entered(const ms_control *control, int rank, uint32_t group, uint64_t sequence, char *to, size_t bytes) {
  const ms_recorder *recorder = ms_recorder_in(control, rank);
  snprintf(to, bytes, "%s", "");
  for (int i = 0; i < MS_RECORDER_RINGS; i++) {
    const ms_recorder_ring *ring = &recorder->ring[i];
    if (atomic_load_explicit(&ring->group, memory_order_acquire) != group) continue;
    for (int r = 0; r < MS_RECORDER_RECORDS; r++) {
      ms_rank_op op = {0};
      if (!ms_report_read(recorder, &ring->record[r], &op) || op.sequence != sequence) continue;
      ms_text text = {0};
      ms_append_op(&text, &op);
      hand_over(&text, to, bytes);
      return;
    }
  }
}

static void describe(const char *kind, const char *label, const char *activity, int64_t step, char *to, size_t bytes) {
  ms_text text = {0};
  ms_rank_op op = {.kind = kind, .step = step};
  snprintf(op.label, sizeof op.label, "%s", label);
  snprintf(op.activity, sizeof op.activity, "%s", activity);
  ms_append_op(&text, &op);
  hand_over(&text, to, bytes);
}

const ms_diagnosis ms_report_diagnosis = {.behind = describe_behind,
                                          .deadlock = ms_report_deadlock,
                                          .entered = ms_report_entered,
                                          .describe = describe,
                                          .stopped = ms_report_stopped,
                                          .noted = ms_report_noted};
