/* open.c - which ranks a communicator joins: channels belong to lists of ranks, so the same ranks find the same one. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "comm/collectives/comm_state.h"

static int check_members(const ms_world *world, int n, const int *ranks, int channel, int *me) {
  MS_TRY(ms_world_check_one_node(world));
  if (n < 2) return MS_FAIL(MS_EINVAL, "a communicator of %d ranks: it takes at least 2", n);
  if (n > ms_world_size(world))
    return MS_FAIL(MS_EINVAL, "a communicator of %d ranks in a world of %d", n, ms_world_size(world));
  if (channel < 0 || channel >= MS_CONTROL_CHANNELS)
    return MS_FAIL(MS_EINVAL, "channel %d: channels are 0 to %d", channel, MS_CONTROL_CHANNELS - 1);
  uint64_t members = 0;
  *me = -1;
  for (int i = 0; i < n; i++) {
    if (ranks[i] < 0 || ranks[i] >= ms_world_size(world))
      return MS_FAIL(MS_EINVAL, "a communicator with rank %d in a world of %d", ranks[i], ms_world_size(world));
    if (members >> ranks[i] & 1) return MS_FAIL(MS_EINVAL, "a communicator with rank %d twice", ranks[i]);
    members |= 1ull << ranks[i];
    if (ranks[i] == ms_world_rank(world)) *me = i;
  }
  if (*me >= 0) return MS_OK;
  return MS_FAIL(MS_EINVAL, "a communicator without this rank (%d)", ms_world_rank(world));
}

static int same_group(const ms_control_group *group, int n, const int *ranks, int channel) {
  if (group->channel != channel || group->size != n) return 0;
  for (int i = 0; i < n; i++)
    if (group->rank[i] != ranks[i]) return 0;
  return 1;
}

/* Takes a free entry for these ranks, or waits the moment until another rank has filled it. */
static int settle_group(ms_world *world, ms_control_group *group, int n, const int *ranks, int channel) {
  uint32_t free_entry = MS_CONTROL_CHANNEL_FREE;
  if (atomic_compare_exchange_strong(&group->state, &free_entry, MS_CONTROL_CHANNEL_FILLING)) {
    group->channel = channel;
    group->size = n;
    for (int i = 0; i < n; i++) group->rank[i] = ranks[i];
    atomic_store(&group->state, MS_CONTROL_CHANNEL_READY);
    return MS_OK;
  }
  while (atomic_load(&group->state) == MS_CONTROL_CHANNEL_FILLING) {
    MS_TRY(ms_world_check(world));
    ms_world_sleep(world, ms_world_doorbell(world), 1e-4);
  }
  return MS_OK;
}

/* The job's entry for these ranks and channel: an open hash table that only grows. */
static int find_group(ms_world *world, int n, const int *ranks, int channel, ms_control_group **found) {
  ms_control *control = ms_world_control(world);
  uint64_t hash = ms_hash_int(ms_hash_bytes(MS_HASH_INIT, ranks, sizeof *ranks * (size_t)n), channel);
  for (int i = 0; i < MS_CONTROL_GROUPS; i++) {
    ms_control_group *group = &control->group[(hash + (uint64_t)i) % MS_CONTROL_GROUPS];
    MS_TRY(settle_group(world, group, n, ranks, channel));
    if (!same_group(group, n, ranks, channel)) continue;
    *found = group;
    return MS_OK;
  }
  return MS_FAIL(MS_ENOMEM, "this job has %d communicators already; no more fit", MS_CONTROL_GROUPS);
}

uint32_t ms_comm_group_number(const ms_world *world, const ms_control_group *group) {
  return MS_RECORDER_GROUP + (uint32_t)(group - ms_world_control(world)->group);
}

int ms_comm_open(ms_world *world, int n, const int *ranks, int channel, ms_comm **comm) {
  int rc, me = -1;
  ms_control_group *group = NULL;
  MS_TRY(check_members(world, n, ranks, channel, &me));
  ms_comm *opened = ms_calloc(1, sizeof *opened);
  if (!opened) return MS_ENOMEM;
  MS_GOTO(find_group(world, n, ranks, channel, &group));
  opened->world = world;
  opened->group = group;
  opened->recorder = ms_world_recorder(world);
  opened->ring = ms_recorder_ring_of(opened->recorder, ms_comm_group_number(world, group));
  if (!opened->ring)
    MS_GOTO(MS_FAIL(MS_ENOMEM, "this rank is in %d communicators already; no more fit", MS_RECORDER_RINGS - 1));
  opened->size = n;
  opened->me = me;
  memcpy(opened->rank, ranks, sizeof *ranks * (size_t)n);
  *comm = opened;
  return MS_OK;
fail:
  free(opened);
  return rc;
}

void ms_comm_close(ms_comm *comm) { free(comm); }

int ms_comm_size(const ms_comm *comm) { return comm->size; }

int ms_comm_rank(const ms_comm *comm) { return comm->me; }

ms_recorder_ring *ms_comm_ring(const ms_comm *comm) { return comm->ring; }
