/* mirror_apply.c - writes what ranks of other hosts post into this host's control segment. Runs in the store's thread
 * of the host's lowest rank. Every field is checked: a post that makes no sense ends the job.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/bootstrap/mirror/mirror.h"

/* Seconds for a rank of this host to fill an entry, which takes microseconds unless it dies. */
static const double FILL_SECONDS = 1.0;
/* Seconds for a lower rank of this host, which has left, to apply its last posts. */
static const double TAKE_OVER_SECONDS = 2.0;

static int is_local(const ms_world *world, int rank) {
  return world->topology.node_of[rank] == world->topology.node_of[world->rank];
}

static void ring_host(const ms_world *world) {
  for (int rank = 0; rank < world->size; rank++)
    if (is_local(world, rank)) ms_control_ring(world->control, rank);
}

static void ring_group(const ms_world *world, const ms_group_entry *entry) {
  const int32_t *ranks = ms_group_ranks(world->control, entry);
  for (int i = 0; i < entry->size; i++)
    if (is_local(world, ranks[i])) ms_control_ring(world->control, ranks[i]);
}

/* ---- groups and tickets ---- */

/* The ranks of a list: in the world, each once, and the sender among them. */
static int read_ranks(const ms_world *world, int from, const uint16_t *list, int n, int *ranks) {
  ms_rank_set members = {{0}};
  for (int i = 0; i < n; i++) {
    ranks[i] = list[i];
    if (ranks[i] >= world->size || ms_rank_set_has(&members, ranks[i])) return 0;
    ms_rank_set_add(&members, ranks[i]);
  }
  return ms_rank_set_has(&members, from);
}

/* Ranks of this host may open the group at the same time, and fill its entry. If the table is full, they report it:
 * each rank of a group looks for the entry itself. */
static int take_group(ms_world *world, int from, ms_mirror_reader *reader) {
  uint16_t list[MS_MAX_RANKS];
  int ranks[MS_MAX_RANKS];
  size_t bytes;
  ms_group_entry *entry = NULL;
  uint32_t channel = ms_mirror_get32(reader);
  const void *data = ms_mirror_get_bytes(reader, sizeof list, &bytes);
  if (!data || channel >= MS_GROUP_CHANNELS || bytes % sizeof *list) return 0;
  memcpy(list, data, bytes);
  int n = (int)(bytes / sizeof *list);
  if (n < 2 || n > world->size || !read_ranks(world, from, list, n, ranks)) return 0;
  ms_error_record before;
  ms_error_save(&before);
  double end = ms_clock() + FILL_SECONDS;
  while (!ms_group_entry_find(world->control, n, ranks, (int)channel, &entry) && !entry && ms_clock() < end) ms_relax();
  ms_error_restore(&before);
  return 1;
}

static int take_ticket(ms_world *world, int from, ms_mirror_reader *reader) {
  uint64_t signature[2], key = ms_mirror_get64(reader);
  uint32_t place = ms_mirror_get32(reader);
  uint64_t count = ms_mirror_get64(reader);
  size_t bytes;
  for (int turn = 0; turn < 2; turn++) signature[turn] = ms_mirror_get64(reader);
  const void *slot = ms_mirror_get_bytes(reader, MS_GROUP_SLOT, &bytes);
  ms_recorder *recorder = ms_recorder_in(world->control, from);
  ms_group_entry *entry = reader->bad ? NULL : ms_group_by_key(world->control, key);
  ms_recorder_ring *ring = entry ? ms_recorder_ring_of(recorder, ms_group_number(world->control, entry)) : NULL;
  ms_mirror_take_record(reader, recorder, ring);
  if (reader->bad || !entry) return !reader->bad;
  if (place >= (uint32_t)entry->size || ms_group_ranks(world->control, entry)[place] != from) return 0;
  ms_group_ticket *ticket = &entry->ticket[place];
  if (count <= atomic_load(&ticket->count) || (bytes && entry->slot == MS_GROUP_NO_SLOT)) return 0;
  if (bytes) memcpy(ms_group_slot(world->control, entry, (int)(count & 1), (int)place), slot, bytes);
  for (int turn = 0; turn < 2; turn++)
    atomic_store_explicit(&ticket->signature[turn], signature[turn], memory_order_relaxed);
  atomic_store_explicit(&ticket->count, count, memory_order_release);
  ring_group(world, entry);
  return 1;
}

static int take_announcement(ms_world *world, int from, ms_mirror_reader *reader) {
  char text[MS_GROUP_ANNOUNCEMENT];
  ms_group_announcement *theirs = ms_group_announcement_of(world->control, from);
  uint32_t number = ms_mirror_get32(reader);
  ms_mirror_get_text(reader, text, sizeof text);
  if (reader->bad || number <= atomic_load(&theirs->number)) return 0;
  memcpy(theirs->text, text, sizeof text);
  atomic_store(&theirs->number, number);
  ring_host(world);
  return 1;
}

/* ---- rows ---- */

