/* update.c - which updates a launch takes (kernels/cuda/optimizers/update.h): those of one optimizer with the same
 * settings, apart from the learning rate and the weight decay. Moments that are kept in 8 bits have a kernel of their
 * own, with a launch for each call. */
#include <string.h>

#include "kernels/cuda/plan/plan.h"
#include "kernels/formats/moments.h"

/* The attributes of updates element by element, but for those that each call has for itself: its rates, and where
 * rounding draws. */
static ms_op_attrs shared(const ms_kernel_call *call) {
  ms_op_attrs attrs = call->attrs;
  attrs.update.lr_scale = attrs.update.weight_decay = 0;
  attrs.update.stream = attrs.update.first = 0;
  return attrs;
}

int ms_cuda_update_joins(const ms_kernel_call *a, const ms_kernel_call *b) {
  const ms_op_attrs of_a = shared(a), of_b = shared(b);
  if (a->op != b->op || a->attrs.update.moments == MS_ADAMW_I8 || a->out[1].dtype != b->out[1].dtype) return 0;
  return !memcmp(&of_a, &of_b, sizeof of_a);
}
