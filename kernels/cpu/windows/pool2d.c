/* pool2d.c - maxima and means of windows of planes [H][W], and their gradients.
 *
 * Work is divided by planes. A tap of the window at a time moves along a row of results, in blocks that stay in L1; of
 * the maximum also where it was found. Gradients sum a plane in f32 in the part's scratch, tap by tap.
 */
#include "kernels/cpu/block.h"

#include <math.h>

#include "kernels/cpu/parallel.h"
#include "kernels/window.h"

static int parts_of(const ms_kernel_call *call, int backward) {
  return ms_part_count(call, ms_pool_of(call, backward).planes, ms_call_bytes(call));
}

/* The part [*left, *right) of a block's results, which begins at `first`, that see elements of a row by this tap. */
MS_INLINE void clip(const ms_window *w, int64_t tap, int64_t first, int64_t n, int64_t *left, int64_t *right) {
  ms_window_outputs_of(w, tap, left, right);
  *left = *left > first ? *left - first : 0;
  *right = *right - first < n ? *right - first : n;
}

/* ---- maximum ----------------------------------------------------------------------------------------------------- */

/* Results [first, first + n) of row i. Before anything is compared, a window's maximum is its first element. */
MS_INLINE void max_block(const ms_pool *p, const void *x, int64_t plane, int64_t i, int64_t first, int64_t n,
                         float *best, int32_t *at, int bf16) {
  const ms_window *a = &p->across;
  int64_t top, bottom, left, right;
  ms_window_taps(&p->down, i, &top, &bottom);
  const int64_t row = i * p->down.stride - p->down.pad + top;
  for (int64_t j = 0; j < n; j++) {
    const int64_t from = (first + j) * a->stride - a->pad;
    best[j] = -INFINITY;
    at[j] = (int32_t)(row * a->in + (from < 0 ? 0 : from));
  }
  for (int64_t r = top; r < bottom; r++)
    for (int64_t s = 0; s < a->size; s++) {
      const int64_t begin = (row + r - top) * a->in + first * a->stride - a->pad + s;
      clip(a, s, first, n, &left, &right);
#pragma omp simd
      for (int64_t j = left; j < right; j++) {
        const int64_t from = begin + j * a->stride;
        const float value = ms_simd_load(x, plane + from, bf16), kept = best[j];
        const int larger = (value > kept) | ((value != value) & (kept == kept));
        best[j] = larger ? value : kept;
        at[j] = larger ? (int32_t)from : at[j];
      }
    }
}

MS_INLINE void max_planes(const ms_kernel_call *call, int64_t begin, int64_t end, int bf16) {
  const ms_pool p = ms_pool_of(call, 0);
  int32_t *indices = call->out_data[1];
  MS_BLOCK_BUFFER(best);
  for (int64_t plane = begin; plane < end; plane++)
    for (int64_t i = 0; i < p.down.out; i++)
      for (int64_t first = 0; first < p.across.out; first += MS_BLOCK) {
        const int64_t n = ms_block_length(first, p.across.out);
        const int64_t to = (plane * p.down.out + i) * p.across.out + first;
        max_block(&p, call->in_data[0], plane * p.down.in * p.across.in, i, first, n, best, indices + to, bf16);
        for (int64_t j = 0; j < n; j++) ms_simd_store(call->out_data[0], to + j, best[j], bf16);
      }
}

MS_CLONES static void max_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  if (call->in[0].dtype == MS_BF16) max_planes(call, begin, end, 1);
  else max_planes(call, begin, end, 0);
}

/* ---- mean -------------------------------------------------------------------------------------------------------- */

MS_INLINE void mean_block(const ms_pool *p, const void *x, int64_t plane, int64_t i, int64_t first, int64_t n,
                          float *sums, int count_padding, int bf16) {
  const ms_window *a = &p->across;
  int64_t top, bottom, left, right;
  ms_window_taps(&p->down, i, &top, &bottom);
  ms_block_fill(sums, 0.0f, n);
  for (int64_t r = top; r < bottom; r++)
    for (int64_t s = 0; s < a->size; s++) {
      const int64_t begin = plane + (i * p->down.stride - p->down.pad + r) * a->in + first * a->stride - a->pad + s;
      clip(a, s, first, n, &left, &right);
#pragma omp simd
      for (int64_t j = left; j < right; j++) sums[j] += ms_simd_load(x, begin + j * a->stride, bf16);
    }
  for (int64_t j = 0; j < n; j++) sums[j] /= (float)ms_pool_divisor(p, i, first + j, count_padding);
}

MS_INLINE void mean_planes(const ms_kernel_call *call, int64_t begin, int64_t end, int bf16) {
  const ms_pool p = ms_pool_of(call, 0);
  MS_BLOCK_BUFFER(sums);
  for (int64_t plane = begin; plane < end; plane++)
    for (int64_t i = 0; i < p.down.out; i++)
      for (int64_t first = 0; first < p.across.out; first += MS_BLOCK) {
        const int64_t n = ms_block_length(first, p.across.out);
        const int64_t to = (plane * p.down.out + i) * p.across.out + first;
        mean_block(&p, call->in_data[0], plane * p.down.in * p.across.in, i, first, n, sums,
                   call->attrs.windows.count_include_pad != 0, bf16);
        for (int64_t j = 0; j < n; j++) ms_simd_store(call->out_data[0], to + j, sums[j], bf16);
      }
}

