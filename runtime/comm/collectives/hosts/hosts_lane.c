/* hosts_lane.c - opens the lanes of channels between hosts: partners and connections to them, keys, staging memory. */
#include <stdlib.h>
#include <string.h>

#include "base/text/hash.h"
#include "comm/collectives/hosts/hosts.h"
#include "comm/group/world_state.h"

static void free_lane(ms_hosts_lane *lane) {
  for (int i = 0; lane->partner && i < lane->partners; i++) free(lane->partner[i].asked);
  if (lane->inside) ms_channel_shared_memory.close(lane->inside);
  pthread_cond_destroy(&lane->cancelled);
  pthread_mutex_destroy(&lane->lock);
  ms_hosts_shape_free(&lane->shape);
  free(lane->rank);
  free(lane->apart);
  free(lane->partner);
  free(lane->sender);
  free(lane->met);
  free(lane->pairs);
  free(lane->staging);
  free((void *)lane->source);
  free(lane->asked);
  free(lane);
}

static void free_task(ms_progress_task *task) { free_lane((ms_hosts_lane *)task); }

/* ---- partners ---- */

static void add_partner(ms_hosts_lane *lane, int p) {
  const ms_hosts_shape *shape = &lane->shape;
  ms_hosts_partner *x = &lane->partner[lane->partners];
  if (!ms_hosts_are_partners(shape, shape->me, p)) return;
  x->p = p;
  x->rank = lane->rank[p];
  x->handles_me = ms_hosts_handler(shape, shape->host_of[p], shape->me) == p;
  x->handled = ms_hosts_handler(shape, ms_hosts_here(lane), p) == shape->me;
  if (x->handles_me) lane->sender[shape->host_of[p]] = lane->partners;
  lane->partners++;
}

static int find_partners(ms_hosts_lane *lane) {
  const ms_hosts_shape *shape = &lane->shape;
  lane->partner = ms_calloc(shape->size, sizeof *lane->partner);
  lane->sender = ms_calloc(shape->hosts, sizeof *lane->sender);
  lane->source = ms_calloc(shape->size, sizeof *lane->source);
  lane->pairs = ms_calloc(2 * shape->size, sizeof *lane->pairs);
  if (!lane->partner || !lane->sender || !lane->source || !lane->pairs) return MS_ENOMEM;
  for (int host = 0; host < shape->hosts; host++) lane->sender[host] = -1;
  /* Host h gives its first receives to host h - 1, the next ones to h - 2: each begins with another one. */
  for (int turn = 1; turn < shape->hosts; turn++) {
    const int host = (ms_hosts_here(lane) + shape->hosts - turn) % shape->hosts;
    for (int i = shape->first[host]; i < shape->first[host + 1]; i++) add_partner(lane, shape->member[i]);
  }
  return MS_OK;
}

static int connect_partners(const ms_hosts_lane *lane) {
  int *rank = ms_calloc(lane->partners, sizeof *rank);
  if (!rank) return MS_ENOMEM;
  for (int i = 0; i < lane->partners; i++) rank[i] = lane->partner[i].rank;
  int rc = ms_progress_connect(lane->thread, lane->partners, rank);
  free(rank);
  return rc;
}

/* ---- staging ---- */

/* Pieces under way with each of n partners. */
static int window_for(int n) {
  int window = n ? MS_HOSTS_UNDER_WAY / n : 0;
  return window < 2 ? 2 : window;
}

