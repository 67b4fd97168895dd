/* lower_unshards.c - makes a unit's weights available to kernels when the schedule says so. They are gathered over
 * the shards, cast (one shard), gathered among neighbours from slices kept for that, or read in place. What is resident
 * is gathered in a phase of its own (lower_resident.c).
 */
#include "base/numbers/dtype.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/lower.h"

/* Returns the end of the run of segments from `first` on with the same dtype. With one shard these are contiguous,
 * at the same element offsets in all buffers; except in the chunks of a sliced unit, frozen ones after others. What is
 * stored comes last; codes have a scale of their own, and blocks are words. */
static int same_dtype_run(const ms_unit *u, int first) {
  int end = first + 1;
  while (end < u->segments && u->segment[end].wire == u->segment[first].wire &&
         !ms_segment_is_coded(&u->segment[end]) && !u->segment[end].blocks && !u->segment[first].blocks &&
         u->segment[end].frozen == u->segment[first].frozen)
    end++;
  return end;
}

/* One shard: there is nothing to gather, only to cast; what is stored is read where it is kept. */
static int cast_unit(ms_lowering *l, int unit, ms_place to, int resident) {
  const ms_unit *u = &l->model->unit[unit];
  for (int s = 0, end; s < u->segments && !ms_segment_is_stored(&u->segment[s]); s = end) {
    end = same_dtype_run(u, s);
    const ms_segment *first = &u->segment[s];
    const int64_t at = to.offset + first->gathered;
    if (ms_segment_is_resident(l->model, u, first) != resident) continue;
    if (first->blocks) {
      MS_TRY(ms_lower_blocks(l, unit, s, ms_ref_vector(to.buffer, at, first->wire, first->wire_chunk)));
      continue;
    }
    int64_t n = (end < u->segments ? u->segment[end].local : u->master_count) - first->local;
    ms_ref in = ms_plan_weights(l->plan, unit, s, first->local, n);
    ms_ref out = ms_ref_vector(to.buffer, at, first->wire, n);
    if (ms_segment_is_coded(first)) {
      MS_TRY(ms_lower_codes(l, unit, s, in, out));
      continue;
    }
    ms_op_attrs attrs = {.out_dtype = 1 + first->wire};
    MS_TRY(ms_plan_kernel(l->plan, l->phase, MS_OP_cast, &attrs, 1, &in, 1, &out, u->name, 0));
  }
  return MS_OK;
}

static int gather_unit(ms_lowering *l, int unit, ms_place to, int ranks, int resident) {
  const ms_unit *u = &l->model->unit[unit];
  const int in_place = ms_plan_shares_masters(l->plan, unit);
  int parts = 0;
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (ms_segment_is_resident(l->model, u, seg) != resident) continue;
    ms_ref src = in_place ? ms_ref_vector(-1, 0, seg->wire, seg->chunk)
                          : ms_plan_weights(l->plan, unit, s, seg->local, seg->chunk);
    if (seg->blocks) MS_TRY(ms_lower_sent_blocks(l, unit, s, &src));
    const int64_t whole = seg->wire_chunk * ms_model_shards(l->model);
    l->part[parts] = (ms_plan_part){.count = seg->wire_chunk * (ms_model_shards(l->model) / ranks),
                                    .src = src,
                                    .shared = ms_ref_vector(to.buffer, to.offset + seg->gathered, seg->wire, whole),
                                    .dst.buffer = -1};
    if (ms_segment_is_coded(seg)) l->part[parts].scale = ms_lower_scale(l, u->order[seg->first_param]);
    parts++;
  }
  MS_TRY(ms_plan_collective(l->plan, l->phase, MS_STREAM_GATHER, MS_COLL_ALL_GATHER, MS_DIM_SHARD, ranks, unit, parts,
                            l->part));
  return !in_place && l->plan->layout->replicas > 1 ? ms_plan_take_replicas(l->plan, l->phase) : MS_OK;
}

int ms_lower_unshard(ms_lowering *l, int unit, ms_place to, int ranks, int resident) {
  if (ms_unit_shards(&l->model->unit[unit]) == 1) return cast_unit(l, unit, to, resident);
  return gather_unit(l, unit, to, ranks, resident);
}

/* Size in bytes of the part of a segment that each of `ranks` neighbours keeps. */
static int64_t slice_bytes(const ms_lowering *l, const ms_segment *seg, int ranks) {
  return seg->wire_chunk * (ms_model_shards(l->model) / ranks) * ms_dtype_size(seg->wire);
}

