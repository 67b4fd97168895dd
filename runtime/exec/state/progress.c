/* progress.c - the table of what may follow what in a step, and what a phase leaves. */
#include "exec/state/progress.h"

#include <stdio.h>

#include "base/error.h"
#include "exec/state/state.h"

enum { ANY = MS_STEP_IDLE | MS_STEP_GRADIENTS | MS_STEP_NORMED | MS_STEP_UPDATED, SAME = 0 };

/* What a phase needs and leaves. */
typedef struct phase_row {
  int after;      /* the places from which it may start */
  int begins, ok; /* where the state is while it runs, and after it; SAME: where it was, after an interlude */
  int refused_by; /* conditions that must not hold */
  int damage;     /* conditions that hold after it failed part-way */
  const char *needs;
} phase_row;

enum { NO_TRAINING = MS_AVERAGES_SWAPPED | MS_SYNC_FAILED };
static const char no_gradients[] = "has no gradients to work on: run first before it, in every step";

static const phase_row rows[MS_PHASES] = {
    [MS_PHASE_FIRST] = {ANY, MS_STEP_IDLE, MS_STEP_GRADIENTS, NO_TRAINING, 0, ""},
    [MS_PHASE_NEXT] = {MS_STEP_GRADIENTS | MS_STEP_NORMED, MS_STEP_GRADIENTS, MS_STEP_GRADIENTS, NO_TRAINING, 0,
                       no_gradients},
    [MS_PHASE_LAST] = {MS_STEP_GRADIENTS | MS_STEP_NORMED, MS_STEP_GRADIENTS, MS_STEP_GRADIENTS, NO_TRAINING, 0,
                       no_gradients},
    [MS_PHASE_NORM] = {MS_STEP_GRADIENTS | MS_STEP_NORMED, MS_STEP_GRADIENTS, MS_STEP_NORMED, NO_TRAINING, 0,
                       no_gradients},
    [MS_PHASE_UPDATE] = {MS_STEP_NORMED, MS_STEP_GRADIENTS, MS_STEP_UPDATED, NO_TRAINING, MS_COPIES_BEHIND,
                         "must run right after norm: it needs the norm, and peers that no longer read weights"},
    [MS_PHASE_EVALUATE] = {ANY, SAME, SAME, 0, 0, ""},
    [MS_PHASE_GATHER] = {ANY, SAME, SAME, 0, 0, ""},
    [MS_PHASE_OUTER] = {MS_STEP_UPDATED, MS_STEP_IDLE, MS_STEP_IDLE, NO_TRAINING, MS_SYNC_FAILED | MS_COPIES_BEHIND,
                        "must run right after update, while no peer reads weights"},
};

static unsigned epoch_of(const ms_state *state) { return 1 + ms_world_epoch(state->world); }

static int place_of(const ms_state *state) {
  return state->progress.since == epoch_of(state) ? state->progress.place : MS_STEP_IDLE;
}

static void move_to(ms_state *state, int place) {
  state->progress.place = place;
  state->progress.since = epoch_of(state);
}

int ms_progress_has(const ms_state *state, int condition) { return (state->progress.conditions & condition) != 0; }

void ms_progress_set(ms_state *state, int condition, int on) {
  if (on) state->progress.conditions |= condition;
  else state->progress.conditions &= ~condition;
}

int ms_progress_is_interrupted(const ms_state *state) { return state->progress.interrupted == epoch_of(state); }

void ms_progress_interrupt(ms_state *state) {
  if (state->process_group.size < 2) return;
  state->progress.interrupted = epoch_of(state);
  snprintf(state->progress.interrupted_by, sizeof state->progress.interrupted_by, "%s", ms_error_message());
}

int ms_progress_check_masters(const ms_state *state, const char *what) {
  if (!ms_progress_has(state, MS_AVERAGES_SWAPPED)) return MS_OK;
  return MS_FAIL(MS_EINVAL,
                 "the weights are swapped with their averages, so the state cannot %s: put the weights back first "
                 "(in Lua, let train:with_ema return; in C, ms_state_swap_ema)",
                 what);
}

int ms_progress_check(const ms_state *state, int phase) {
  const phase_row *row = &rows[phase];
  const int refused_by = state->progress.conditions & row->refused_by;
  if (ms_progress_is_interrupted(state))
    return MS_FAIL(MS_EINVAL,
                   "an earlier phase failed part-way (%s), and other ranks can still be inside it: a recipe cannot go "
                   "on after that, even if it caught the error: let it end the run, and resume from a checkpoint; a C "
                   "program calls ms_world_recover on all ranks, as the prompt does after every line",
                   state->progress.interrupted_by);
  if (refused_by & MS_AVERAGES_SWAPPED) return ms_progress_check_masters(state, "train");
  if (!(place_of(state) & row->after)) return MS_FAIL(MS_EINVAL, "%s %s", ms_phase_name(phase), row->needs);
  if (refused_by & MS_SYNC_FAILED)
    return MS_FAIL(MS_EINVAL, "a sync of the replicas failed part-way, so their synced weights may differ: load a "
                              "checkpoint, or give all replicas the same parameters and call ms_state_restart");
  return MS_OK;
}

void ms_progress_interlude(ms_state *state) {
  const int place = place_of(state);
  move_to(state, place == MS_STEP_NORMED ? MS_STEP_GRADIENTS : place == MS_STEP_UPDATED ? MS_STEP_IDLE : place);
}

void ms_progress_begin(ms_state *state, int phase) {
  if (rows[phase].begins == SAME) ms_progress_interlude(state);
  else move_to(state, rows[phase].begins);
}

void ms_progress_end(ms_state *state, int phase, int rc) {
  const phase_row *row = &rows[phase];
  if (!rc) {
    if (row->ok != SAME) move_to(state, row->ok);
    return;
  }
  ms_progress_interrupt(state);
  ms_progress_set(state, row->damage, 1);
  if (row->ok != SAME) move_to(state, MS_STEP_IDLE);
}
