/* attention_backward.c - the gradients of q, k and v: recomputes the scores and normalises them with the saved log-sum
 * of each query. A thread takes whole key heads, so the order of every sum is the same for any number of threads. */
#include "kernels/cpu/attention/attention.h"

#include "base/error.h"
#include "kernels/cpu/parallel.h"

static int64_t items_of(const ms_attention *a) { return a->batch * a->groups; }

static int parts_of(const ms_kernel_call *call, const ms_attention *a) {
  return ms_part_count(call, items_of(a), ms_call_bytes(call));
}

static int prepare(ms_kernel_call *call) {
  MS_TRY(ms_attention_check(call));
  const ms_attention a = ms_attention_of(call);
  call->workspace_bytes = parts_of(call, &a) * ms_attention_choose(&a).backward.scratch_bytes(&a);
  return MS_OK;
}

static void run_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const ms_attention a = ms_attention_of(call);
  const ms_attention_part code = ms_attention_choose(&a).backward;
  code.run(&a, call, begin, end, (char *)call->workspace + part * code.scratch_bytes(&a));
}

static int run(const ms_kernel_call *call) {
  const ms_attention a = ms_attention_of(call);
  ms_run_parts(call, parts_of(call, &a), items_of(&a), 1, run_part);
  return MS_OK;
}

const ms_kernel ms_cpu_attention_backward = {.prepare = prepare, .run = run};
