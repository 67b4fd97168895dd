/* world.c - what ranks do together once they have joined: waiting, barrier, all-gather of bytes.
**
** A world of one that no launcher made has no control segment: its collectives are copies. Every wait goes through
** ms_world_turn, so deadline, abort and Ctrl-C are handled in one place.
*/
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/crowd.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/interrupt.h"
#include "comm/collectives/comm.h"
#include "comm/diagnose/report.h"
#include "comm/group/world_state.h"

/* A signal that comes just before the kernel puts the thread to sleep, or that another thread took, is seen after
** this. */
static const double LONGEST_SLEEP = 0.1;
/* A rank that is waited for and has left is an error after this: until then, the launcher may tell why it left. */
static const double LEFT_GRACE = 0.3;
static const double SHORTEST_STOP = 1.0;
/* How long ranks may seem to wait for each other before they are looked at, and then looked at again. */
static const double PATIENCE = 0.5;
/* Long enough for a peer that is about to arrive; then the core is better left idle. */
static const double SPIN_SECONDS = 200e-6;

/* ---- what the program tells ---- */

void ms_world_progress(ms_world *world, int64_t step, double tokens_per_s) {
  MS_HANDLE_OR(, world, WORLD);
  atomic_store(&world->recorder->done, step);
  atomic_store(&world->recorder->speed, tokens_per_s > 0 && tokens_per_s < 1e15 ? (uint64_t)(1e3 * tokens_per_s) : 0);
}

void ms_world_doing(ms_world *world, const char *what) {
  MS_HANDLE_OR(, world, WORLD);
  atomic_store(&world->recorder->doing, (uint32_t)ms_recorder_number(world->recorder, what));
}

/* ---- waiting ---- */

/* While interrupts are held, a rank that gave up is no reason to stop unless it is waited for: it may have done its
** part of what all must do or none, and have left that behind. Ranks that died are one. */
static int check_what_must_be_done(const ms_world *world) {
  const ms_control_rank *launcher = &world->control->rank[MS_CONTROL_LAUNCHER];
  return atomic_load(&launcher->told) == 2 ? MS_FAIL(MS_EPEER, "%s", launcher->text) : MS_OK;
}

int ms_world_check(const ms_world *world) {
  if (ms_interrupted()) return MS_FAIL(MS_EINTERRUPT, "interrupted");
  int row, blame;
  const char *why = world->control ? ms_control_aborted(world->control, &row, &blame) : NULL;
  if (!why) return MS_OK;
  if (ms_interrupts_deferred()) return check_what_must_be_done(world);
  if (row == MS_CONTROL_LAUNCHER) return MS_FAIL(MS_EPEER, "%s", why);
  return MS_FAIL(MS_EPEER, "rank %d gave up: %s", ms_world_rank_of_row(world, blame), why);
}

