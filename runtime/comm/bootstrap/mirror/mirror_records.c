/* mirror_records.c - flight recorders between hosts: a host that is asked posts one report for each of its ranks, and
 * the others write it into their images of that rank's recorder, so that diagnosis reads all ranks in the same way.
 *
 * A report has what diagnosis reads: the place of the rank, its tickets in communicators, and the operations that it
 * has not left, or the last one that it left. Clocks of hosts differ, so it has ages instead of times.
 */
#include <string.h>

#include "comm/bootstrap/mirror/mirror.h"
#include "comm/diagnose/report.h"

/* How a report names a ring's group: groups of one host are not known on others. */
enum ring_group { RING_FOREIGN = 0, RING_OPENING = 1, RING_KEYED = 2 };
/* Bytes that one ring takes at most: its header, the missing ranks, two records with texts. */
enum { RING_BYTES = 64 + 12 * MS_RANK_SET_WORDS + 2 * (64 + 2 * MS_RECORDER_TEXT_BYTES) };
_Static_assert(RING_BYTES + 1024 < MS_STORE_POST, "a report has room for a ring");

static uint64_t load(const _Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }

static void store(_Atomic uint64_t *word, uint64_t value) { atomic_store_explicit(word, value, memory_order_relaxed); }

/* ---- times ---- */

static uint64_t age_of(const _Atomic uint64_t *time) {
  uint64_t then = load(time), now = ms_recorder_now();
  return !then ? 0 : then < now ? now - then : 1;
}

static uint64_t time_of(uint64_t age) {
  uint64_t now = ms_recorder_now();
  return !age ? 0 : age < now ? now - age : 1;
}

/* ---- records ---- */

/* A record of a flight recorder without the recorder's numbers. Times are ages in nanoseconds; 0: not yet. */
typedef struct post_record {
  uint64_t sequence; /* 0: no record */
  uint64_t bytes, entered, met, left;
  int64_t step;
  uint32_t kind;
  char label[MS_RECORDER_TEXT_BYTES], activity[MS_RECORDER_TEXT_BYTES];
} post_record;

static void put_number(ms_mirror_writer *writer, const ms_recorder *recorder, uint32_t number) {
  ms_mirror_put_text(writer, ms_recorder_text(recorder, number), MS_RECORDER_TEXT_BYTES);
}

static uint32_t get_number(ms_mirror_reader *reader, ms_recorder *recorder) {
  char text[MS_RECORDER_TEXT_BYTES];
  ms_mirror_get_text(reader, text, sizeof text);
  return (uint32_t)ms_recorder_number(recorder, text);
}

void ms_mirror_put_record(ms_mirror_writer *writer, const ms_recorder *recorder, const ms_recorder_record *record) {
  ms_mirror_put64(writer, record ? load(&record->sequence) : 0);
  if (!record) return;
  ms_mirror_put64(writer, load(&record->bytes));
  ms_mirror_put64(writer, age_of(&record->entered));
  ms_mirror_put64(writer, age_of(&record->met));
  ms_mirror_put64(writer, age_of(&record->left));
  ms_mirror_put64(writer, (uint64_t)atomic_load_explicit(&record->step, memory_order_relaxed));
  ms_mirror_put32(writer, atomic_load_explicit(&record->kind, memory_order_relaxed));
  put_number(writer, recorder, atomic_load_explicit(&record->label, memory_order_relaxed));
  put_number(writer, recorder, atomic_load_explicit(&record->activity, memory_order_relaxed));
}

static ms_recorder_record *last_of(ms_recorder_ring *ring) {
  return &ring->record[(load(&ring->head) - 1) % MS_RECORDER_RECORDS];
}

static void get_record(ms_mirror_reader *reader, post_record *record) {
  *record = (post_record){.sequence = ms_mirror_get64(reader)};
  if (!record->sequence) return;
  record->bytes = ms_mirror_get64(reader);
  record->entered = ms_mirror_get64(reader);
  record->met = ms_mirror_get64(reader);
  record->left = ms_mirror_get64(reader);
  record->step = (int64_t)ms_mirror_get64(reader);
  record->kind = ms_mirror_get32(reader);
  ms_mirror_get_text(reader, record->label, sizeof record->label);
  ms_mirror_get_text(reader, record->activity, sizeof record->activity);
}

