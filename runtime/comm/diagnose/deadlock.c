/* deadlock.c - ranks that wait for each other, seen from their ledgers and tickets.
**
** A rank that sleeps is in one or more collectives, and in each it lacks ranks that have not come. All that sleep are taken for
** stuck at first; then a rank that is in something where it lacks no stuck rank is let go, for that may still go on, and this
** is repeated until nothing changes. Whoever remains waits for ranks that wait as well.
*/
#include "base/hash.h"
#include "comm/diagnose/report.h"

static uint64_t load(const _Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }

uint64_t ms_report_world(const ms_job *job) { return job->size == 64 ? ~0ull : (1ull << job->size) - 1; }

/* The group of a ring, and how many ranks it has; what any rank may have overwritten leads nowhere. */
static const ms_job_group *find_group(const ms_job *job, uint32_t group, int *size) {
  uint32_t index = group - MS_LEDGER_GROUP;
  *size = 0;
  if (group < MS_LEDGER_GROUP || index >= MS_JOB_GROUPS) return NULL;
  int said = job->group[index].size;
  *size = said < 0 ? 0 : said > MS_MAX_LOCAL_RANKS ? MS_MAX_LOCAL_RANKS : said;
  return &job->group[index];
}

uint64_t ms_report_count(const ms_job *job, uint32_t group, int rank) {
  if (group == MS_LEDGER_WORLD) return atomic_load_explicit(&job->ticket[rank].count, memory_order_acquire);
  if (group == MS_LEDGER_MESHES) return atomic_load_explicit(&job->announcement[rank].number, memory_order_acquire);
  int size;
  const ms_job_group *members = find_group(job, group, &size);
  for (int i = 0; i < size; i++)
    if (members->rank[i] == rank) return atomic_load_explicit(&members->ticket[i].count, memory_order_acquire);
  return 0;
}

static uint64_t members_of(const ms_job *job, uint32_t group) {
  uint64_t ranks = 0;
  if (group == MS_LEDGER_WORLD) return ms_report_world(job);
  int size;
  const ms_job_group *members = find_group(job, group, &size);
  for (int i = 0; i < size; i++) ranks |= 1ull << (members->rank[i] & 63);
  return ranks & ms_report_world(job);
}

/* What a rank that sleeps is in: for each collective that it has entered and not left, the ranks that it lacks. Returns how
** many; 0 when it is awake, or that cannot be told. */
static int read_lacks(const ms_job *job, int rank, uint64_t *lacks, uint64_t *state) {
  const ms_ledger *ledger = &job->ledger[rank];
  int n = 0, sleeps = 0;
  *state = ms_hash_int(MS_HASH_INIT, rank);
  if (atomic_load_explicit(&ledger->streams, memory_order_relaxed)) return 0;
  if (atomic_load_explicit(&ledger->failed, memory_order_acquire)) return 0;
  if (atomic_load(&job->rank[rank].state) != MS_JOB_JOINED) return 0;
  for (int i = 0; i < MS_LEDGER_RINGS; i++) {
    const ms_ledger_ring *ring = &ledger->ring[i];
    uint32_t group = atomic_load_explicit(&ring->group, memory_order_acquire);
    if (group == MS_LEDGER_FREE) break;
    const ms_ledger_record *record = ms_ledger_last(ring);
    if (!record || load(&record->left)) continue;
    uint64_t target = load(&ring->target);
    if (!target) return 0;
    sleeps |= load(&ring->missing) != 0;
    uint64_t others = group == MS_LEDGER_MESHES ? load(&ring->missing) & ms_report_world(job) : members_of(job, group);
    for (uint64_t rest = others; rest; rest &= rest - 1)
      if (ms_report_count(job, group, __builtin_ctzll(rest)) < target) lacks[n] |= rest & -rest;
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

uint64_t ms_report_deadlock(const ms_job *job, uint64_t *state) {
  uint64_t lacks[MS_MAX_LOCAL_RANKS][MS_LEDGER_RINGS] = {{0}}, states[MS_MAX_LOCAL_RANKS], stuck = 0, before;
  int n[MS_MAX_LOCAL_RANKS];
  for (int rank = 0; rank < job->size; rank++) {
    n[rank] = read_lacks(job, rank, lacks[rank], &states[rank]);
    if (n[rank]) stuck |= 1ull << rank;
  }
  do {
    before = stuck;
    for (int rank = 0; rank < job->size; rank++)
      if (stuck >> rank & 1 && !is_stuck(lacks[rank], n[rank], stuck)) stuck &= ~(1ull << rank);
  } while (stuck != before);
  *state = MS_HASH_INIT;
  for (uint64_t rest = stuck; rest; rest &= rest - 1)
    *state = ms_hash_int(*state, (int64_t)states[__builtin_ctzll(rest)]);
  return stuck;
}
