/* table.c - finds, makes and resets the entries of groups in the control segment. */
#include "comm/group/table.h"

#include <string.h>

#include "base/error.h"
#include "base/text/hash.h"

/* ---- layout: announcements, entries, the number of assigned slots, slots ---- */

typedef struct layout {
  uint64_t ticket_bytes, rank_bytes, pair_bytes; /* of an entry */
  uint64_t entry_bytes;
  uint64_t entries_at, slots_at, bytes;
} layout;

/* The number of slots that are assigned to entries; in a line of its own. */
typedef struct slot_count {
  _Alignas(64) _Atomic int32_t assigned;
} slot_count;

static uint64_t whole(uint64_t bytes, uint64_t of) { return (bytes + of - 1) / of * of; }

static uint64_t slots_of(uint64_t ranks) { return MS_GROUP_SLOTS_A_RANK * ranks; }

static layout layout_for(int size) {
  const uint64_t ranks = (uint64_t)size;
  layout l = {.ticket_bytes = sizeof(ms_group_ticket) * ranks, .rank_bytes = whole(sizeof(int32_t) * ranks, 64)};
  l.pair_bytes = ranks <= MS_MAX_LOCAL_RANKS ? sizeof(uint32_t) * ranks * ranks : 0;
  /* Entries of whole pages: those that are not used cost nothing. */
  l.entry_bytes = whole(sizeof(ms_group_entry) + l.ticket_bytes + l.rank_bytes + 2 * l.pair_bytes, MS_CONTROL_PAGE);
  l.entries_at = whole(sizeof(ms_group_announcement) * ranks, MS_CONTROL_PAGE);
  l.slots_at = l.entries_at + MS_GROUP_ENTRIES * l.entry_bytes;
  l.bytes = l.slots_at + MS_CONTROL_PAGE + 2 * slots_of(ranks) * MS_GROUP_SLOT;
  return l;
}

int ms_job_create(int size, int local, int cores, int *fd) {
  return ms_control_create(size, local, cores, layout_for(size < 1 ? 1 : size).bytes, fd);
}

int ms_job_copy(int fd, ms_control **control) {
  ms_control *copy;
  MS_TRY(ms_control_copy(fd, &copy));
  if (copy->bytes - copy->groups_at == whole(layout_for(copy->size).bytes, MS_CONTROL_PAGE)) {
    *control = copy;
    return MS_OK;
  }
  ms_control_unmap(copy);
  return MS_FAIL(MS_EINVAL, "descriptor %d is not a control segment of this build: its table of groups is cut", fd);
}

static char *table_in(const ms_control *control) { return (char *)control + control->groups_at; }

ms_group_announcement *ms_group_announcement_of(const ms_control *control, int rank) {
  return (ms_group_announcement *)table_in(control) + rank;
}

ms_group_entry *ms_group_entry_at(const ms_control *control, int i) {
  const layout l = layout_for(control->size);
  return (ms_group_entry *)(table_in(control) + l.entries_at + (uint64_t)i * l.entry_bytes);
}

int32_t *ms_group_ranks(const ms_control *control, const ms_group_entry *entry) {
  return (int32_t *)((char *)entry->ticket + layout_for(control->size).ticket_bytes);
}

/* Pairs of an entry: [size][size] counts, of sends or of receives. */
static _Atomic uint32_t *pair(const ms_control *control, ms_group_entry *entry, int received, int one, int other) {
  const layout l = layout_for(control->size);
  char *pairs = (char *)entry->ticket + l.ticket_bytes + l.rank_bytes + (received ? l.pair_bytes : 0);
  return (_Atomic uint32_t *)pairs + one * control->size + other;
}

_Atomic uint32_t *ms_group_sent(const ms_control *control, ms_group_entry *entry, int from, int to) {
  return pair(control, entry, 0, from, to);
}

_Atomic uint32_t *ms_group_received(const ms_control *control, ms_group_entry *entry, int by, int from) {
  return pair(control, entry, 1, by, from);
}

static slot_count *slots_in(const ms_control *control) {
  return (slot_count *)(table_in(control) + layout_for(control->size).slots_at);
}

char *ms_group_slot(const ms_control *control, const ms_group_entry *entry, int turn, int place) {
  const uint64_t slot = slots_of((uint64_t)control->size) * (uint64_t)turn + (uint64_t)(entry->slot + place);
  return (char *)slots_in(control) + MS_CONTROL_PAGE + slot * MS_GROUP_SLOT;
}

/* ---- entries ---- */

uint32_t ms_group_number(const ms_control *control, const ms_group_entry *entry) {
  const char *first = (const char *)ms_group_entry_at(control, 0);
  return MS_RECORDER_GROUP +
         (uint32_t)((uint64_t)((const char *)entry - first) / layout_for(control->size).entry_bytes);
}

