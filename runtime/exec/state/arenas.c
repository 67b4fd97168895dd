/* arenas.c - the memory of a state: mapping arenas, finding this rank's and its peers' blocks, copying to the host.
 *
 * Arenas that peers read in place are mapped by all ranks that train the model; all others are private device memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysinfo.h>

#include "base/config.h"
#include "base/error.h"
#include "base/machine/machine_memory.h"
#include "exec/state/host_memory.h"

enum { PAGE_BYTES = 4096 };

static int64_t whole_pages(int64_t bytes) { return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES; }

static int is_communicated(int arena) {
  return arena == MS_ARENA_COMM || arena == MS_ARENA_GATHERED || arena == MS_ARENA_GROUPED ||
         arena == MS_ARENA_CHUNKS || arena == MS_ARENA_RESIDENT;
}

static int allocate(const ms_state *state, int arena, int64_t bytes, ms_region *region) {
  char label[64];
  void *base;
  snprintf(label, sizeof label, "the %s arena", ms_arena_name(arena));
  MS_TRY(state->device->api->allocate(state->device, bytes, is_communicated(arena), label, &base));
  *region = (ms_region){base, (size_t)bytes};
  return MS_OK;
}

void ms_state_free_arena(ms_state *state, int arena) {
  ms_region *region = &state->arena[arena];
  if (!region->base) return;
  if (state->blocks[arena]) ms_region_unmap(region);
  else state->device->api->release(state->device, region->base, (int64_t)region->bytes, is_communicated(arena));
  *region = (ms_region){NULL, 0};
}

static int drain(const ms_state *state) { return state->queue ? state->queue->drain(state) : MS_OK; }

/* Pages are committed on first touch, so mapping more memory than the machine has, or than a control group allows,
 * succeeds, and the kernel would kill the rank while it fills the pages. */
static int check_host_memory(const ms_state *state, int arena, int64_t bytes) {
  static const double GIB = 1024.0 * 1024 * 1024;
  struct sysinfo host;
  ms_machine_memory memory;
  double mapped = (double)bytes;
  if (!ms_device_has(state->device, MS_DEVICE_HOST_MEMORY) || sysinfo(&host))
    return MS_OK; /* unknown: let mmap decide */
  for (int other = 0; other < MS_ARENAS; other++)
    if (other != arena) mapped += (double)state->arena[other].bytes;
  ms_machine_memory_read("", &memory);
  double most = memory.limit >= 0 ? (double)memory.limit : (double)host.totalram * host.mem_unit;
  most += (double)host.totalswap * host.mem_unit;
  if (mapped <= most) return MS_OK;
  return MS_FAIL(MS_ENOMEM,
                 "the %s arena needs %.1f GiB, with which this rank would map %.1f GiB, but this machine has %.1f "
                 "GiB with swap%s%s%s: shard over more machines, or use a smaller model or batch; moonshard plan lists "
                 "what uses memory",
                 ms_arena_name(arena), (double)bytes / GIB, mapped / GIB, most / GIB,
                 memory.limit >= 0 ? " (limited by " : "", memory.limit_file, memory.limit >= 0 ? ")" : "");
}

int ms_state_map_arena(ms_state *state, int arena, int64_t bytes) {
  ms_region mapped;
  int blocks = ms_host_memory_blocks(state, arena);
  int64_t stride = whole_pages(bytes);
  MS_TRY(check_host_memory(state, arena, blocks ? stride * blocks : bytes));
  if (blocks) MS_TRY(ms_region_map(state->host, (size_t)(stride * blocks), &mapped));
  else MS_TRY(allocate(state, arena, bytes, &mapped));
  if (state->queue) state->queue->close_windows(state, arena);
  ms_state_free_arena(state, arena);
  state->arena[arena] = mapped;
  state->blocks[arena] = blocks;
  state->arena_bytes[arena] = bytes;
  state->stride[arena] = stride;
  if (arena == MS_ARENA_RESIDENT) ms_resident_forget(state);
  state->generation++;
  state->mapped++;
  return MS_OK;
}

