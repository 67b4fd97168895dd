/* hosts_missing.c - which ranks an operation between hosts waits for, as waits, reports and the search for deadlocks
 * see them.
 *
 * On one host every rank's ticket shows whether it has entered. Here a rank knows that of its own host, and what its
 * partners have entered by their first messages. Whether the other ranks have entered is known only from the reports
 * that a rank asks for when it has waited for a while (ms_mirror.look): until then it waits for a partner, which may
 * wait for them.
 */
#include "base/clock.h"
#include "comm/collectives/hosts/hosts.h"
#include "comm/group/world_state.h"

/* Seconds without a piece after which the partners count as missing. */
static const double PATIENCE = 0.5;

static int has_entered(const ms_hosts_lane *lane, int p) {
  return atomic_load_explicit(&lane->tickets.config.entry->ticket[p].count, memory_order_acquire) >=
         lane->tickets.base + MS_TICKET_ENTERED;
}

/* 1: since this rank entered, p's host has reported that p had not. A report is older than what comes from the rank
 * itself: if it left, gave up or recovers, its ticket says nothing any more, and its partner names it. */
static int is_reported_absent(const ms_hosts_lane *lane, int p) {
  const ms_control_rank *row = &ms_world_control(lane->world)->rank[lane->rank[p]];
  if (!lane->apart[p] || 1e-9 * (double)atomic_load(&row->seen) <= lane->entered_at) return 0;
  if (atomic_load(&row->state) != MS_CONTROL_JOINED || atomic_load(&row->told)) return 0;
  return atomic_load(&row->recovery) == lane->epoch && !has_entered(lane, p);
}

/* Ranks of other hosts that have not entered, as far as is known. */
static void add_absent(const ms_hosts_lane *lane, int moves, ms_rank_set *missing) {
  for (int i = 0; i < lane->partners; i++)
    if (!lane->partner[i].agreed) ms_rank_set_add(missing, lane->partner[i].rank);
  for (int p = 0; p < lane->shape.size && !moves; p++)
    if (is_reported_absent(lane, p)) ms_rank_set_add(missing, lane->rank[p]);
}

/* All have entered, but pieces of theirs have not come. */
static void add_stalled(const ms_hosts_lane *lane, ms_rank_set *missing) {
  for (int i = 0; i < lane->partners; i++)
    if (!ms_hosts_is_over_with(&lane->partner[i])) ms_rank_set_add(missing, lane->partner[i].rank);
}

/* The ticket count by which the missing ranks are missing; 0: they have entered, so tickets do not show it. */
static uint64_t target_of(const ms_hosts_lane *lane, const ms_rank_set *missing) {
  for (int p = 0; p < lane->shape.size; p++)
    if (ms_rank_set_has(missing, lane->rank[p]) && has_entered(lane, p)) return 0;
  return lane->tickets.base + MS_TICKET_ENTERED;
}

/* The rank that a send or recv waits for; tickets do not show it. */
static ms_rank_set missing_of_pair(const ms_hosts_lane *lane) {
  ms_rank_set missing = {{0}};
  if (!lane->peer.agreed || ms_clock() > lane->moved_at + PATIENCE) ms_rank_set_add(&missing, lane->peer.rank);
  ms_recorder_target(lane->tickets.config.ring, 0);
  return missing;
}

ms_rank_set ms_hosts_missing(const ms_hosts_lane *lane) {
  ms_rank_set missing = {{0}};
  if (ms_coll_is_pairwise(lane->coll->kind)) return missing_of_pair(lane);
  /* Ranks that have entered can finish and then give up for another reason while their bytes are still on the way here:
   * they are missing only if nothing moves, or nothing can. */
  const int stalls = lane->stage == MS_HOSTS_WIRE && (lane->failed_at > 0 || ms_clock() > lane->moved_at + PATIENCE);
  if (ms_hosts_is_within(lane->stage)) missing = ms_tickets_missing(&lane->tickets);
  if (lane->stage == MS_HOSTS_ENTER || lane->stage == MS_HOSTS_WIRE)
    add_absent(lane, lane->stage == MS_HOSTS_WIRE && !stalls, &missing);
  if (stalls && ms_rank_set_is_empty(&missing)) add_stalled(lane, &missing);
  ms_recorder_target(lane->tickets.config.ring, target_of(lane, &missing));
  return missing;
}
