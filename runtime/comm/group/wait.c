/* wait.c - the wait loop. Every wait of a rank for others uses it, so deadline, abort, Ctrl-C, ranks that left and
 * deadlocks are handled in one place. */
#include "comm/group/wait.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/group/other_hosts.h"
#include "comm/group/world_state.h"

/* Longest sleep in seconds: the delay for a signal that arrives just before the thread sleeps, or in another thread. */
static const double LONGEST_SLEEP = 0.1;
/* Seconds after which a missing rank that has left is an error: gives the launcher time to say why it left. */
static const double LEFT_GRACE = 0.3;
static const double SHORTEST_STOP = 1.0;
/* Seconds that what ranks of other hosts entered may take longer than the news that one of them gave up, and a turn of
 * waiting for it: each rank has a connection of its own. */
static const double OVERTAKEN_GRACE = 0.2, OVERTAKEN_TURN = 0.01;
/* Seconds before the first check for a deadlock, and between checks. */
static const double PATIENCE = 0.5;
/* Seconds: enough for a peer that is about to arrive; after that an idle core is better. */
static const double SPIN_SECONDS = 200e-6;

/* ---- sleeping ---- */

unsigned ms_world_doorbell(const ms_world *world) {
  return world->control ? atomic_load(&world->control->rank[world->rank].doorbell) : 0;
}

/* 1 when the doorbell rang within SPIN_SECONDS. */
static int spin_until_rung(const ms_world *world, unsigned seen) {
  double limit = ms_clock() + SPIN_SECONDS;
  do {
    for (int i = 0; i < 32; i++) {
      if (ms_world_doorbell(world) != seen) return 1;
      ms_relax();
    }
  } while (ms_clock() < limit);
  return 0;
}

int ms_world_spins(const ms_world *world) { return (!world->control || world->spin) && !ms_crowded(); }

void ms_world_sleep(ms_world *world, unsigned seen, double seconds) {
  if (!world->control || seconds <= 0) return;
  if (ms_world_spins(world)) {
    if (spin_until_rung(world, seen)) return;
  } else {
    /* The missing rank may share this core: yielding is cheaper than a sleep and a wake-up. */
    sched_yield();
    if (ms_world_doorbell(world) != seen) return;
  }
  ms_control_sleep(world->control, world->rank, seen, fmin(seconds, LONGEST_SLEEP));
}

void ms_world_ring(ms_world *world, const int *ranks, int n) {
  for (int i = 0; i < n; i++)
    if (ranks[i] != world->rank) ms_control_ring(world->control, ranks[i]);
}

/* ---- what ends a wait ---- */

/* Turns are at most LONGEST_SLEEP apart. A longer gap means that this process was stopped (Ctrl-Z), as were the others,
 * so it does not count as waiting. */
static void leave_out_stops(ms_wait *wait, double now) {
  if (wait->started == 0) wait->started = now;
  else if (now - wait->turned_at > SHORTEST_STOP) wait->started += now - wait->turned_at;
  wait->turned_at = now;
}

/* The ranks of `missing` that have left the world. */
static ms_rank_set find_left(const ms_control *control, const ms_rank_set *missing) {
  ms_rank_set left = {{0}};
  MS_EACH_RANK(rank, missing)
  if (atomic_load(&control->rank[rank].state) == MS_CONTROL_LEFT) ms_rank_set_add(&left, rank);
  return left;
}

/* The ranks of `missing` that are in ms_world_recover while this rank is not: they enter nothing else before they
 * return. */
static ms_rank_set find_recovering(const ms_world *world, const ms_rank_set *missing) {
  ms_rank_set recovering = {{0}};
  MS_EACH_RANK(rank, missing)
  if (atomic_load(&world->control->rank[rank].recovery) != ms_world_epoch(world)) ms_rank_set_add(&recovering, rank);
  return recovering;
}

/* MS_EPEER when the launcher reported the end of the job: a rank that died does not come back. */
static int check_launcher(const ms_control *control) {
  const ms_control_rank *launcher = &control->launcher;
  return atomic_load(&launcher->told) == 2 ? MS_FAIL(MS_EPEER, "%s", launcher->text) : MS_OK;
}

