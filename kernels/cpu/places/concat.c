/* concat.c - joins tensors along one axis: for each index of the axes before it, copies the bytes of the inputs one
 * after the other. Elements of any dtype. */
#include <string.h>

#include "base/numbers/dtype.h"
#include "kernels/cpu/parallel.h"
#include "kernels/shape.h"

static void concat_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  int64_t size = ms_dtype_size(call->out[0].dtype), bytes[MS_MAX_INPUTS];
  for (int i = 0; i < call->inputs; i++) {
    ms_axis_view view = ms_view_axis(&call->in[i], call->attrs.cut.axis);
    bytes[i] = view.n * view.inner * size;
  }
  ms_axis_view to = ms_view_axis(&call->out[0], call->attrs.cut.axis);
  char *y = (char *)call->out_data[0] + begin * to.n * to.inner * size;
  for (int64_t o = begin; o < end; o++)
    for (int i = 0; i < call->inputs; i++) {
      if (bytes[i]) memcpy(y, (const char *)call->in_data[i] + o * bytes[i], (size_t)bytes[i]);
      y += bytes[i];
    }
}

static int run(const ms_kernel_call *call) {
  if (ms_numel(&call->out[0]) == 0) return MS_OK;
  int64_t outer = ms_view_axis(&call->out[0], call->attrs.cut.axis).outer;
  ms_run_parts(call, ms_part_count(call, outer, ms_call_bytes(call)), outer, 1, concat_part);
  return MS_OK;
}

const ms_kernel ms_cpu_concat = {.run = run};
