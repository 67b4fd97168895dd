/* hosts_plan.c - shapes, handlers, regions and pieces of collectives between hosts. */
#include "comm/collectives/hosts/hosts_plan.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "base/slice.h"
#include "comm/collectives/tickets.h"

/* ---- shapes ---- */

/* Numbers hosts in the order of their first ranks. host: [nodes] of zeros, becomes 1 + the host of each node. */
static void number_hosts(ms_hosts_shape *shape, const int *node, int *host) {
  for (int p = 0; p < shape->size; p++) {
    if (!host[node[p]]) host[node[p]] = ++shape->hosts;
    shape->host_of[p] = host[node[p]] - 1;
    shape->place_of[p] = shape->first[host[node[p]]]++;
  }
}

int ms_hosts_shape_make(int size, int me, const int *node, ms_hosts_shape *shape) {
  int nodes = 0;
  for (int p = 0; p < size; p++)
    if (node[p] >= nodes) nodes = node[p] + 1;
  *shape = (ms_hosts_shape){.size = size, .me = me};
  shape->host_of = ms_calloc(size, sizeof *shape->host_of);
  shape->place_of = ms_calloc(size, sizeof *shape->place_of);
  shape->member = ms_calloc(size, sizeof *shape->member);
  shape->first = ms_calloc(size + 1, sizeof *shape->first);
  int *host = ms_calloc(nodes, sizeof *host);
  if (!shape->host_of || !shape->place_of || !shape->member || !shape->first || !host) {
    free(host);
    return MS_ENOMEM;
  }
  number_hosts(shape, node, host);
  free(host);
  for (int h = 0; h < shape->hosts; h++) shape->first[h + 1] += shape->first[h];
  for (int p = 0; p < size; p++) shape->member[shape->first[shape->host_of[p]] + shape->place_of[p]] = p;
  return MS_OK;
}

void ms_hosts_shape_free(ms_hosts_shape *shape) {
  free(shape->host_of);
  free(shape->place_of);
  free(shape->member);
  free(shape->first);
  *shape = (ms_hosts_shape){0};
}

static int members_of(const ms_hosts_shape *shape, int host) { return shape->first[host + 1] - shape->first[host]; }

int ms_hosts_handler(const ms_hosts_shape *shape, int host, int p) {
  if (shape->host_of[p] == host) return p;
  return shape->member[shape->first[host] + shape->place_of[p] % members_of(shape, host)];
}

int ms_hosts_are_partners(const ms_hosts_shape *shape, int a, int b) {
  if (shape->host_of[a] == shape->host_of[b]) return 0;
  return ms_hosts_handler(shape, shape->host_of[a], b) == a || ms_hosts_handler(shape, shape->host_of[b], a) == b;
}

/* ---- regions ---- */

/* The rank's part when the ranks of its host share n elements. */
static ms_hosts_range part_of(const ms_hosts_shape *shape, int64_t n, int p) {
  ms_hosts_range part;
  part.n = ms_slice(n, members_of(shape, shape->host_of[p]), shape->place_of[p], &part.first);
  return part;
}

/* The host's slice of the buffer, and of that the rank's part. */
static ms_hosts_range slice_of(const ms_hosts_shape *shape, int64_t count, int p) {
  int64_t begin, n = ms_slice(count, shape->hosts, shape->host_of[p], &begin);
  ms_hosts_range part = part_of(shape, n, p);
  return (ms_hosts_range){begin + part.first, part.n};
}

ms_hosts_range ms_hosts_region(const ms_hosts_shape *shape, const ms_coll *coll, int part, int p,
                               ms_hosts_range asked) {
  const int64_t count = coll->part[part].count;
  if (ms_coll_is_pairwise(coll->kind)) return (ms_hosts_range){0, count};
  if (coll->kind == MS_COLL_BROADCAST) return part_of(shape, count, p);
  const int whole = coll->kind == MS_COLL_ALL_REDUCE;
  if (coll->sliced) return (ms_hosts_range){(whole ? 0 : p * count) + asked.first, asked.n};
  return whole ? slice_of(shape, count, p) : (ms_hosts_range){p * count, count};
}

int ms_hosts_wire_dtype(const ms_coll *coll, int part) {
  return coll->kind == MS_COLL_ALL_GATHER ? coll->part[part].dst_dtype : coll->part[part].src_dtype;
}

