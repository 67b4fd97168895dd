/* table.c - finds, makes and resets the entries of groups in the control segment. */
#include "comm/group/table.h"

#include "base/error.h"
#include "base/hash.h"

_Static_assert(sizeof(ms_group_table) <= MS_CONTROL_GROUP_BYTES,
               "the control segment has room for the table of groups");

uint32_t ms_group_number(const ms_control *control, const ms_group_entry *entry) {
  return MS_RECORDER_GROUP + (uint32_t)(entry - ms_group_table_in(control)->entry);
}

const ms_group_entry *ms_group_by_number(const ms_control *control, uint32_t number, int *size) {
  uint32_t index = number - MS_RECORDER_GROUP;
  *size = 0;
  if (number < MS_RECORDER_GROUP || index >= MS_GROUP_ENTRIES) return NULL;
  const ms_group_entry *entry = &ms_group_table_in(control)->entry[index];
  int said = entry->size;
  *size = said < 0 ? 0 : said > MS_MAX_LOCAL_RANKS ? MS_MAX_LOCAL_RANKS : said;
  return entry;
}

static int same_group(const ms_group_entry *entry, int n, const int *ranks, int channel) {
  if (entry->channel != channel || entry->size != n) return 0;
  for (int i = 0; i < n; i++)
    if (entry->rank[i] != ranks[i]) return 0;
  return 1;
}

/* Fills a free entry; returns 0 while another rank fills it. */
static int settle(ms_group_table *table, ms_group_entry *entry, int n, const int *ranks, int channel) {
  uint32_t state = MS_GROUP_FREE;
  if (!atomic_compare_exchange_strong(&entry->state, &state, MS_GROUP_FILLING)) return state == MS_GROUP_READY;
  entry->channel = channel;
  entry->size = n;
  entry->slot = channel == MS_GROUP_CHANNEL ? atomic_fetch_add(&table->slots, n) : MS_GROUP_NO_SLOT;
  for (int i = 0; i < n; i++) entry->rank[i] = ranks[i];
  atomic_store(&entry->state, MS_GROUP_READY);
  return 1;
}

static int is_the_world(const ms_control *control, int n, const int *ranks, int channel) {
  if (n != control->size || channel != MS_GROUP_CHANNEL) return 0;
  for (int i = 0; i < n; i++)
    if (ranks[i] != i) return 0;
  return 1;
}

static int check_slots(const ms_group_entry *entry) {
  if (entry->slot == MS_GROUP_NO_SLOT || (entry->slot >= 0 && entry->slot + entry->size <= MS_GROUP_SLOTS))
    return MS_OK;
  return MS_FAIL(
      MS_ENOMEM,
      "the process groups of this job already have %d ranks in total, the most that fit: open fewer meshes or slices",
      MS_GROUP_SLOTS);
}

int ms_group_entry_find(ms_control *control, int n, const int *ranks, int channel, ms_group_entry **found) {
  ms_group_table *table = ms_group_table_in(control);
  uint64_t hash = ms_hash_int(ms_hash_bytes(MS_HASH_INIT, ranks, sizeof *ranks * (size_t)n), channel);
  int world = is_the_world(control, n, ranks, channel);
  *found = NULL;
  for (uint64_t i = 0; i < MS_GROUP_ENTRIES - 1; i++) {
    ms_group_entry *entry = &table->entry[world ? 0 : 1 + (hash + i) % (MS_GROUP_ENTRIES - 1)];
    if (!settle(table, entry, n, ranks, channel)) return MS_OK;
    if (!same_group(entry, n, ranks, channel)) continue;
    *found = entry;
    return check_slots(entry);
  }
  return MS_FAIL(MS_ENOMEM, "this job already has %d communicators, the most that fit: open fewer meshes or slices",
                 MS_GROUP_ENTRIES - 1);
}

static void reset_entry(ms_group_entry *entry, int rank) {
  if (atomic_load(&entry->state) != MS_GROUP_READY) return;
  for (int me = 0; me < entry->size; me++) {
    if (entry->rank[me] != rank) continue;
    atomic_store(&entry->ticket[me].count, 0);
    for (int turn = 0; turn < 2; turn++) atomic_store(&entry->ticket[me].signature[turn], 0);
    for (int peer = 0; peer < entry->size; peer++) {
      atomic_store(&entry->sent[me][peer], 0);
      atomic_store(&entry->received[me][peer], 0);
    }
  }
}

void ms_group_table_reset(ms_control *control, int rank) {
  ms_group_table *table = ms_group_table_in(control);
  atomic_store(&table->announcement[rank].number, 0);
  for (int i = 0; i < MS_GROUP_ENTRIES; i++) reset_entry(&table->entry[i], rank);
}
