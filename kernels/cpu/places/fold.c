/* fold.c - moves the runs of a folded axis (kernels/fold.h): each is a contiguous range of bytes. Elements of any
 * dtype. */
#include "kernels/fold.h"

#include <string.h>

#include "base/numbers/dtype.h"
#include "kernels/cpu/parallel.h"

static void fold_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const ms_value_info *in = &call->in[0];
  const size_t bytes = (size_t)(in->dims[2] * ms_dtype_size(in->dtype));
  const char *x = call->in_data[0];
  char *y = call->out_data[0];
  for (int64_t i = begin; i < end; i++) {
    const int64_t from = ms_fold_source(&call->attrs, in->dims[0], in->dims[1], i);
    if (from < 0) memset(y + (size_t)i * bytes, 0, bytes);
    else memcpy(y + (size_t)i * bytes, x + (size_t)from * bytes, bytes);
  }
}

static int run(const ms_kernel_call *call) {
  const ms_value_info *out = &call->out[0];
  const int64_t runs = out->dims[0] * out->dims[1];
  if (ms_numel(out) == 0) return MS_OK;
  ms_run_parts(call, ms_part_count(call, runs, ms_call_bytes(call)), runs, 1, fold_part);
  return MS_OK;
}

const ms_kernel ms_cpu_fold = {.run = run};