void ms_mirror_take_record(ms_mirror_reader *reader, ms_recorder *recorder, ms_recorder_ring *ring) {
  post_record theirs;
  get_record(reader, &theirs);
  if (reader->bad || !theirs.sequence || !ring) return;
  uint64_t before = ms_recorder_last(ring) ? load(&last_of(ring)->sequence) : 0;
  if (before > theirs.sequence) return;
  if (before < theirs.sequence)
    ms_recorder_entered(recorder, ring, theirs.sequence, (int)theirs.kind, ms_recorder_number(recorder, theirs.label),
                        (double)theirs.bytes);
  ms_recorder_record *record = last_of(ring);
  atomic_store_explicit(&record->step, theirs.step, memory_order_relaxed);
  atomic_store_explicit(&record->activity, (uint16_t)ms_recorder_number(recorder, theirs.activity),
                        memory_order_relaxed);
  store(&record->entered, time_of(theirs.entered));
  store(&record->met, time_of(theirs.met));
  atomic_store_explicit(&record->left, time_of(theirs.left), memory_order_release);
}

/* ---- rings ---- */

static void put_missing(ms_mirror_writer *writer, const ms_rank_set *missing) {
  uint32_t words = 0;
  for (int i = 0; i < MS_RANK_SET_WORDS; i++) words += missing->word[i] != 0;
  ms_mirror_put32(writer, words);
  for (int i = 0; i < MS_RANK_SET_WORDS; i++) {
    if (!missing->word[i]) continue;
    ms_mirror_put32(writer, (uint32_t)i);
    ms_mirror_put64(writer, missing->word[i]);
  }
}

static void get_missing(ms_mirror_reader *reader, ms_rank_set *missing) {
  uint32_t words = ms_mirror_get32(reader);
  *missing = (ms_rank_set){{0}};
  if (words > MS_RANK_SET_WORDS) reader->bad = 1;
  for (uint32_t i = 0; i < words && !reader->bad; i++) {
    uint32_t word = ms_mirror_get32(reader);
    if (word >= MS_RANK_SET_WORDS) reader->bad = 1;
    else missing->word[word] = ms_mirror_get64(reader);
  }
}

static void put_ring(ms_mirror_writer *writer, const ms_world *world, const ms_recorder *recorder, int index) {
  const ms_recorder_ring *ring = &recorder->ring[index];
  uint32_t number = atomic_load_explicit(&ring->group, memory_order_acquire);
  int size;
  const ms_group_entry *entry = ms_group_by_number(world->control, number, &size);
  int keyed = entry && ms_world_spans(world, size, ms_group_ranks(world->control, entry));
  ms_rank_set missing = ms_recorder_missing(ring);
  uint64_t head = load(&ring->head);
  ms_mirror_put32(writer, number == MS_RECORDER_OPENING ? RING_OPENING : keyed ? RING_KEYED : RING_FOREIGN);
  ms_mirror_put64(writer, keyed ? entry->key : (uint64_t)index);
  ms_mirror_put64(writer, load(&ring->target));
  put_missing(writer, &missing);
  for (uint64_t back = 2; back >= 1; back--)
    ms_mirror_put_record(writer, recorder, back <= head ? &ring->record[(head - back) % MS_RECORDER_RECORDS] : NULL);
}

/* The ring in which this host keeps theirs; NULL: it has none for that group. */
static ms_recorder_ring *find_ring(const ms_world *world, ms_recorder *recorder, uint32_t kind, uint64_t key) {
  if (kind == RING_OPENING) return ms_recorder_ring_of(recorder, MS_RECORDER_OPENING);
  /* No entry has such a number, so the ranks that the rank waits for are as it says. */
  if (kind == RING_FOREIGN && key < MS_RECORDER_RINGS)
    return ms_recorder_ring_of(recorder, MS_RECORDER_GROUP + MS_GROUP_ENTRIES + (uint32_t)key);
  const ms_group_entry *entry = kind == RING_KEYED ? ms_group_by_key(world->control, key) : NULL;
  return entry ? ms_recorder_ring_of(recorder, ms_group_number(world->control, entry)) : NULL;
}

