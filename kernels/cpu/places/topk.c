/* topk.c - the k largest or smallest elements of each line along one axis, in order (order_key.h). A heap of keys holds
 * the best k so far, the worst of them at its root: most elements of a long line are compared once, with the root. The
 * heap is in the workspace, one for each part. */
#include "kernels/cpu/block.h"

#include "kernels/cpu/parallel.h"
#include "kernels/order_key.h"
#include "kernels/shape.h"

static int64_t heap_stride(int64_t k) { return (k + 7) / 8 * 8; }

static int64_t lines_of(const ms_kernel_call *call) {
  const ms_axis_view view = ms_view_axis(&call->in[0], call->attrs.topk.axis);
  return view.outer * view.inner;
}

static int parts_of(const ms_kernel_call *call) { return ms_part_count(call, lines_of(call), ms_call_bytes(call)); }

static int prepare(ms_kernel_call *call) {
  call->workspace_bytes = parts_of(call) * heap_stride(call->attrs.topk.k) * (int64_t)sizeof(uint64_t);
  return MS_OK;
}

/* Moves the root of heap [n] down to where both below it are larger. */
static void sift(uint64_t *heap, int64_t n) {
  const uint64_t key = heap[0];
  int64_t at = 0;
  for (int64_t child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && heap[child + 1] < heap[child]) child++;
    if (heap[child] >= key) break;
    heap[at] = heap[child];
  }
  heap[at] = key;
}

static void push(uint64_t *heap, int64_t n, uint64_t key) {
  int64_t at = n;
  for (; at > 0 && heap[(at - 1) / 2] > key; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
  heap[at] = key;
}

/* Leaves the largest k keys of a line in keys [k], the largest first. */
MS_INLINE void select_line(const ms_kernel_call *call, ms_axis_view view, int64_t first, uint64_t *keys, int bf16) {
  const int64_t k = call->attrs.topk.k;
  const int largest = call->attrs.topk.largest != 0;
  for (int64_t i = 0; i < k; i++)
    push(keys, i, ms_order_key(ms_simd_load(call->in_data[0], first + i * view.inner, bf16), i, largest));
  for (int64_t i = k; i < view.n; i++) {
    const uint64_t key = ms_order_key(ms_simd_load(call->in_data[0], first + i * view.inner, bf16), i, largest);
    if (key > keys[0]) keys[0] = key, sift(keys, k);
  }
  for (int64_t left = k - 1; left > 0; left--) { /* the smallest goes to the end */
    const uint64_t smallest = keys[0];
    keys[0] = keys[left];
    sift(keys, left);
    keys[left] = smallest;
  }
}

/* Lines [begin, end) of [outer][inner]. */
MS_INLINE void select_lines(const ms_kernel_call *call, int64_t begin, int64_t end, uint64_t *keys, int bf16) {
  const ms_axis_view view = ms_view_axis(&call->in[0], call->attrs.topk.axis);
  const int64_t k = call->attrs.topk.k;
  int32_t *indices = call->out_data[1];
  for (int64_t line = begin; line < end; line++) {
    const int64_t outer = line / view.inner, inner = line % view.inner, first = outer * view.n * view.inner + inner;
    select_line(call, view, first, keys, bf16);
    for (int64_t i = 0; i < k; i++) {
      const int64_t index = ms_order_index(keys[i]), to = (outer * k + i) * view.inner + inner;
      ms_simd_store(call->out_data[0], to, ms_simd_load(call->in_data[0], first + index * view.inner, bf16), bf16);
      indices[to] = (int32_t)index;
    }
  }
}

static void topk_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  uint64_t *keys = (uint64_t *)call->workspace + part * heap_stride(call->attrs.topk.k);
  if (call->in[0].dtype == MS_BF16) select_lines(call, begin, end, keys, 1);
  else select_lines(call, begin, end, keys, 0);
}

static int run(const ms_kernel_call *call) {
  if (ms_numel(&call->in[0]) == 0) return MS_OK;
  ms_run_parts(call, parts_of(call), lines_of(call), 1, topk_part);
  return MS_OK;
}

const ms_kernel ms_cpu_topk = {.prepare = prepare, .run = run};
