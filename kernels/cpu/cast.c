/* cast.c - x in another dtype: f32 or bf16 in, f32 or bf16 out. */
#include "kernels/cpu/block.h"

#include "kernels/cpu/parallel.h"

MS_CLONES static void cast_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  int from = call->in[0].dtype, to = call->out[0].dtype;
  if (begin == end) return;
  if (to == MS_F32) ms_widen(call->in_data[0], from, begin, end - begin, (float *)call->out_data[0] + begin);
  else if (from == MS_F32)
    ms_narrow((ms_bf16 *)call->out_data[0] + begin, (const float *)call->in_data[0] + begin, end - begin);
  else
    memcpy((ms_bf16 *)call->out_data[0] + begin, (const ms_bf16 *)call->in_data[0] + begin,
           (size_t)(end - begin) * sizeof(ms_bf16));
}

static int run(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->out[0]), cast_part); }

const ms_kernel ms_cpu_cast = {.run = run};
