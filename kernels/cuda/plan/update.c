/* update.c - which updates a launch takes (kernels/cuda/optimizers/update.h): those of one optimizer with the same
 * settings, apart from the learning rate and the weight decay. Moments that are kept in 8 bits have a kernel of their
 * own, with a launch for each call. */
#include "kernels/cuda/plan/plan.h"
#include "kernels/formats/moments.h"

/* Attributes of adamw, lion and sgd that each call has for itself: where rounding draws; lr_scale and weight_decay. */
enum { OF_A_CALL_I = 1 << 1 | 1 << 2, OF_A_CALL_F = 1 << 0 | 1 << 1 };

int ms_cuda_update_joins(const ms_kernel_call *a, const ms_kernel_call *b) {
  const ms_attrs *x = &a->attrs, *y = &b->attrs;
  if (a->op != b->op || x->i[3] == MS_ADAMW_I8 || a->out[1].dtype != b->out[1].dtype) return 0;
  for (int i = 0; i < (int)(sizeof x->i / sizeof *x->i); i++)
    if (!(OF_A_CALL_I >> i & 1) && x->i[i] != y->i[i]) return 0;
  for (int i = 0; i < (int)(sizeof x->f / sizeof *x->f); i++)
    if (!(OF_A_CALL_F >> i & 1) && x->f[i] != y->f[i]) return 0;
  return 1;
}