/* MS_EPEER when one of the missing ranks gave up. */
static int check_given_up(const ms_control *control, const ms_rank_set *missing) {
  MS_EACH_RANK(peer, missing) {
    const ms_control_rank *row = &control->rank[peer];
    if (atomic_load(&row->told) == 2) return MS_FAIL(MS_EPEER, "rank %d gave up: %s", peer, row->text);
  }
  return MS_OK;
}

/* "all_gather layers.0", "barrier". */
static const char *name_of(const ms_wait_for *what, char *text, size_t bytes) {
  int labelled = what->label && *what->label;
  snprintf(text, bytes, "%s%s%s", what->kind, labelled ? " " : "", labelled ? what->label : "");
  return text;
}

/* Fails when two checks in a row find this rank in the same deadlock, long before the deadline. Ranks of other hosts
 * count with what their hosts have reported between the two. */
static int check_deadlock(ms_world *world, ms_wait *wait, const ms_wait_for *what, const ms_rank_set *missing,
                          double now) {
  char name[256], behind[MS_CONTROL_TEXT];
  uint64_t state;
  if (now < wait->started + PATIENCE || now < wait->looked_at + PATIENCE) return MS_OK;
  double looked_before = wait->looked_at;
  wait->looked_at = now;
  ms_world_look_at(world, missing);
  ms_rank_set stuck = world->diagnosis->deadlock(world->control, &state);
  uint64_t before = wait->stuck;
  wait->stuck = ms_rank_set_has(&stuck, world->rank) ? state : 0;
  if (!wait->stuck || wait->stuck != before || !ms_world_has_heard(world, &stuck, looked_before)) return MS_OK;
  world->diagnosis->behind(world->control, world->rank, &stuck, behind, sizeof behind);
  return MS_FAIL(MS_EMISMATCH, "%s: rank %d is waiting, but can never continue%s", name_of(what, name, sizeof name),
                 world->rank, behind);
}

/* Fails for ranks that left the world, or that are in ms_world_recover: they will not arrive. */
static int check_gone(ms_world *world, ms_wait *wait, const ms_wait_for *what, const ms_rank_set *missing, double now) {
  char name[256], who[512], behind[MS_CONTROL_TEXT];
  ms_rank_set left = find_left(world->control, missing), recovering = {{0}};
  if (!what->recovers) recovering = find_recovering(world, missing);
  int gone = !ms_rank_set_is_empty(&left);
  if (!gone && ms_rank_set_is_empty(&recovering)) return MS_OK;
  if (wait->left_at == 0) wait->left_at = now;
  if (now <= wait->left_at + LEFT_GRACE) return MS_OK;
  ms_rank_set_text(gone ? &left : &recovering, who, sizeof who);
  if (!gone)
    return MS_FAIL(MS_EMISMATCH, "%s: rank %d is waiting, but %s already finished without it",
                   name_of(what, name, sizeof name), world->rank, who);
  world->diagnosis->behind(world->control, world->rank, missing, behind, sizeof behind);
  return MS_FAIL(MS_EPEER, "%s: %s left while rank %d was waiting%s", name_of(what, name, sizeof name), who,
                 world->rank, behind);
}

/* Where others wait for a person, a line can run for any time; but nothing comes from a rank that a signal stopped. */
static int check_stopped(ms_world *world, ms_wait *wait, const ms_wait_for *what, const ms_rank_set *missing,
                         double now) {
  char name[256], who[512];
  ms_rank_set stopped = {{0}};
  if (!world->waits_for_person || now < fmax(wait->started, wait->states_read_at) + PATIENCE) return MS_OK;
  wait->states_read_at = now;
  MS_EACH_RANK(rank, missing)
  if (world->diagnosis->stopped(world->control, rank)) ms_rank_set_add(&stopped, rank);
  if (ms_rank_set_is_empty(&stopped)) wait->stopped_at = 0;
  else if (wait->stopped_at == 0) wait->stopped_at = now;
  if (wait->stopped_at == 0 || now < wait->stopped_at + world->timeout) return MS_OK;
  ms_rank_set_text(&stopped, who, sizeof who);
  return MS_FAIL(MS_ETIMEOUT, "%s: rank %d has waited %g s for %s, whose process is stopped by a signal",
                 name_of(what, name, sizeof name), world->rank, world->timeout, who);
}

