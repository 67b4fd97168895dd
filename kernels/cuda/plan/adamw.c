/* adamw.c - how many parameters a launch of adamw updates. Those whose moments are kept in 8 bits have a kernel of
 * their own, which takes one. */
#include "kernels/cuda/plan/plan.h"
#include "kernels/moments.h"

int ms_cuda_adamw_together(const ms_kernel_call *call) {
  return call->attrs.i[3] == MS_ADAMW_I8 ? 1 : MS_ADAMW_TOGETHER;
}
