/* experts.c - sorts choices of experts, and moves rows of tokens to the experts and back.
 *
 * T tokens choose K experts each, so the number of sorted rows is known, T K, whatever they choose; offsets say whose a
 * row is. The sort is a counting sort, which keeps the order of an expert's choices. A combined row is a sum over k in
 * f32: no order depends on how rows are divided among threads.
 */
#include "kernels/cpu/block.h"

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/cpu/parallel.h"
#include "kernels/shape.h"

/* ---- expert_order ------------------------------------------------------------------------------------------------ */

static int prepare_order(ms_kernel_call *call) {
  call->workspace_bytes = call->attrs.experts.experts * (int64_t)sizeof(int32_t);
  return MS_OK;
}

static int run_order(const ms_kernel_call *call) {
  const int32_t *index = call->in_data[0];
  const int64_t experts = call->attrs.experts.experts, n = ms_numel(&call->in[0]);
  int32_t *order = call->out_data[0], *places = call->out_data[1], *offsets = call->out_data[2],
          *next = call->workspace;
  memset(next, 0, (size_t)experts * sizeof *next);
  for (int64_t i = 0; i < n; i++) {
    if (index[i] < 0 || index[i] >= experts)
      return MS_FAIL(MS_EINVAL, "expert_order: expert %d at position %lld is not in [0,%lld)", (int)index[i],
                     (long long)i, (long long)experts);
    next[index[i]]++;
  }
  offsets[0] = 0;
  for (int64_t e = 0; e < experts; e++) {
    offsets[e + 1] = offsets[e] + next[e];
    next[e] = offsets[e];
  }
  for (int64_t i = 0; i < n; i++) {
    places[i] = next[index[i]]++;
    order[places[i]] = (int32_t)i;
  }
  return MS_OK;
}

const ms_kernel ms_cpu_expert_order = {.prepare = prepare_order, .run = run_order};

/* ---- rows by their order, or by their places --------------------------------------------------------------------- */

static int check_choices(const char *op, const char *what, const int32_t *choice, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (choice[i] < 0 || choice[i] >= n)
      return MS_FAIL(MS_EINVAL, "%s: %s is %d at position %lld, which is not in [0,%lld): give what expert_order made",
                     op, what, (int)choice[i], (long long)i, (long long)n);
  return MS_OK;
}

static float weight_of(const ms_kernel_call *call, int64_t choice) {
  return ms_simd_load(call->in_data[3], choice, call->in[3].dtype == MS_BF16);
}

MS_INLINE void dispatch_rows(const ms_kernel_call *call, int64_t begin, int64_t end, int bf16) {
  const int32_t *order = call->in_data[1];
  const int64_t columns = call->in[0].dims[1], each = call->in[2].dims[1];
  for (int64_t i = begin; i < end; i++) {
    const int64_t from = order[i] / each * columns, to = i * columns;
    const float weight = weight_of(call, order[i]);
    for (int64_t d = 0; d < columns; d++)
      ms_simd_store(call->out_data[0], to + d, weight * ms_simd_load(call->in_data[0], from + d, bf16), bf16);
  }
}

static void copy_rows(const ms_kernel_call *call, int64_t begin, int64_t end) {
  const int32_t *order = call->in_data[1];
  const int64_t bytes = call->in[0].dims[1] * ms_dtype_size(call->in[0].dtype), each = call->in[2].dims[1];
  for (int64_t i = begin; i < end; i++)
    memcpy((char *)call->out_data[0] + i * bytes, (const char *)call->in_data[0] + order[i] / each * bytes,
           (size_t)bytes);
}

MS_CLONES static void dispatch_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  if (call->inputs < 4) copy_rows(call, begin, end);
  else if (call->in[0].dtype == MS_BF16) dispatch_rows(call, begin, end, 1);
  else dispatch_rows(call, begin, end, 0);
}

static int run_dispatch(const ms_kernel_call *call) {
  const int64_t rows = call->in[1].dims[0];
  MS_TRY(check_choices("expert_dispatch", "order", call->in_data[1], rows));
  if (ms_numel(&call->out[0]) == 0) return MS_OK;
  ms_run_parts(call, ms_part_count(call, rows, ms_call_bytes(call)), rows, 1, dispatch_part);
  return MS_OK;
}

const ms_kernel ms_cpu_expert_dispatch = {.run = run_dispatch};

static int combine_parts(const ms_kernel_call *call) {
  return ms_part_count(call, call->out[0].dims[0], ms_call_bytes(call));
}

static int prepare_combine(ms_kernel_call *call) {
  call->workspace_bytes = ms_scratch_bytes(combine_parts(call), 1, call->in[0].dims[1]);
  return MS_OK;
}

MS_INLINE void combine_rows(const ms_kernel_call *call, int64_t begin, int64_t end, float *restrict sum, int bf16) {
  const int32_t *places = call->in_data[2];
  const int64_t columns = call->in[0].dims[1], each = call->in[2].dims[1];
  for (int64_t t = begin; t < end; t++) {
    for (int64_t d = 0; d < columns; d++) sum[d] = 0;
    for (int64_t k = 0; k < each; k++) {
      const int64_t from = places[t * each + k] * columns;
      const float weight = call->inputs < 4 ? 1 : weight_of(call, t * each + k);
      for (int64_t d = 0; d < columns; d++) sum[d] += weight * ms_simd_load(call->in_data[0], from + d, bf16);
    }
    for (int64_t d = 0; d < columns; d++) ms_simd_store(call->out_data[0], t * columns + d, sum[d], bf16);
  }
}

MS_CLONES static void combine_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  float *sum = ms_scratch_row(call, part, 1, 0, call->in[0].dims[1]);
  if (call->in[0].dtype == MS_BF16) combine_rows(call, begin, end, sum, 1);
  else combine_rows(call, begin, end, sum, 0);
}

static int run_combine(const ms_kernel_call *call) {
  MS_TRY(check_choices("expert_combine", "places", call->in_data[2], call->in[0].dims[0]));
  if (ms_numel(&call->out[0]) == 0) return MS_OK;
  ms_run_parts(call, combine_parts(call), call->out[0].dims[0], 1, combine_part);
  return MS_OK;
}

const ms_kernel ms_cpu_expert_combine = {.prepare = prepare_combine, .run = run_combine};

/* ---- the gradient of weights ------------------------------------------------------------------------------------- */

MS_INLINE void multiply_rows(const ms_kernel_call *call, int64_t begin, int64_t end, int bf16) {
  const int32_t *places = call->in_data[2];
  const int64_t columns = call->in[0].dims[1], each = call->in[2].dims[1];
  float *weights = call->out_data[0];
  for (int64_t choice = begin; choice < end; choice++) {
    const int64_t x = choice / each * columns, y = places[choice] * columns;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < columns; d++)
      sum += ms_simd_load(call->in_data[0], x + d, bf16) * ms_simd_load(call->in_data[1], y + d, bf16);
    weights[choice] = sum;
  }
}

MS_CLONES static void multiply_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  if (call->in[0].dtype == MS_BF16) multiply_rows(call, begin, end, 1);
  else multiply_rows(call, begin, end, 0);
}

static int run_weights_backward(const ms_kernel_call *call) {
  const int64_t choices = ms_numel(&call->in[2]);
  MS_TRY(check_choices("expert_weights_backward", "places", call->in_data[2], choices));
  if (choices == 0) return MS_OK;
  ms_run_parts(call, ms_part_count(call, choices, ms_call_bytes(call)), choices, 1, multiply_part);
  return MS_OK;
}

const ms_kernel ms_cpu_expert_weights_backward = {.run = run_weights_backward};