/* After forward: copies this rank's contribution to its group's gather in backward out of the gathered unit. */
static int keep_slice(ms_lowering *l, int unit, int ranks) {
  const ms_unit *u = &l->model->unit[unit];
  MS_TRY(ms_plan_buffer(l->plan, l->phase, MS_ARENA_GROUPED, MS_CAT_GATHERED,
                        u->gathered_bytes / ranks + 64 * u->segments, u->name, &l->slice[unit]));
  int64_t at = 0;
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    int64_t bytes = slice_bytes(l, seg, ranks), n = bytes / ms_dtype_size(seg->wire);
    int64_t begin = seg->gathered + l->model->dim[MS_DIM_SHARD].place % ranks * bytes;
    ms_ref in = ms_ref_vector(l->gathered[unit], begin, seg->wire, n);
    ms_ref out = ms_ref_vector(l->slice[unit], at, seg->wire, n);
    ms_op_attrs attrs = {.out_dtype = 1 + seg->wire};
    MS_TRY(ms_plan_kernel(l->plan, l->phase, MS_OP_cast, &attrs, 1, &in, 1, &out, u->name, 0));
    at += (bytes + 63) / 64 * 64;
  }
  return MS_OK;
}

/* Keeps slices of all units whose forward pass ends with this node and that smaller groups gather again. */
int ms_lower_keep_slices(ms_lowering *l, int node) {
  if (!l->ends[node]) return MS_OK;
  for (int u = 0; u < l->model->units; u++) {
    const ms_unit_use *use = &l->use[u];
    if (use->forward_last != node || use->keep || use->backward_first < 0) continue;
    int ranks = ms_unit_backward_ranks(l->model, u);
    if (ranks == ms_unit_shards(&l->model->unit[u])) continue;
    if (!ms_plan_shares_masters(l->plan, u)) MS_TRY(keep_slice(l, u, ranks));
  }
  return MS_OK;
}

/* For backward: gathers among neighbours from the slices they kept. */
static int gather_slices(ms_lowering *l, int unit, int ranks) {
  const ms_unit *u = &l->model->unit[unit];
  int buffer;
  MS_TRY(ms_plan_buffer(l->plan, l->phase, MS_ARENA_GROUPED, MS_CAT_GATHERED, u->gathered_bytes, u->name, &buffer));
  l->plan->buffer[buffer].ranks = ranks;
  l->plan->buffer[buffer].dim = MS_DIM_SHARD;
  l->gathered[unit] = buffer;
  int64_t at = 0;
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    int64_t bytes = slice_bytes(l, seg, ranks), n = bytes / ms_dtype_size(seg->wire);
    l->part[s] = (ms_plan_part){.count = n,
                                .src = ms_ref_vector(l->slice[unit], at, seg->wire, n),
                                .shared = ms_ref_vector(buffer, seg->gathered, seg->wire, n * ranks),
                                .dst.buffer = -1};
    at += (bytes + 63) / 64 * 64;
  }
  return ms_plan_collective(l->plan, l->phase, MS_STREAM_GATHER, MS_COLL_ALL_GATHER, MS_DIM_SHARD, ranks, unit,
                            u->segments, l->part);
}

int ms_lower_unshards(ms_lowering *l, int node) {
  while (l->next_unshard < l->unshards && l->unshard[l->next_unshard].issue <= node) {
    const ms_unshard *unshard = &l->unshard[l->next_unshard++];
    int unit = unshard->unit, buffer = ms_state_buffer(unit, MS_SLOT_MASTER);
    int again = unshard->need >= l->boundary && l->use[unit].forward_first >= 0;
    int ranks = again ? ms_unit_backward_ranks(l->model, unit) : ms_unit_shards(&l->model->unit[unit]);
    if (l->slice[unit] >= 0) {
      MS_TRY(gather_slices(l, unit, ranks));
      continue;
    }
    const ms_unit *u = &l->model->unit[unit];
    int stays = l->phase != MS_PHASE_EVALUATE && !l->plan->config.reshard_after_backward;
    const int arena =
        ms_unit_is_whole(l->model, u) ? MS_ARENA_GROUPED : MS_ARENA_GATHERED; /* of this rank, or of all */
    if (!ms_plan_shares_masters(l->plan, unit))
      MS_TRY(ms_plan_buffer(l->plan, stays ? -1 : l->phase, arena, MS_CAT_GATHERED, ms_unit_resident_from(l->model, u),
                            u->name, &buffer));
    l->gathered[unit] = buffer;
    if (stays) l->plan->kept_unsharded[unit] = buffer;
    MS_TRY(ms_lower_unshard(l, unit, (ms_place){buffer, 0}, ranks, 0));
  }
  return MS_OK;
}
