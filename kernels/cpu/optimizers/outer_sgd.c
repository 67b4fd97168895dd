/* outer_sgd.c - the outer step of local SGD (DiLoCo), in one pass over a chunk, all f32 [n]: d, the sum over replicas
 * of what their weights moved since the last sync; the local weights w; the synced weights s; the momentum buffer b.
 *
 *   g = share d                          share: 1 / replicas
 *   b = momentum b + g                   b is 0 before the first sync, as in torch.optim.SGD
 *   s = s - lr (nesterov: g + momentum b; else: b)
 *   w = s + alpha (w - s)                alpha 0: exactly s
 */
#include "kernels/cpu/block.h"

#include "kernels/cpu/parallel.h"

MS_CLONES static void plain_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const float lr = (float)call->scalars->lr, alpha = (float)call->attrs.outer_sgd.alpha,
              share = (float)call->attrs.outer_sgd.share;
  const float *restrict d = call->in_data[0];
  float *restrict w = call->out_data[0], *restrict s = call->out_data[1];
#pragma omp simd
  for (int64_t i = begin; i < end; i++) {
    const float synced = s[i] - lr * (share * d[i]);
    s[i] = synced;
    w[i] = alpha == 0.0f ? synced : synced + alpha * (w[i] - synced);
  }
}

MS_CLONES static void momentum_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const float lr = (float)call->scalars->lr, alpha = (float)call->attrs.outer_sgd.alpha,
              share = (float)call->attrs.outer_sgd.share;
  const float momentum = (float)call->attrs.outer_sgd.momentum;
  const int nesterov = call->attrs.outer_sgd.nesterov != 0;
  /* s changes by -lr (own g + carried b). */
  const float own = nesterov ? 1.0f : 0.0f, carried = nesterov ? momentum : 1.0f;
  const float *restrict d = call->in_data[0];
  float *restrict w = call->out_data[0], *restrict s = call->out_data[1], *restrict b = call->out_data[2];
#pragma omp simd
  for (int64_t i = begin; i < end; i++) {
    const float g = share * d[i], moved = momentum * b[i] + g, synced = s[i] - lr * (own * g + carried * moved);
    b[i] = moved;
    s[i] = synced;
    w[i] = alpha == 0.0f ? synced : synced + alpha * (w[i] - synced);
  }
}

static int run(const ms_kernel_call *call) {
  return ms_run_elements(call, ms_numel(&call->in[0]),
                         call->attrs.outer_sgd.momentum == 0.0 ? plain_part : momentum_part);
}

const ms_kernel ms_cpu_outer_sgd = {.run = run};
