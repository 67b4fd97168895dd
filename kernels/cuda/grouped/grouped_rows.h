/* grouped_rows.h - which rows a block of grouped_matmul has: a warp finds its group from the offsets, which the host
 * does not know. Offsets that do not ascend, or are beyond the rows, are recorded as the step's fault, and read as the
 * one before them. */
#ifndef MS_KERNELS_CUDA_GROUPED_ROWS_H
#define MS_KERNELS_CUDA_GROUPED_ROWS_H

#include "kernels/cuda/reductions/reduce.h"

extern "C" {
#include "kernels/cuda/plan/products/experts.h"
}

struct ms_groups {
  const int32_t *offsets; /* [groups + 1] */
  int64_t groups, rows;
  ms_fault *fault;
  int op;
};

static inline ms_groups ms_groups_of(const ms_kernel_call *call) {
  return {static_cast<const int32_t *>(call->in_data[2]), call->in[2].dims[0] - 1, call->in[0].dims[0], call->fault,
          call->op};
}

/* The rows [begin, end) of a group; `group` is -1 for rows of none. */
struct ms_group_rows {
  int group, begin, end, row; /* row: the first of this block's tile */
};

/* Where groups begin and end, of 32 at a time: a lane has one. Section 0 are the rows before the first group, section
 * `groups` + 1 those after the last. All lanes of a warp must call it with the same arguments. */
struct ms_group_section {
  int begin, end;
};
static __device__ __forceinline__ ms_group_section ms_find_section(const ms_groups &t, int at, int before) {
  const int lane = static_cast<int>(threadIdx.x) % MS_WARP, groups = static_cast<int>(t.groups),
            rows = static_cast<int>(t.rows);
  const int offset = at <= groups ? t.offsets[at] : rows;
  int end = max(before, offset <= rows ? offset : 0);
#pragma unroll
  for (int by = 1; by < MS_WARP; by *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, end, static_cast<unsigned>(by));
    if (lane >= by) end = max(end, other);
  }
  int begin = __shfl_up_sync(0xffffffffu, end, 1);
  if (lane == 0) begin = before;
  const unsigned wrong = __ballot_sync(0xffffffffu, offset < begin || offset > rows);
  if (wrong && lane == __ffs(static_cast<int>(wrong)) - 1) ms_note_fault(t.fault, t.op, offset, t.rows + 1, begin);
  return {begin, end};
}

/* The tile of ROWS rows with this number: tiles of the rows before the first group come first, then those of each
 * group, then those after the last. */
template <int ROWS> __device__ __forceinline__ ms_group_rows ms_find_tile(const ms_groups &t, int tile) {
  const int lane = static_cast<int>(threadIdx.x) % MS_WARP, groups = static_cast<int>(t.groups);
  for (int first = 0, before = 0; first <= groups + 1; first += MS_WARP) {
    const ms_group_section own = ms_find_section(t, first + lane, before);
    const int count = (own.end - own.begin + ROWS - 1) / ROWS;
    int tiles = count;
#pragma unroll
    for (int by = 1; by < MS_WARP; by *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, tiles, static_cast<unsigned>(by));
      if (lane >= by) tiles += other;
    }
    const unsigned found = __ballot_sync(0xffffffffu, tile < tiles);
    if (found) {
      const int from = __ffs(static_cast<int>(found)) - 1, at = first + from;
      const int begin = __shfl_sync(0xffffffffu, own.begin, from), end = __shfl_sync(0xffffffffu, own.end, from);
      const int row = begin + (tile - __shfl_sync(0xffffffffu, tiles - count, from)) * ROWS;
      return {at <= groups ? at - 1 : -1, begin, end, row};
    }
    tile -= __shfl_sync(0xffffffffu, tiles, MS_WARP - 1);
    before = __shfl_sync(0xffffffffu, own.end, MS_WARP - 1);
  }
  const int rows = static_cast<int>(t.rows);
  return {-1, rows, rows, rows};
}

/* All rows of a group. */
static __device__ __forceinline__ ms_group_rows ms_find_group(const ms_groups &t, int group) {
  const int lane = static_cast<int>(threadIdx.x) % MS_WARP;
  int before = 0;
  for (int first = 0;; first += MS_WARP) {
    const ms_group_section own = ms_find_section(t, first + lane, before);
    if (group + 1 < first + MS_WARP) {
      const int begin = __shfl_sync(0xffffffffu, own.begin, group + 1 - first);
      return {group, begin, __shfl_sync(0xffffffffu, own.end, group + 1 - first), begin};
    }
    before = __shfl_sync(0xffffffffu, own.end, MS_WARP - 1);
  }
}

/* Rounds input `which` of a call in 8 bits to values [the input's shape] in f8->dtype (grouped_f8.cu). */
int ms_grouped_round_run(const ms_kernel_call *call, const ms_grouped_f8 *f8, int which, void *values);

#endif
