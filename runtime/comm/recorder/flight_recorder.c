/* flight_recorder.c - writes a rank's flight recorder.
 *
 * A record's sequence number is cleared first when the record is reused, and written last. A reader that sees the same
 * number before and after has therefore read one whole record.
 */
#include "comm/recorder/flight_recorder.h"

#include <string.h>

#include "base/text/hash.h"

static void store(_Atomic uint64_t *word, uint64_t value) { atomic_store_explicit(word, value, memory_order_relaxed); }

static uint64_t load(const _Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }

_Static_assert(sizeof(ms_recorder) <= MS_CONTROL_RECORDER_BYTES, "the control segment has room for a flight recorder");

ms_recorder *ms_recorder_in(const ms_control *control, int rank) {
  return (ms_recorder *)((char *)control + control->recorders_at + (uint64_t)rank * MS_CONTROL_RECORDER_BYTES);
}

const char *ms_coll_kind_name(int kind) {
  static const char *const names[MS_RECORDER_KINDS] = {
      [MS_COLL_ALL_GATHER] = "all_gather",
      [MS_COLL_REDUCE_SCATTER] = "reduce_scatter",
      [MS_COLL_ALL_REDUCE] = "all_reduce",
      [MS_COLL_BROADCAST] = "broadcast",
      [MS_COLL_BARRIER] = "barrier",
      [MS_COLL_SEND] = "send",
      [MS_COLL_RECV] = "recv",
      [MS_COLL_ALL_TO_ALL] = "all_to_all",
      [MS_RECORDER_ALL_GATHER_BYTES] = "all_gather_bytes",
      [MS_RECORDER_MESH] = "mesh",
  };
  return names[kind >= 0 && kind < MS_RECORDER_KINDS ? kind : 0];
}

/* ---- texts ---- */

static const char *fitting_end(const char *text) {
  size_t length = strlen(text);
  if (length < MS_RECORDER_TEXT_BYTES) return text;
  text += length - (MS_RECORDER_TEXT_BYTES - 1);
  while (((unsigned char)*text & 0xc0) == 0x80) text++; /* not within a UTF-8 character */
  return text;
}

static int find_or_add(ms_recorder *recorder, const char *text) {
  uint64_t hash = ms_hash_bytes(MS_HASH_INIT, text, strlen(text));
  for (uint64_t i = 0; i < MS_RECORDER_BUCKETS; i++) {
    _Atomic uint16_t *bucket = &recorder->bucket[(hash + i) % MS_RECORDER_BUCKETS];
    uint32_t number = atomic_load_explicit(bucket, memory_order_relaxed);
    if (number && !strcmp(recorder->text[number - 1], text)) return (int)number;
    if (number) continue;
    number = atomic_load_explicit(&recorder->texts, memory_order_relaxed) + 1;
    if (number > MS_RECORDER_TEXTS) return 0;
    memcpy(recorder->text[number - 1], text, strlen(text) + 1);
    atomic_store_explicit(bucket, (uint16_t)number, memory_order_relaxed);
    atomic_store_explicit(&recorder->texts, number, memory_order_release);
    return (int)number;
  }
  return 0;
}

int ms_recorder_number(ms_recorder *recorder, const char *text) {
  if (!text || !*text) return 0;
  uint32_t open = 0;
  while (!atomic_compare_exchange_weak_explicit(&recorder->lock, &open, 1, memory_order_acquire, memory_order_relaxed))
    open = 0;
  int number = find_or_add(recorder, fitting_end(text));
  atomic_store_explicit(&recorder->lock, 0, memory_order_release);
  return number;
}

const char *ms_recorder_text(const ms_recorder *recorder, uint32_t number) {
  if (!number || number > MS_RECORDER_TEXTS) return "";
  if (number > atomic_load_explicit(&recorder->texts, memory_order_acquire)) return "";
  return recorder->text[number - 1];
}

/* ---- where the rank is ---- */

/* The next activity removes what a failed one left for readers, including collectives that it did not leave. */
static void forget_failure(ms_recorder *recorder) {
  for (int i = 0; i < MS_RECORDER_RINGS; i++) {
    ms_recorder_ring *ring = &recorder->ring[i];
    if (!atomic_load_explicit(&ring->group, memory_order_relaxed)) break;
    for (int w = 0; w < MS_RANK_SET_WORDS; w++) store(&ring->missing[w], 0);
    if (ms_recorder_last(ring) && !load(&ms_recorder_last(ring)->left)) ms_recorder_left(ring);
  }
  atomic_store_explicit(&recorder->failed, 0, memory_order_relaxed);
}