const ms_group_entry *ms_group_by_number(const ms_control *control, uint32_t number, int *size) {
  uint32_t index = number - MS_RECORDER_GROUP;
  *size = 0;
  if (number < MS_RECORDER_GROUP || index >= MS_GROUP_ENTRIES) return NULL;
  const ms_group_entry *entry = ms_group_entry_at(control, (int)index);
  int said = entry->size;
  *size = said < 0 ? 0 : said > control->size ? control->size : said;
  return entry;
}

static int same_group(const ms_control *control, const ms_group_entry *entry, int n, const int *ranks, int channel) {
  if (entry->channel != channel || entry->size != n) return 0;
  return !memcmp(ms_group_ranks(control, entry), ranks, sizeof *ranks * (size_t)n);
}

/* Fills a free entry; returns 0 while another rank fills it. */
static int settle(const ms_control *control, ms_group_entry *entry, int n, const int *ranks, int channel,
                  uint64_t key) {
  uint32_t state = MS_GROUP_FREE;
  if (!atomic_compare_exchange_strong(&entry->state, &state, MS_GROUP_FILLING)) return state == MS_GROUP_READY;
  entry->channel = channel;
  entry->size = n;
  entry->key = key;
  entry->slot = channel == MS_GROUP_CHANNEL ? atomic_fetch_add(&slots_in(control)->assigned, n) : MS_GROUP_NO_SLOT;
  memcpy(ms_group_ranks(control, entry), ranks, sizeof *ranks * (size_t)n);
  atomic_store(&entry->state, MS_GROUP_READY);
  return 1;
}

static int is_the_world(const ms_control *control, int n, const int *ranks, int channel) {
  if (n != control->size || channel != MS_GROUP_CHANNEL) return 0;
  for (int i = 0; i < n; i++)
    if (ranks[i] != i) return 0;
  return 1;
}

static int has_slots(const ms_control *control, const ms_group_entry *entry) {
  const int slots = (int)slots_of((uint64_t)control->size);
  return entry->slot == MS_GROUP_NO_SLOT || (entry->slot >= 0 && entry->slot + entry->size <= slots);
}

static int check_slots(const ms_control *control, const ms_group_entry *entry) {
  if (has_slots(control, entry)) return MS_OK;
  return MS_FAIL(
      MS_ENOMEM,
      "the process groups of this job already have %d ranks in total, the most that fit: open fewer meshes or slices",
      (int)slots_of((uint64_t)control->size));
}

/* Index of the i-th entry to try for a key. */
static int probed(uint64_t key, uint64_t i) { return (int)(1 + (key + i) % (MS_GROUP_ENTRIES - 1)); }

ms_group_entry *ms_group_by_key(const ms_control *control, uint64_t key) {
  for (uint64_t i = 0; i < MS_GROUP_ENTRIES; i++) {
    ms_group_entry *entry =
        ms_group_entry_at(control, i ? probed(key, i - 1) : 0); /* the world's is outside the table */
    if (i && atomic_load(&entry->state) == MS_GROUP_FREE) return NULL;
    if (atomic_load(&entry->state) == MS_GROUP_READY && entry->key == key)
      return has_slots(control, entry) ? entry : NULL;
  }
  return NULL;
}

int ms_group_entry_find(ms_control *control, int n, const int *ranks, int channel, ms_group_entry **found) {
  uint64_t key = ms_hash_int(ms_hash_bytes(MS_HASH_INIT, ranks, sizeof *ranks * (size_t)n), channel);
  int world = is_the_world(control, n, ranks, channel);
  *found = NULL;
  for (uint64_t i = 0; i < MS_GROUP_ENTRIES - 1; i++) {
    ms_group_entry *entry = ms_group_entry_at(control, world ? 0 : probed(key, i));
    if (!settle(control, entry, n, ranks, channel, key)) return MS_OK;
    if (!same_group(control, entry, n, ranks, channel)) continue;
    *found = entry;
    return check_slots(control, entry);
  }
  return MS_FAIL(MS_ENOMEM, "this job already has %d communicators, the most that fit: open fewer meshes or slices",
                 MS_GROUP_ENTRIES - 1);
}

static void reset_entry(const ms_control *control, ms_group_entry *entry, int rank) {
  if (atomic_load(&entry->state) != MS_GROUP_READY) return;
  for (int me = 0; me < entry->size; me++) {
    if (ms_group_ranks(control, entry)[me] != rank) continue;
    atomic_store(&entry->ticket[me].count, 0);
    for (int turn = 0; turn < 2; turn++) atomic_store(&entry->ticket[me].signature[turn], 0);
    for (int peer = 0; peer < entry->size && control->size <= MS_MAX_LOCAL_RANKS; peer++) {
      atomic_store(ms_group_sent(control, entry, me, peer), 0);
      atomic_store(ms_group_received(control, entry, me, peer), 0);
    }
  }
}

void ms_group_table_reset(ms_control *control, int rank) {
  atomic_store(&ms_group_announcement_of(control, rank)->number, 0);
  for (int i = 0; i < MS_GROUP_ENTRIES; i++) reset_entry(control, ms_group_entry_at(control, i), rank);
}
