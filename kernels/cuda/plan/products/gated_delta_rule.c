/* gated_delta_rule.c - see the header. */
#include "kernels/cuda/plan/products/gated_delta_rule.h"

#include "kernels/cuda/plan/plan.h"
#include "kernels/cuda/plan/sizes.h"

enum { C = MS_DELTA_CHUNK };

/* Appends an array of n floats of each head. */
static int64_t append(const ms_delta_rule *r, int64_t *used, int64_t n) {
  const int64_t at = *used;
  *used = (at + ms_cuda_align(r->batch * r->heads * n * (int64_t)sizeof(float)) / (int64_t)sizeof(float));
  return at;
}

ms_delta_places ms_delta_places_of(const ms_delta_rule *r) {
  ms_delta_places at;
  int64_t used = 0;
  at.chunks = append(r, &used, 3 * C * r->e + 3 * C * C);
  at.states = append(r, &used, ms_delta_chunks(r) * r->d * r->e);
  at.state = append(r, &used, r->d * r->e);
  at.begin = append(r, &used, r->d * r->e);
  at.keys = append(r, &used, 2 * r->t * r->d);
  at.all = used;
  return at;
}

int ms_cuda_prepare_gated_delta_rule(ms_kernel_call *call) {
  const ms_delta_rule r = ms_delta_rule_of(call->op, &call->attrs, call->inputs, call->in);
  call->workspace_bytes = r.backward ? ms_delta_places_of(&r).all * (int64_t)sizeof(float) : 0;
  return MS_OK;
}