void ms_recorder_enter(ms_recorder *recorder, int activity) {
  if (recorder->depth++) return;
  if (atomic_load_explicit(&recorder->failed, memory_order_relaxed)) forget_failure(recorder);
  uint64_t now = ms_recorder_now(), since = load(&recorder->since);
  store(&recorder->outside, since ? now - since : 0);
  store(&recorder->since, now);
  store(&recorder->beat, now);
  atomic_store_explicit(&recorder->at, 0, memory_order_relaxed);
  atomic_store_explicit(&recorder->activity, (uint32_t)activity, memory_order_release);
}

void ms_recorder_leave(ms_recorder *recorder, int rc) {
  if (--recorder->depth) return;
  if (rc) {
    atomic_store_explicit(&recorder->failed, 1, memory_order_release);
    return;
  }
  uint64_t now = ms_recorder_now();
  atomic_store_explicit(&recorder->activity, 0, memory_order_release);
  store(&recorder->since, now);
  store(&recorder->beat, now);
}

/* ---- collectives ---- */

ms_recorder_ring *ms_recorder_ring_of(ms_recorder *recorder, uint32_t group) {
  ms_recorder_ring *vacant = NULL;
  for (int i = 0; i < MS_RECORDER_RINGS; i++) {
    uint32_t owner = atomic_load_explicit(&recorder->ring[i].group, memory_order_relaxed);
    if (owner == group) return &recorder->ring[i];
    if (owner == MS_RECORDER_FREE && !vacant) vacant = &recorder->ring[i];
  }
  if (vacant) atomic_store_explicit(&vacant->group, group, memory_order_release);
  return vacant;
}

void ms_recorder_entered(ms_recorder *recorder, ms_recorder_ring *ring, uint64_t sequence, int kind, int label,
                         double bytes) {
  uint64_t head = load(&ring->head), now = ms_recorder_now();
  ms_recorder_record *record = &ring->record[head % MS_RECORDER_RECORDS];
  store(&record->sequence, 0);
  atomic_thread_fence(memory_order_release);
  store(&record->entered, now);
  store(&record->met, 0);
  store(&record->left, 0);
  store(&record->bytes, (uint64_t)bytes);
  atomic_store_explicit(&record->step, atomic_load_explicit(&recorder->step, memory_order_relaxed),
                        memory_order_relaxed);
  atomic_store_explicit(&record->kind, (uint32_t)kind, memory_order_relaxed);
  atomic_store_explicit(&record->label, (uint16_t)label, memory_order_relaxed);
  atomic_store_explicit(&record->activity, (uint16_t)atomic_load_explicit(&recorder->activity, memory_order_relaxed),
                        memory_order_relaxed);
  atomic_store_explicit(&record->sequence, sequence, memory_order_release);
  atomic_store_explicit(&ring->head, head + 1, memory_order_release);
}

static ms_recorder_record *open_record(ms_recorder_ring *ring) {
  return &ring->record[(load(&ring->head) - 1) % MS_RECORDER_RECORDS];
}

void ms_recorder_met(ms_recorder_ring *ring) {
  ms_recorder_record *record = open_record(ring);
  if (!load(&record->met)) store(&record->met, ms_recorder_now());
}

void ms_recorder_left(ms_recorder_ring *ring) {
  atomic_store_explicit(&open_record(ring)->left, ms_recorder_now(), memory_order_release);
}

void ms_recorder_misses(ms_recorder *recorder, ms_recorder_ring *ring, const ms_rank_set *missing) {
  if (missing) store(&recorder->beat, ms_recorder_now());
  for (int w = 0; w < MS_RANK_SET_WORDS; w++) store(&ring->missing[w], missing ? missing->word[w] : 0);
}

ms_rank_set ms_recorder_missing(const ms_recorder_ring *ring) {
  ms_rank_set missing;
  for (int w = 0; w < MS_RANK_SET_WORDS; w++) missing.word[w] = load(&ring->missing[w]);
  return missing;
}
