/* in_flight.c - the gathers that UPDATE leaves in flight (plan/lower/gradients/lower_replica_slices.c), until FIRST of
 * the next step has joined them, or what needs them earlier has waited.
 *
 * They read this rank's slices of masters, and write the other slices of the chunks, which only the gathers
 * over the shards in FIRST and EVALUATE read. So what reads this rank's slices need not wait; what writes parameters,
 * all phases but FIRST, and phases of other states, whose collectives use the same channels, settle first: they wait
 * for the gathers, which all ranks have started.
 *
 * Ranks that recover drop what is in flight, and none of them knows which others had completed it. The first phase
 * after a recovery therefore spreads the slices again.
 */
#include "base/error.h"
#include "comm/group/wait.h"
#include "exec/state/state.h"

static unsigned epoch_of(const ms_state *state) { return 1 + ms_world_epoch(state->world); }

static int is_in_flight(const ms_state *state) {
  return state->in_flight.ended < state->in_flight.begun && state->in_flight.epoch == epoch_of(state);
}

/* Tests the oldest gather in flight; *ended: it is done. */
static int test_oldest(ms_state *state, int *ended) {
  *ended = 0;
  if (!is_in_flight(state)) return MS_OK;
  MS_TRY(ms_comm_test(state->in_flight.comm, ended));
  state->in_flight.ended += *ended;
  return MS_OK;
}

int ms_state_begin_in_flight(ms_state *state, ms_comm *comm, const ms_coll *coll, int *begun) {
  int ended;
  *begun = 0;
  state->in_flight.comm = comm;
  state->in_flight.epoch = epoch_of(state);
  *ms_world_left_in_flight(state->world) = state;
  if (!ms_comm_free(comm)) MS_TRY(test_oldest(state, &ended));
  if (!ms_comm_free(comm)) return MS_OK;
  MS_TRY(ms_comm_start(comm, coll));
  state->in_flight.begun++;
  *begun = 1;
  return MS_OK;
}

int ms_state_join(ms_state *state, int *joined) {
  ms_in_flight *gathers = &state->in_flight;
  const int before = gathers->ended;
  if (is_in_flight(state) && gathers->ended == gathers->joined) MS_TRY(test_oldest(state, joined));
  gathers->ended_here = gathers->ended > before;
  *joined = !is_in_flight(state) || gathers->ended > gathers->joined;
  gathers->joined += *joined;
  return MS_OK;
}

int ms_state_settle(ms_state *state) {
  ms_state **left = ms_world_left_in_flight(state->world);
  if (ms_progress_is_interrupted(state)) return MS_OK; /* nothing more arrives; the next phase asks for a recovery */
  while (is_in_flight(state)) {
    MS_TRY(ms_comm_wait(state->in_flight.comm));
    state->in_flight.ended++;
  }
  state->in_flight = (ms_in_flight){.whole = state->in_flight.whole};
  if (*left == state) *left = NULL;
  return MS_OK;
}

int ms_state_settle_others(ms_state *state) {
  ms_state *other = *ms_world_left_in_flight(state->world);
  return other && other != state ? ms_state_settle(other) : MS_OK;
}

void ms_state_end_in_flight(ms_state *state) {
  ms_state **left = ms_world_left_in_flight(state->world);
  if (ms_state_settle(state)) ms_error_clear();
  if (state->in_flight.ended < state->in_flight.begun) ms_comm_give_up(state->in_flight.comm);
  state->in_flight = (ms_in_flight){.whole = state->in_flight.whole};
  if (*left == state) *left = NULL;
}

void ms_state_gathers_in_flight(ms_state *state) {
  if (!state->in_flight.whole) state->in_flight.whole = epoch_of(state);
}
