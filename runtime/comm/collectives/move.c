/* move.c - the data movement of each kind of collective, over buffers that all ranks of the group have mapped. */
#include "comm/collectives/move.h"

#include <string.h>

#include "base/numbers/dtype.h"
#include "base/slice.h"
#include "comm/collectives/sum.h"
#include "comm/group/world.h"

/* Up to this many bytes an out-of-place all-reduce reads all sources, for any number of ranks. */
static const int64_t DIRECT_BYTES = 32 << 10;

enum ms_move_way ms_move_way(int size, int me, const ms_coll *coll, const ms_coll_part *part) {
  if (coll->sliced) return MS_MOVE_DIRECT;
  if (part->dst == part->shared[me]) return MS_MOVE_PUSH;
  if (ms_dtype_size(part->dst_dtype) > ms_dtype_size(part->src_dtype)) return MS_MOVE_DIRECT;
  return size > 3 && part->count * ms_dtype_size(part->src_dtype) > DIRECT_BYTES ? MS_MOVE_PULL : MS_MOVE_DIRECT;
}

/* With replicas each rank casts a slice of its shard's chunk. */
static void gather(int size, int me, const ms_coll *coll, const ms_coll_part *part) {
  if (!part->src) return;
  const int replicas = coll->replicas ? coll->replicas : 1, shards = size / replicas, shard = me % shards;
  int64_t first, count = ms_slice(part->count, replicas, me / shards, &first);
  char *to = (char *)part->shared[0] + (shard * part->count + first) * ms_dtype_size(part->dst_dtype);
  ms_cast_chunk(part, first, count, to);
}

/* Sums elements [first, first + count) of all sources into dst, or takes the largest. */
static void sum_range(int size, int largest, const ms_coll_part *part, int64_t first, int64_t count, void *const *dst,
                      int n_dst, int dst_dtype, int accumulate) {
  const void *source[MS_MAX_LOCAL_RANKS];
  int64_t offset = first * ms_dtype_size(part->src_dtype);
  for (int p = 0; p < size; p++) source[p] = (const char *)part->shared[p] + offset;
  ms_combine_arrays(largest, dst, n_dst, dst_dtype, source, size, part->src_dtype, count, accumulate);
}

/* Sums this rank's slice of all sources; stores the sum into every rank's source (push), or only into its own. */
static void sum_slice(int size, int me, int largest, const ms_coll_part *part, enum ms_move_way way) {
  int64_t first, count = ms_slice(part->count, size, me, &first);
  if (!count) return;
  void *target[MS_MAX_LOCAL_RANKS];
  int targets = 0;
  for (int p = 0; p < size; p++)
    if (way == MS_MOVE_PUSH || p == me)
      target[targets++] = (char *)part->shared[p] + first * ms_dtype_size(part->src_dtype);
  sum_range(size, largest, part, first, count, target, targets, part->src_dtype, 0);
}

/* Sums the elements that only this rank receives: its chunk or the whole buffer, or its slice of that. */
static void sum_own(int size, const ms_coll *coll, const ms_coll_part *part, int64_t begin) {
  const int64_t first = coll->sliced ? part->first : 0, n = coll->sliced ? part->n : part->count;
  if (n) sum_range(size, coll->largest, part, begin + first, n, &part->dst, 1, part->dst_dtype, part->accumulate);
}

static void reduce_scatter(int size, int me, const ms_coll *coll, const ms_coll_part *part) {
  const int shards = coll->replicas ? size / coll->replicas : size;
  sum_own(size, coll, part, me % shards * part->count);
}

static void all_reduce(int size, int me, const ms_coll *coll, const ms_coll_part *part) {
  enum ms_move_way way = ms_move_way(size, me, coll, part);
  if (way == MS_MOVE_DIRECT) sum_own(size, coll, part, 0);
  else sum_slice(size, me, coll->largest, part, way);
}

/* Sources that are not mapped here are those of other hosts, whose chunks come by another way. */
static void exchange(int size, int me, const ms_coll_part *part) {
  const int64_t chunk = part->count * ms_dtype_size(part->src_dtype);
  /* Every rank begins with its own source, so they do not all read the same memory at once. */
  for (int turn = 0; turn < size; turn++) {
    const int p = (me + turn) % size;
    const char *source = part->shared[p];
    if (source) memcpy((char *)part->dst + p * chunk, source + me * chunk, (size_t)chunk);
  }
}

void ms_move_share(int size, int me, const ms_coll *coll) {
  for (int i = 0; i < coll->parts; i++) {
    const ms_coll_part *part = &coll->part[i];
    if (!part->count) continue;
    if (coll->kind == MS_COLL_ALL_GATHER) gather(size, me, coll, part);
    else if (coll->kind == MS_COLL_REDUCE_SCATTER) reduce_scatter(size, me, coll, part);
    else if (coll->kind == MS_COLL_ALL_REDUCE) all_reduce(size, me, coll, part);
    else if (coll->kind == MS_COLL_ALL_TO_ALL) exchange(size, me, part);
    else if (coll->kind == MS_COLL_BROADCAST || coll->kind == MS_COLL_RECV)
      ms_copy_arrays(part->dst, part->dst_dtype, part->shared[coll->root], part->src_dtype, part->count);
  }
}

int ms_move_pulls(int size, int me, const ms_coll *coll) {
  if (coll->kind != MS_COLL_ALL_REDUCE) return 0;
  for (int i = 0; i < coll->parts; i++)
    if (ms_move_way(size, me, coll, &coll->part[i]) == MS_MOVE_PULL) return 1;
  return 0;
}

void ms_move_pull(int size, int me, const ms_coll *coll) {
  for (int i = 0; i < coll->parts; i++) {
    const ms_coll_part *part = &coll->part[i];
    if (ms_move_way(size, me, coll, part) != MS_MOVE_PULL) continue;
    /* Every rank begins with its own slice, so they do not all read the same memory at once. */
    for (int turn = 0; turn < size; turn++) {
      int p = (me + turn) % size;
      int64_t first, count = ms_slice(part->count, size, p, &first);
      void *dst = (char *)part->dst + first * ms_dtype_size(part->dst_dtype);
      const void *source = (const char *)part->shared[p] + first * ms_dtype_size(part->src_dtype);
      if (part->accumulate) ms_sum_arrays(&dst, 1, part->dst_dtype, &source, 1, part->src_dtype, count, 1);
      else ms_copy_arrays(dst, part->dst_dtype, source, part->src_dtype, count);
    }
  }
}
