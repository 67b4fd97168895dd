/* mirror_tickets.c - tickets of communicators between hosts: they travel with the reports of flight recorders.
 *
 * A process group posts every ticket, because its ranks wait for them. The collectives of a communicator wait for the
 * messages of its transport instead; only reports and the search for deadlocks read the tickets of ranks of other
 * hosts. A training step has hundreds of collectives, and every post passes through rank 0 to every other host. So
 * nothing is posted for a collective: a rank that waits for half a second asks for reports (LOOK), and the answers are
 * at most 3 KiB longer.
 */
#include "comm/bootstrap/mirror/mirror.h"

/* How often a ticket that its rank is changing is read again. */
enum { READS = 4 };

typedef struct post_ticket {
  uint64_t key, count, signature[2];
  uint32_t place;
} post_ticket;

static int place_of(const ms_world *world, const ms_group_entry *entry, int size, int rank) {
  const int32_t *ranks = ms_group_ranks(world->control, entry);
  for (int i = 0; i < size; i++)
    if (ranks[i] == rank) return i;
  return -1;
}

/* The signatures are those of the count: they change only when the operation before has been finished. 0: the rank is
 * too fast, and will not be waited for. */
static int read_ticket(const ms_group_ticket *ticket, post_ticket *read) {
  for (int i = 0; i < READS; i++) {
    read->count = atomic_load(&ticket->count);
    for (int part = 0; part < 2; part++) read->signature[part] = atomic_load(&ticket->signature[part]);
    if (atomic_load(&ticket->count) == read->count) return 1;
  }
  return 0;
}

/* The ticket of a rank of this host in the group of one of its rings; 0: it has none that is posted here. */
static int find_ticket(const ms_world *world, int rank, const ms_recorder_ring *ring, post_ticket *found) {
  int size;
  uint32_t number = atomic_load_explicit(&ring->group, memory_order_acquire);
  const ms_group_entry *entry = ms_group_by_number(world->control, number, &size);
  if (!entry || entry->channel == MS_GROUP_CHANNEL) return 0;
  if (!ms_world_spans(world, size, ms_group_ranks(world->control, entry))) return 0;
  int place = place_of(world, entry, size, rank);
  if (place < 0 || !read_ticket(&entry->ticket[place], found)) return 0;
  found->key = entry->key;
  found->place = (uint32_t)place;
  return 1;
}

void ms_mirror_put_tickets(ms_mirror_writer *writer, const ms_world *world, int rank) {
  post_ticket ticket[MS_RECORDER_RINGS];
  const ms_recorder *recorder = ms_recorder_in(world->control, rank);
  uint32_t n = 0;
  for (int i = 0; i < MS_RECORDER_RINGS; i++) n += (uint32_t)find_ticket(world, rank, &recorder->ring[i], &ticket[n]);
  ms_mirror_put32(writer, n);
  for (uint32_t i = 0; i < n; i++) {
    ms_mirror_put64(writer, ticket[i].key);
    ms_mirror_put32(writer, ticket[i].place);
    ms_mirror_put64(writer, ticket[i].count);
    for (int part = 0; part < 2; part++) ms_mirror_put64(writer, ticket[i].signature[part]);
  }
}

static void take_ticket(const ms_world *world, int rank, const post_ticket *theirs, ms_mirror_reader *reader) {
  ms_group_entry *entry = ms_group_by_key(world->control, theirs->key);
  if (!entry) return;
  if (entry->channel == MS_GROUP_CHANNEL || theirs->place >= (uint32_t)entry->size ||
      ms_group_ranks(world->control, entry)[theirs->place] != rank) {
    reader->bad = 1;
    return;
  }
  ms_group_ticket *ticket = &entry->ticket[theirs->place];
  const uint64_t count = atomic_load(&ticket->count), finished = theirs->count - theirs->count % MS_TICKET_FINISHED;
  if (theirs->count <= count) return; /* nothing new, or from a rank that left since */
  /* As the rank itself does it: who sees an operation's signatures also sees that the one before it is finished. */
  if (finished > count) atomic_store_explicit(&ticket->count, finished, memory_order_release);
  for (int part = 0; part < 2; part++)
    atomic_store_explicit(&ticket->signature[part], theirs->signature[part], memory_order_release);
  atomic_store_explicit(&ticket->count, theirs->count, memory_order_release);
}

void ms_mirror_take_tickets(ms_mirror_reader *reader, const ms_world *world, int rank, int valid) {
  uint32_t n = ms_mirror_get32(reader);
  if (n > MS_RECORDER_RINGS) reader->bad = 1;
  for (uint32_t i = 0; i < n && !reader->bad; i++) {
    post_ticket theirs = {.key = ms_mirror_get64(reader)};
    theirs.place = ms_mirror_get32(reader);
    theirs.count = ms_mirror_get64(reader);
    for (int part = 0; part < 2; part++) theirs.signature[part] = ms_mirror_get64(reader);
    if (valid && !reader->bad) take_ticket(world, rank, &theirs, reader);
  }
}