/* What follows a region: the same one in the buffer of the host's next rank, or that of the next part. */
static void leave_region(const ms_hosts_shape *shape, const ms_coll *coll, ms_hosts_walk *walk) {
  walk->done = 0;
  if (coll->kind == MS_COLL_ALL_TO_ALL && ++walk->member < members_of(shape, walk->host)) return;
  walk->member = 0;
  walk->part++;
}

int ms_hosts_next_piece(const ms_hosts_shape *shape, const ms_coll *coll, ms_hosts_walk *walk, ms_hosts_piece *piece) {
  for (; walk->part < coll->parts; leave_region(shape, coll, walk)) {
    ms_hosts_range asked = walk->asked ? walk->asked[walk->part] : (ms_hosts_range){0};
    ms_hosts_range region = ms_hosts_region(shape, coll, walk->part, walk->p, asked);
    int64_t most = MS_HOSTS_PIECE / ms_dtype_size(ms_hosts_wire_dtype(coll, walk->part));
    int64_t rest = region.n - walk->done;
    if (rest <= 0) continue;
    *piece = (ms_hosts_piece){.part = walk->part,
                              .from = shape->member[shape->first[walk->host] + walk->member],
                              .first = region.first + walk->done,
                              .n = rest < most ? rest : most,
                              .within = walk->done};
    walk->done += piece->n;
    return 1;
  }
  return 0;
}

/* ---- bytes ---- */

static int64_t region_bytes(const ms_hosts_shape *shape, const ms_coll *coll, int p) {
  int64_t bytes = 0;
  for (int i = 0; i < coll->parts; i++)
    bytes += ms_hosts_region(shape, coll, i, p, (ms_hosts_range){0}).n * ms_dtype_size(ms_hosts_wire_dtype(coll, i));
  return bytes;
}

/* Bytes of the regions of ranks of other hosts that rank p handles. */
static int64_t handled_bytes(const ms_hosts_shape *shape, const ms_coll *coll, int p) {
  int64_t bytes = 0;
  for (int q = 0; q < shape->size; q++)
    if (q != p && ms_hosts_handler(shape, shape->host_of[p], q) == p) bytes += region_bytes(shape, coll, q);
  return bytes;
}

void ms_hosts_bytes(const ms_hosts_shape *shape, const ms_coll *coll, int p, int64_t *sent, int64_t *received) {
  const int kind = coll->kind;
  const int64_t own = region_bytes(shape, coll, p) * (shape->hosts - 1), handled = handled_bytes(shape, coll, p);
  *sent = *received = 0;
  if (kind == MS_COLL_BROADCAST) {
    if (shape->host_of[p] == shape->host_of[coll->root]) *sent = handled;
    else *received = region_bytes(shape, coll, p);
  } else if (kind == MS_COLL_ALL_GATHER || kind == MS_COLL_REDUCE_SCATTER) {
    *sent = kind == MS_COLL_ALL_GATHER ? own : handled;
    *received = kind == MS_COLL_ALL_GATHER ? handled : own;
  } else if (kind == MS_COLL_ALL_TO_ALL) {
    const int here = members_of(shape, shape->host_of[p]);
    *sent = handled * here;
    *received = region_bytes(shape, coll, p) * (shape->size - here);
  } else if (kind == MS_COLL_ALL_REDUCE) *sent = *received = own + handled;
}

/* A rank sums the regions that it has in hand, its own and those that it handles, over the sources of its host, and
 * reads all others where ranks of its host have put them. In an all_to_all it copies or sends those regions instead. */
int64_t ms_hosts_bytes_inside(const ms_hosts_shape *shape, const ms_coll *coll, int p) {
  const int kind = coll->kind;
  const int64_t own = region_bytes(shape, coll, p), in_hand = own + handled_bytes(shape, coll, p);
  if (kind == MS_COLL_BROADCAST) return p != coll->root && shape->host_of[p] == shape->host_of[coll->root] ? own : 0;
  if (ms_coll_is_pairwise(kind)) return own;
  const int64_t summed = in_hand * (members_of(shape, shape->host_of[p]) - 1);
  if (kind == MS_COLL_REDUCE_SCATTER || kind == MS_COLL_ALL_TO_ALL) return summed;
  int64_t rest = -in_hand;
  for (int q = 0; q < shape->size; q++) rest += region_bytes(shape, coll, q);
  return kind == MS_COLL_ALL_GATHER ? rest : summed + rest;
}