static int stage(ms_hosts_lane *lane) {
  const ms_hosts_shape *shape = &lane->shape;
  const int here = ms_hosts_here(lane), alone = shape->first[here + 1] - shape->first[here] == 1;
  int givers = shape->hosts - 1, handled = 0;
  for (int i = 0; i < lane->partners; i++) handled += lane->partner[i].handled;
  const int in = window_for(givers), out = window_for(handled);
  /* A rank that is alone on its host sends its source itself. */
  const int pieces = 1 + givers * in + (alone ? 0 : handled * out);
  lane->staging = ms_calloc(pieces > MS_HOSTS_UNDER_WAY ? pieces : MS_HOSTS_UNDER_WAY, MS_HOSTS_PIECE);
  if (!lane->staging) return MS_ENOMEM;
  lane->own = lane->staging;
  char *free_from = lane->staging + MS_HOSTS_PIECE;
  for (int i = 0; i < lane->partners; i++) {
    ms_hosts_partner *x = &lane->partner[i];
    /* Few under way from each: a switch need not drop what several hosts send at once, and the partners, which get
     * their next receive when a piece has come, stay about equally far. */
    x->copies_in.window = window_for(handled);
    x->copies_out.window = MS_HOSTS_UNDER_WAY;
    x->sums_in.window = in;
    x->sums_out.window = out;
    if (x->handles_me) {
      x->sums_in.slot = free_from;
      free_from += in * MS_HOSTS_PIECE;
    }
    if (x->handled && !alone) {
      x->sums_out.slot = free_from;
      free_from += out * MS_HOSTS_PIECE;
    }
  }
  return MS_OK;
}

/* ---- opening ---- */

static int know_ranks(ms_hosts_lane *lane, const ms_channel_config *config) {
  int rc, here = ms_world_node_of(config->world, config->rank[config->me]);
  int *node = ms_calloc(config->size, sizeof *node);
  lane->rank = ms_calloc(config->size, sizeof *lane->rank);
  lane->apart = ms_calloc(config->size, sizeof *lane->apart);
  if (!node || !lane->rank || !lane->apart) MS_GOTO(MS_ENOMEM);
  for (int p = 0; p < config->size; p++) {
    lane->rank[p] = config->rank[p];
    node[p] = ms_world_node_of(config->world, config->rank[p]);
    lane->apart[p] = node[p] != here;
  }
  lane->tickets.config = *config;
  lane->tickets.config.rank = lane->rank;
  lane->tickets.apart = lane->apart;
  MS_GOTO(ms_hosts_shape_make(config->size, config->me, node, &lane->shape));
fail:
  free(node);
  return rc;
}

static uint64_t name_of(const ms_channel_config *config) {
  uint64_t ranks = ms_hash_bytes(MS_HASH_INIT, config->rank, sizeof *config->rank * (size_t)config->size);
  return ms_hash_int(ranks, config->entry->channel);
}

static int is_of(const ms_hosts_lane *lane, const ms_channel_config *config) {
  return lane->channel == config->entry->channel && lane->shape.size == config->size &&
         !memcmp(lane->rank, config->rank, sizeof *lane->rank * (size_t)config->size);
}

int ms_hosts_lane_open(const ms_channel_config *config, const ms_progress_task *task, ms_hosts_lane **opened) {
  int rc;
  ms_progress_thread *thread = config->world->progress;
  for (ms_progress_task *one = ms_progress_first(thread); one; one = one->next) {
    *opened = (ms_hosts_lane *)one;
    if (is_of(*opened, config)) return MS_OK;
  }
  ms_hosts_lane *lane = ms_calloc(1, sizeof *lane);
  if (!lane) return MS_ENOMEM;
  lane->task = (ms_progress_task){.turn = task->turn, .give_up = task->give_up, .free = free_task};
  lane->thread = thread;
  lane->world = config->world;
  lane->channel = config->entry->channel;
  lane->name = name_of(config);
  lane->epoch = ms_world_epoch(config->world);
  pthread_mutex_init(&lane->lock, NULL);
  pthread_cond_init(&lane->cancelled, NULL);
  MS_GOTO(know_ranks(lane, config));
  MS_GOTO(ms_channel_shared_memory.open(&lane->tickets.config, &lane->inside));
  MS_GOTO(find_partners(lane));
  MS_GOTO(stage(lane));
  MS_GOTO(connect_partners(lane));
  ms_progress_add(thread, &lane->task);
  *opened = lane;
  return MS_OK;
fail:
  free_lane(lane);
  return rc;
}
