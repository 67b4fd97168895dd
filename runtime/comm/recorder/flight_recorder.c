/* flight_recorder.c - writing a rank's ledger.
**
** A record is written with its sequence number last, and that is cleared first when a record is used again, so a reader that
** sees the same number before and after has read one record and not two halves.
*/
#include "comm/recorder/flight_recorder.h"

#include <string.h>

#include "base/hash.h"

static void store(_Atomic uint64_t *word, uint64_t value) { atomic_store_explicit(word, value, memory_order_relaxed); }

static uint64_t load(const _Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }

/* ---- texts ---- */

static const char *fitting_end(const char *text) {
  size_t length = strlen(text);
  if (length < MS_LEDGER_TEXT_BYTES) return text;
  text += length - (MS_LEDGER_TEXT_BYTES - 1);
  while (((unsigned char)*text & 0xc0) == 0x80) text++; /* not from the middle of a character */
  return text;
}

static int find_or_add(ms_ledger *ledger, const char *text) {
  uint64_t hash = ms_hash_bytes(MS_HASH_INIT, text, strlen(text));
  for (uint64_t i = 0; i < MS_LEDGER_BUCKETS; i++) {
    _Atomic uint16_t *bucket = &ledger->bucket[(hash + i) % MS_LEDGER_BUCKETS];
    uint32_t number = atomic_load_explicit(bucket, memory_order_relaxed);
    if (number && !strcmp(ledger->text[number - 1], text)) return (int)number;
    if (number) continue;
    number = atomic_load_explicit(&ledger->texts, memory_order_relaxed) + 1;
    if (number > MS_LEDGER_TEXTS) return 0;
    memcpy(ledger->text[number - 1], text, strlen(text) + 1);
    atomic_store_explicit(bucket, (uint16_t)number, memory_order_relaxed);
    atomic_store_explicit(&ledger->texts, number, memory_order_release);
    return (int)number;
  }
  return 0;
}

int ms_ledger_number(ms_ledger *ledger, const char *text) {
  if (!text || !*text) return 0;
  uint32_t open = 0;
  while (!atomic_compare_exchange_weak_explicit(&ledger->lock, &open, 1, memory_order_acquire, memory_order_relaxed))
    open = 0;
  int number = find_or_add(ledger, fitting_end(text));
  atomic_store_explicit(&ledger->lock, 0, memory_order_release);
  return number;
}

const char *ms_ledger_text(const ms_ledger *ledger, uint32_t number) {
  if (!number || number > MS_LEDGER_TEXTS) return "";
  if (number > atomic_load_explicit(&ledger->texts, memory_order_acquire)) return "";
  return ledger->text[number - 1];
}

/* ---- where the rank is ---- */

/* What a failed activity left behind for readers, collectives that it did not leave among it, ends with the next one. */
static void forget_failure(ms_ledger *ledger) {
  for (int i = 0; i < MS_LEDGER_RINGS; i++) {
    ms_ledger_ring *ring = &ledger->ring[i];
    if (!atomic_load_explicit(&ring->group, memory_order_relaxed)) break;
    store(&ring->missing, 0);
    if (ms_ledger_last(ring) && !load(&ms_ledger_last(ring)->left)) ms_ledger_left(ring);
  }
  atomic_store_explicit(&ledger->failed, 0, memory_order_relaxed);
}

void ms_ledger_enter(ms_ledger *ledger, int activity) {
  if (ledger->depth++) return;
  if (atomic_load_explicit(&ledger->failed, memory_order_relaxed)) forget_failure(ledger);
  uint64_t now = ms_ledger_now(), since = load(&ledger->since);
  store(&ledger->outside, since ? now - since : 0);
  store(&ledger->since, now);
  store(&ledger->beat, now);
  atomic_store_explicit(&ledger->at, 0, memory_order_relaxed);
  atomic_store_explicit(&ledger->activity, (uint32_t)activity, memory_order_release);
}

void ms_ledger_leave(ms_ledger *ledger, int rc) {
  if (--ledger->depth) return;
  if (rc) {
    atomic_store_explicit(&ledger->failed, 1, memory_order_release);
    return;
  }
  uint64_t now = ms_ledger_now();
  atomic_store_explicit(&ledger->activity, 0, memory_order_release);
  store(&ledger->since, now);
  store(&ledger->beat, now);
}

/* ---- collectives ---- */

ms_ledger_ring *ms_ledger_ring_of(ms_ledger *ledger, uint32_t group) {
  ms_ledger_ring *vacant = NULL;
  for (int i = 0; i < MS_LEDGER_RINGS; i++) {
    uint32_t owner = atomic_load_explicit(&ledger->ring[i].group, memory_order_relaxed);
    if (owner == group) return &ledger->ring[i];
    if (owner == MS_LEDGER_FREE && !vacant) vacant = &ledger->ring[i];
  }
  if (vacant) atomic_store_explicit(&vacant->group, group, memory_order_release);
  return vacant;
}

void ms_ledger_entered(ms_ledger *ledger, ms_ledger_ring *ring, uint64_t sequence, int kind, int label, double bytes) {
  uint64_t head = load(&ring->head), now = ms_ledger_now();
  ms_ledger_record *record = &ring->record[head % MS_LEDGER_RECORDS];
  store(&record->sequence, 0);
  atomic_thread_fence(memory_order_release);
  store(&record->entered, now);
  store(&record->met, 0);
  store(&record->left, 0);
  store(&record->bytes, (uint64_t)bytes);
  atomic_store_explicit(&record->step, atomic_load_explicit(&ledger->step, memory_order_relaxed), memory_order_relaxed);
  atomic_store_explicit(&record->kind, (uint32_t)kind, memory_order_relaxed);
  atomic_store_explicit(&record->label, (uint16_t)label, memory_order_relaxed);
  atomic_store_explicit(&record->activity, (uint16_t)atomic_load_explicit(&ledger->activity, memory_order_relaxed),
                        memory_order_relaxed);
  atomic_store_explicit(&record->sequence, sequence, memory_order_release);
  atomic_store_explicit(&ring->head, head + 1, memory_order_release);
}

static ms_ledger_record *open_record(ms_ledger_ring *ring) {
  return &ring->record[(load(&ring->head) - 1) % MS_LEDGER_RECORDS];
}

void ms_ledger_met(ms_ledger_ring *ring) { store(&open_record(ring)->met, ms_ledger_now()); }

void ms_ledger_left(ms_ledger_ring *ring) {
  atomic_store_explicit(&open_record(ring)->left, ms_ledger_now(), memory_order_release);
}

void ms_ledger_misses(ms_ledger *ledger, ms_ledger_ring *ring, uint64_t missing) {
  if (missing) store(&ledger->beat, ms_ledger_now());
  store(&ring->missing, missing);
}
