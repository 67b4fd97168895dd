/* deadlock.c - finds ranks that wait for each other, from their flight recorders and tickets.
 *
 * A sleeping rank is in one or more collectives, each of which lacks some ranks. At first all sleeping ranks count as
 * stuck. Then a rank is released if one of its collectives lacks no stuck rank, because that one can still complete.
 * This is repeated until nothing changes: the remaining ranks wait only for ranks that are stuck as well.
 */
#include "base/hash.h"
#include "comm/diagnose/report.h"

static uint64_t load(const _Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }

uint64_t ms_report_count(const ms_control *control, uint32_t group, int rank) {
  if (group == MS_RECORDER_OPENING)
    return atomic_load_explicit(&ms_group_table_in(control)->announcement[rank].number, memory_order_acquire);
  int size;
  const ms_group_entry *entry = ms_group_by_number(control, group, &size);
  for (int i = 0; i < size; i++)
    if (entry->rank[i] == rank) return atomic_load_explicit(&entry->ticket[i].count, memory_order_acquire);
  return 0;
}

static ms_rank_set members_of(const ms_control *control, uint32_t group) {
  ms_rank_set ranks = {{0}};
  int size;
  const ms_group_entry *entry = ms_group_by_number(control, group, &size);
  for (int i = 0; i < size; i++)
    if (entry->rank[i] >= 0 && entry->rank[i] < control->size) ms_rank_set_add(&ranks, entry->rank[i]);
  return ranks;
}

/* For each collective that a sleeping rank has entered and not left, the ranks that it lacks. Returns the number of
 * collectives; 0 when the rank is awake or its state is unknown. */
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

ms_rank_set ms_report_deadlock(const ms_control *control, uint64_t *state) {
  ms_rank_set lacks[MS_MAX_LOCAL_RANKS][MS_RECORDER_RINGS], stuck = {{0}}, before;
  uint64_t states[MS_MAX_LOCAL_RANKS];
  int n[MS_MAX_LOCAL_RANKS];
  for (int rank = 0; rank < control->size; rank++) {
    n[rank] = read_lacks(control, rank, lacks[rank], &states[rank]);
    if (n[rank]) ms_rank_set_add(&stuck, rank);
  }
  do {
    before = stuck;
    MS_EACH_RANK(rank, &before)
    if (!is_stuck(lacks[rank], n[rank], &stuck)) ms_rank_set_remove(&stuck, rank);
  } while (!ms_rank_set_equal(&stuck, &before));
  *state = MS_HASH_INIT;
  MS_EACH_RANK(rank, &stuck) *state = ms_hash_int(*state, (int64_t)states[rank]);
  return stuck;
}