/* The rank has reset its own words, between the two waits of a recovery: on this host this is done for it. */
static void reset_words(ms_world *world, int from) {
  ms_control_rank *row = &world->control->rank[from];
  ms_recorder *recorder = ms_recorder_in(world->control, from);
  ms_group_table_reset(world->control, from);
  atomic_store(&row->told, 0);
  atomic_store(&row->failed, 0);
  for (int i = 0; i < MS_RECORDER_RINGS; i++) {
    ms_recorder_ring *ring = &recorder->ring[i];
    if (!ms_recorder_last(ring)) continue;
    ms_recorder_record *last = &ring->record[(atomic_load(&ring->head) - 1) % MS_RECORDER_RECORDS];
    atomic_store(&last->sequence, 0); /* its tickets begin again at 1 */
  }
}

static int take_row(ms_world *world, int from, ms_mirror_reader *reader) {
  char end[MS_CONTROL_TEXT], text[MS_CONTROL_TEXT], failure[MS_CONTROL_FAILURE];
  ms_control_rank *row = &world->control->rank[from];
  uint32_t recovery = ms_mirror_get32(reader), ended = ms_mirror_get32(reader);
  ms_mirror_get_text(reader, end, sizeof end);
  uint32_t saves = ms_mirror_get32(reader), terminating = ms_mirror_get32(reader);
  int told = ms_mirror_get32(reader) != 0;
  ms_mirror_get_text(reader, text, sizeof text);
  int failed = ms_mirror_get32(reader) != 0;
  ms_mirror_get_text(reader, failure, sizeof failure);
  uint32_t before = atomic_load(&row->recovery);
  if (reader->bad || recovery - before > 1 || ended > (uint32_t)world->size + 1) return 0;
  if (ended) ms_control_give_up(world->control, MS_CONTROL_LAUNCHER, (int)ended - 2, end);
  if (saves) atomic_store(&world->control->saves, 1);
  if (terminating) atomic_store(&world->control->terminating, 1);
  if (recovery != before && recovery % 2 == 0) reset_words(world, from);
  if (told) ms_control_give_up(world->control, from, from, text);
  if (failed && !atomic_load(&row->failed)) {
    memcpy(row->failure, failure, sizeof failure);
    atomic_store(&row->failed, 2);
  }
  atomic_store(&row->recovery, recovery);
  ring_host(world);
  return 1;
}

static int take_left(ms_world *world, int from) {
  atomic_store(&world->control->rank[from].state, MS_CONTROL_LEFT);
  ring_host(world);
  return 1;
}

/* ---- the store's thread ---- */

/* A lower rank of this host was the receiver before, and may still be applying posts that came earlier. */
static void wait_for_lower_ranks(const ms_world *world) {
  double end = 0;
  for (int rank = 0; rank < world->rank; rank++)
    while (is_local(world, rank) && atomic_load(&world->control->rank[rank].applies)) {
      if (end == 0) end = ms_clock() + TAKE_OVER_SECONDS;
      if (ms_clock() > end) return;
      nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}

static int take_post(ms_world *world, int from, int kind, ms_mirror_reader *reader) {
  switch (kind) {
    case MS_POST_GROUP: return take_group(world, from, reader);
    case MS_POST_TICKET: return take_ticket(world, from, reader);
    case MS_POST_ANNOUNCE: return take_announcement(world, from, reader);
    case MS_POST_ROW: return take_row(world, from, reader);
    case MS_POST_RECORDS: return ms_mirror_take_records(world, from, reader);
    case MS_POST_LEFT: return take_left(world, from);
    default: return 0;
  }
}

/* Once a rank died or gave up on any host, or rank 0 cannot be reached. */
static void on_failure(void *context, const char *why) {
  ms_control_give_up(((ms_world *)context)->control, MS_CONTROL_LAUNCHER, -1, why);
}

/* A host without the store knows less than the others: its ranks hear from no other host. */
static void on_loss(void *context) {
  ms_world *world = context;
  char why[160];
  const int *node_of = world->topology.node_of;
  snprintf(why, sizeof why, "rank 0 on host %s died, or lost its connection", ms_world_node_name(world, node_of[0]));
  if (!is_local(world, 0)) ms_control_note_lost(world->control, world->topology.nodes - 1);
  on_failure(world, why);
}

static void on_post(void *context, int from, int kind, const uint8_t *payload, size_t bytes) {
  ms_world *world = context;
  ms_mirror_reader reader = {.at = payload, .left = bytes};
  char why[96];
  if (kind == MS_POST_LOOK) { /* of any rank, for all of its host */
    ms_mirror_post_records(world);
    return;
  }
  int valid = from >= 0 && from < world->size && !is_local(world, from);
  if (valid) wait_for_lower_ranks(world);
  if (valid && take_post(world, from, kind, &reader) && !reader.bad && !reader.left) {
    if (kind != MS_POST_RECORDS && kind != MS_POST_LEFT) atomic_fetch_add(&world->control->rank[from].posts, 1);
    return;
  }
  snprintf(why, sizeof why, "rank %d sent invalid data to the other hosts", from);
  on_failure(world, why);
}

static void on_end(void *context) {
  ms_world *world = context;
  if (!is_local(world, 0)) take_left(world, 0);
}

const ms_store_listener ms_mirror_listener = {
    .failed = on_failure, .lost = on_loss, .posted = on_post, .closed = on_end};
