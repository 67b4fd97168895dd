/* tickets.c - counts, awaits and compares the tickets of a group. */
#include "comm/collectives/tickets.h"

#include <stdio.h>

#include "base/error.h"
#include "comm/collectives/move.h"
#include "comm/group/world_state.h"

int ms_coll_is_pairwise(int kind) { return kind == MS_COLL_SEND || kind == MS_COLL_RECV; }

static int is_apart(const ms_tickets *t, int p) { return t->apart && t->apart[p]; }

/* ---- signatures ---- */

/* What a rank entered, for its peers: kind, number of parts, the sum over the parts' ways of an all-reduce,
 * elements. */
enum { SIGN_KIND = 60, SIGN_PARTS = 52, SIGN_WAYS = 44 };
static const uint64_t SIGN_ELEMENTS = (1ull << SIGN_WAYS) - 1;

static uint64_t sign(const ms_tickets *t, const ms_coll *coll) {
  uint64_t elements = 0, ways = 0;
  for (int i = 0; i < coll->parts; i++) {
    elements += (uint64_t)coll->part[i].count;
    if (coll->kind == MS_COLL_ALL_REDUCE)
      ways += (uint64_t)ms_move_way(t->config.size, t->config.me, coll, &coll->part[i]) * (uint64_t)(i + 1);
  }
  return (uint64_t)coll->kind << SIGN_KIND | ((uint64_t)coll->parts & 0xff) << SIGN_PARTS | (ways & 0xff) << SIGN_WAYS |
         (elements & SIGN_ELEMENTS);
}

void ms_tickets_sign(ms_tickets *t) {
  ms_group_ticket *mine = &t->config.entry->ticket[t->config.me];
  /* Release: a rank that sees one of these also sees that the operation before it is finished. */
  atomic_store_explicit(&mine->signature[1], t->coll->part_of, memory_order_release);
  atomic_store_explicit(&mine->signature[0], sign(t, t->coll), memory_order_release);
}

/* "all_gather layers.3 (phase first of step 5) of 4 parts, 12 elements": the flight recorder knows the part that the
 * signature does not contain. */
static void describe_entered(const ms_tickets *t, int p, uint64_t signature, char *text, size_t bytes) {
  char named[192];
  const ms_world *world = t->config.world;
  uint32_t number = ms_group_number(world->control, t->config.entry);
  world->diagnosis->entered(world->control, t->config.rank[p], number, t->base / MS_TICKET_FINISHED + 1, named,
                            sizeof named);
  const char *kind = ms_coll_kind_name((int)(signature >> SIGN_KIND) % MS_COLL_KINDS);
  snprintf(text, bytes, "%s of %d parts, %lld elements", *named ? named : kind, (int)(signature >> SIGN_PARTS & 0xff),
           (long long)(signature & SIGN_ELEMENTS));
}

const char ms_tickets_part_of_another[] =
    "; they run other plans, phases or steps: all ranks need inputs of the same names, types and shapes, and the same "
    "steps, and a recipe cannot go on after an error that not all ranks had";

static const char *what_differs(uint64_t mine, uint64_t theirs) {
  if (mine == theirs) return ms_tickets_part_of_another;
  return (mine ^ theirs) >> SIGN_WAYS & 0xff ? "; only one of them is in place" : "";
}

static int report_mismatch(const ms_tickets *t, int p, uint64_t mine, uint64_t theirs) {
  char ours[256], peers[256], noted[MS_CONTROL_TEXT];
  const ms_world *world = t->config.world;
  world->diagnosis->noted(world->control, noted, sizeof noted);
  describe_entered(t, t->config.me, mine, ours, sizeof ours);
  describe_entered(t, p, theirs, peers, sizeof peers);
  return MS_FAIL(MS_EMISMATCH, "%s%sranks disagree: rank %d entered %s, but rank %d entered %s%s", noted,
                 *noted ? "; now " : "", t->config.rank[t->config.me], ours, t->config.rank[p], peers,
                 what_differs(mine, theirs));
}

/* The signature of a peer that has finished can already belong to its next operation. Comparing it is then unnecessary:
 * the peer has compared itself with this rank, whose signature is unchanged. */
