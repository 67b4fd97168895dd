/* deadlock.c - ranks that wait for each other, seen from their flight recorders and tickets.
**
** A rank that sleeps is in one or more collectives, and in each it lacks ranks that have not come. All that sleep are
** taken for stuck at first; then a rank that is in something where it lacks no stuck rank is let go, for that may still
** go on, and this is repeated until nothing changes. Whoever remains waits for ranks that wait as well.
*/
#include "base/hash.h"
#include "comm/diagnose/report.h"

static uint64_t load(const _Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }

uint64_t ms_report_world(const ms_control *control) {
  return control->size == 64 ? ~0ull : (1ull << control->size) - 1;
}

/* The group of a ring, and how many ranks it has; what any rank may have overwritten leads nowhere. */
static const ms_control_group *find_group(const ms_control *control, uint32_t group, int *size) {
  uint32_t index = group - MS_RECORDER_GROUP;
  *size = 0;
  if (group < MS_RECORDER_GROUP || index >= MS_CONTROL_GROUPS) return NULL;
  int said = control->group[index].size;
  *size = said < 0 ? 0 : said > MS_MAX_LOCAL_RANKS ? MS_MAX_LOCAL_RANKS : said;
  return &control->group[index];
}

uint64_t ms_report_count(const ms_control *control, uint32_t group, int rank) {
  if (group == MS_RECORDER_WORLD) return atomic_load_explicit(&control->ticket[rank].count, memory_order_acquire);
  if (group == MS_RECORDER_MESHES)
    return atomic_load_explicit(&control->announcement[rank].number, memory_order_acquire);
  int size;
  const ms_control_group *members = find_group(control, group, &size);
  for (int i = 0; i < size; i++)
    if (members->rank[i] == rank) return atomic_load_explicit(&members->ticket[i].count, memory_order_acquire);
  return 0;
}

static uint64_t members_of(const ms_control *control, uint32_t group) {
  uint64_t ranks = 0;
  if (group == MS_RECORDER_WORLD) return ms_report_world(control);
  int size;
  const ms_control_group *members = find_group(control, group, &size);
  for (int i = 0; i < size; i++) ranks |= 1ull << (members->rank[i] & 63);
  return ranks & ms_report_world(control);
}

/* What a rank that sleeps is in: for each collective that it has entered and not left, the ranks that it lacks. Returns
** how many; 0 when it is awake, or that cannot be told. */
static int read_lacks(const ms_control *control, int rank, uint64_t *lacks, uint64_t *state) {
  const ms_recorder *recorder = &control->recorder[rank];
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
    sleeps |= load(&ring->missing) != 0;
    uint64_t others =
        group == MS_RECORDER_MESHES ? load(&ring->missing) & ms_report_world(control) : members_of(control, group);
    for (uint64_t rest = others; rest; rest &= rest - 1)
      if (ms_report_count(control, group, __builtin_ctzll(rest)) < target) lacks[n] |= rest & -rest;
    *state = ms_hash_int(ms_hash_int(*state, (int64_t)load(&ring->head)), (int64_t)(target << 8 | (uint64_t)i));
    n++;
  }
  return sleeps ? n : 0;
}

/* Nothing that a stuck rank is in can go on before another stuck rank comes. */
static int is_stuck(const uint64_t *lacks, int n, uint64_t stuck) {
  for (int i = 0; i < n; i++)
    if (!(lacks[i] & stuck)) return 0;
  return n > 0;
}

uint64_t ms_report_deadlock(const ms_control *control, uint64_t *state) {
  uint64_t lacks[MS_MAX_LOCAL_RANKS][MS_RECORDER_RINGS] = {{0}}, states[MS_MAX_LOCAL_RANKS], stuck = 0, before;
  int n[MS_MAX_LOCAL_RANKS];
  for (int rank = 0; rank < control->size; rank++) {
    n[rank] = read_lacks(control, rank, lacks[rank], &states[rank]);
    if (n[rank]) stuck |= 1ull << rank;
  }
  do {
    before = stuck;
    for (int rank = 0; rank < control->size; rank++)
      if (stuck >> rank & 1 && !is_stuck(lacks[rank], n[rank], stuck)) stuck &= ~(1ull << rank);
  } while (stuck != before);
  *state = MS_HASH_INIT;
  for (uint64_t rest = stuck; rest; rest &= rest - 1)
    *state = ms_hash_int(*state, (int64_t)states[__builtin_ctzll(rest)]);
  return stuck;
}
