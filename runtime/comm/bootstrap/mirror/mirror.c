/* mirror.c - posts what this rank has written into its host's control segment. */
#include "comm/bootstrap/mirror/mirror.h"

#include <string.h>

static void post(ms_world *world, int kind, const ms_mirror_writer *writer) {
  atomic_fetch_add(&world->control->rank[world->rank].posts, 1); /* first: a report never counts too few */
  ms_store_post(world->store, kind, writer->data, writer->used);
}

static void post_group(ms_world *world, const ms_group_entry *entry) {
  ms_mirror_writer writer = {.used = 0};
  const int32_t *ranks = ms_group_ranks(world->control, entry);
  uint16_t list[MS_MAX_RANKS];
  for (int i = 0; i < entry->size; i++) list[i] = (uint16_t)ranks[i];
  ms_mirror_put32(&writer, (uint32_t)entry->channel);
  ms_mirror_put_bytes(&writer, list, sizeof *list * (size_t)entry->size);
  post(world, MS_POST_GROUP, &writer);
}

static void post_ticket(ms_world *world, const ms_group_entry *entry, int place, const ms_recorder_ring *ring,
                        const void *slot, int bytes) {
  ms_mirror_writer writer = {.used = 0};
  const ms_group_ticket *ticket = &entry->ticket[place];
  ms_mirror_put64(&writer, entry->key);
  ms_mirror_put32(&writer, (uint32_t)place);
  ms_mirror_put64(&writer, atomic_load(&ticket->count));
  for (int turn = 0; turn < 2; turn++) ms_mirror_put64(&writer, atomic_load(&ticket->signature[turn]));
  ms_mirror_put_bytes(&writer, slot, slot ? (size_t)bytes : 0);
  ms_mirror_put_record(&writer, world->recorder, ms_recorder_last(ring));
  post(world, MS_POST_TICKET, &writer);
}

static void post_announcement(ms_world *world) {
  ms_mirror_writer writer = {.used = 0};
  const ms_group_announcement *mine = ms_group_announcement_of(world->control, world->rank);
  ms_mirror_put32(&writer, atomic_load(&mine->number));
  ms_mirror_put_text(&writer, mine->text, sizeof mine->text);
  post(world, MS_POST_ANNOUNCE, &writer);
}

/* A text is complete when its word is 2. */
static void put_told(ms_mirror_writer *writer, const _Atomic uint32_t *word, const char *text, size_t capacity) {
  int told = atomic_load(word) == 2;
  ms_mirror_put32(writer, (uint32_t)told);
  ms_mirror_put_text(writer, told ? text : "", capacity);
}

/* Why the job ended, as this host's launcher or the store found: before what the survivors say because of it. The rank
 * at fault as its number + 2, 1 for none, 0 for a job that goes on. */
static void put_end(ms_mirror_writer *writer, ms_world *world) {
  int row, blame = -1;
  const char *why = ms_control_aborted(world->control, &row, &blame);
  int ended = why && row == MS_CONTROL_LAUNCHER;
  ms_mirror_put32(writer, ended ? (uint32_t)(blame + 2) : 0);
  ms_mirror_put_text(writer, ended ? why : "", MS_CONTROL_TEXT);
}

static void post_row(ms_world *world) {
  ms_mirror_writer writer = {.used = 0};
  const ms_control_rank *row = &world->control->rank[world->rank];
  ms_mirror_put32(&writer, atomic_load(&row->recovery));
  put_end(&writer, world);
  ms_mirror_put32(&writer, atomic_load(&world->control->saves) != 0);
  ms_mirror_put32(&writer, atomic_load(&world->control->terminating) != 0);
  put_told(&writer, &row->told, row->text, sizeof row->text);
  put_told(&writer, &row->failed, row->failure, sizeof row->failure);
  post(world, MS_POST_ROW, &writer);
}

static void post_look(ms_world *world) { ms_store_post(world->store, MS_POST_LOOK, NULL, 0); }

static const ms_mirror over_store = {
    .group = post_group, .ticket = post_ticket, .announce = post_announcement, .row = post_row, .look = post_look};

void ms_mirror_open(ms_world *world) {
  const int *node_of = world->topology.node_of;
  atomic_store(&world->control->rank[world->rank].applies, 1);
  for (int rank = 0; rank < world->size; rank++) {
    /* The rendezvous has ended, so all have joined; another rank of this host may know already that this one left. */
    int32_t absent = MS_CONTROL_ABSENT;
    if (node_of[rank] != node_of[world->rank])
      atomic_compare_exchange_strong(&world->control->rank[rank].state, &absent, MS_CONTROL_JOINED);
  }
  world->mirror = &over_store;
}

void ms_mirror_close(ms_world *world) { atomic_store(&world->control->rank[world->rank].applies, 0); }
