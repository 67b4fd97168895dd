/* record.c - what the flight recorder gets to know of an operation, and the bytes that it moves by the closed forms. */
#include "base/numbers/dtype.h"
#include "comm/collectives/channel.h"

double ms_coll_bytes(int kind, int ranks, const ms_coll_part *part, int parts) {
  double bytes = 0, others = ranks - 1;
  for (int i = 0; i < parts; i++) {
    double count = (double)part[i].count;
    int src = ms_dtype_size(part[i].src_dtype), dst = ms_dtype_size(part[i].dst_dtype);
    if (kind == MS_COLL_ALL_GATHER) bytes += others * count * dst;
    else if (kind == MS_COLL_REDUCE_SCATTER || kind == MS_COLL_ALL_TO_ALL) bytes += others * count * src;
    else if (kind == MS_COLL_ALL_REDUCE) bytes += 2 * others / ranks * count * src;
    else if (kind != MS_COLL_BARRIER) bytes += count * src;
  }
  return bytes;
}

/* Bytes as if the shards were reduced first, then the replicas. */
static double bytes_of(int size, const ms_coll *coll) {
  if (!coll->replicas) return ms_coll_bytes(coll->kind, size, coll->part, coll->parts);
  double bytes = ms_coll_bytes(coll->kind, size / coll->replicas, coll->part, coll->parts);
  if (coll->kind != MS_COLL_ALL_GATHER)
    bytes += ms_coll_bytes(MS_COLL_ALL_REDUCE, coll->replicas, coll->part, coll->parts);
  return bytes;
}

void ms_channel_entered(const ms_channel_config *config, const ms_coll *coll, uint64_t sequence) {
  ms_recorder *recorder = ms_world_recorder(config->world);
  const int label = coll->label_number ? coll->label_number : ms_recorder_number(recorder, coll->label);
  ms_recorder_entered(recorder, config->ring, sequence, coll->kind, label, bytes_of(config->size, coll));
}
