/* copy.c - copies bytes unchanged: computes reshape where its output cannot be an alias of its input. */
#include <string.h>

#include "base/numbers/dtype.h"
#include "kernels/cpu/parallel.h"

static void copy_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  if (begin < end)
    memcpy((char *)call->out_data[0] + begin, (const char *)call->in_data[0] + begin, (size_t)(end - begin));
}

static int run(const ms_kernel_call *call) {
  if (call->out_data[0] == call->in_data[0]) return MS_OK;
  return ms_run_elements(call, ms_numel(&call->out[0]) * ms_dtype_size(call->out[0].dtype), copy_part);
}

const ms_kernel ms_cpu_copy = {.run = run, .in_place = MS_OVER(0, 0)};
