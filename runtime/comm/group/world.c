/* world.c - a rank's view of its job: its rank and nodes, what its program reports, whether the job continues, and
 * SIGTERM. */
#include "comm/group/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/interrupt.h"
#include "comm/group/world_state.h"

/* ---- rank and nodes ---- */

int ms_world_rank(const ms_world *world) { return world->rank; }

int ms_world_size(const ms_world *world) { return world->size; }

int ms_world_nodes(const ms_world *world) { return world->topology.nodes; }

int ms_world_node_of(const ms_world *world, int rank) { return world->topology.node_of[rank]; }

const char *ms_world_node_name(const ms_world *world, int node) {
  return world->node_name ? world->node_name[node] : world->host;
}

int ms_world_local_rank(const ms_world *world) {
  int local = 0;
  for (int rank = 0; rank < world->rank; rank++)
    local += ms_world_node_of(world, rank) == ms_world_node_of(world, world->rank);
  return local;
}

/* "a (ranks 0-3) and b (ranks 4-7)". */
static void name_hosts(const ms_world *world, char *text, size_t bytes) {
  const ms_topology *topology = &world->topology;
  size_t used = 0;
  uint8_t *here = calloc((size_t)topology->ranks, 1);
  char ranks[256];
  text[0] = '\0';
  for (int node = 0; here && node < topology->nodes && used < bytes; node++) {
    const char *before = !node ? "" : node == topology->nodes - 1 ? " and " : ", ";
    for (int rank = 0; rank < topology->ranks; rank++) here[rank] = topology->node_of[rank] == node;
    int count = ms_rank_list(here, topology->ranks, ranks, sizeof ranks);
    used += (size_t)snprintf(text + used, bytes - used, "%s%s (rank%s %s)", before, world->node_name[node],
                             count == 1 ? "" : "s", ranks);
  }
  free(here);
}

int ms_world_spans(const ms_world *world, int n, const int *ranks) {
  const int *node_of = world->topology.node_of;
  if (world->topology.nodes == 1) return 0;
  for (int i = 1; i < n; i++)
    if (node_of[ranks ? ranks[i] : i] != node_of[ranks ? ranks[0] : 0]) return 1;
  return 0;
}

int ms_world_check_one_host(const ms_world *world, int n, const int *ranks) {
  char hosts[1024];
  if (!ms_world_spans(world, n, ranks)) return MS_OK;
  name_hosts(world, hosts, sizeof hosts);
  return MS_FAIL(MS_EUNSUPPORTED, "ranks of several hosts share no memory, and the %d ranks are on %d hosts: %s",
                 world->size, ms_world_nodes(world), hosts);
}

int ms_world_fd(const ms_world *world) { return world->fd; }

ms_control *ms_world_control(const ms_world *world) { return world->control; }

struct ms_state **ms_world_left_in_flight(ms_world *world) {
  return &world->left_in_flight;
}
ms_recorder *ms_world_recorder(const ms_world *world) { return world->recorder; }

double ms_world_timeout(const ms_world *world) { return world->timeout; }

void ms_world_wait_for_person(ms_world *world, int on) { world->waits_for_person = on; }

void ms_world_set_timeout(ms_world *world, double seconds) { world->timeout = seconds; }

/* ---- what the program reports ---- */

void ms_world_set_progress(ms_world *world, int64_t step, double tokens_per_s) {
  MS_HANDLE_OR(, world, WORLD);
  atomic_store(&world->recorder->done, step);
  atomic_store(&world->recorder->speed, tokens_per_s > 0 && tokens_per_s < 1e15 ? (uint64_t)(1e3 * tokens_per_s) : 0);
}

void ms_world_set_activity(ms_world *world, const char *what) {
  MS_HANDLE_OR(, world, WORLD);
  atomic_store(&world->recorder->doing, (uint32_t)ms_recorder_number(world->recorder, what));
}

/* A program that catches an error and continues leaves the others waiting in an operation that it skipped. They fail
 * later, in another place, where the cause does not show. Each rank's first failure is therefore kept in its row, for
 * reports to quote. */
void ms_world_note_failure(ms_world *world, const char *why) {
  MS_HANDLE_OR(, world, WORLD);
  world->failures++;
  if (!world->control || !why) return;
  ms_control_rank *row = &world->control->rank[world->rank];
  uint32_t untold = 0;
  if (!atomic_compare_exchange_strong(&row->failed, &untold, 1)) return;
  strncpy(row->failure, why, MS_CONTROL_FAILURE - 1);
  atomic_store(&row->failed, 2);
  if (world->mirror) world->mirror->row(world);
}

int64_t ms_world_failures(const ms_world *world) { return world->failures; }

/* ---- whether the job continues ---- */

/* While interrupts are deferred, a rank that gave up only stops this one if this one waits for it: it may have
 * completed a common operation, or not begun it, before it failed elsewhere. Ranks that ended always stop this one. */
static int must_be_done(const ms_world *world) {
  return world->control && ms_interrupts_deferred() && atomic_load(&world->control->launcher.told) != 2;
}

int ms_world_check_aborted(const ms_world *world) {
  int row, blame;
  const char *why = world->control ? ms_control_aborted(world->control, &row, &blame) : NULL;
  if (!why) return MS_OK;
  if (row == MS_CONTROL_LAUNCHER || blame < 0) return MS_FAIL(MS_EPEER, "%s", why);
  return MS_FAIL(MS_EPEER, "rank %d gave up: %s", blame, why);
}

int ms_world_check(const ms_world *world) {
  if (ms_interrupted()) return MS_FAIL(MS_EINTERRUPT, "interrupted");
  return must_be_done(world) ? MS_OK : ms_world_check_aborted(world);
}

void ms_world_abort(ms_world *world, const char *why) {
  MS_HANDLE_OR(, world, WORLD);
  if (world->control) ms_control_give_up(world->control, world->rank, world->rank, why);
  if (world->mirror) world->mirror->row(world);
}

unsigned ms_world_epoch(const ms_world *world) {
  return world->control ? atomic_load(&world->control->rank[world->rank].recovery) : 0;
}

/* ---- SIGTERM ----
 *
 * Schedulers send it to every process of a job, to one, or only to the launcher, which forwards it. A word in the
 * control segment shows it to all ranks of a host, and the mirror to those of other hosts. The word stays set, since a
 * run that was asked to end does not continue. If some rank saves, no rank ends before the save is done. */

void ms_world_catch_termination(ms_world *world, int saves) {
  MS_HANDLE_OR(, world, WORLD);
  if (!saves) {
    if (world->control) ms_termination_catch(&world->control->saves);
    return;
  }
  if (world->control && !atomic_exchange(&world->control->saves, 1) && world->mirror) world->mirror->row(world);
  ms_termination_catch(NULL);
}

int ms_world_terminating(ms_world *world) {
  MS_HANDLE_OR(0, world, WORLD);
  if (!world->control) return ms_terminated();
  if (ms_terminated() && !atomic_load_explicit(&world->control->terminating, memory_order_relaxed)) {
    atomic_store_explicit(&world->control->terminating, 1, memory_order_relaxed);
    if (world->mirror) world->mirror->row(world);
  }
  return atomic_load_explicit(&world->control->terminating, memory_order_relaxed) != 0;
}

void ms_world_count_finishing(ms_world *world, int change) {
  if (world->control) atomic_fetch_add(&world->control->finishing, change);
}

uint32_t ms_world_finished(ms_world *world, int progressed) {
  if (!world->control) return (uint32_t)progressed;
  return atomic_fetch_add(&world->control->finished, progressed ? 1 : 0) + (progressed ? 1 : 0);
}
