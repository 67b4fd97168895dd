/* conv2d.c - the workspace of convolutions: the gradient of w sums over all pixels of all images, in parts where its
 * own tiles are too few to keep a GPU busy. */
#include "kernels/cuda/plan/conv2d.h"

#include "base/error.h"
#include "kernels/cuda/plan/plan.h"
#include "kernels/cuda/plan/sizes.h"

/* Blocks that keep a GPU busy, and the fewest pixels that are worth one. */
enum { BLOCKS = 512, MIN_PIXELS = 512 };
/* A grid's rows. */
enum { MAX_GROUPS = 65535 };

int64_t ms_conv_sum_parts(const ms_conv *c) {
  const int64_t tiles = c->groups * ms_cuda_ceil(c->features, MS_CONV_TILE) *
                        ms_cuda_ceil(c->channels * c->down.size * c->across.size, MS_CONV_TILE);
  const int64_t pixels = c->images * c->down.out * c->across.out, most = pixels / MIN_PIXELS;
  const int64_t wanted = tiles ? ms_cuda_ceil(BLOCKS, tiles) : 1, parts = wanted < most ? wanted : most;
  return parts < 1 ? 1 : parts;
}

int64_t ms_conv_parts_of(const ms_kernel_call *call) {
  const ms_conv conv = ms_conv_of(call);
  return call->op == MS_OP_conv2d_backward_weight ? ms_conv_sum_parts(&conv) : 1;
}

int ms_cuda_prepare_conv2d(ms_kernel_call *call) {
  const ms_conv conv = ms_conv_of(call);
  if (conv.groups > MAX_GROUPS)
    return MS_FAIL(MS_EUNSUPPORTED, "conv2d: %lld groups; a GPU takes at most %d", (long long)conv.groups, MAX_GROUPS);
  const int64_t parts = ms_conv_parts_of(call);
  call->workspace_bytes = parts > 1 ? parts * ms_numel(&call->out[0]) * (int64_t)sizeof(float) : 0;
  return MS_OK;
}
