/* profile_combine.c - puts the parts of all ranks into the file of a trace, which rank 0 writes.
 *
 * The ranks of a host write their texts into shared memory. The lowest rank of each other host then broadcasts its
 * host's text to the lowest ranks, of which only rank 0 keeps it, so no rank holds the texts of two hosts.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/collectives/comm.h"
#include "comm/regions/region.h"
#include "exec/profile/profile.h"

/* Elements of 4 bytes that move at a time: 4 MiB. */
enum { ROUND = 1 << 20, UNIT = sizeof(float) };

typedef struct combining {
  ms_world *world;
  int me, ranks, nodes, node;
  double *bytes;    /* [ranks] */
  double *per_node; /* [nodes] sums of bytes, with a comma and a newline between texts */
  int *lowest;      /* [nodes] the lowest rank of each */
  ms_group here;    /* the ranks of this host */
  ms_region region; /* their texts */
  ms_comm *comm;    /* among the lowest ranks; NULL on others, and with one host */
  float *room;      /* [ROUND] of a rank that receives */
  void **shared;    /* [nodes] */
  FILE *file;       /* rank 0 */
  int failed;       /* rank 0: an errno */
} combining;

static const char BETWEEN[] = ",\n";

static int open_here(combining *c, const char *label) {
  int n = 0, *rank = ms_calloc(c->ranks, sizeof *rank);
  if (!rank) return MS_ENOMEM;
  for (int r = 0; r < c->ranks; r++)
    if (ms_world_node_of(c->world, r) == c->node) rank[n++] = r;
  int rc = ms_group_open(c->world, n, rank, label, &c->here);
  free(rank);
  return rc;
}

/* The text of a host in the file; the ranks' texts follow each other. */
static int share_texts(combining *c, const ms_text *text) {
  double before = 0;
  for (int r = 0; r < c->ranks; r++) {
    const int node = ms_world_node_of(c->world, r);
    if (c->per_node[node] > 0) c->per_node[node] += sizeof BETWEEN - 1;
    if (r == c->me) before = c->per_node[node];
    c->per_node[node] += c->bytes[r];
  }
  MS_TRY(ms_region_map(&c->here, (size_t)c->per_node[c->node] + UNIT, &c->region));
  char *at = (char *)c->region.base + (size_t)before;
  if (before > 0) memcpy(at - (sizeof BETWEEN - 1), BETWEEN, sizeof BETWEEN - 1);
  memcpy(at, text->data, text->length);
  return ms_group_barrier(&c->here);
}

/* After an error rank 0 goes on receiving, so that all ranks return it. */
static void put(combining *c, const void *data, size_t bytes) {
  errno = 0;
  if (!c->failed && fwrite(data, 1, bytes, c->file) < bytes) c->failed = errno ? errno : EIO;
}

static int receive(combining *c, int node) {
  const size_t bytes = (size_t)c->per_node[node];
  const int sends = node == c->node;
  for (size_t at = 0; at < bytes; at += (size_t)ROUND * UNIT) {
    const size_t rest = bytes - at < (size_t)ROUND * UNIT ? bytes - at : (size_t)ROUND * UNIT;
    c->shared[c->node] = sends ? (char *)c->region.base + at : (void *)c->room;
    const ms_coll_part part = {.count = (int64_t)((rest + UNIT - 1) / UNIT),
                               .src_dtype = MS_F32,
                               .dst_dtype = MS_F32,
                               .shared = c->shared,
                               .dst = sends ? NULL : c->room};
    const ms_coll coll = {.kind = MS_COLL_BROADCAST, .parts = 1, .part = &part, .root = node, .label = "trace"};
    MS_TRY(ms_comm_start(c->comm, &coll));
    MS_TRY(ms_comm_wait(c->comm));
    if (c->me == 0) put(c, c->room, rest);
  }
  return MS_OK;
}

static int open_lowest(combining *c) {
  for (int node = 0; node < c->nodes; node++) c->lowest[node] = ms_profile_lowest_of_node(c->world, node);
  if (c->nodes == 1 || c->lowest[c->node] != c->me) return MS_OK;
  c->room = ms_calloc(ROUND, UNIT);
  c->shared = ms_calloc(c->nodes, sizeof *c->shared);
  if (!c->room || !c->shared) return MS_ENOMEM;
  return ms_comm_open(c->world, c->nodes, c->lowest, 0, &c->comm);
}

static int write_all(combining *c, const char *path) {
  if (c->me == 0) {
    c->file = fopen(path, "we");
    if (!c->file) c->failed = errno;
    put(c, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n",
        strlen("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"));
    put(c, c->region.base, (size_t)c->per_node[c->node]);
  }
  for (int node = 0; c->comm && node < c->nodes; node++) {
    if (c->lowest[node] == 0) continue;
    if (c->me == 0) put(c, BETWEEN, sizeof BETWEEN - 1);
    MS_TRY(receive(c, node));
  }
  if (c->me == 0) put(c, "\n]}\n", strlen("\n]}\n"));
  return MS_OK;
}

static void close_file(combining *c) {
  if (c->file && fclose(c->file) && !c->failed) c->failed = errno;
  c->file = NULL;
}

int ms_profile_combine(ms_world *world, const ms_text *text, const char *path) {
  combining c = {.world = world,
                 .me = ms_world_rank(world),
                 .ranks = ms_world_size(world),
                 .nodes = ms_world_nodes(world),
                 .node = ms_world_node_of(world, ms_world_rank(world))};
  int rc = MS_OK, *failed = ms_calloc(c.ranks, sizeof *failed);
  double mine = (double)text->length;
  c.bytes = ms_calloc(c.ranks, sizeof *c.bytes);
  c.per_node = ms_calloc(c.nodes, sizeof *c.per_node);
  c.lowest = ms_calloc(c.nodes, sizeof *c.lowest);
  if (!failed || !c.bytes || !c.per_node || !c.lowest) MS_GOTO(MS_ENOMEM);
  MS_GOTO(ms_world_all_gather_bytes(world, &mine, sizeof mine, c.bytes));
  MS_GOTO(open_here(&c, "of a trace"));
  MS_GOTO(share_texts(&c, text));
  MS_GOTO(open_lowest(&c));
  MS_GOTO(write_all(&c, path));
  close_file(&c);
  MS_GOTO(ms_world_all_gather_bytes(world, &c.failed, sizeof c.failed, failed));
  if (failed[0]) rc = MS_FAIL(MS_EIO, "cannot write trace %s: %s", path, strerror(failed[0]));
fail:
  close_file(&c);
  if (c.comm) ms_comm_close(c.comm);
  ms_region_unmap(&c.region);
  ms_group_close(&c.here);
  free(c.bytes);
  free(c.per_node);
  free(c.lowest);
  free(c.room);
  free((void *)c.shared);
  free(failed);
  return rc;
}
