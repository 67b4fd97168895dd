/* dtypes.c - refuses the combinations of dtypes that CUDA kernels have no code for. Their calls need no workspace. */
#include "base/numbers/dtype.h"
#include "base/error.h"
#include "kernels/cuda/plan/plan.h"

/* bf16 with bf16 must give bf16; other combinations give f32. */
int ms_cuda_prepare_binary(ms_kernel_call *call) {
  const int both = call->in[0].dtype == MS_BF16 && call->in[1].dtype == MS_BF16;
  if (call->out[0].dtype == (both ? MS_BF16 : MS_F32)) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "cuda: %s and %s give %s", ms_dtype_name(call->in[0].dtype),
                 ms_dtype_name(call->in[1].dtype), both ? "bf16" : "f32");
}

/* dy must have the dtype of maximum's result, which dx has too. */
int ms_cuda_prepare_maximum_backward(ms_kernel_call *call) {
  if (call->in[2].dtype == call->out[0].dtype) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "cuda: maximum_backward of dy %s; it must be %s", ms_dtype_name(call->in[2].dtype),
                 ms_dtype_name(call->out[0].dtype));
}

/* x, y and dy must have one dtype. */
int ms_cuda_prepare_max_backward(ms_kernel_call *call) {
  const int x = call->in[0].dtype, y = call->in[1].dtype, dy = call->in[2].dtype;
  if (y == x && dy == x) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "cuda: max_backward of %s, %s and %s; all must have the same dtype", ms_dtype_name(x),
                 ms_dtype_name(y), ms_dtype_name(dy));
}