MS_CLONES static void mean_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  if (call->in[0].dtype == MS_BF16) mean_planes(call, begin, end, 1);
  else mean_planes(call, begin, end, 0);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static int64_t plane_size(const ms_pool *p) { return p->down.in * p->across.in; }

static int prepare_backward(ms_kernel_call *call, int backward) {
  const ms_pool p = ms_pool_of(call, backward);
  if (backward) call->workspace_bytes = ms_scratch_bytes(parts_of(call, 1), 1, plane_size(&p));
  return MS_OK;
}

/* sums [H][W] += dy of the windows where their maxima are. */
MS_INLINE void spread_maxima(const ms_kernel_call *call, const ms_pool *p, int64_t plane, float *sums, int bf16) {
  const int64_t windows = p->down.out * p->across.out;
  const int32_t *indices = (const int32_t *)call->in_data[1] + plane * windows;
  for (int64_t e = 0; e < windows; e++) sums[indices[e]] += ms_simd_load(call->in_data[0], plane * windows + e, bf16);
}

/* sums [H][W] += dy of the windows, divided by what their means divided by. */
MS_INLINE void spread_means(const ms_kernel_call *call, const ms_pool *p, int64_t plane, float *sums, int bf16) {
  const ms_window *a = &p->across;
  int64_t top, bottom, left, right;
  MS_BLOCK_BUFFER(dy);
  for (int64_t i = 0; i < p->down.out; i++)
    for (int64_t first = 0; first < a->out; first += MS_BLOCK) {
      const int64_t n = ms_block_length(first, a->out), from = (plane * p->down.out + i) * a->out + first;
      for (int64_t j = 0; j < n; j++)
        dy[j] = ms_simd_load(call->in_data[0], from + j, bf16) /
                (float)ms_pool_divisor(p, i, first + j, call->attrs.windows.count_include_pad != 0);
      ms_window_taps(&p->down, i, &top, &bottom);
      for (int64_t r = top; r < bottom; r++)
        for (int64_t s = 0; s < a->size; s++) {
          float *to = sums + (i * p->down.stride - p->down.pad + r) * a->in;
          const int64_t shift = first * a->stride - a->pad + s;
          clip(a, s, first, n, &left, &right);
          for (int64_t j = left; j < right; j++) to[shift + j * a->stride] += dy[j];
        }
    }
}

MS_INLINE void spread_planes(const ms_kernel_call *call, int part, int64_t begin, int64_t end, int maxima, int bf16) {
  const ms_pool p = ms_pool_of(call, 1);
  const int64_t size = plane_size(&p);
  float *sums = ms_scratch_row(call, part, 1, 0, size);
  for (int64_t plane = begin; plane < end; plane++) {
    ms_block_fill(sums, 0.0f, size);
    if (maxima) spread_maxima(call, &p, plane, sums, bf16);
    else spread_means(call, &p, plane, sums, bf16);
    for (int64_t e = 0; e < size; e++) ms_simd_store(call->out_data[0], plane * size + e, sums[e], bf16);
  }
}

MS_CLONES static void max_backward_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  if (call->in[0].dtype == MS_BF16) spread_planes(call, part, begin, end, 1, 1);
  else spread_planes(call, part, begin, end, 1, 0);
}

MS_CLONES static void mean_backward_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  if (call->in[0].dtype == MS_BF16) spread_planes(call, part, begin, end, 0, 1);
  else spread_planes(call, part, begin, end, 0, 0);
}

/* ---- the kernels ------------------------------------------------------------------------------------------------- */

static int run_planes(const ms_kernel_call *call, int backward, ms_part_fn *run) {
  ms_run_parts(call, parts_of(call, backward), ms_pool_of(call, backward).planes, 1, run);
  return MS_OK;
}

static int prepare_max(ms_kernel_call *call) { return prepare_backward(call, call->op == MS_OP_max_pool2d_backward); }

static int run_max(const ms_kernel_call *call) {
  const int backward = call->op == MS_OP_max_pool2d_backward;
  return run_planes(call, backward, backward ? max_backward_part : max_part);
}

static int prepare_mean(ms_kernel_call *call) { return prepare_backward(call, call->op == MS_OP_avg_pool2d_backward); }

static int run_mean(const ms_kernel_call *call) {
  const int backward = call->op == MS_OP_avg_pool2d_backward;
  return run_planes(call, backward, backward ? mean_backward_part : mean_part);
}

const ms_kernel ms_cpu_max_pool2d = {.prepare = prepare_max, .run = run_max};
const ms_kernel ms_cpu_avg_pool2d = {.prepare = prepare_mean, .run = run_mean};