/* " on b" when all these ranks are on one host of several; else "". */
static void write_host(const ms_world *world, const ms_rank_set *ranks, char *text, size_t bytes) {
  int node = -1, same = ms_world_nodes(world) > 1;
  MS_EACH_RANK(rank, ranks) {
    int here = ms_world_node_of(world, rank);
    same = same && (node < 0 || node == here);
    node = here;
  }
  snprintf(text, bytes, "%s%s", same ? " on " : "", same ? ms_world_node_name(world, node) : "");
}

int ms_world_watch(ms_world *world, ms_wait *wait, const ms_wait_for *what, const ms_rank_set *missing, double *rest) {
  char name[256], who[512], host[300], silent[512], behind[MS_CONTROL_TEXT];
  if (what->recovers) MS_TRY(check_launcher(world->control));
  else MS_TRY(ms_world_check(world));
  if (!what->recovers) MS_TRY(check_given_up(world->control, missing));
  double now = ms_clock();
  leave_out_stops(wait, now);
  MS_TRY(check_gone(world, wait, what, missing, now));
  if (!what->recovers) MS_TRY(check_deadlock(world, wait, what, missing, now));
  MS_TRY(check_stopped(world, wait, what, missing, now));
  *rest = world->waits_for_person ? INFINITY : wait->started + world->timeout - now;
  if (*rest > 0) return MS_OK;
  ms_rank_set_text(missing, who, sizeof who);
  write_host(world, missing, host, sizeof host);
  ms_world_poll_hosts(world, silent, sizeof silent);
  if (!what->recovers) MS_TRY(ms_world_check(world));
  world->diagnosis->behind(world->control, world->rank, missing, behind, sizeof behind);
  return MS_FAIL(MS_ETIMEOUT, "%s: rank %d has waited %g s for %s%s%s%s", name_of(what, name, sizeof name), world->rank,
                 world->timeout, who, host, silent, behind);
}

/* ---- the loop ---- */

static void record(ms_world *world, const ms_wait_for *what, const ms_rank_set *missing) {
  if (what->ring) ms_recorder_misses(world->recorder, what->ring, missing);
}

/* A rank that gave up after an operation that all have entered must not end it for the others. */
static int may_be_overtaken(const ms_world *world, ms_wait *wait, const ms_rank_set *missing) {
  const double now = ms_clock();
  if (!ms_world_gave_up_elsewhere(world, missing)) return 0;
  if (wait->ends_at == 0) wait->ends_at = now + ms_wait_scale * OVERTAKEN_GRACE;
  return now < wait->ends_at;
}

int ms_world_wait_turn(ms_world *world, ms_wait *wait, const ms_wait_for *what, unsigned seen) {
  ms_rank_set missing;
  double rest;
  MS_TRY(what->find(what->context, &missing));
  if (ms_rank_set_is_empty(&missing)) return MS_OK;
  record(world, what, &missing);
  ms_error_record before, first;
  ms_error_save(&before);
  int rc = ms_world_watch(world, wait, what, &missing, &rest);
  if (!rc) ms_world_sleep(world, seen, rest);
  /* A missing rank may have arrived and then given up for another reason: an operation that all have entered completes
   * on all of them. */
  ms_error_save(&first);
  if (rc && what->find(what->context, &missing)) {
    /* A connection that ended since has ended because of what this rank knows already. */
    if (ms_error_code() == MS_EPEER) ms_error_restore(&first);
    return ms_error_code();
  }
  if (rc && !ms_rank_set_is_empty(&missing)) {
    if (!may_be_overtaken(world, wait, &missing)) return rc;
    ms_world_sleep(world, seen, OVERTAKEN_TURN);
  }
  if (rc) ms_error_restore(&before);
  record(world, what, NULL);
  return MS_OK;
}

int ms_world_collect_cause(ms_world *world) {
  char silent[512];
  ms_error_record found;
  const int rc = ms_error_code();
  ms_error_save(&found);
  ms_world_poll_hosts(world, silent, sizeof silent);
  MS_TRY(ms_world_check(world));
  MS_TRY(ms_world_check_aborted(world));
  ms_error_restore(&found);
  return rc;
}

int ms_world_wait(ms_world *world, const ms_wait_for *what) {
  ms_wait wait = {0};
  for (;;) {
    unsigned seen = ms_world_doorbell(world);
    ms_rank_set missing;
    MS_TRY(what->find(what->context, &missing));
    if (ms_rank_set_is_empty(&missing)) return MS_OK;
    MS_TRY(ms_world_wait_turn(world, &wait, what, seen));
  }
}