static void take_ring(ms_mirror_reader *reader, const ms_world *world, ms_recorder *recorder, int valid,
                      uint8_t *reported) {
  ms_rank_set missing;
  uint32_t kind = ms_mirror_get32(reader);
  uint64_t key = ms_mirror_get64(reader), target = ms_mirror_get64(reader);
  get_missing(reader, &missing);
  if (reader->bad) return;
  ms_recorder_ring *ring = valid ? find_ring(world, recorder, kind, key) : NULL;
  for (int i = 0; i < 2; i++) ms_mirror_take_record(reader, recorder, ring);
  if (!ring || reader->bad) return;
  ms_recorder_target(ring, target);
  for (int w = 0; w < MS_RANK_SET_WORDS; w++) store(&ring->missing[w], missing.word[w]);
  reported[ring - recorder->ring] = 1;
}

/* Not in the report: the rank has left what it had entered there. */
static void close_rings(ms_recorder *recorder, const uint8_t *reported) {
  for (int i = 0; i < MS_RECORDER_RINGS; i++) {
    ms_recorder_ring *ring = &recorder->ring[i];
    if (reported[i] || !ms_recorder_last(ring)) continue;
    for (int w = 0; w < MS_RANK_SET_WORDS; w++) store(&ring->missing[w], 0);
    ms_recorder_record *last = last_of(ring);
    if (!load(&last->left)) atomic_store_explicit(&last->left, load(&last->entered) + 1, memory_order_release);
  }
}

/* ---- a rank ---- */

/* Rings whose last operation was not left; without one, the ring that was left last. */
static void put_rings(ms_mirror_writer *writer, const ms_world *world, const ms_recorder *recorder) {
  int latest = -1, chosen[MS_RECORDER_RINGS];
  uint64_t latest_left = 0;
  uint32_t n = 0;
  for (int i = 0; i < MS_RECORDER_RINGS; i++) {
    const ms_recorder_record *last = ms_recorder_last(&recorder->ring[i]);
    uint64_t left = last ? load(&last->left) : 0;
    if (last && !left) chosen[n++] = i;
    if (left > latest_left) {
      latest = i;
      latest_left = left;
    }
  }
  if (latest >= 0 && n < MS_RECORDER_RINGS) chosen[n++] = latest;
  while (n * RING_BYTES > ms_mirror_free(writer) - 4) n--;
  ms_mirror_put32(writer, n);
  for (uint32_t i = 0; i < n; i++) put_ring(writer, world, recorder, chosen[i]);
}

static void post_rank(ms_world *world, int rank) {
  ms_mirror_writer writer = {.used = 0};
  const ms_control_rank *row = &world->control->rank[rank];
  const ms_recorder *recorder = ms_recorder_in(world->control, rank);
  int stopped, printing, pid = atomic_load(&row->pid);
  ms_report_process(pid, &stopped, &printing);
  ms_mirror_put32(&writer, (uint32_t)rank);
  ms_mirror_put32(&writer, atomic_load(&row->recovery));
  ms_mirror_put32(&writer, atomic_load(&row->posts));
  ms_mirror_put32(&writer, stopped ? (uint32_t)pid : 0);
  ms_mirror_put32(&writer, (uint32_t)printing);
  put_number(&writer, recorder, atomic_load_explicit(&recorder->activity, memory_order_acquire));
  put_number(&writer, recorder, atomic_load_explicit(&recorder->at, memory_order_relaxed));
  put_number(&writer, recorder, atomic_load_explicit(&recorder->doing, memory_order_relaxed));
  put_number(&writer, recorder, atomic_load_explicit(&recorder->opening, memory_order_relaxed));
  ms_mirror_put32(&writer, atomic_load_explicit(&recorder->streams, memory_order_relaxed));
  ms_mirror_put32(&writer, atomic_load_explicit(&recorder->failed, memory_order_acquire));
  ms_mirror_put64(&writer, age_of(&recorder->since));
  ms_mirror_put64(&writer, load(&recorder->outside));
  ms_mirror_put64(&writer, age_of(&recorder->beat));
  ms_mirror_put64(&writer, (uint64_t)atomic_load_explicit(&recorder->step, memory_order_relaxed));
  ms_mirror_put64(&writer, (uint64_t)atomic_load_explicit(&recorder->done, memory_order_relaxed));
  ms_mirror_put64(&writer, load(&recorder->speed));
  ms_mirror_put_tickets(&writer, world, rank);
  put_rings(&writer, world, recorder);
  ms_store_post(world->store, MS_POST_RECORDS, writer.data, writer.used);
}

