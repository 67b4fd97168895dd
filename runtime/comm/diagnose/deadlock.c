/* deadlock.c - finds ranks that wait for each other, from their flight recorders and tickets.
 *
 * A sleeping rank is in one or more collectives, each of which lacks some ranks. At first all sleeping ranks count as
 * stuck. Then a rank is released if one of its collectives lacks no stuck rank, because that one can still complete.
 * This is repeated until nothing changes: the remaining ranks wait only for ranks that are stuck as well.
 */
#include <stdlib.h>

#include "base/error.h"
#include "base/text/hash.h"
#include "comm/diagnose/report.h"

static uint64_t load(const _Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }

uint64_t ms_report_count(const ms_control *control, uint32_t group, int rank) {
  if (group == MS_RECORDER_OPENING)
    return atomic_load_explicit(&ms_group_announcement_of(control, rank)->number, memory_order_acquire);
  int size;
  const ms_group_entry *entry = ms_group_by_number(control, group, &size);
  for (int i = 0; i < size; i++)
    if (ms_group_ranks(control, entry)[i] == rank)
      return atomic_load_explicit(&entry->ticket[i].count, memory_order_acquire);
  return 0;
}

static ms_rank_set members_of(const ms_control *control, uint32_t group) {
  ms_rank_set ranks = {{0}};
  int size;
  const ms_group_entry *entry = ms_group_by_number(control, group, &size);
  for (int i = 0; i < size; i++) {
    const int rank = ms_group_ranks(control, entry)[i];
    if (rank >= 0 && rank < control->size) ms_rank_set_add(&ranks, rank);
  }
  return ranks;
}

/* What the ranks wait for: those of rank r are set[first[r]] to set[first[r + 1] - 1], one set per collective. */
typedef struct waits {
  ms_rank_set *set;
  int *first; /* [ranks + 1] */
  uint64_t *state;
} waits;

/* For each collective that a sleeping rank has entered and not left, the ranks that it lacks, [MS_RECORDER_RINGS].
 * Returns the number of collectives; 0 when the rank is awake or its state is unknown. */
static int read_lacks(const ms_control *control, int rank, ms_rank_set *lacks, uint64_t *state) {
  const ms_recorder *recorder = ms_recorder_in(control, rank);
  const ms_rank_set world = ms_rank_set_all(control->size);
  int n = 0, sleeps = 0;
  *state = ms_hash_int(MS_HASH_INIT, rank);
  if (atomic_load_explicit(&recorder->streams, memory_order_relaxed)) return 0;
  if (atomic_load_explicit(&recorder->failed, memory_order_acquire)) return 0;
  if (atomic_load(&control->rank[rank].state) != MS_CONTROL_JOINED) return 0;
  for (int i = 0; i < MS_RECORDER_RINGS; i++) {
    const ms_recorder_ring *ring = &recorder->ring[i];
    uint32_t group = atomic_load_explicit(&ring->group, memory_order_acquire);
    if (group == MS_RECORDER_FREE) break;
    const ms_recorder_record *record = ms_recorder_last(ring);
    if (!record || load(&record->left)) continue;
    uint64_t target = load(&ring->target);
    if (!target) return 0;
    ms_rank_set missing = ms_recorder_missing(ring), others = ms_rank_set_both(&missing, &world);
    sleeps |= !ms_rank_set_is_empty(&missing);
    if (group != MS_RECORDER_OPENING) others = members_of(control, group);
    lacks[n] = (ms_rank_set){{0}};
    MS_EACH_RANK(other, &others)
    if (ms_report_count(control, group, other) < target) ms_rank_set_add(&lacks[n], other);
    *state = ms_hash_int(ms_hash_int(*state, (int64_t)load(&ring->head)), (int64_t)(target << 8 | (uint64_t)i));
    n++;
  }
  return sleeps ? n : 0;
}

/* Each of its collectives lacks a stuck rank, so none can complete. */
static int is_stuck(const ms_rank_set *lacks, int n, const ms_rank_set *stuck) {
  for (int i = 0; i < n; i++) {
    ms_rank_set both = ms_rank_set_both(&lacks[i], stuck);
    if (ms_rank_set_is_empty(&both)) return 0;
  }
  return n > 0;
}

static int make_waits(int ranks, waits *w) {
  *w = (waits){.first = ms_calloc(ranks + 1, sizeof *w->first), .state = ms_calloc(ranks, sizeof *w->state)};
  return w->first && w->state;
}

static void free_waits(waits *w) {
  free(w->set);
  free(w->first);
  free(w->state);
}

/* 0 when memory is short. */
static int read_waits(const ms_control *control, waits *w) {
  int capacity = 0, used = 0;
  for (int rank = 0; rank < control->size; rank++) {
    w->first[rank] = used;
    if (ms_grow((void **)&w->set, &capacity, used + MS_RECORDER_RINGS, sizeof *w->set)) return 0;
    used += read_lacks(control, rank, w->set + used, &w->state[rank]);
  }
  w->first[control->size] = used;
  return 1;
}

/* The ranks of which every collective lacks one of them. */
static ms_rank_set find_stuck(const waits *w, int ranks) {
  ms_rank_set stuck = {{0}}, before;
  for (int rank = 0; rank < ranks; rank++)
    if (w->first[rank + 1] > w->first[rank]) ms_rank_set_add(&stuck, rank);
  do {
    before = stuck;
    MS_EACH_RANK(rank, &before)
    if (!is_stuck(w->set + w->first[rank], w->first[rank + 1] - w->first[rank], &stuck))
      ms_rank_set_remove(&stuck, rank);
  } while (!ms_rank_set_equal(&stuck, &before));
  return stuck;
}

/* Without memory for the search, no rank counts as stuck: the deadline ends the wait. */
ms_rank_set ms_report_deadlock(const ms_control *control, uint64_t *state) {
  waits w;
  ms_rank_set stuck = {{0}};
  const int counted = ms_allocations_set_counted(0);
  if (make_waits(control->size, &w) && read_waits(control, &w)) stuck = find_stuck(&w, control->size);
  *state = MS_HASH_INIT;
  MS_EACH_RANK(rank, &stuck) *state = ms_hash_int(*state, (int64_t)w.state[rank]);
  free_waits(&w);
  ms_allocations_set_counted(counted);
  return stuck;
}
