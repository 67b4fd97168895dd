/* other_hosts.c - asks other hosts for the state of their ranks, and names those that do not answer. */
#include "comm/group/other_hosts.h"

#include <stdio.h>
#include <time.h>

#include "comm/group/world_state.h"

/* Seconds to wait for answers, and between two requests: the store drops those that come too often. */
static const double ANSWER_SECONDS = 1.0, ASK_AGAIN = 0.35;
static const long TURN_NS = 5000000;

static int is_remote(const ms_world *world, int rank) {
  return world->topology.node_of[rank] != world->topology.node_of[world->rank];
}

void ms_world_look_at(ms_world *world, const ms_rank_set *ranks) {
  int remote = 0;
  if (!world->mirror) return;
  MS_EACH_RANK(rank, ranks) remote |= is_remote(world, rank);
  if (remote) world->mirror->look(world);
}

int ms_world_gave_up_elsewhere(const ms_world *world, const ms_rank_set *missing) {
  int row, blame, remote = 0;
  if (!world->mirror || !ms_control_aborted(world->control, &row, &blame)) return 0;
  if (row == MS_CONTROL_LAUNCHER || !is_remote(world, row)) return 0;
  MS_EACH_RANK(rank, missing) remote |= is_remote(world, rank);
  return remote;
}

static int was_seen(const ms_world *world, int rank, double since) {
  return 1e-9 * (double)atomic_load(&world->control->rank[rank].seen) > since;
}

int ms_world_has_heard(const ms_world *world, const ms_rank_set *ranks, double since) {
  MS_EACH_RANK(rank, ranks) {
    const int ahead = (int)atomic_load(&world->control->rank[rank].ahead);
    if (is_remote(world, rank) && (!was_seen(world, rank, since) || ahead)) return 0;
  }
  return 1;
}

/* Ranks of other hosts that have not left and were not reported after `since`. */
static ms_rank_set find_silent(const ms_world *world, double since) {
  ms_rank_set silent = {{0}};
  for (int rank = 0; rank < world->size; rank++)
    if (is_remote(world, rank) && atomic_load(&world->control->rank[rank].state) == MS_CONTROL_JOINED &&
        !was_seen(world, rank, since))
      ms_rank_set_add(&silent, rank);
  return silent;
}

static void describe_silent(const ms_world *world, const ms_rank_set *silent, char *text, size_t bytes) {
  char ranks[256];
  size_t used = 0;
  int hosts = 0;
  for (int node = 0; node < world->topology.nodes && used < bytes; node++) {
    ms_rank_set there = {{0}};
    MS_EACH_RANK(rank, silent)
    if (world->topology.node_of[rank] == node) ms_rank_set_add(&there, rank);
    if (ms_rank_set_is_empty(&there)) continue;
    ms_rank_set_text(&there, ranks, sizeof ranks);
    used += (size_t)snprintf(text + used, bytes - used, "; host %s (%s) does not answer",
                             ms_world_node_name(world, node), ranks);
    hosts++;
  }
  ms_control_note_lost(world->control, hosts);
  if (hosts == world->topology.nodes - 1 && used < bytes)
    snprintf(text + used, bytes - used,
             "; all that hosts exchange passes through rank 0: is its process stopped, or the "
             "lowest rank of this host?");
}

/* The rank of this host by which it hears others: rank 0, which passes everything on, or the lowest one. */
static int find_unresponsive(const ms_world *world) {
  const int *node_of = world->topology.node_of;
  for (int rank = 0; rank < world->size; rank++) {
    if (node_of[rank] != node_of[world->rank] || atomic_load(&world->control->rank[rank].state) != MS_CONTROL_JOINED)
      continue;
    return world->diagnosis->stopped(world->control, rank) ? rank : -1;
  }
  return -1;
}

void ms_world_poll_hosts(ms_world *world, char *silent, size_t bytes) {
  double began = ms_clock(), ask_at = began;
  ms_rank_set missing;
  silent[0] = '\0';
  if (!world->mirror) return;
  int unresponsive = find_unresponsive(world);
  if (unresponsive >= 0) {
    snprintf(silent, bytes, "; rank %d, by which this host hears from others, is stopped by a signal (process %d)",
             unresponsive, world->diagnosis->stopped(world->control, unresponsive));
    return;
  }
  do {
    if (ms_clock() >= ask_at) {
      world->mirror->look(world);
      ask_at += ASK_AGAIN;
    }
    nanosleep(&(struct timespec){.tv_nsec = TURN_NS}, NULL);
    missing = find_silent(world, began);
    if (atomic_load(&world->control->aborted)) return; /* another rank has found out */
  } while (!ms_rank_set_is_empty(&missing) && ms_clock() < began + ANSWER_SECONDS);
  if (!ms_rank_set_is_empty(&missing)) describe_silent(world, &missing, silent, bytes);
}