void ms_mirror_post_records(ms_world *world) {
  const int *node_of = world->topology.node_of;
  for (int rank = 0; rank < world->size; rank++)
    if (node_of[rank] == node_of[world->rank]) post_rank(world, rank);
}

static void take_place(ms_mirror_reader *reader, ms_recorder *recorder) {
  atomic_store_explicit(&recorder->activity, get_number(reader, recorder), memory_order_release);
  atomic_store_explicit(&recorder->at, get_number(reader, recorder), memory_order_relaxed);
  atomic_store_explicit(&recorder->doing, get_number(reader, recorder), memory_order_relaxed);
  atomic_store_explicit(&recorder->opening, get_number(reader, recorder), memory_order_relaxed);
  atomic_store_explicit(&recorder->streams, ms_mirror_get32(reader), memory_order_relaxed);
  atomic_store_explicit(&recorder->failed, ms_mirror_get32(reader), memory_order_release);
  store(&recorder->since, time_of(ms_mirror_get64(reader)));
  store(&recorder->outside, ms_mirror_get64(reader));
  store(&recorder->beat, time_of(ms_mirror_get64(reader)));
  atomic_store_explicit(&recorder->step, (int64_t)ms_mirror_get64(reader), memory_order_relaxed);
  atomic_store_explicit(&recorder->done, (int64_t)ms_mirror_get64(reader), memory_order_relaxed);
  store(&recorder->speed, ms_mirror_get64(reader));
}

int ms_mirror_take_records(ms_world *world, int from, ms_mirror_reader *reader) {
  uint8_t reported[MS_RECORDER_RINGS] = {0};
  const int *node_of = world->topology.node_of;
  uint32_t rank = ms_mirror_get32(reader), recovery = ms_mirror_get32(reader), posts = ms_mirror_get32(reader);
  uint32_t stopped = ms_mirror_get32(reader), printing = ms_mirror_get32(reader);
  if (reader->bad || rank >= (uint32_t)world->size || node_of[rank] != node_of[from]) return 0;
  ms_control_rank *row = &world->control->rank[rank];
  ms_recorder *recorder = ms_recorder_in(world->control, (int)rank);
  /* The rank posts its recoveries itself, so a report can come later than a recovery that followed it; and during one
   * the rank resets its tickets. */
  int valid = recovery == atomic_load(&row->recovery);
  take_place(reader, recorder);
  ms_mirror_take_tickets(reader, world, (int)rank, valid && recovery % 2 == 0);
  uint32_t rings = ms_mirror_get32(reader);
  for (uint32_t i = 0; i < rings && !reader->bad; i++) take_ring(reader, world, recorder, valid, reported);
  if (reader->bad) return 0;
  if (valid) close_rings(recorder, reported);
  atomic_store(&row->stopped, (int32_t)stopped);
  atomic_store(&row->printing, printing != 0);
  atomic_store(&row->ahead, (int32_t)(posts - atomic_load(&row->posts)) > 0);
  atomic_store(&row->seen, ms_recorder_now());
  return 1;
}