int ms_state_reserve(ms_state *state, const int64_t *bytes) {
  MS_TRY(drain(state)); /* work in flight uses the old addresses */
  for (int arena = MS_ARENA_ACTIVATIONS; arena < MS_ARENAS; arena++)
    if (bytes[arena] > state->arena_bytes[arena]) MS_TRY(ms_state_map_arena(state, arena, bytes[arena]));
  return MS_OK;
}

int64_t ms_state_arena_bytes(const ms_state *state) {
  int64_t bytes = 0;
  for (int arena = 0; arena < MS_ARENAS; arena++) bytes += state->arena_bytes[arena] - state->layout.peers[arena];
  return bytes;
}

/* The share of one of `ranks` ranks, rounded up. */
static int64_t share_of(int64_t bytes, int ranks) { return (bytes + ranks - 1) / ranks; }

int64_t ms_state_growth(const ms_state *state, const ms_plan *plan) {
  int64_t bytes = 0;
  for (int arena = MS_ARENA_ACTIVATIONS; arena < MS_ARENAS; arena++) {
    int64_t more = plan->arena_bytes[arena] - state->arena_bytes[arena];
    int blocks = ms_arena_is_of_shards(arena) ? ms_host_memory_blocks(state, arena) : 0;
    if (more > 0) bytes += blocks ? share_of(more * blocks, state->host->size) : more;
  }
  return bytes;
}

int ms_state_memory(const ms_state *state, const ms_plan *plan, ms_state_memory_info *info, int size) {
  MS_HANDLE(state, STATE);
  if (plan) MS_HANDLE(plan, PLAN);
  MS_GIVEN(info);
  ms_state_memory_info own = {.arena_bytes = ms_state_arena_bytes(state),
                              .growth = plan ? ms_state_growth(state, plan) : 0};
  if (!ms_device_has(state->device, MS_DEVICE_HOST_MEMORY)) {
    ms_device_usage usage;
    MS_TRY(state->device->api->usage(state->device, &usage));
    own.total = usage.total;
    own.free = usage.free;
    own.arenas = usage.arenas;
    own.context = usage.context;
    own.communicators = usage.communicators;
    own.pinned = usage.pinned;
  }
  MS_GIVE_INFO(info, size, own);
}

/* ---- addresses and copies ---- */

char *ms_state_block(const ms_state *state, int arena) {
  return state->arena[arena].base ? ms_state_peer_block(state, arena, ms_world_rank(state->world)) : NULL;
}

int ms_state_copy_out(const ms_state *state, void *host, const void *at, int64_t bytes) {
  MS_TRY(drain(state));
  return state->device->api->read(state->device, host, at, bytes);
}

int ms_state_copy_in(ms_state *state, void *at, const void *host, int64_t bytes) {
  MS_TRY(drain(state));
  return state->device->api->write(state->device, at, host, bytes);
}

/* *room: host memory of `bytes` that the state owns, valid until the next view. */
static int make_room(ms_state *state, int64_t bytes, void **room) {
  if (bytes > state->view_bytes) {
    void *grown = ms_calloc(bytes, 1);
    if (!grown) return MS_ENOMEM;
    free(state->view);
    state->view = grown;
    state->view_bytes = bytes;
  }
  *room = state->view;
  return MS_OK;
}

int ms_state_view(ms_state *state, void *at, int64_t bytes, void **view) {
  *view = at;
  if (ms_device_has(state->device, MS_DEVICE_HOST_MEMORY)) return MS_OK;
  MS_TRY(make_room(state, bytes, view));
  return ms_state_copy_out(state, *view, at, bytes);
}

char *ms_state_peer_block(const ms_state *state, int arena, int rank) {
  char *base = state->arena[arena].base;
  if (!state->blocks[arena]) return base;
  const int block = ms_host_memory_block_of(state, arena, rank);
  return block < 0 ? NULL : base + block * state->stride[arena];
}