int ms_tickets_compare(const ms_tickets *t) {
  const ms_group_ticket *ticket = t->config.entry->ticket;
  uint64_t mine = atomic_load_explicit(&ticket[t->config.me].signature[0], memory_order_relaxed);
  for (int p = 0; p < t->config.size; p++) {
    if (is_apart(t, p) || (t->coll->kind == MS_COLL_BROADCAST && p != t->coll->root)) continue;
    uint64_t theirs = atomic_load_explicit(&ticket[p].signature[0], memory_order_acquire);
    uint64_t part_of = atomic_load_explicit(&ticket[p].signature[1], memory_order_acquire);
    int finished = atomic_load_explicit(&ticket[p].count, memory_order_acquire) >= t->base + MS_TICKET_FINISHED;
    if ((theirs != mine || part_of != t->coll->part_of) && !finished) return report_mismatch(t, p, mine, theirs);
  }
  return MS_OK;
}

/* ---- counting ---- */

_Atomic uint32_t *ms_tickets_sent(const ms_tickets *t, int from, int to) {
  return ms_group_sent(ms_world_control(t->config.world), t->config.entry, from, to);
}

_Atomic uint32_t *ms_tickets_received(const ms_tickets *t, int by, int from) {
  return ms_group_received(ms_world_control(t->config.world), t->config.entry, by, from);
}

uint64_t ms_tickets_next(const ms_tickets *t, const ms_coll *coll) {
  const ms_group_entry *entry = t->config.entry;
  int me = t->config.me;
  if (coll->kind == MS_COLL_SEND) return atomic_load(ms_tickets_sent(t, me, coll->root)) + 1ull;
  if (coll->kind == MS_COLL_RECV) return atomic_load(ms_tickets_received(t, me, coll->root)) + 1ull;
  return atomic_load_explicit(&entry->ticket[me].count, memory_order_relaxed) / MS_TICKET_FINISHED + 1;
}

void ms_tickets_begin(ms_tickets *t, const ms_coll *coll) {
  t->coll = coll;
  t->base = atomic_load_explicit(&t->config.entry->ticket[t->config.me].count, memory_order_relaxed);
}

void ms_tickets_publish(ms_tickets *t, enum ms_ticket_step step) {
  const ms_channel_config *c = &t->config;
  atomic_store_explicit(&c->entry->ticket[c->me].count, t->base + (uint64_t)step, memory_order_release);
  ms_world_ring(c->world, c->rank, c->size);
}

void ms_tickets_publish_pair(ms_tickets *t, _Atomic uint32_t *count) {
  atomic_fetch_add_explicit(count, 1, memory_order_release);
  ms_world_ring(t->config.world, &t->config.rank[t->coll->root], 1);
}

/* ---- waiting ---- */

void ms_tickets_await(ms_tickets *t, enum ms_ticket_step phase) {
  t->phase = phase;
  t->arrived = 0;
  ms_recorder_target(t->config.ring, ms_coll_is_pairwise(t->coll->kind) ? 0 : t->base + (uint64_t)phase);
}

/* Whether group rank p has reached the step of the current wait. */
static int has_come(const ms_tickets *t, int p) {
  const ms_coll *coll = t->coll;
  const ms_group_entry *entry = t->config.entry;
  int me = t->config.me;
  if (p == me || is_apart(t, p)) return 1;
  if (ms_coll_is_pairwise(coll->kind)) {
    if (p != coll->root) return 1;
    if (coll->kind == MS_COLL_SEND)
      return atomic_load_explicit(ms_tickets_received(t, p, me), memory_order_acquire) ==
             atomic_load_explicit(ms_tickets_sent(t, me, p), memory_order_relaxed);
    return atomic_load_explicit(ms_tickets_sent(t, p, me), memory_order_acquire) !=
           atomic_load_explicit(ms_tickets_received(t, me, p), memory_order_relaxed);
  }
  if (coll->kind == MS_COLL_BROADCAST && coll->root != me && p != coll->root && t->phase == MS_TICKET_ENTERED) return 1;
  return atomic_load_explicit(&entry->ticket[p].count, memory_order_acquire) >= t->base + (uint64_t)t->phase;
}

int ms_tickets_all_have_come(ms_tickets *t) {
  while (t->arrived < t->config.size && has_come(t, t->arrived)) t->arrived++;
  return t->arrived == t->config.size;
}

ms_rank_set ms_tickets_missing(const ms_tickets *t) {
  ms_rank_set missing = {{0}};
  for (int p = t->arrived; p < t->config.size; p++)
    if (!has_come(t, p)) ms_rank_set_add(&missing, t->config.rank[p]);
  return missing;
}

ms_rank_set ms_tickets_unfinished(const ms_tickets *t) {
  ms_rank_set unfinished = {{0}};
  for (int p = 0; p < t->config.size; p++)
    if (p != t->config.me && atomic_load(&t->config.entry->ticket[p].count) < t->base + MS_TICKET_FINISHED)
      ms_rank_set_add(&unfinished, t->config.rank[p]);
  return unfinished;
}