unsigned ms_world_doorbell(const ms_world *world) {
  return world->control ? atomic_load(&world->control->rank[world->row].doorbell) : 0;
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

void ms_world_sleep(ms_world *world, unsigned seen, double seconds) {
  if (!world->control || seconds <= 0) return;
  if (world->spin && !ms_crowded()) {
    if (spin_until_rung(world, seen)) return;
  } else {
    /* The rank that shares this core may be the one waited for; giving it the core is cheaper than a sleep and a wake-up. */
    sched_yield();
    if (ms_world_doorbell(world) != seen) return;
  }
  ms_control_sleep(world->control, world->row, seen, fmin(seconds, LONGEST_SLEEP));
}

void ms_world_ring(ms_world *world, const int *ranks, int n) {
  for (int i = 0; i < n; i++)
    if (ranks[i] != world->rank) ms_control_ring(world->control, ranks[i]);
}

/* Those of `ranks` that have left the world. */
static uint64_t find_left(const ms_control *control, uint64_t ranks) {
  uint64_t left = 0;
  for (uint64_t rest = ranks; rest; rest &= rest - 1) {
    int rank = __builtin_ctzll(rest);
    if (atomic_load(&control->rank[rank].state) == MS_CONTROL_LEFT) left |= 1ull << rank;
  }
  return left;
}

/* Turns follow each other within LONGEST_SLEEP. A longer pause is time in which this process was stopped (Ctrl-Z), as
** the others were: nobody was late then. */
static void leave_out_stops(ms_wait *wait, double now) {
  if (wait->started == 0) wait->started = now;
  else if (now - wait->turned_at > SHORTEST_STOP) wait->started += now - wait->turned_at;
  wait->turned_at = now;
}

/* Ranks that wait for each other are told when they are seen to do so twice, long before the deadline. */
static int check_deadlock(ms_world *world, ms_wait *wait, double now, const char *kind, const char *label) {
  char behind[MS_CONTROL_TEXT];
  uint64_t state;
  if (now < wait->started + PATIENCE || now < wait->looked_at + PATIENCE) return MS_OK;
  wait->looked_at = now;
  uint64_t stuck = ms_report_deadlock(world->control, &state), before = wait->stuck;
  wait->stuck = stuck >> world->rank & 1 ? state : 0;
  if (!wait->stuck || wait->stuck != before) return MS_OK;
  ms_report_behind(world->control, world->rank, stuck, behind, sizeof behind);
  return MS_FAIL(MS_EMISMATCH, "%s%s%s: rank %d waits in vain%s", kind, label && *label ? " " : "", label ? label : "",
                 world->rank, behind);
}

/* Bits of the ranks in `mask` that are in ms_world_recover, where this rank is not: they come to nothing else first. */
static uint64_t find_recovering(const ms_world *world, uint64_t mask) {
  uint64_t recovering = 0;
  for (uint64_t rest = mask; rest; rest &= rest - 1)
    if (atomic_load(&world->control->rank[__builtin_ctzll(rest)].recovery) != ms_world_epoch(world))
      recovering |= rest & -rest;
  return recovering;
}

/* MS_EPEER when one of the ranks in `mask` gave up. */
static int check_given_up(const ms_world *world, uint64_t mask) {
  for (uint64_t rest = mask; rest; rest &= rest - 1) {
    int peer = __builtin_ctzll(rest);
    const ms_control_rank *row = &world->control->rank[peer];
    if (atomic_load(&row->told) == 2) return MS_FAIL(MS_EPEER, "rank %d gave up: %s", peer, row->text);
  }
  return MS_OK;
}

int ms_world_watch(ms_world *world, ms_wait *wait, const char *kind, const char *label, uint64_t missing,
                   double *rest) {
  char who[512], behind[MS_CONTROL_TEXT];
  const char *space = label && *label ? " " : "";
  MS_TRY(ms_world_check(world));
  MS_TRY(check_given_up(world, missing));
  double now = ms_clock();
  leave_out_stops(wait, now);
  uint64_t left = find_left(world->control, missing), recovering = find_recovering(world, missing);
  if ((left || recovering) && wait->left_at == 0) wait->left_at = now;
  if (left && now > wait->left_at + LEFT_GRACE) {
    ms_report_ranks(who, sizeof who, left);
    ms_report_behind(world->control, world->rank, missing, behind, sizeof behind);
    return MS_FAIL(MS_EPEER, "%s%s%s: %s left while rank %d waits%s", kind, space, label ? label : "", who, world->rank,
                   behind);
  }
  if (recovering && now > wait->left_at + LEFT_GRACE) {
    ms_report_ranks(who, sizeof who, recovering);
    return MS_FAIL(MS_EMISMATCH, "%s%s%s: rank %d waits in vain: %s ended without it", kind, space, label ? label : "",
                   world->rank, who);
  }
  MS_TRY(check_deadlock(world, wait, now, kind, label));
  *rest = wait->started + world->timeout - now;
  if (*rest > 0) return MS_OK;
  ms_report_ranks(who, sizeof who, missing);
  ms_report_behind(world->control, world->rank, missing, behind, sizeof behind);
  return MS_FAIL(MS_ETIMEOUT, "%s%s%s: rank %d has waited %g s for %s%s", kind, space, label ? label : "", world->rank,
                 world->timeout, who, behind);
}

int ms_world_turn(ms_world *world, ms_wait *wait, unsigned seen, const char *kind, const char *label,
                  uint64_t missing) {
  double rest;
  MS_TRY(ms_world_watch(world, wait, kind, label, missing, &rest));
  ms_world_sleep(world, seen, rest);
  return MS_OK;
}

/* ---- barrier and all-gather of bytes ---- */

/* Bits of the ranks whose ticket is below target. */
static uint64_t find_missing(const ms_world *world, uint64_t target) {
  uint64_t missing = 0;
  for (int rank = 0; rank < world->size; rank++)
    if (atomic_load_explicit(&world->control->ticket[rank].count, memory_order_acquire) < target)
      missing |= 1ull << rank;
  return missing;
}

static const char *const meeting_names[] = {"barrier", "all_gather_bytes", "barrier"};
enum meeting { BARRIER = 0, EXCHANGE = 1, END = 2 };

/* What a rank came to: its kind and size, and what it is part of, inside of the engine or outside. */
static uint64_t sign(const ms_world *world, enum meeting kind, int bytes) {
  const ms_recorder *recorder = world->recorder;
  int within = recorder->depth > 1;
  const char *part_of = ms_recorder_text(recorder, atomic_load(within ? &recorder->activity : &recorder->doing));
  return ms_hash_int(ms_hash_string(MS_HASH_INIT, part_of), (int64_t)kind << 33 | (int64_t)within << 32 | bytes);
}

static const char END_OF_RUN[] = "at the end of the run";

/* Of a meeting that some ranks take for the end of the run: who left its loop before the others, "" when that is not
** it. */
static void describe_early_end(const ms_world *world, uint64_t target, char *text, size_t bytes) {
  char entered[160], who[512];
  uint64_t ended = 0;
  int count = 0;
  for (int rank = 0; rank < world->size; rank++) {
    ms_report_entered(world->control, rank, MS_RECORDER_WORLD, target, entered, sizeof entered);
    if (strstr(entered, END_OF_RUN)) ended |= 1ull << rank, count++;
  }
  snprintf(text, bytes, "%s", "");
  if (!count || count == world->size) return;
  int many = 2 * count > world->size;
  ms_report_ranks(who, sizeof who, many ? ~ended & (~0ull >> (64 - world->size)) : ended);
  snprintf(text, bytes, "; %s %s", who, many ? "went on where the others had left the loop" : "left the loop early");
}

/* All have come (or left, at the end): did they come to the same? The flight recorder tells what it was. */
static int compare_meetings(const ms_world *world, uint64_t target, uint64_t mine) {
  char ours[160], theirs[160], early[640], caught[MS_CONTROL_TEXT];
  for (int rank = 0; rank < world->size; rank++) {
    if (atomic_load_explicit(&world->control->ticket[rank].count, memory_order_acquire) < target) continue;
    if (atomic_load_explicit(&world->control->meeting[target & 1][rank], memory_order_relaxed) == mine) continue;
    ms_report_entered(world->control, world->rank, MS_RECORDER_WORLD, target, ours, sizeof ours);
    ms_report_entered(world->control, rank, MS_RECORDER_WORLD, target, theirs, sizeof theirs);
    describe_early_end(world, target, early, sizeof early);
    ms_report_noted(world->control, caught, sizeof caught);
    return MS_FAIL(MS_EMISMATCH, "%s%sranks disagree: rank %d entered %s, rank %d entered %s%s", caught,
                   *caught ? "; now " : "", world->rank, ours, rank, theirs, early);
  }
  return MS_OK;
}

static int wait_for_all(ms_world *world, enum meeting kind, uint64_t target) {
  ms_wait wait = {0};
  for (;;) {
    unsigned seen = ms_world_doorbell(world);
    uint64_t missing = find_missing(world, target);
    if (kind == END) missing &= ~find_left(world->control, missing);
    if (!missing) return MS_OK;
    ms_recorder_misses(world->recorder, world->ring, missing);
    ms_error_record before;
    ms_error_save(&before);
    int rc = ms_world_turn(world, &wait, seen, meeting_names[kind], NULL, missing);
    /* A rank may have come, and have given up for another reason since: what all have come to is done on all of them. */
    if (rc && find_missing(world, target)) return rc;
    if (rc) ms_error_restore(&before);
    ms_recorder_misses(world->recorder, world->ring, 0);
  }
}

/* Publishes that this rank has come to its next barrier or all-gather of bytes, and waits until all have. */
static int meet(ms_world *world, enum meeting kind, uint64_t target, int bytes) {
  ms_control *control = world->control;
  int exchanges = kind == EXCHANGE;
  int label = kind == END ? ms_recorder_number(world->recorder, END_OF_RUN) : (int)world->recorder->doing;
  ms_recorder_enter(world->recorder, exchanges ? world->all_gather_text : world->barrier_text);
  ms_recorder_entered(world->recorder, world->ring, target, exchanges ? MS_RECORDER_ALL_GATHER_BYTES : MS_COLL_BARRIER,
                      label, bytes);
  ms_recorder_target(world->ring, target);
  uint64_t mine = sign(world, kind, bytes);
  atomic_store_explicit(&control->meeting[target & 1][world->rank], mine, memory_order_relaxed);
  atomic_store_explicit(&control->ticket[world->rank].count, target, memory_order_release);
  for (int rank = 0; rank < world->size; rank++)
    if (rank != world->rank) ms_control_ring(control, rank);
  int rc = wait_for_all(world, kind, target);
  if (!rc) rc = compare_meetings(world, target, mine);
  if (!rc) {
    ms_recorder_met(world->ring);
    ms_recorder_left(world->ring);
  }
  ms_recorder_leave(world->recorder, rc);
  return rc;
}

static uint64_t next_ticket(const ms_world *world) {
  return atomic_load_explicit(&world->control->ticket[world->rank].count, memory_order_relaxed) + 1;
}

int ms_world_barrier(ms_world *world) {
  MS_HANDLE(world, WORLD);
  MS_TRY(ms_world_check_one_node(world));
  if (world->size == 1) return ms_world_check(world);
  return meet(world, BARRIER, next_ticket(world), 0);
}

int ms_world_finish(ms_world *world) {
  MS_HANDLE(world, WORLD);
  if (world->size == 1 || ms_world_nodes(world) > 1) return ms_world_check(world);
  return meet(world, END, next_ticket(world), 0);
}

int ms_world_all_gather_bytes(ms_world *world, const void *mine, int bytes, void *all) {
  MS_HANDLE(world, WORLD);
  MS_TRY(ms_world_check_one_node(world));
  if (bytes < 0 || bytes > MS_CONTROL_SLOT)
    return MS_FAIL(MS_EINVAL, "all_gather_bytes: %d bytes a rank; at most %d fit", bytes, MS_CONTROL_SLOT);
  if (world->size == 1) {
    memcpy(all, mine, (size_t)bytes);
    return ms_world_check(world);
  }
  /* Two sets of slots in turn: nobody comes to all-gather k + 2 before all have read all-gather k. */
  uint64_t ticket = next_ticket(world);
  char(*slot)[MS_CONTROL_SLOT] = world->control->slot[ticket & 1];
  memcpy(slot[world->rank], mine, (size_t)bytes);
  MS_TRY(meet(world, EXCHANGE, ticket, bytes));
  for (int rank = 0; rank < world->size; rank++) memcpy((char *)all + (size_t)rank * bytes, slot[rank], (size_t)bytes);
  return MS_OK;
}
