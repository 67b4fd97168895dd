/* attention.c - softmax(q k' scale) v without a tensor of scores (Dao et al. 2022): reads the call, chooses the
 * implementation for the processor, and divides the blocks of queries among threads. attention_f32.h describes the
 * computation. */
#include "kernels/cpu/attention/attention.h"

#include <stddef.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/cpu/matmul/bf16_block.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/matmul/split_panel.h"
#include "kernels/cpu/target.h"

int ms_attention_check(const ms_kernel_call *call) {
  if (call->in[0].dtype == MS_F32 || call->in[0].dtype == MS_BF16) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "attention: q is %s; it must be f32 or bf16", ms_dtype_name(call->in[0].dtype));
}

ms_attention ms_attention_of(const ms_kernel_call *call) {
  const ms_value_info *q = &call->in[0], *k = &call->in[1];
  ms_attention a = {.batch = q->dims[0],
                    .t = q->dims[1],
                    .heads = q->dims[2],
                    .d = q->dims[3],
                    .e = call->in[2].dims[3],
                    .lse_row = q->dims[1],
                    .s = k->dims[1],
                    .groups = k->dims[2],
                    .dtype = q->dtype,
                    .options = ms_attention_options_of(call->op, &call->attrs, call->in)};
  a.before = a.options.part.ranks ? a.s - ms_attention_queries(&a.options, a.t) : 0;
  return a;
}

/* Panels have 32 rows and steps of 32; with smaller sizes the matrix unit would mostly multiply padding. */
static int fills_panels(const ms_attention *a) {
  return a->d >= MS_SPLIT_GRAIN && a->e >= MS_SPLIT_GRAIN && a->t >= MS_SPLIT_GRAIN && a->s >= MS_SPLIT_GRAIN;
}

ms_attention_code ms_attention_choose(const ms_attention *a) {
#if defined(__x86_64__)
  if (a->dtype == MS_BF16 && ms_bf16_unit_of_cpu())
    return (ms_attention_code){ms_attention_bf16_forward, ms_attention_bf16_backward};
  if (a->dtype == MS_F32 && fills_panels(a) && ms_split_enabled()) return ms_attention_split;
  if (ms_cpu_is_v4()) return ms_attention_f32_avx512;
  if (ms_cpu_is_v3()) return ms_attention_f32_avx2;
#endif
  return ms_attention_f32_sse2;
}

static int64_t items_of(const ms_attention *a) { return a->batch * a->heads * ms_query_blocks(a); }

static int parts_of(const ms_kernel_call *call, const ms_attention *a) {
  return ms_part_count(call, items_of(a), ms_call_bytes(call));
}

static int prepare(ms_kernel_call *call) {
  MS_TRY(ms_attention_check(call));
  const ms_attention a = ms_attention_of(call);
  call->workspace_bytes = parts_of(call, &a) * ms_attention_choose(&a).forward.scratch_bytes(&a);
  return MS_OK;
}

static void run_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const ms_attention a = ms_attention_of(call);
  const ms_attention_part code = ms_attention_choose(&a).forward;
  code.run(&a, call, begin, end, (char *)call->workspace + part * code.scratch_bytes(&a));
}

static int run(const ms_kernel_call *call) {
  const ms_attention a = ms_attention_of(call);
  ms_run_parts(call, parts_of(call, &a), items_of(&a), 1, run_part);
  return MS_OK;
}

const ms_kernel ms_cpu_attention = {.prepare = prepare, .run = run};
